"""Checkpoints round-trip bitwise; damaged ones are named and skipped."""

from pathlib import Path

import pytest
import torch

from lemma.errors import RunError
from lemma.runs.checkpoint import (
    Checkpoint,
    check_weights_spec,
    list_checkpoints,
    read_latest_checkpoint,
    remove_checkpoints_after,
    save_checkpoint,
)
from lemma.spec.models import Classifier, Decoder


def example(step: int) -> Checkpoint:
    torch.manual_seed(step)
    model = {"weight": torch.randn(3, 5), "half": torch.randn(4).bfloat16(), "alone": torch.tensor(float(step))}
    random = {"cpu": torch.get_rng_state()}
    return Checkpoint(step, {"model": model, "random": random, "carried": {}}, {"best": 0.1 + 0.2, "none": None})


def steps(folder: Path) -> list[str]:
    return [path.name for path in list_checkpoints(folder)]


def test_checkpoint_round_trip_is_bitwise_exact(tmp_path: Path) -> None:
    before = example(7)
    save_checkpoint(tmp_path / "checkpoints", before)
    after = read_latest_checkpoint(tmp_path / "checkpoints")
    assert after and after.step == 7 and after.state == {"step": 7, "best": 0.1 + 0.2, "none": None}
    assert {name: set(group) for name, group in after.tensors.items()} == {
        name: set(group) for name, group in before.tensors.items()
    }
    for name, group in before.tensors.items():
        for key, tensor in group.items():
            assert after.tensors[name][key].dtype == tensor.dtype and torch.equal(after.tensors[name][key], tensor)


def test_last_two_checkpoints_by_step_number_are_retained(tmp_path: Path) -> None:
    for step in (8, 9, 10, 100):
        save_checkpoint(tmp_path, example(step))
    assert steps(tmp_path) == ["step-10", "step-100"]


def test_missing_checkpoint_returns_none(tmp_path: Path) -> None:
    assert read_latest_checkpoint(tmp_path / "checkpoints") is None


@pytest.mark.parametrize("name", ["model.safetensors", "random.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "first byte", "middle byte", "last byte"])
def test_damaged_checkpoint_is_named_and_the_previous_one_used(tmp_path: Path, name: str, damage: str) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, example(step))
    file = tmp_path / "step-2" / name
    content = bytearray(file.read_bytes())
    index = {"first byte": 0, "middle byte": len(content) // 2, "last byte": -1}.get(damage)
    if index is not None:
        content[index] ^= 1
    file.write_bytes({"empty": b"", "cut": content[:-1]}.get(damage, content))
    if damage == "missing":
        file.unlink()
    messages: list[str] = []
    good = read_latest_checkpoint(tmp_path, messages.append)
    assert good and good.step == 1
    assert len(messages) == 1 and "step-2" in messages[0]
    assert name in messages[0] or name == "manifest.json"  # a wrong manifest blames the file with the wrong checksum


def test_error_lists_all_damaged_checkpoints(tmp_path: Path) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, example(step))
        (tmp_path / f"step-{step}" / "model.safetensors").write_bytes(b"")
    with pytest.raises(RunError, match=r"step-2/model\.safetensors.*step-1/model\.safetensors.*--overwrite"):
        read_latest_checkpoint(tmp_path, lambda message: None)


def test_damaged_checkpoint_warns_by_default(tmp_path: Path) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, example(step))
    (tmp_path / "step-2" / "state.json").unlink()
    with pytest.warns(UserWarning, match="state.json is missing"):
        read_latest_checkpoint(tmp_path)


def test_later_checkpoints_are_deleted_on_resume(tmp_path: Path) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, example(step))
    remove_checkpoints_after(tmp_path, 1)
    assert steps(tmp_path) == ["step-1"]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, Checkpoint(1, {}, {"try": 1}))
    save_checkpoint(tmp_path, Checkpoint(1, {}, {"try": 2}))
    good = read_latest_checkpoint(tmp_path)
    assert good and good.state["try"] == 2 and steps(tmp_path) == ["step-1"]


def test_old_weights_get_defaults_of_new_settings() -> None:
    spec = Decoder(positions="rotary", heads=2)
    words = spec.to_dict()
    old = {word: value for word, value in words.items() if word not in ("gated", "residual", "norm_epsilon")}
    old["positions"] = {"kind": "rotary", "base": 10_000.0, "first": 0}
    check_weights_spec(Path("model.safetensors"), old, spec)
    check_weights_spec(
        Path("model.safetensors"), Classifier(body=spec).to_dict() | {"body": old}, Classifier(body=spec)
    )
    with pytest.raises(RunError, match=r"holds gated False, spec\.toml says True"):
        check_weights_spec(Path("model.safetensors"), old, spec.replace(gated=True))
    with pytest.raises(RunError, match="holds heads 4"):
        check_weights_spec(Path("model.safetensors"), old | {"heads": 4}, spec)
