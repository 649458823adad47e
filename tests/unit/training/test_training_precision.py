"""Values of `auto` for precision, compilation and device; failed compilation."""

from pathlib import Path

import pytest
import torch

from lemma.errors import SpecError
from lemma.report.progress import SilentObserver
from lemma.runs.checkpoint import read_weights
from lemma.runs.folder import RunFolder
from lemma.runs.load import load
from lemma.spec.recipe import Recipe
from lemma.tasks.language import split_perplexity
from lemma.training.devices import choose_arithmetic, choose_device, matmul_precision
from small_runs import train_small

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def chosen(device: torch.device, stateful: bool = False, **words) -> tuple[torch.dtype, bool]:
    arithmetic = choose_arithmetic(Recipe(**words), device, not stateful)
    return arithmetic.dtype, arithmetic.is_compiled


def test_cpu_defaults_to_float32_without_compilation() -> None:
    assert chosen(CPU) == (torch.float32, False)
    assert chosen(CPU, precision="bfloat16", compile=True) == (torch.bfloat16, True)


def test_gpu_defaults_to_bfloat16_compiled_unless_recurrent(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert chosen(GPU) == (torch.bfloat16, True)
    assert chosen(GPU, stateful=True) == (torch.bfloat16, False)
    assert chosen(GPU, stateful=True, compile=True) == (torch.bfloat16, True)
    assert chosen(GPU, precision="float32", compile=False) == (torch.float32, False)


def test_gpu_without_bfloat16_uses_float32(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    assert chosen(GPU)[0] == torch.float32


def test_unsupported_precision_error_names_the_next_step() -> None:
    arithmetic = choose_arithmetic(Recipe(precision="bfloat16"), CPU, False)
    with pytest.raises(SpecError, match=r"LSTM forward.*Use precision=float32"), arithmetic.autocast():
        raise RuntimeError("could not create a primitive descriptor for the LSTM forward primitive. Run workload …")
    with pytest.raises(RuntimeError, match="other"), arithmetic.autocast():
        raise RuntimeError("other trouble")
    assert not torch.is_autocast_enabled("cpu")


def test_bfloat16_lstm_on_cpu_runs_or_gives_a_clear_error(tmp_path: Path, spec_and_data) -> None:
    try:
        result = train_small(tmp_path / "run", "lstm", spec_and_data, steps=2, precision="bfloat16")
    except SpecError as error:
        assert "precision=float32" in str(error)
    else:
        assert result.stopped == "done"


def test_device_defaults_to_an_available_gpu(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device(Recipe(), 3) == torch.device("cuda", 3) and choose_device(Recipe(device="cpu")) == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device(Recipe()) == CPU
    with pytest.raises(SpecError, match="device=cpu"):
        choose_device(Recipe(device="cuda"))


def test_matmul_precision_is_restored_after_errors() -> None:
    before = torch.get_float32_matmul_precision()
    with pytest.raises(ZeroDivisionError), matmul_precision("high"):
        assert torch.get_float32_matmul_precision() == "high"
        raise ZeroDivisionError
    assert torch.get_float32_matmul_precision() == before


def test_failed_compilation_warns_and_training_continues(tmp_path: Path, spec_and_data, monkeypatch) -> None:
    def broken(module, **words):
        def fail(*inputs, **words):
            raise RuntimeError("no C++ compiler\nwith a long story")

        return fail

    monkeypatch.setattr(torch, "compile", broken)
    result = train_small(tmp_path / "run", "decoder", spec_and_data, compile=True)
    assert result.stopped == "done" and len(result.warnings) == 1
    assert "no C++ compiler" in result.warnings[0] and "long story" not in result.warnings[0]


def test_compiled_training_saves_equal_weights_and_names(tmp_path: Path, spec_and_data, monkeypatch) -> None:
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, **words: compile(module, backend="eager", **words))
    for name, words in {"plain": {}, "compiled": {"compile": True}}.items():
        train_small(tmp_path / name, "decoder", spec_and_data, steps=5, dropout=0.1, **words)
    base, compiled = (read_weights(tmp_path / name / "model.safetensors")[0] for name in ("plain", "compiled"))
    assert base.keys() == compiled.keys()
    assert all(torch.allclose(base[name], compiled[name], atol=1e-5) for name in base)


@pytest.mark.parametrize("rate", [0.01, 3.0])
def test_final_validation_is_reported_in_float32(tmp_path: Path, spec_and_data, rate: float) -> None:
    """At the second rate, which rises until the end, the best weights are not the last."""
    messages: list[str] = []
    observer, out = SilentObserver(), tmp_path / "run"
    observer.log = messages.append  # type: ignore[method-assign]
    words = {"learning_rate": rate, "evaluate_every": 5, "precision": "bfloat16", "evaluate": None}
    words |= {"schedule": "constant", "warm_up": 20 if rate > 1 else 0}
    result = train_small(out, "decoder", spec_and_data, observer=observer, **words)
    rows = [row["validation_loss"] for row in RunFolder.open(out).metrics.rows() if "validation_loss" in row]
    assert (result.best_step == result.steps) is (rate < 1)
    exact = split_perplexity(load(out).model, spec_and_data[1], "validation")
    assert result.best_loss == pytest.approx(exact.loss, abs=1e-6) and exact.protocol.precision == "float32"
    for in_float32, lowered in ((result.best_loss, min(rows)), (result.validation_loss, rows[-1])):
        assert 1e-6 < abs(in_float32 / lowered - 1) < 0.01
    assert sum("in bfloat16" in message for message in messages) == 1
