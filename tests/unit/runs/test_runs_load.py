"""Loaded runs equal the saved model; damage or a changed spec is reported."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from lemma.data.tokenizers import train_tokenizer
from lemma.errors import RunError
from lemma.models.base import LanguageModel
from lemma.models.build import build
from lemma.runs.checkpoint import Checkpoint, named_weights, save_checkpoint
from lemma.runs.folder import RunFolder
from lemma.runs.load import load
from lemma.spec.base import to_toml
from lemma.spec.data import Characters, DataSpec
from lemma.spec.models import Decoder, ModelSpec
from lemma.spec.recipe import Recipe

from families import SMALL

TOKENS = torch.arange(10).view(2, 5)


def new_run(path: Path, spec: ModelSpec, recipe: Recipe | None = None) -> RunFolder:
    tokenizer = train_tokenizer(Characters(), ["abcdefghijk"])
    return RunFolder(path, spec, recipe or Recipe(), DataSpec(text=("a.txt",)), "f00d").create(tokenizer)


def finished_run(path: Path, name: str = "decoder") -> LanguageModel:
    model = build(SMALL[name]).eval()
    new_run(path, SMALL[name]).finish(named_weights(model), {"steps": 3})
    return model


def save_step(folder: RunFolder, model: LanguageModel, step: int = 3, **best: dict[str, torch.Tensor]) -> None:
    tensors = {"model": named_weights(model), **best}
    save_checkpoint(folder.checkpoints, Checkpoint(step, tensors, {"spec": folder.spec.to_dict()}))


@pytest.mark.parametrize("name", SMALL)
def test_loaded_run_gives_the_same_logits(tmp_path: Path, name: str) -> None:
    model = finished_run(tmp_path / "run", name)
    torch.manual_seed(99)
    run = load(tmp_path / "run")
    assert torch.equal(run.model(TOKENS)[0], model(TOKENS)[0]) and not run.model.training
    assert (run.spec, run.data_hash, run.summary, run.note) == (SMALL[name], "f00d", {"steps": 3}, None)
    assert run.tokenizer.decode([0, 1]) == "ab"


def test_tied_tensor_is_stored_once_and_stays_tied(tmp_path: Path) -> None:
    finished_run(tmp_path / "run", "lstm-tied")
    with safe_open(tmp_path / "run" / "model.safetensors", "pt") as file:
        stored = set(file.keys())
    model = load(tmp_path / "run").model
    assert stored == set(dict(model.named_parameters())) and "output.weight" not in stored
    assert model.get_parameter("output.weight") is model.get_parameter("embedding.weight")


@pytest.mark.parametrize(
    ("word", "value", "held"), [("depth", 3, 2), ("heads", 4, 2), ("activation", "relu", "gelu"), ("tied", False, True)]
)
def test_edited_spec_is_detected_even_with_equal_shapes(tmp_path: Path, word, value, held) -> None:
    finished_run(tmp_path / "run")
    (tmp_path / "run" / "spec.toml").write_text(to_toml(SMALL["decoder"].replace(**{word: value}).to_dict()))
    with pytest.raises(RunError, match=rf"spec\.toml says {word} = {value}; the run was made with {held}"):
        load(tmp_path / "run")
    (tmp_path / "run" / "manifest.json").unlink()  # a run of version 0.1 has none
    with pytest.raises(RunError, match=rf"model\.safetensors holds {word} {held}, spec\.toml says {value}"):
        load(tmp_path / "run")


def test_flipped_weight_bit_falls_back_to_the_last_checkpoint(tmp_path: Path) -> None:
    model = finished_run(tmp_path / "run")
    file = tmp_path / "run" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(RunError, match=r"model\.safetensors is damaged.*no checkpoint"):
        load(tmp_path / "run")
    save_step(RunFolder.open(tmp_path / "run"), model)
    with pytest.warns(UserWarning, match=r"model\.safetensors is damaged.*step 3"):
        run = load(tmp_path / "run")
    assert torch.equal(run.model(TOKENS)[0], model(TOKENS)[0]) and run.note


@pytest.mark.parametrize("keep", ["best", "last"])
def test_unfinished_run_loads_weights_of_its_last_checkpoint(tmp_path: Path, keep) -> None:
    folder = new_run(tmp_path / "run", SMALL["gru"], Recipe(keep=keep))
    with pytest.raises(RunError, match=r"not finished.*--resume"):
        load(folder.path)
    models = {"last": build(SMALL["gru"]).eval(), "best": build(SMALL["gru"]).eval()}
    save_step(folder, models["last"], best=named_weights(models["best"]))
    with pytest.warns(UserWarning, match=f"{keep} weights up to step 3"):
        run = load(folder.path)
    assert torch.equal(run.model(TOKENS)[0], models[keep](TOKENS)[0]) and run.summary is None


def test_mismatched_weight_shapes_are_named(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "run", SMALL["gru"])
    width = {
        name: torch.zeros(tensor.shape[0] + 1, *tensor.shape[1:])
        for name, tensor in named_weights(build(SMALL["gru"])).items()
    }
    folder.finish(width, {})
    with pytest.raises(RunError, match=r"does not fit its spec: embedding\.weight is \(12, 6\), expected \(11, 6\)"):
        load(folder.path)


def test_loading_stores_only_large_matrices_by_column(tmp_path: Path) -> None:
    spec = Decoder(V=600, d=512, L=1, h=2, T=8, gated=True, activation="silu", tied=True)
    model = build(spec).eval()
    new_run(tmp_path / "large", spec).finish(named_weights(model), {"steps": 3})
    loaded = load(tmp_path / "large").model
    strides = {name: weight.stride(0) for name, weight in loaded.named_parameters() if weight.dim() == 2}
    assert {name for name, step in strides.items() if step == 1} == {
        "embedding.weight",
        "layers.0.attention.query_key_value.weight",
        "layers.0.attention.output.weight",
        "layers.0.feed_forward.gate_widen.weight",
    }
    assert loaded.get_parameter("output.weight") is loaded.get_parameter("embedding.weight")
    assert all(torch.equal(weight, loaded.get_parameter(name)) for name, weight in model.named_parameters())
    torch.testing.assert_close(loaded(TOKENS)[0], model(TOKENS)[0])
    RunFolder.open(tmp_path / "large").finish(named_weights(loaded), {"steps": 3})
    assert torch.equal(load(tmp_path / "large").model(TOKENS)[0], loaded(TOKENS)[0])
