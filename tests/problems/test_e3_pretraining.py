"""Problem E3: what is learned from plain text: causal, masked, next-sentence, and the last two together."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

import lemma
from adapting_runs import StopAt, same_bits
from lemma.models import build
from lemma.spec import Encoder, Recipe
from lemma.training.lessons import lesson_of
from lemma.training.masked_feed import MaskedFeed
from lemma.training.parallel import Team
from small_runs import small_text

CPU = Team(torch.device("cpu"))
TEXT = np.random.default_rng(0).integers(0, 30, 4000)
SMALL = {"width": 32, "depth": 2, "heads": 2, "context": 32, "tokenizer": "characters", "device": "cpu"}


@pytest.mark.parametrize("objective", ["masked", "next-sentence", "both"])
def test_the_lesson_is_the_cross_entropy_of_what_is_asked_for_worked_out_the_long_way(objective: str) -> None:
    spec = Encoder(vocabulary=33, width=16, depth=1, heads=2, context=20, objective=objective)
    recipe = Recipe(batch=8, mask_rate=0.3)
    model = build(spec).double().eval()
    inputs, targets = MaskedFeed(TEXT, spec, recipe, CPU).batch(5)
    learned, terms, _ = lesson_of(model, recipe)(inputs, targets, None)
    expected = []
    if objective != "next-sentence":
        logits = model(inputs)
        rows, places = (targets[:, 1:] >= 0).nonzero().unbind(1)
        expected.append(functional.cross_entropy(logits[rows, places + 1], targets[rows, places + 1]))
    if objective != "masked":
        expected.append(functional.cross_entropy(model.follows(inputs), targets[:, 0]))
    torch.testing.assert_close(torch.stack(terms), torch.stack(expected), rtol=1e-12, atol=0)
    torch.testing.assert_close(learned, torch.stack(expected).sum(), rtol=1e-12, atol=0)


def test_parts_of_a_batch_give_the_gradient_of_the_whole() -> None:
    spec = Encoder(vocabulary=33, width=16, depth=1, heads=2, context=20, objective="both")
    recipe = Recipe(batch=8)
    model = build(spec).double()
    lesson, feed = lesson_of(model, recipe), MaskedFeed(TEXT, spec, recipe, CPU)
    inputs, targets = feed.batch(0)
    lesson(inputs, targets, None)[0].backward()
    whole = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    for part in zip(inputs.chunk(4), targets.chunk(4), strict=True):
        (lesson(*part, None)[0] * feed.share(part[1], 4)).backward()
    for one, parameter in zip(whole, model.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad, rtol=1e-9, atol=1e-12)


def test_an_encoder_learns_what_is_hidden_far_below_guessing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("abcdefghij" * 600)  # what is hidden follows from its neighbours
    words = {**SMALL, "steps": 180, "batch": 16, "learning_rate": 4e-3, "warm_up": 20, "evaluate_every": 180}
    done = lemma.train("encoder", text=tmp_path / "text.txt", out=tmp_path / "run", progress=False, **words)
    score = lemma.evaluate(tmp_path / "run", progress=False)
    assert done.validation_loss is not None and score.loss == pytest.approx(done.best_loss)
    assert score.loss < 0.25 * math.log(10) and score.accuracy > 0.9 and score.follows_accuracy is None


def test_a_run_that_goes_on_ends_as_one_that_was_never_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(small_text())
    words = {**SMALL, "batch": 8, "dropout": 0.1, "checkpoint_every": 4, "warm_up": 2, "progress": False}
    words |= {"text": tmp_path / "text.txt", "steps": 8}
    lemma.train("encoder", out=tmp_path / "whole", **words)
    with monkeypatch.context() as patch:
        patch.setattr("lemma.api._watcher", lambda progress: StopAt(5))
        assert lemma.train("encoder", out=tmp_path / "cut", **words).stopped == "interrupted"
    assert lemma.resume(tmp_path / "cut", progress=False).stopped == "done"
    assert same_bits(tmp_path / "whole", tmp_path / "cut")
