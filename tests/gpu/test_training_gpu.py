"""Training on a GPU: batches, compilation, bfloat16 and asynchronous checks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lemma.data.batches import RandomWindows
from lemma.errors import TrainingError
from lemma.models.build import build
from lemma.runs.checkpoint import read_latest_checkpoint
from lemma.runs.folder import RunFolder
from lemma.runs.load import load
from lemma.spec.models import Decoder
from lemma.spec.recipe import Recipe
from lemma.tasks.language import PrefetchingBatches, ResidentBatches, TextBatches, causal_loss
from lemma.training.devices import Distributed, recompute_layers
from lemma.training.loop import train
from lemma.training.session import TrainingHooks
from small_runs import MODELS, QUICK, resume_small, small_data, train_small

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
ON_GPU = {"device": "cuda", "steps": 40, "learning_rate": 0.01}


@pytest.fixture
def spec_and_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path))
    return small_data(tmp_path)


@pytest.mark.parametrize("kind", [ResidentBatches, PrefetchingBatches])
@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_gpu_batches_equal_cpu_batches(kind: type[TextBatches], dtype: type) -> None:
    text = np.random.default_rng(0).integers(0, 60_000, 5000).astype(dtype)
    order = RandomWindows(5000, 12, 8, 3)
    expected = TextBatches(text, order, 12, Recipe(batch=8), Distributed(torch.device("cpu")))
    feed = kind(text, order, 12, Recipe(batch=8), Distributed(torch.device("cuda", 0)))
    for step in (0, 1, 2, 7, 3):  # also out of order, as after a resume
        for ours, reference in zip(feed.batch(step), expected.batch(step), strict=True):
            assert ours.is_cuda and torch.equal(ours.cpu(), reference)
    feed.close()


@pytest.mark.parametrize("family", ["decoder", "lstm", "feed-forward"])
def test_default_gpu_training_matches_cpu_loss(tmp_path: Path, spec_and_data, family: str) -> None:
    """Compiled (unless recurrent) bfloat16 training is close to float32 on a CPU, without warnings."""
    result = train_small(tmp_path / "gpu", family, spec_and_data, **ON_GPU)
    expected = train_small(tmp_path / "cpu", family, spec_and_data, **{**ON_GPU, "device": "cpu"})
    assert result.warnings == () and result.validation_loss == pytest.approx(expected.validation_loss, abs=0.03)
    assert load(tmp_path / "gpu").model(torch.zeros(1, 3, dtype=torch.long))[0].shape[:2] == (1, 3)


@pytest.mark.parametrize("family", ["decoder", "lstm"])
def test_resumed_gpu_run_matches_uninterrupted_losses(tmp_path: Path, spec_and_data, family: str) -> None:
    words = {**ON_GPU, "dropout": 0.2, "compile": False, "evaluate_every": 10}
    train_small(tmp_path / "run", family, spec_and_data, **words)
    folder = RunFolder.open(tmp_path / "run")
    full = [row["loss"] for row in folder.metrics.rows()]
    (folder.checkpoints / "step-40" / "manifest.json").unlink()  # makes it resume from step 30
    resume_small(tmp_path / "run", spec_and_data[1])
    assert [row["loss"] for row in folder.metrics.rows()] == pytest.approx(full, abs=2e-3)


def test_nonfinite_loss_is_detected_before_saving_a_checkpoint(tmp_path: Path, spec_and_data) -> None:
    words = {
        **ON_GPU,
        "steps": 200,
        "learning_rate": 1e30,
        "warm_up": 0,
        "clip": 0,
        "evaluate_every": 50,
        "checkpoint_every": 1,
    }
    with pytest.raises(TrainingError, match=r"nan|inf"):
        train_small(tmp_path / "run", "lstm", spec_and_data, **words)
    checkpoint = read_latest_checkpoint(tmp_path / "run" / "checkpoints")
    assert checkpoint and all(tensor.isfinite().all() for tensor in checkpoint.tensors["model"].values())


def test_gpu_training_restores_precision_and_random_state(tmp_path: Path, spec_and_data) -> None:
    before = torch.get_float32_matmul_precision(), torch.cuda.get_rng_state(), torch.get_rng_state()
    train_small(tmp_path / "run", "lstm", spec_and_data, **ON_GPU)
    assert torch.get_float32_matmul_precision() == before[0]
    assert torch.equal(torch.cuda.get_rng_state(), before[1]) and torch.equal(torch.get_rng_state(), before[2])


def test_losses_collected_from_cuda_graphs_are_copies(tmp_path: Path, spec_and_data) -> None:
    losses: list[torch.Tensor] = []
    custom = TrainingHooks(on_step=lambda session: losses.append(session.latest))
    data_spec, data = spec_and_data
    recipe = Recipe(**{**QUICK, **ON_GPU, "steps": 60, "compile": False})
    train(MODELS["decoder"], recipe, data_spec, data, tmp_path / "run", hooks=custom)
    rows = RunFolder.open(tmp_path / "run").metrics.rows()
    assert len({float(loss) for loss in losses}) > 30
    assert float(losses[rows[0]["step"] - 1]) == pytest.approx(rows[0]["loss"], rel=0.2)


def test_nccl_sharding_on_one_rank_matches_plain_losses(tmp_path: Path, spec_and_data) -> None:
    words = {**ON_GPU, "precision": "float32", "compile": False}
    train_small(tmp_path / "plain", "decoder", spec_and_data, **words)
    order = {"out": str(tmp_path / "sharded"), "family": "decoder"}
    order["recipe"] = {**words, "shard": True, "recompute": "layers", "accumulate": 2}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "1"]
    program = Path(__file__).parents[1] / "small_runs.py"
    environment = {**os.environ, "LEMMA_HOME": str(tmp_path)}
    command = [*torchrun, str(program), json.dumps(order)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    rows = {name: RunFolder.open(tmp_path / name).metrics.rows() for name in ("plain", "sharded")}
    base, sharded = ([row["loss"] for row in subset] for subset in rows.values())
    assert sharded == pytest.approx(base, abs=1e-4)  # TF32 and another order of summation


def test_recomputation_saves_memory_with_equal_gradients() -> None:
    tokens = torch.randint(0, 1000, (8, 512), device="cuda")
    result, peaks = [], []
    for again in (False, True):
        torch.manual_seed(1)
        model = build(Decoder(vocabulary=1000, width=256, depth=8, heads=8, context=512), 0.1).cuda().train()
        if again:
            recompute_layers(model)
        torch.manual_seed(2)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()  # includes workspaces of earlier tests
        causal_loss(model(tokens)[0], tokens).backward()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        result.append([parameter.grad.clone() for parameter in model.parameters()])
        del model
    assert peaks[1] < 0.6 * peaks[0]
    assert all(torch.allclose(item, other, atol=1e-6) for item, other in zip(*result, strict=True))
