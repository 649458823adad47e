"""Exports for transformers, llama.cpp and peft have equal logits there and after import."""

import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import lemma
from lemma.errors import InputError, RunError
from lemma.files import file_hash
from lemma.hub.pretrained import open_pretrained
from pretrained_models import TEXT, llama, pieces

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")
TOKENS = torch.arange(20)[None]
LLAMA = {"positions": "rotary", "norm": "rms", "gated": True, "activation": "silu", "bias": False}
QUICK: dict[str, Any] = {"steps": 2, "batch": 2, "sequence_length": 16, "device": "cpu", "progress": False}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT * 8, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def runs(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run like GPT-2, one like Llama, a pretrained model and LoRA on it."""
    folder = tmp_path_factory.mktemp("runs")
    small = {"width": 16, "depth": 2, "heads": 2, "context": 32, "tokenizer": "byte-pairs"}
    lemma.train("decoder", text=text, out=folder / "gpt2", **small, **QUICK)
    lemma.train("decoder", text=text, out=folder / "llama", key_value_heads=1, **LLAMA, **small, **QUICK)
    lemma.train("lstm", text=text, out=folder / "lstm", width=8, hidden=8, **QUICK)
    llama(folder / "base", tokenizer=pieces())
    lemma.adapt(folder / "base", text=text, out=folder / "adapted", rank=3, learning_rate=0.05, **QUICK)
    return folder


def lemma_logits(path: Path) -> torch.Tensor:
    return lemma.load(path, device="cpu").model(TOKENS)[0]


@pytest.mark.parametrize("name", ["gpt2", "llama", "base", "adapted"])
def test_exported_run_has_equal_logits_in_transformers(name: str, runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "folder"
    output = lemma.export(runs / name, to="huggingface", out=out)
    reference, info = transformers.AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    torch.testing.assert_close(reference(TOKENS).logits, lemma_logits(runs / name), rtol=0, atol=1e-5)
    torch.testing.assert_close(lemma_logits(out), lemma_logits(runs / name), rtol=0, atol=1e-6)
    assert output.parameters == sum(parameter.numel() for parameter in reference.parameters())
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    custom = lemma.load(runs / name, device="cpu").tokenizer
    for line in (TEXT[:100], "naïve ünï 🎉", ""):
        assert (
            tokenizer(line)["input_ids"]
            == custom.encode(line).tolist()
            == lemma.load(out).tokenizer.encode(line).tolist()
        )
    if custom.eos is not None:
        assert reference.generation_config.eos_token_id in (custom.eos, sorted(custom.stop_tokens))


def flip_bit(file: Path) -> bytes:
    """Flip a bit of the last digit of JSON, which stays valid, or of the last weight; return the old content."""
    good = file.read_bytes()
    index = max(good.rfind(digit) for digit in b"0123456789") if file.suffix == ".json" else len(good) - 3
    file.write_bytes(good[:index] + bytes([good[index] ^ 1]) + good[index + 1 :])
    return good


@pytest.mark.filterwarnings("default")
def test_flipped_bit_in_a_pretrained_folder_is_named(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "home"))
    folder, blobs = tmp_path / "folder", tmp_path / "hub" / "blobs"
    old = os.umask(0o027)
    lemma.export(runs / "gpt2", to="huggingface", out=folder)
    os.umask(old)
    assert {oct(file.stat().st_mode & 0o777) for file in folder.iterdir()} == {"0o640"}
    assert {file.state for file in lemma.verify(folder).files} == {"good"}
    names = ("model.safetensors", "tokenizer_config.json", "generation_config.json")
    for name in names:  # Lemma wrote it with checksums
        good = flip_bit(folder / name)
        with pytest.raises(RunError, match=re.escape(f"{folder / name} is damaged")):
            lemma_logits(folder)
        assert [file.path for file in lemma.verify(folder).files if file.state == "damaged"] == [name]
        (folder / name).write_bytes(good)
    (folder / "lemma.json").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lemma_logits(folder)  # records the checksums of its files
        lemma_logits(folder)
    for name in names[1:]:
        flip_bit(folder / name)
        with pytest.warns(UserWarning, match=re.escape(f"{folder / name} has changed since")):
            lemma_logits(folder)
    blobs.mkdir(parents=True)  # as Hugging Face's cache names files
    blob = blobs / file_hash(folder / "model.safetensors")
    (folder / "model.safetensors").rename(blob)
    (folder / "model.safetensors").symlink_to(blob)
    lemma_logits(folder)
    flip_bit(blob)
    with pytest.raises(RunError, match=r"model\.safetensors is damaged: it does not have the SHA-256"):
        lemma_logits(folder)


def test_export_includes_the_chat_template(runs: Path, tmp_path: Path) -> None:
    lemma.export(runs / "adapted", to="huggingface", out=tmp_path / "folder")
    messages = [{"role": "user", "content": "hi"}]
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder")
    ids = reference.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert ids == lemma.load(runs / "adapted").chat(messages)


def test_export_without_native_class_is_rejected_with_the_reason(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="lstm cannot be written for transformers"):
        lemma.export(runs / "lstm", to="huggingface", out=tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_export_does_not_replace_unrelated_folders(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.md").write_text("mine")
    with pytest.raises(RunError, match=r"holds thesis\.md"):
        lemma.export(runs / "gpt2", to="huggingface", out=tmp_path / "folder")
    with pytest.raises(InputError, match="Did you mean 'huggingface'"):
        lemma.export(runs / "gpt2", to="hugingface", out=tmp_path / "other")  # pyright: ignore
    with pytest.raises(RunError, match="not an adapted run"):
        lemma.export(runs / "gpt2", to="peft", out=tmp_path / "other")


# peft, with the names of transformers


def test_exported_lora_has_equal_logits_in_peft(runs: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    lemma.export(runs / "adapted", to="peft", out=tmp_path / "adapter")
    base = transformers.AutoModelForCausalLM.from_pretrained(runs / "base")
    before = base(TOKENS).logits
    reference = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    assert set(reference.peft_config["default"].target_modules) >= {"q_proj", "k_proj", "v_proj", "o_proj", "down_proj"}
    actual = reference(TOKENS).logits
    assert (actual - before).abs().max() > 1e-3
    torch.testing.assert_close(actual, lemma_logits(runs / "adapted"), rtol=0, atol=1e-5)
    back = lemma.adapt.from_peft(runs / "base", tmp_path / "adapter", out=tmp_path / "back")
    assert back.what == "an adapted run"
    torch.testing.assert_close(lemma_logits(tmp_path / "back"), lemma_logits(runs / "adapted"), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": ["q_proj", "v_proj"]},
        {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj"]},
        {"target_modules": "all-linear"},
        {"target_modules": "all-linear", "rank_pattern": {"down_proj": 5}, "alpha_pattern": {"layers.0.*up_proj": 3}},
    ],
    ids=str,
)
def test_peft_lora_survives_import_and_export(options: dict[str, Any], runs: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base = transformers.AutoModelForCausalLM.from_pretrained(runs / "base")
    torch.manual_seed(3)
    method = peft.LoraConfig(r=2, lora_alpha=6, init_lora_weights=False, **options)
    reference = peft.get_peft_model(base, method).eval()
    reference.save_pretrained(tmp_path / "adapter")
    built = lemma.adapt.from_peft(runs / "base", tmp_path / "adapter", out=tmp_path / "run")
    assert built.what == "an adapted run"
    torch.testing.assert_close(lemma_logits(tmp_path / "run"), reference(TOKENS).logits, rtol=0, atol=1e-5)
    lemma.export(tmp_path / "run", to="peft", out=tmp_path / "again")
    first, second = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("adapter", "again"))
    assert {name: tensor.shape for name, tensor in first.items()} == {n: tensor.shape for n, tensor in second.items()}
    unwrapped = transformers.AutoModelForCausalLM.from_pretrained(runs / "base")
    again = peft.PeftModel.from_pretrained(unwrapped, tmp_path / "again").eval()
    torch.testing.assert_close(again(TOKENS).logits, reference(TOKENS).logits, rtol=0, atol=1e-5)


def test_peft_modules_to_save_are_merged_with_a_note(runs: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base = transformers.AutoModelForCausalLM.from_pretrained(runs / "base")
    options = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"], init_lora_weights=False)
    reference = peft.get_peft_model(base, options).eval()
    reference.save_pretrained(tmp_path / "adapter")
    built = lemma.adapt.from_peft(runs / "base", tmp_path / "adapter", out=tmp_path / "run")
    assert "merged" in built.what and "merged" in str(built)
    torch.testing.assert_close(lemma_logits(tmp_path / "run"), reference(TOKENS).logits, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def opinions(runs: Path) -> Path:
    """Return a classifier adapted from the pretrained folder by LoRA."""
    words = {"good": ("lovely day", "kind cat", "happy end"), "bad": ("dull day", "mean dog", "sad end")}
    rows = [f"{text} {more},{label}" for label, texts in words.items() for text in texts for more in "abcde"]
    (runs / "opinions.csv").write_text("text,label\n" + "\n".join(rows))
    built = {"rank": 2, "learning_rate": 0.05, "steps": 2, "device": "cpu", "progress": False}
    lemma.adapt(runs / "base", labels=runs / "opinions.csv", out=runs / "opinions", **built)
    return runs / "opinions"


def test_exported_classifier_agrees_in_transformers(opinions: Path, tmp_path: Path) -> None:
    lemma.export(opinions, to="huggingface", out=tmp_path / "folder")
    classify = transformers.pipeline("text-classification", str(tmp_path / "folder"), device="cpu", top_k=None)
    texts = ["a lovely day", "the sad end of a mean dog", "day"]
    for text, output in zip(texts, classify(texts, batch_size=3), strict=True):  # of different lengths: padded
        assert {item["label"]: item["score"] for item in output} == pytest.approx(
            lemma.generate(opinions, source=text).probabilities, abs=1e-5
        )
    custom, again = lemma.load(opinions, device="cpu"), lemma.load(tmp_path / "folder", device="cpu")
    assert again.labels == custom.labels == ("bad", "good")
    with torch.no_grad():
        torch.testing.assert_close(again.module(TOKENS), custom.module(TOKENS), rtol=0, atol=1e-6)
    assert lemma.generate(tmp_path / "folder", source=texts[0]).label == lemma.generate(opinions, source=texts[0]).label
    with pytest.raises(InputError, match="whose own data are not known"):
        lemma.evaluate(tmp_path / "folder")
    score = lemma.evaluate(tmp_path / "folder", labels=opinions.parent / "opinions.csv", progress=False)
    assert score.texts == 30
    with pytest.raises(RunError, match="not for a classifier"):
        lemma.export(opinions, to="gguf", out=tmp_path / "model.gguf")


def test_exported_classifier_has_equal_logits_in_peft(opinions: Path, runs: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    lemma.export(opinions, to="peft", out=tmp_path / "adapter")
    kind = transformers.AutoModelForSequenceClassification
    reference = peft.PeftModel.from_pretrained(kind.from_pretrained(runs / "base"), tmp_path / "adapter").eval()
    assert reference.peft_config["default"].task_type == "SEQ_CLS"
    with torch.no_grad():
        custom = lemma.load(opinions, device="cpu").module(TOKENS)
        torch.testing.assert_close(reference(TOKENS).logits, custom, rtol=0, atol=1e-5)


def test_gpt2_transposed_matrices_survive_import_and_export(text: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    llama(tmp_path / "words")  # for its tokenizer
    torch.manual_seed(1)
    config = transformers.GPT2Config(vocab_size=300, n_embd=24, n_layer=2, n_head=3, n_positions=64, eos_token_id=0)
    base = transformers.GPT2LMHeadModel(config).eval()
    base.save_pretrained(tmp_path / "gpt2")
    (tmp_path / "gpt2" / "tokenizer.json").write_bytes((tmp_path / "words" / "tokenizer.json").read_bytes())
    lemma.adapt(tmp_path / "gpt2", text=text, out=tmp_path / "adapted", rank=2, learning_rate=0.05, **QUICK)
    lemma.export(tmp_path / "adapted", to="peft", out=tmp_path / "adapter")
    reference = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    torch.testing.assert_close(reference(TOKENS).logits, lemma_logits(tmp_path / "adapted"), rtol=0, atol=1e-5)


# GGUF


@pytest.mark.parametrize("name", ["llama", "base", "adapted"])
def test_gguf_export_has_equal_tensors_and_tokens(name: str, runs: Path, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    out = tmp_path / "model.gguf"
    lemma.export(runs / name, to="gguf", out=out)
    run, again = lemma.load(runs / name, device="cpu"), lemma.load(out, device="cpu")
    torch.testing.assert_close(again.model(TOKENS)[0], run.model(TOKENS)[0], rtol=0, atol=1e-5)
    for line in (TEXT[:100], "naïve ünï 🎉"):
        assert again.tokenizer.encode(line).tolist() == run.tokenizer.encode(line).tolist()
    assert again.tokenizer.eos == run.tokenizer.eos
    result = {tensor.name: torch.tensor(tensor.data) for tensor in gguf.GGUFReader(out).tensors}
    lemma.export(runs / name, to="huggingface", out=tmp_path / "folder")
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "folder").state_dict()
    assert torch.equal(result["token_embd.weight"], reference["model.embed_tokens.weight"])
    assert torch.equal(result["blk.1.ffn_down.weight"], reference["model.layers.1.mlp.down_proj.weight"])
    assert len(result) == len([key for key in reference if key != "lm_head.weight"]) + ("output.weight" in result)


def test_gguf_export_has_equal_logits_in_transformers(runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    lemma.export(runs / "llama", to="gguf", out=tmp_path / "model.gguf")
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    torch.testing.assert_close(reference(TOKENS).logits, lemma_logits(runs / "llama"), rtol=0, atol=1e-5)


ROPES: dict[str, dict[str, Any]] = {
    "linear": {"factor": 3.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "llama3 of another kind": {
        "factor": 5.0,
        "low_freq_factor": 2.0,
        "high_freq_factor": 64.0,
        "original_max_position_embeddings": 2048,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 8.0, "beta_slow": 1.5},
    "yarn with a factor": {"factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 1.3},
}


@pytest.mark.parametrize("kind", ROPES)
def test_scaled_rotary_positions_survive_gguf(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    rope = {"rope_theta": 50_000.0, "rope_type": kind.split()[0], **ROPES[kind]}
    model = llama(tmp_path / "folder", tokenizer=pieces(), rope_parameters=rope, hidden_size=64)  # heads of 16
    expected = model(TOKENS).logits
    lemma.export(tmp_path / "folder", to="gguf", out=tmp_path / "model.gguf")
    torch.testing.assert_close(lemma_logits(tmp_path / "model.gguf"), expected, rtol=0, atol=1e-5)


def _written_elsewhere(path: Path, model: Any, keys: Mapping[str, Any], divisors: Any = None) -> Path:
    """A Llama as llama.cpp's own conversion writes it, with other metadata; its tokenizer is left out."""
    import gguf

    writer, config = gguf.GGUFWriter(path, "llama"), model.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    for key, value in keys.items():
        getattr(writer, f"add_rope_{key}")(value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        count = heads.get(name.split(".")[-2])
        if count:
            tensor = tensor.view(count, 2, -1, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)
        writer.add_tensor(names.get_name(name, (".weight",)), tensor.numpy())
    if divisors is not None:
        writer.add_tensor("rope_freqs.weight", divisors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_llama_cpp_gguf_with_scaled_rotary_matches_transformers(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    kinds = gguf.RopeScalingType
    rope = {"rope_theta": 50_000.0, "rope_type": "llama3", **ROPES["llama3"]}
    model = llama(tmp_path / "folder", tokenizer=pieces(), rope_parameters=rope, hidden_size=64)
    angles = 50_000.0 ** -(np.arange(0, 16, 2) / 16)
    lengths, divisors = 2 * np.pi / angles, []
    for length in lengths:  # as in Meta's code
        smooth = (8192 / length - 1) / (4 - 1)
        saved = 1.0 if length < 8192 / 4 else 8.0 if length > 8192 else 1 / ((1 - smooth) / 8 + smooth)
        divisors.append(saved)
    assert len({round(number, 3) for number in divisors}) > 2
    for number, (custom_rope, keys, numbers) in enumerate(
        (
            (rope, {}, divisors),
            ({"rope_theta": 50_000.0, "rope_type": "default"}, {}, None),
            ({"rope_theta": 50_000.0, "rope_type": "linear", "factor": 2.5}, {"scaling_factor": 2.5}, None),
            (
                {"rope_theta": 50_000.0, "rope_type": "yarn", **ROPES["yarn with a factor"], "attention_factor": None},
                {"scaling_type": kinds.YARN, "scaling_factor": 4.0, "scaling_orig_ctx_len": 16},
                None,
            ),
        )
    ):
        custom = type(model)(
            transformers.LlamaConfig(**{**model.config.to_dict(), "rope_parameters": custom_rope})
        ).eval()
        custom.load_state_dict(model.state_dict())
        array = None if numbers is None else np.array(numbers, dtype=np.float32)
        path = _written_elsewhere(tmp_path / f"{number}.gguf", custom, keys, array)
        result = open_pretrained(path).model()(TOKENS)[0]
        torch.testing.assert_close(result, custom(TOKENS).logits, rtol=0, atol=1e-5)
    path = _written_elsewhere(tmp_path / "other.gguf", model, {}, np.array(divisors[::-1], dtype=np.float32))
    with pytest.raises(RunError, match=r"other\.gguf: rope_freqs\.weight scales .* not Llama 3's"):
        open_pretrained(path)
    path = _written_elsewhere(tmp_path / "long.gguf", model, {"scaling_type": kinds.LONGROPE})
    with pytest.raises(RunError, match="scaling 'longrope' of its rotary positions is not supported"):
        open_pretrained(path)


def test_gguf_export_of_unsupported_models_is_rejected(runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    with pytest.raises(RunError, match="GGUF is written for decoders of Llama's kind; this one is like gpt2's"):
        lemma.export(runs / "gpt2", to="gguf", out=tmp_path / "model.gguf")
    with pytest.raises(InputError, match=r"must end in \.gguf"):
        lemma.export(runs / "llama", to="gguf", out=tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_truncated_gguf_file_is_named(runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    out = tmp_path / "model.gguf"
    lemma.export(runs / "llama", to="gguf", out=out)
    full = out.read_bytes()
    for size in (3, 40, len(full) // 4, len(full) - 4):
        out.write_bytes(full[:size])
        with pytest.raises(RunError, match=r"model\.gguf"):
            lemma.load(out)
