"""Two processes under torchrun match one process at the same global batch, replicated or sharded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from image_runs import train_shapes
from lemma.data.store import prepare_text
from lemma.models.base import count_parameters
from lemma.runs.checkpoint import read_latest_checkpoint
from lemma.runs.folder import RunFolder
from lemma.runs.load import load
from lemma.tasks.language import split_perplexity
from small_runs import QUICK, resume_small, small_data, train_small

PROGRAM = Path(__file__).parents[1] / "small_runs.py"
DECODER = {"steps": 20, "accumulate": 2}
LSTM = {"steps": 25, "evaluate_every": 10}
IMAGES = {"steps": 10, "evaluate_every": 5}
SHARDED = {"shard": True, "recompute": "layers"}
DROPOUT = {"steps": 20, "dropout": 0.1}


def under_torchrun(home: Path, *orders: dict[str, object]) -> tuple[str, str]:
    """Run the orders one after the other in two gloo processes; return their stdout and stderr."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    environment = {**os.environ, "LEMMA_HOME": str(home), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [*torchrun, str(PROGRAM), *(json.dumps(order) for order in orders)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where two processes have trained a decoder to the end and an LSTM until a SIGTERM at step 7.

    And a sharded decoder until such a signal, and another one to the end, by the command line.
    """
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEMMA_HOME", str(home))
        small_data(home)
        train_shapes(home / "one-dual-encoder", **IMAGES)
    small = [f"{name}={value}" for name, value in {**QUICK, "steps": 6, "width": 16, "heads": 2, "depth": 2}.items()]
    command = ["train", "decoder", "--text", str(home / "text.txt"), "--out", str(home / "by-command"), "--json"]
    printed, log = under_torchrun(
        home,
        {"out": str(home / "two-decoder"), "family": "decoder", "recipe": DECODER},
        {"out": str(home / "two-lstm"), "family": "lstm", "recipe": LSTM, "stop_at": 7},
        {"out": str(home / "two-dual-encoder"), "family": "dual-encoder", "recipe": IMAGES},
        {"out": str(home / "two-sharded"), "family": "decoder", "recipe": DECODER | SHARDED, "stop_at": 7},
        {"out": str(home / "two-whole"), "family": "decoder", "recipe": DROPOUT},
        {"out": str(home / "two-again"), "family": "decoder", "recipe": DROPOUT, "stop_at": 7},
        {"out": str(home / "two-again"), "resume": True},
        {"command": [*command, *small, "shard=true", "recompute=layers"]},
    )
    (home / "log.txt").write_text(log)
    (home / "printed.json").write_text(printed)
    return home


def losses(path: Path) -> list[float]:
    rows = RunFolder.open(path).metrics.rows()
    return [row[name] for row in rows for name in ("loss", "validation_loss", "gradient_norm") if name in row]


def test_two_processes_match_single_process_losses(home: Path, monkeypatch) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(home))
    train_small(home / "one-decoder", "decoder", small_data(home), **DECODER)
    assert losses(home / "two-decoder") == pytest.approx(losses(home / "one-decoder"), abs=1e-6)
    assert (home / "two-decoder" / "model.safetensors").exists()
    # sharded over two processes up to step 10, then resumed by one
    assert read_latest_checkpoint(home / "two-sharded" / "checkpoints").step == 10
    resume_small(home / "two-sharded", small_data(home)[1])
    assert losses(home / "two-sharded") == pytest.approx(losses(home / "one-decoder"), abs=1e-6)


def test_torchrun_command_prints_one_json_and_an_unsharded_run(home: Path) -> None:
    result = json.loads((home / "printed.json").read_text())
    assert result["steps"] == 6 and result["path"] == str(home / "by-command")
    run = load(home / "by-command")
    assert run.recipe.shard and count_parameters(run.model) == result["parameters"]
    score = split_perplexity(run.model, prepare_text(run.data, tokenizer=run.tokenizer), "validation")
    assert score.loss == pytest.approx(result["best_loss"], abs=1e-6)
    kinds = {path.suffix for path in (home / "by-command").rglob("*") if path.is_file()}
    assert kinds == {".toml", ".json", ".jsonl", ".safetensors"}


def test_two_processes_contrast_the_global_image_batch(home: Path) -> None:
    item, two = (losses(home / name) for name in ("one-dual-encoder", "two-dual-encoder"))
    assert len(item) > 10 and two == pytest.approx(item, rel=1e-5, abs=1e-5)


def test_only_rank_zero_prints(home: Path) -> None:
    lines = [line for line in (home / "log.txt").read_text().splitlines() if line.startswith(("training:", "step"))]
    # begin and ten validations of the decoder, begin and one of the LSTM; of the sharded ones begin, five and six; of
    # those with dropout begin and ten, twice begin and five
    assert len(lines) == 13 + 6 + 7 + 11 + 12 and "Warning: FSDP" not in (home / "log.txt").read_text()


def test_signal_to_one_process_stops_all_at_one_step(home: Path) -> None:
    checkpoint = read_latest_checkpoint(home / "two-lstm" / "checkpoints")
    assert checkpoint and checkpoint.step == 10
    assert checkpoint.tensors["carried"]["hidden"].shape == (8, 2, 12)  # all rows of the global batch
    assert len(checkpoint.tensors["random"]["cpu"]) == 2


def test_two_processes_resume_with_per_process_random_state(home: Path) -> None:
    assert len(losses(home / "two-again")) > 20
    assert losses(home / "two-again") == losses(home / "two-whole")


def test_one_process_resumes_a_two_process_run(home: Path, monkeypatch) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(home))
    spec_and_data = small_data(home)
    resume_small(home / "two-lstm", spec_and_data[1])
    train_small(home / "one-lstm", "lstm", spec_and_data, **LSTM)
    assert losses(home / "two-lstm") == pytest.approx(losses(home / "one-lstm"), abs=1e-5)
