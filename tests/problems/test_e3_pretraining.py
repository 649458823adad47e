"""Problem E3: pretraining objectives: causal, masked, next-sentence, and the last two together."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

import lemma
from adapting_runs import StopAt, same_bits
from lemma.data.batches import MaskedWindows
from lemma.models.build import build
from lemma.spec.models import Decoder, Encoder
from lemma.spec.recipe import Recipe
from lemma.tasks.language import causal_loss
from lemma.tasks.masked import MaskedBatches
from lemma.tasks.registry import task_for
from lemma.training.devices import Distributed
from small_runs import small_text

CPU = Distributed(torch.device("cpu"))
TEXT = np.random.default_rng(0).integers(0, 30, 4000)
SMALL = {"width": 32, "depth": 2, "heads": 2, "context": 32, "tokenizer": "characters", "device": "cpu"}


@pytest.mark.parametrize("objective", ["masked", "next-sentence", "both"])
def test_objective_loss_matches_explicit_cross_entropy(objective: str) -> None:
    spec = Encoder(vocabulary=33, width=16, depth=1, heads=2, context=20, objective=objective)
    recipe = Recipe(batch=8, mask_rate=0.3)
    model = build(spec).double().eval()
    inputs, targets = MaskedBatches(TEXT, spec, recipe, CPU).batch(5)
    trained, terms, _ = task_for(model.spec).loss(model, recipe)(inputs, targets, None)
    expected = []
    if objective != "next-sentence":
        logits = model(inputs)
        rows, positions = (targets[:, 1:] >= 0).nonzero().unbind(1)
        expected.append(functional.cross_entropy(logits[rows, positions + 1], targets[rows, positions + 1]))
    if objective != "masked":
        expected.append(functional.cross_entropy(model.follows(inputs), targets[:, 0]))
    torch.testing.assert_close(torch.stack(terms), torch.stack(expected), rtol=1e-12, atol=0)
    torch.testing.assert_close(trained, torch.stack(expected).sum(), rtol=1e-12, atol=0)


def test_microbatch_gradients_sum_to_the_batch_gradient() -> None:
    spec = Encoder(vocabulary=33, width=16, depth=1, heads=2, context=20, objective="both")
    recipe = Recipe(batch=8)
    model = build(spec).double()
    criterion, feed = task_for(model.spec).loss(model, recipe), MaskedBatches(TEXT, spec, recipe, CPU)
    inputs, targets = feed.batch(0)
    criterion(inputs, targets, None)[0].backward()
    full = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    for part in zip(inputs.chunk(4), targets.chunk(4), strict=True):
        (criterion(*part, None)[0] * feed.weight(part[1], 4)).backward()
    for item, parameter in zip(full, model.parameters(), strict=True):
        torch.testing.assert_close(item, parameter.grad, rtol=1e-9, atol=1e-12)


def test_encoder_learns_masked_tokens_far_below_chance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("abcdefghij" * 600)  # masked tokens are determined by their neighbors
    words = {**SMALL, "steps": 180, "batch": 16, "learning_rate": 4e-3, "warm_up": 20, "evaluate_every": 180}
    done = lemma.train("encoder", text=tmp_path / "text.txt", out=tmp_path / "run", progress=False, **words)
    score = lemma.evaluate(tmp_path / "run", progress=False)
    assert done.validation_loss is not None and score.loss == pytest.approx(done.best_loss)
    assert score.loss < 0.25 * math.log(10) and score.accuracy > 0.9 and score.follows_accuracy is None


def test_resumed_run_equals_an_uninterrupted_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(small_text())
    words = {**SMALL, "batch": 8, "dropout": 0.1, "checkpoint_every": 4, "warm_up": 2, "progress": False}
    words |= {"text": tmp_path / "text.txt", "steps": 8}
    lemma.train("encoder", out=tmp_path / "whole", **words)
    with monkeypatch.context() as patch:
        patch.setattr("lemma.api.watch", lambda progress: StopAt(5))
        assert lemma.train("encoder", out=tmp_path / "cut", **words).stopped == "interrupted"
    assert lemma.resume(tmp_path / "cut", progress=False).stopped == "done"
    assert same_bits(tmp_path / "whole", tmp_path / "cut")


def sample_batch(objective: str, rows: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """Return a batch of rows of a hundred tokens; tokens are 0 to 29, special tokens 30 to 32."""
    windows = MaskedWindows(len(TEXT), 103, rows, seed=1, rate=0.15, objective=objective, vocabulary=33)  # pyright: ignore
    return windows.batch(TEXT, 0)


def test_masking_follows_the_80_10_10_rule() -> None:
    inputs, targets = sample_batch("both")
    choice = targets[:, 1:] >= 0
    assert (choice.sum(1) == 15).all()
    read, expected = inputs[:, 1:][choice], targets[:, 1:][choice]
    fractions = [(read == 32).mean(), ((read != 32) & (read != expected)).mean(), (read == expected).mean()]
    assert fractions == [pytest.approx(0.8, abs=0.015), pytest.approx(0.1, abs=0.01), pytest.approx(0.1, abs=0.01)]


def test_half_of_second_spans_follow_the_first() -> None:
    inputs, targets = sample_batch("next-sentence")
    follows = targets[:, 0] == 1
    assert follows.sum() == 500 and (targets[:, 1:] == -1).all()
    text = TEXT.astype(np.int64).tobytes()
    merged = [np.concatenate([row[1:51], row[52:102]]).tobytes() in text for row in inputs]
    assert merged == follows.tolist()


def test_causal_loss_is_mean_negative_log_likelihood() -> None:
    model = build(Decoder(vocabulary=30, width=16, depth=1, heads=2, context=20)).double().eval()
    tokens = torch.from_numpy(TEXT[:21].astype(np.int64))[None]
    changed = tokens.clone()
    changed[0, 10:] = (changed[0, 10:] + 1) % 30
    with torch.no_grad():
        logits, remaining = model(tokens[:, :-1])[0], model(changed[:, :-1])[0]
    chances = [float(logits[0, index].softmax(-1)[tokens[0, index + 1]]) for index in range(20)]
    assert causal_loss(logits, tokens[:, 1:]).item() == pytest.approx(-sum(map(math.log, chances)) / 20, rel=1e-12)
    torch.testing.assert_close(remaining[:, :10], logits[:, :10], rtol=1e-12, atol=1e-12)  # later tokens have no effect
    assert (remaining[:, 10] - logits[:, 10]).abs().max() > 0.01
