"""Small training runs: files, stopping, resume, and independence of outside state."""

import errno
import json
import signal
import threading
from pathlib import Path

import pytest
import torch

from lemma.errors import RunError, SpecError, StorageError, TrainingError
from lemma.report.progress import SilentObserver
from lemma.runs.checkpoint import named_weights, read_latest_checkpoint, read_weights
from lemma.runs.folder import RunFolder
from lemma.runs.load import load
from small_runs import MODELS, QuickScore, resume_small, train_small


def final_weights(path: Path) -> dict[str, torch.Tensor]:
    return read_weights(path / "model.safetensors")[0]


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class AtStep(SilentObserver):
    """Observer that calls a function after a step."""

    def __init__(self, step: int, action) -> None:
        self.step, self.action, self.said = step, action, []

    def advance(self, done: int) -> None:
        if done == self.step:
            self.action()

    def log(self, message: str) -> None:
        self.said.append(message)


class Scores:
    """Validation with predetermined losses that records the evaluated weights."""

    def __init__(self, *losses: float) -> None:
        self.losses, self.seen = list(losses), []

    def __call__(self, model) -> QuickScore:
        self.seen.append({name: tensor.clone() for name, tensor in named_weights(model).items()})
        loss = self.losses[len(self.seen) - 1]
        return QuickScore(loss, 2.0)


@pytest.mark.parametrize("family", MODELS)
def test_training_reduces_loss_and_writes_a_complete_run(tmp_path: Path, spec_and_data, family: str) -> None:
    result = train_small(
        tmp_path / "run", family, spec_and_data, steps=60, learning_rate=0.02, sample=lambda model: ["one", "two"]
    )
    folder = RunFolder.open(tmp_path / "run")
    rows = folder.metrics.rows()
    assert sorted(path.name for path in folder.path.iterdir()) == sorted(
        [
            "spec.toml",
            "recipe.toml",
            "tokenizer.json",
            "metrics.jsonl",
            "model.safetensors",
            "summary.json",
            "checkpoints",
            "manifest.json",
        ]
    )
    assert folder.spec.vocabulary == spec_and_data[1].tokenizer.vocabulary
    assert rows[-1]["validation_loss"] < rows[0]["loss"] - 0.1 and result.stopped == "done"
    assert [row["step"] for row in rows] == list(range(1, 61)) and sum("perplexity" in row for row in rows) == 10
    assert json.loads(json.dumps(result.to_dict())) == folder.summary()
    assert result.tokens == rows[-1]["tokens"] == 60 * 8 * 12
    assert result.parameters == sum(p.numel() for p in load(tmp_path / "run").model.parameters())
    assert {"loss", "learning_rate", "gradient_norm", "tokens_per_second", "seconds"} <= rows[0].keys()
    for word in ("done", "60 of 60 steps", "perplexity", "'one'", "'two'", str(tmp_path / "run")):
        assert word in str(result)


def test_training_does_not_depend_on_evaluation_or_outside_randomness(tmp_path: Path, spec_and_data) -> None:
    def noisy(model) -> QuickScore:
        assert not model.training and not torch.is_grad_enabled()
        torch.manual_seed(int(torch.randint(100, ()).item()))
        return QuickScore(1.0, 2.0)

    torch.manual_seed(5)
    before = torch.get_rng_state()
    train_small(tmp_path / "a", "decoder", spec_and_data, dropout=0.2, keep="last")
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    train_small(tmp_path / "b", "decoder", spec_and_data, dropout=0.2, keep="last", evaluate=noisy, evaluate_every=1)
    train_small(tmp_path / "c", "decoder", spec_and_data, dropout=0.2, keep="last", seed=2)
    assert equal(final_weights(tmp_path / "a"), final_weights(tmp_path / "b"))
    assert not equal(final_weights(tmp_path / "a"), final_weights(tmp_path / "c"))


@pytest.mark.parametrize(("keep", "index"), [("best", 1), ("last", 4)])
def test_patience_stops_training_with_the_selected_weights(
    tmp_path: Path, spec_and_data, keep: str, index: int
) -> None:
    scores = Scores(3.0, 2.0, 2.5, 2.0, 2.1)
    words = {"evaluate_every": 2, "patience": 3, "keep": keep}
    result = train_small(tmp_path / "run", "lstm", spec_and_data, evaluate=scores, **words)
    assert (result.stopped, result.steps, result.best_step, result.best_loss) == ("early", 10, 4, 2.0)
    assert equal(final_weights(tmp_path / "run"), scores.seen[index]) and len(scores.seen) == 5
    again = resume_small(tmp_path / "run", spec_and_data[1])
    assert (again.stopped, again.steps) == ("early", 10)
    assert equal(final_weights(tmp_path / "run"), scores.seen[index])


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_nonfinite_validation_loss_fails_training(tmp_path: Path, spec_and_data, loss: float) -> None:
    with pytest.raises(
        TrainingError, match=f"At step 2 the validation loss is {loss}. The checkpoint of step 1 is good"
    ):
        scores = Scores(2.0, loss, 2.0)
        train_small(tmp_path / "run", "lstm", spec_and_data, evaluate=scores, steps=3, evaluate_every=1)
    assert TrainingError.exit_status == 1 and not RunFolder.open(tmp_path / "run").is_finished


def test_edited_recipe_requires_an_explicit_setting(tmp_path: Path, spec_and_data) -> None:
    train_small(tmp_path / "run", "lstm", spec_and_data, steps=4)
    recipe = tmp_path / "run" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("steps = 4\n", "steps = 6\n"))
    with pytest.raises(RunError, match=r"says steps = 6; the run was made with 4.*--resume .*run steps=6"):
        resume_small(tmp_path / "run", spec_and_data[1])
    assert resume_small(tmp_path / "run", spec_and_data[1], changes={"steps": 6}).steps == 6
    assert RunFolder.open(tmp_path / "run").recipe.steps == 6
    recipe.write_text(recipe.read_text().replace("seed = 1\n", "seed = 2\n"))
    with pytest.raises(RunError, match="says seed = 2"):
        resume_small(tmp_path / "run", spec_and_data[1], changes={"steps": 8})


def test_full_disk_on_resume_preserves_the_finished_run(
    tmp_path: Path, spec_and_data, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_small(tmp_path / "run", "lstm", spec_and_data, steps=4)
    before = final_weights(tmp_path / "run")

    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(StorageError, match=r"step-8 cannot be written: No space left"):
        patch.setattr("lemma.models.base.save_file", full)
        resume_small(tmp_path / "run", spec_and_data[1], changes={"steps": 8, "evaluate_every": 8})
    assert RunFolder.open(tmp_path / "run").is_finished and equal(final_weights(tmp_path / "run"), before)
    assert resume_small(tmp_path / "run", spec_and_data[1]).steps == 8


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_resumes_to_the_uninterrupted_weights(
    tmp_path: Path, spec_and_data, number: signal.Signals
) -> None:
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    observer = AtStep(13, lambda: signal.raise_signal(number))
    words = {"dropout": 0.1, "evaluate_every": 4}
    result = train_small(tmp_path / "a", "lstm", spec_and_data, observer=observer, **words)
    assert (result.stopped, result.steps) == ("interrupted", 13)
    assert f"lemma train --resume {tmp_path / 'a'}" in str(result)
    assert handlers == [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    assert not RunFolder.open(tmp_path / "a").is_finished
    resume_small(tmp_path / "a", spec_and_data[1])
    train_small(tmp_path / "b", "lstm", spec_and_data, **words)
    assert equal(final_weights(tmp_path / "a"), final_weights(tmp_path / "b"))


def test_metric_means_continue_after_an_interruption(tmp_path: Path, spec_and_data) -> None:
    """With 300 steps a row of metrics is the mean of three steps; the run is interrupted after two of them."""
    observer = AtStep(101, lambda: signal.raise_signal(signal.SIGTERM))
    train_small(tmp_path / "a", "feed-forward", spec_and_data, steps=300, observer=observer)
    resume_small(tmp_path / "a", spec_and_data[1])
    train_small(tmp_path / "b", "feed-forward", spec_and_data, steps=300)
    rows = [RunFolder.open(tmp_path / name).metrics.rows() for name in "ab"]
    losses = [[(row["step"], row["loss"], row["gradient_norm"]) for row in each] for each in rows]
    assert losses[0] == losses[1] and [step for step, *_ in losses[0]][:3] == [3, 6, 9]


def test_second_ctrl_c_stops_immediately(tmp_path: Path, spec_and_data) -> None:
    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)  # a shell without job control has background jobs ignore Ctrl-C
    with pytest.raises(KeyboardInterrupt):
        train_small(tmp_path / "run", "lstm", spec_and_data, observer=AtStep(3, twice))
    assert signal.getsignal(signal.SIGINT) is before


def test_training_runs_in_a_thread(tmp_path: Path, spec_and_data) -> None:
    results = []
    worker = threading.Thread(target=lambda: results.append(train_small(tmp_path / "run", "lstm", spec_and_data)))
    worker.start()
    worker.join()
    assert results[0].stopped == "done"


def test_nonfinite_loss_stops_training_with_a_finite_checkpoint(tmp_path: Path, spec_and_data) -> None:
    words = {"learning_rate": 1e30, "warm_up": 0, "clip": 0, "checkpoint_every": 1}
    with pytest.raises(TrainingError, match=r"At step (\d+) .*(nan|inf).*checkpoint of step \d+ is good"):
        train_small(tmp_path / "run", "decoder", spec_and_data, **words)
    checkpoint = read_latest_checkpoint(tmp_path / "run" / "checkpoints")
    assert checkpoint and all(tensor.isfinite().all() for tensor in checkpoint.tensors["model"].values())


def test_stuck_training_warns_once(tmp_path: Path, spec_and_data) -> None:
    observer = AtStep(0, None)
    result = train_small(tmp_path / "run", "lstm", spec_and_data, steps=60, learning_rate=1e-9, observer=observer)
    stuck = [message for message in observer.said if "Nothing is learned" in message]
    assert len(stuck) == 1 and stuck[0] in result.warnings and stuck[0] in " ".join(str(result).split())


def test_finished_run_resumes_with_more_steps(tmp_path: Path, spec_and_data) -> None:
    train_small(tmp_path / "run", "decoder", spec_and_data, evaluate=Scores(*[1.0] * 10))
    result = resume_small(tmp_path / "run", spec_and_data[1], changes={"steps": 30})
    folder = RunFolder.open(tmp_path / "run")
    assert (result.steps, folder.recipe.steps, folder.metrics.rows()[-1]["step"]) == (30, 30, 30)
    assert result.best_loss == 1.0 and result.best_step == 2  # the best loss of the first session is remembered
    with pytest.raises(SpecError, match="Did you mean 'steps'"):
        resume_small(tmp_path / "run", spec_and_data[1], changes={"step": 40})


def test_changing_the_batch_restarts_recurrent_streams(tmp_path: Path, spec_and_data) -> None:
    train_small(tmp_path / "run", "lstm", spec_and_data)
    result = resume_small(tmp_path / "run", spec_and_data[1], changes={"steps": 24, "batch": 6})
    assert result.stopped == "done" and result.steps == 24
    assert result.tokens == (20 * 8 + 4 * 6) * 12


def test_resuming_with_another_text_is_rejected(tmp_path: Path, spec_and_data, monkeypatch) -> None:
    from dataclasses import replace

    train_small(tmp_path / "run", "decoder", spec_and_data)
    with pytest.raises(RunError, match="trained on the text"):
        resume_small(tmp_path / "run", replace(spec_and_data[1], hash="another"))


def test_result_reports_the_tokenizer_training_sample(tmp_path: Path, spec_and_data) -> None:
    from dataclasses import replace

    output = "the byte-pairs were trained on 8.4 of the 20.0 MB of training text"
    spec, data = spec_and_data
    base = train_small(tmp_path / "a", "feed-forward", spec_and_data, steps=1)
    assert "tokenizer_sample" not in base.to_dict()
    result = train_small(tmp_path / "b", "feed-forward", (spec, replace(data, tokenizer_note=output)), steps=1)
    again = resume_small(tmp_path / "b", data, changes={"steps": 2})
    for item in (result, again):
        assert item.to_dict()["tokenizer_sample"] == output and output in " ".join(str(item).split())


def test_invalid_training_input_leaves_no_run(tmp_path: Path, spec_and_data, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    for words, reason in (
        ({"batch": 7, "accumulate": 2}, "equal parts"),
        ({"tracker": "tensorboard"}, "not installed"),
    ):
        with pytest.raises(SpecError, match=reason):
            train_small(tmp_path / "run", "decoder", spec_and_data, **words)
    assert not (tmp_path / "run").exists()


def test_existing_run_is_rejected_before_building(tmp_path: Path, spec_and_data) -> None:
    train_small(tmp_path / "run", "decoder", spec_and_data)
    before = final_weights(tmp_path / "run")
    with pytest.raises(RunError, match="--resume"):
        train_small(tmp_path / "run", "decoder", spec_and_data, seed=2)
    assert equal(final_weights(tmp_path / "run"), before)
    train_small(tmp_path / "run", "decoder", spec_and_data, seed=2, overwrite=True)
    assert not equal(final_weights(tmp_path / "run"), before)


def test_damaged_checkpoint_is_reported_and_the_previous_resumed(tmp_path: Path, spec_and_data) -> None:
    words = {"dropout": 0.1, "evaluate_every": 5}
    train_small(tmp_path / "a", "decoder", spec_and_data, **words)
    expected = final_weights(tmp_path / "a")
    damaged = tmp_path / "a" / "checkpoints" / "step-20" / "optimizer.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-5])
    result = resume_small(tmp_path / "a", spec_and_data[1])
    assert any(str(damaged) in warning for warning in result.warnings)
    assert result.steps == 20 and equal(final_weights(tmp_path / "a"), expected)
