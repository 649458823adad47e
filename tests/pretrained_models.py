"""Tiny pretrained models of other libraries for the tests: random weights by transformers, a tokenizer, all local."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

TEXT = "the cat sat on the mat. Once upon a time, there was a naïve café; don't say 12345!\n" * 20
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
}


def byte_level(
    special: tuple[str, ...] = ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), starts_text: bool = False
) -> Tokenizer:
    """Return byte-level BPE with special tokens; with `starts_text` each text starts with the first."""
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer: Any = trainers.BpeTrainer(vocab_size=300, special_tokens=list(special), initial_alphabet=alphabet)
    engine.train_from_iterator([TEXT], trainer)
    if starts_text:
        index = [(special[0], 0)]
        engine.post_processor = processors.TemplateProcessing(single=f"{special[0]} $A", special_tokens=index)
    return engine


def pieces() -> Tokenizer:
    """Return SentencePiece-style BPE: spaces as ▁, a prefix space, byte fallback."""
    from tokenizers import normalizers

    engine = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer: Any = trainers.BpeTrainer(vocab_size=340, special_tokens=special)
    engine.pre_tokenizer = pre_tokenizers.Metaspace()  # pieces do not span words
    engine.train_from_iterator([TEXT], trainer)
    plan = {**json.loads(engine.to_str()), "pre_tokenizer": None}
    plan["added_tokens"] = plan["added_tokens"][:3]
    engine = Tokenizer.from_str(json.dumps(plan))
    engine.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    back = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    engine.decoder = decoders.Sequence(back)
    engine.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special[:3]])
    engine.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return engine


def wordpiece() -> Tokenizer:
    """Return BERT-style WordPiece between [CLS] and [SEP]."""
    from tokenizers import normalizers

    engine = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    engine.normalizer, engine.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece()
    trainer: Any = trainers.WordPieceTrainer(vocab_size=120, special_tokens=["[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    engine.train_from_iterator([TEXT], trainer)
    engine.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return engine


def llama(
    folder: Path, tokenizer: Tokenizer | None = None, shard: str = "5GB", dtype: str = "float32", **more: Any
) -> Any:
    """Write a Llama folder as transformers does, and return the model."""
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    engine = tokenizer or byte_level()
    config = LlamaConfig(
        **{**SIZES, "vocab_size": engine.get_vocab_size(), "bos_token_id": 1, "eos_token_id": 2, **more}
    )
    torch.manual_seed(7)
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)
    names = [token.content for token in engine.get_added_tokens_decoder().values()]
    fast = PreTrainedTokenizerFast(tokenizer_object=engine, bos_token=names[1], eos_token=names[2])
    fast.chat_template = CHAT
    fast.save_pretrained(folder)
    return model
