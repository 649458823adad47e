"""Import and export of LoRA in peft's format against the peft library."""

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from lemma.adaptation.adapt import adapt_model, merge_lora
from lemma.errors import LemmaError, RunError, SpecError
from lemma.hub.peft import read_peft, write_peft
from lemma.models.build import build
from lemma.spec.models import Attentive, Classifier, Decoder, Lstm, TableA5
from lemma.spec.recipe import Lora

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

TOKENS = torch.arange(12).view(2, 6)
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def decoder(tied: bool = True) -> nn.Module:
    return build(Decoder(vocabulary=13, width=8, depth=2, heads=2, context=9, tied=tied)).eval()


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(vocab_size=13, n_embd=8, n_layer=2, n_head=2, n_positions=9, **NO_TOKENS)
    return transformers.GPT2LMHeadModel(config).eval()


def llama() -> nn.Module:
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.LlamaConfig(vocab_size=13, intermediate_size=12, **sizes, **NO_TOKENS)
    return transformers.LlamaForCausalLM(config).eval()


class Untied(nn.Module):
    """An embedding, a map and a head whose names are suffixes of each other."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"output": nn.Linear(6, 6), "middle": nn.Linear(6, 6, bias=False)})
        self.embedding, self.output = nn.Embedding(13, 6), nn.Linear(6, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.body["middle"](torch.tanh(self.body["output"](self.embedding(tokens)))))


BASES = {
    "decoder": decoder,
    "untied": lambda: decoder(tied=False),
    "gpt2": gpt2,
    "llama": llama,
    "ours": lambda: Untied().eval(),
}
TARGETS: dict[str, list[tuple[str, ...]]] = {
    "decoder": [(), ("*.attention.*",), ("embedding", "*.widen")],
    "untied": [("output",), ("embedding",)],
    "gpt2": [(), ("*.c_attn", "*.mlp.*"), ("transformer.wte", "*.c_proj")],
    "llama": [(), ("*.q_proj", "*.v_proj"), ("lm_head", "model.embed_tokens")],
    "ours": [("output",), ("embedding", "body.output")],
}
CASES = [(name, targets) for name, some in TARGETS.items() for targets in some]


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        settings = model(TOKENS)
    return settings[0] if isinstance(settings, tuple) else getattr(settings, "logits", settings)


def randomize_trainable(model: nn.Module) -> nn.Module:
    """Set random values for all trainable parameters."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.3)
    return model


def make_peft_model(base: nn.Module, folder: Path, **options: Any) -> Any:
    """Return a model adapted, randomized and saved by peft."""
    model = peft.get_peft_model(base, peft.LoraConfig(**options)).eval()
    randomize_trainable(model)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize(("name", "targets"), CASES)
def test_peft_loads_exported_lora(name: str, targets: tuple[str, ...], tmp_path: Path) -> None:
    base = BASES[name]()
    model = copy.deepcopy(base)
    adapt_model(model, Lora(rank=3, alpha=7, lora_dropout=0.1, targets=targets))
    write_peft(randomize_trainable(model), tmp_path / "made" / "adapter", base="somewhere")
    reference = peft.PeftModel.from_pretrained(base, tmp_path / "made" / "adapter").eval()
    torch.testing.assert_close(logits(reference), logits(model))
    config = reference.peft_config["default"]
    assert (config.r, config.lora_alpha, config.lora_dropout) == (3, 7, 0.1)
    assert not torch.allclose(logits(reference), logits(BASES[name]()))
    text = load_file(tmp_path / "made" / "adapter" / "adapter_model.safetensors")
    assert len(text) == sum("lora_" in path for path, _ in reference.named_parameters())  # and in no other modules


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("decoder", {"r": 2, "target_modules": ["query_key_value", "narrow"], "lora_alpha": 5}),
        (
            "decoder",
            {"r": 2, "target_modules": r"layers\.1\.(attention\.output|feed_forward\.w.*)", "use_rslora": True},
        ),
        ("untied", {"r": 3, "target_modules": ["embedding"], "init_lora_weights": "gaussian"}),
        ("gpt2", {"r": 2, "target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True, "rank_pattern": {"c_fc": 4}}),
        (
            "llama",
            {
                "r": 3,
                "target_modules": "all-linear",
                "alpha_pattern": {"layers.0.self_attn.q_proj": 9},
                "rank_pattern": {"down_proj": 1},
                "use_rslora": True,
            },
        ),
        ("llama", {"r": 2, "target_modules": ["q_proj", "embed_tokens"], "layers_to_transform": [0, 1]}),
        ("llama", {"r": 2, "target_modules": ["v_proj"], "modules_to_save": ["lm_head"]}),
        ("ours", {"r": 2, "target_modules": ["middle"], "modules_to_save": ["body.output"]}),
    ],
)
def test_peft_lora_is_imported(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    base = BASES[name]()
    model, unwrapped = copy.deepcopy(base), logits(base)
    reference = make_peft_model(base, tmp_path, **options)
    names, state = set(model.state_dict()), torch.random.get_rng_state()
    adaptation = read_peft(tmp_path, model)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.testing.assert_close(logits(model), logits(reference))
    assert not torch.allclose(logits(model), unwrapped)
    trained = sum(int(p.count_nonzero()) for p in model.parameters() if p.requires_grad)
    assert trained == sum(p.numel() for p in reference.parameters() if p.requires_grad)  # the others are zeros
    assert adaptation.num_trainable == trained or "rank_pattern" in options
    assert set(merge_lora(model).state_dict()) == names
    torch.testing.assert_close(logits(model), logits(reference.merge_and_unload()))


def test_reexported_peft_lora_preserves_ranks_and_scales(tmp_path: Path) -> None:
    patterns = {"rank_pattern": {"c_fc": 4}, "alpha_pattern": {"h.0.attn.c_attn": 3}}
    reference = make_peft_model(
        gpt2(), tmp_path / "one", r=2, target_modules=["c_attn", "c_fc"], use_rslora=True, **patterns
    )
    base = copy.deepcopy(reference).unload()
    model = read_peft(tmp_path / "one", copy.deepcopy(base)).model
    write_peft(model, tmp_path / "two")
    again = peft.PeftModel.from_pretrained(base, tmp_path / "two").eval()
    torch.testing.assert_close(logits(again), logits(reference))
    shapes = [
        {name: tensor.shape for name, tensor in load_file(tmp_path / folder / "adapter_model.safetensors").items()}
        for folder in ("one", "two")
    ]
    assert shapes[0] == shapes[1]


def test_imported_peft_method_creates_equal_updates(tmp_path: Path) -> None:
    make_peft_model(decoder(), tmp_path, r=4, lora_alpha=6, target_modules=["widen"], use_rslora=True, lora_dropout=0.2)
    read = read_peft(tmp_path, decoder())
    same = adapt_model(decoder(), read.method)
    assert same.trainable == read.trainable
    assert read.method.alpha / read.method.rank == pytest.approx(6 / 4**0.5)
    assert read.method.lora_dropout == 0.2


def test_trained_head_is_exported_and_imported_with_lora(tmp_path: Path) -> None:
    base = build(Classifier(body=Decoder(vocabulary=13, width=8, depth=1, heads=2, context=9), classes=3)).eval()
    model = copy.deepcopy(base)
    adapt_model(model, Lora(rank=2), learn=("head.*",))
    write_peft(randomize_trainable(model), tmp_path / "adapter")
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["modules_to_save"] == ["head"]
    reference = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "adapter").eval()
    torch.testing.assert_close(logits(reference), logits(model))
    ours = read_peft(tmp_path / "adapter", base)
    torch.testing.assert_close(logits(ours.model), logits(model))
    assert {trained.path for trained in ours.trainable} == {path for path, _ in adapted_paths(model)}


def adapted_paths(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(path, parameter) for path, parameter in model.named_parameters() if parameter.requires_grad]


def test_lora_unsupported_by_peft_is_rejected(tmp_path: Path) -> None:
    for spec in (Lstm(vocabulary=13, width=6, hidden=6), TableA5(vocabulary=13, embedding=4, width=8, heads=2)):
        model = adapt_model(build(spec), Lora(rank=2)).model
        with pytest.raises(SpecError, match=r"peft's format has updates of linear maps and embeddings only"):
            write_peft(model, tmp_path / "adapter")
    body = Attentive(vocabulary=13, width=6, key_width=5, value_width=4, hidden=7, context=5)
    attentive = adapt_model(build(Classifier(body=body)), Lora(rank=2), learn=("head.*",)).model
    with pytest.raises(SpecError, match="modules_to_save"):  # the body has a 'head', too
        write_peft(attentive, tmp_path / "adapter")
    biases = adapt_model(decoder(), Lora(rank=2), learn=("norm.bias",)).model
    with pytest.raises(SpecError, match=r"norm\.bias: peft saves whole modules"):
        write_peft(biases, tmp_path / "adapter")
    with pytest.raises(SpecError, match="no LoRA updates"):
        write_peft(decoder(), tmp_path / "adapter")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"bias": "lora_only"}, "bias"),
        ({"lora_bias": True}, "lora_bias"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"layer_replication": [(0, 1), (0, 2)]}, "layer_replication"),
    ],
)
def test_unsupported_peft_options_are_rejected_by_name(options: dict[str, Any], named: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make_peft_model(llama(), tmp_path, r=2, target_modules=["q_proj"], **options)
    model = llama()
    before = {name: (value.clone(), value.requires_grad) for name, value in model.named_parameters()}
    with pytest.raises(RunError, match=named):
        read_peft(tmp_path, model)
    assert {name for name, _ in model.named_parameters()} == set(before)
    assert all(torch.equal(p, before[n][0]) and p.requires_grad == before[n][1] for n, p in model.named_parameters())


def test_invalid_peft_folders_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a peft folder"):
        read_peft(tmp_path, decoder())
    make_peft_model(decoder(), tmp_path / "one", r=2, target_modules=["widen"])
    with pytest.raises(RunError, match=r"unknown module 'layers\.0\.feed_forward\.widen'"):
        read_peft(tmp_path / "one", gpt2())
    wider = build(Decoder(vocabulary=13, width=12, depth=2, heads=2, context=9))
    with pytest.raises(RunError, match=r"lora_A is \(2, 8\) .* where this model needs 2 × 12 and 48 × 2"):
        read_peft(tmp_path / "one", wider)
    weights = tmp_path / "one" / "adapter_model.safetensors"
    weights.rename(weights.with_suffix(".bin"))
    with pytest.raises(RunError, match="is a pickle"):
        read_peft(tmp_path / "one", decoder())
    make_peft_model(decoder(), tmp_path / "two", r=2, target_modules=["embedding"])
    with pytest.raises(RunError, match="embedding and output, which are one"):
        read_peft(tmp_path / "two", decoder())
    (tmp_path / "two" / "adapter_model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(RunError, match="is damaged"):
        read_peft(tmp_path / "two", decoder())
    other = peft.get_peft_model(llama(), peft.IA3Config(target_modules=["k_proj"], feedforward_modules=[]))
    other.save_pretrained(tmp_path / "three")
    with pytest.raises(RunError, match="only LORA can be read"):
        read_peft(tmp_path / "three", llama())


def test_peft_export_never_replaces_unrelated_folders(tmp_path: Path) -> None:
    model = adapt_model(decoder(), Lora(rank=2)).model
    (tmp_path / "precious.txt").write_text("do not lose me")
    with pytest.raises(LemmaError, match=r"holds precious\.txt"):
        write_peft(model, tmp_path)
    assert (tmp_path / "precious.txt").read_text() == "do not lose me"
    write_peft(model, tmp_path / "adapter")
    with pytest.raises(LemmaError, match=r"adapter already exists.*--overwrite"):
        write_peft(model, tmp_path / "adapter")
    write_peft(model, tmp_path / "adapter", overwrite=True)  # Lemma wrote it
    assert {path.name for path in tmp_path.iterdir()} == {"precious.txt", "adapter"}
