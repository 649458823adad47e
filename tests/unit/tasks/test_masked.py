"""Masked-token evaluation against brute force over the same windows."""

import json
import math

import numpy as np
import pytest
import torch

from lemma.data.batches import MaskedWindows
from lemma.models.build import build
from lemma.models.transformer import EncoderModel
from lemma.spec.models import Encoder
from lemma.tasks.masked import score_masked

V = 23
TEXT = np.random.default_rng(1).integers(0, V - 3, size=1003).astype(np.uint16)


def encoder(objective: str) -> EncoderModel:
    spec = Encoder.model_validate(
        {"vocabulary": V, "width": 16, "heads": 2, "depth": 1, "context": 13, "objective": objective}
    )
    model = build(spec, dropout=0.5)
    assert isinstance(model, EncoderModel)
    return model


@pytest.mark.parametrize("objective", ["masked", "next-sentence", "both"])
def test_masked_loss_and_accuracy_match_per_token_reference(objective: str) -> None:
    model = encoder(objective)
    score = score_masked(model, TEXT, 0.2, protocol={"split": "validation"})
    assert model.training
    model.eval()
    windows = MaskedWindows(len(TEXT), 13, 1, 0, 0.2, objective, V)  # pyright: ignore[reportArgumentType]
    losses: dict[str, list[float]] = {"hidden": [], "follows": []}
    right: dict[str, list[bool]] = {"hidden": [], "follows": []}
    with torch.no_grad():
        for inputs, targets in windows.evaluation_batches(TEXT):
            for row, expected in zip(torch.from_numpy(inputs), targets, strict=True):
                request = [("follows", model.follows(row[None])[0], expected[0])] if objective != "masked" else []
                positions = np.flatnonzero(expected[1:] >= 0) + 1
                request += [("hidden", model(row[None])[0, index], expected[index]) for index in positions]
                for description, logits, token in request:
                    losses[description].append(-logits.log_softmax(-1)[token].item())
                    right[description].append(int(logits.argmax()) == token)
    main = "hidden" if losses["hidden"] else "follows"
    assert score.loss == pytest.approx(np.mean(losses[main]), rel=1e-5)
    assert score.tokens == len(losses["hidden"]) and score.rows == 1003 // windows.num_text_tokens
    assert score.accuracy == (pytest.approx(np.mean(right["hidden"])) if right["hidden"] else None)
    if losses["follows"]:
        assert score.follows_loss == pytest.approx(np.mean(losses["follows"]), rel=1e-5)
        assert score.follows_accuracy == pytest.approx(np.mean(right["follows"]))
        assert score.figures["next_sentence_accuracy"] == score.follows_accuracy
    assert score.perplexity == pytest.approx(math.exp(score.loss))


def test_masked_evaluation_is_deterministic_per_seed() -> None:
    model = encoder("both")
    item, again, other = (score_masked(model, TEXT, 0.15, seed=seed) for seed in (1, 1, 2))
    assert item == again and item.loss != other.loss


def test_text_shorter_than_context_is_one_window() -> None:
    score = score_masked(encoder("masked"), TEXT[:6], 0.15)
    assert (score.rows, score.tokens) == (1, 1) and "left out" not in score.protocol
    assert score_masked(encoder("masked"), TEXT[:25], 0.15).protocol["left out"] == "the last 3 tokens"


@pytest.mark.parametrize("objective", ["masked", "next-sentence", "both"])
def test_score_output_fits_80_columns_and_json(objective: str) -> None:
    score = score_masked(encoder(objective), TEXT, 0.15, protocol={"data hash": "0" * 64})
    assert max(map(len, str(score).splitlines())) <= 80
    assert json.loads(json.dumps(score.to_dict()))["loss"] == score.loss
    assert "<table" in score._repr_html_()
