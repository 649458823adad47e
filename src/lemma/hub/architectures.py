"""STUB."""
import torch
from lemma.spec.models import Decoder
def spec_from_config(c):
    if c["model_type"] != "llama": raise SystemExit("stub")
    h=c["num_attention_heads"]; kv=c.get("num_key_value_heads",h)
    return Decoder(vocabulary=c["vocab_size"],width=c["hidden_size"],heads=h,depth=c["num_hidden_layers"],key_value_heads=kv if kv!=h else None,feed_forward=c["intermediate_size"],gated=True,activation="silu",norm="rms",norm_epsilon=c["rms_norm_eps"],bias=False,tied=c.get("tie_word_embeddings",False),context=c["max_position_embeddings"],positions={"kind":"rotary","base":c.get("rope_theta") or c["rope_parameters"]["rope_theta"],"layout":"halves"})
def weights_from(c,t):
    yield "embedding.weight", t["model.embed_tokens.weight"]
    for i in range(c["num_hidden_layers"]):
        p=f"model.layers.{i}."
        q=f"layers.{i}."
        yield q+"attention_norm.weight", t[p+"input_layernorm.weight"]
        yield q+"attention.query_key_value.weight", torch.cat([t[p+f"self_attn.{k}_proj.weight"] for k in "qkv"])
        yield q+"attention.output.weight", t[p+"self_attn.o_proj.weight"]
        yield q+"feed_forward_norm.weight", t[p+"post_attention_layernorm.weight"]
        yield q+"feed_forward.gate_widen.weight", torch.cat([t[p+"mlp.gate_proj.weight"],t[p+"mlp.up_proj.weight"]])
        yield q+"feed_forward.narrow.weight", t[p+"mlp.down_proj.weight"]
    yield "norm.weight", t["model.norm.weight"]
    if not c.get("tie_word_embeddings"): yield "output.weight", t["lm_head.weight"]
def config_from_spec(s): raise SystemExit
def weights_to(s,w): raise SystemExit
