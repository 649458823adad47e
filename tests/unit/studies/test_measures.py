"""Additional measures of studies: loss by position and statistics of attention heads."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from study_outcomes import make_outcomes, measured
from torch.nn import functional

from lemma.layers.recording import AttentionRecord
from lemma.models.build import build
from lemma.report.curves import Curve, Plot
from lemma.spec.models import Decoder, Lstm
from lemma.spec.studies import ComparedModel, GridStudy, read_study
from lemma.studies import experiment
from lemma.studies.experiment import run_study
from lemma.studies.measures import (
    Row,
    entropy_and_distance,
    estimate_heads,
    extend_context,
    loss_by_length,
    losses_by_position,
    mean_over_heads,
    plot_heads,
    sample_windows,
    shaping_effects,
    view_positions,
)

MakeStudy = Callable[..., GridStudy]
SMALL = {"width": 8, "depth": 2, "heads": 2, "context": 8}
KINDS = ("none", "learned", "sinusoidal", "rotary", "alibi")


def decoders(*kinds: str) -> tuple[ComparedModel, ...]:
    return tuple(ComparedModel(model="decoder", name=kind, settings={**SMALL, "positions": kind}) for kind in kinds)


@pytest.mark.parametrize("kind", ["none", "sinusoidal", "rotary", "alibi"])
def test_extended_context_uses_the_same_weights(kind: str) -> None:
    model = build(Decoder(vocabulary=5, **SMALL, positions=kind))  # pyright: ignore[reportArgumentType]
    longer, readable = extend_context(model, 20)
    tokens = torch.randint(5, (2, 20))
    with torch.no_grad():
        assert readable == 20
        torch.testing.assert_close(longer(tokens[:, :8])[0], model(tokens[:, :8])[0])
        logits = longer(tokens)[0]
        moved = tokens.clone()
        moved[:, 0] = (tokens[:, 0] + 1) % 5
        assert not torch.allclose(longer(moved)[0][:, -1], logits[:, -1]), "the first token is still seen"


def test_learned_positions_cannot_be_extended() -> None:
    model = build(Decoder(vocabulary=5, **SMALL))  # pyright: ignore[reportArgumentType]
    assert extend_context(model, 20) == (model, 8)
    recurrent = build(Lstm(vocabulary=5, width=4, hidden=4))
    assert extend_context(recurrent, 20) == (recurrent, 20)


def test_losses_by_position_match_cross_entropy() -> None:
    model = build(Decoder(vocabulary=5, **{**SMALL, "context": 12}))
    pieces = torch.randint(5, (3, 10))
    losses = losses_by_position(model, pieces)
    for index in (0, 4, 8):
        with torch.no_grad():
            logits = model(pieces[:, : index + 1])[0][:, -1]
        assert losses[index].item() == pytest.approx(
            functional.cross_entropy(logits, pieces[:, index + 1]).item(), rel=1e-5
        )


def test_sampled_windows_do_not_overlap_and_cover_the_text() -> None:
    pieces = sample_windows(np.arange(100, dtype=np.uint16), 7, 5)
    assert pieces.shape == (5, 7)
    assert pieces[0, 0] == 0
    assert pieces[-1, 0] == 91
    assert len(set(pieces.flatten().tolist())) == 35
    assert sample_windows(np.arange(3), 3, 9).tolist() == [[0, 1, 2]]


def test_head_entropy_and_distance_match_explicit_sums() -> None:
    torch.manual_seed(0)
    queries, keys = torch.randn(2, 2, 3, 4, 5, dtype=torch.float64)
    record = AttentionRecord(queries, keys, None, 0.7, causal=True)
    entropy, distance = np.zeros(3), np.zeros(3)
    for batch, head, t1 in np.ndindex(2, 3, 4):
        scores = [0.7 * float(queries[batch, head, t1] @ keys[batch, head, t2]) for t2 in range(t1 + 1)]
        weights = np.exp(scores) / np.exp(scores).sum()
        entropy[head] -= (weights * np.log(weights)).sum() / 8
        distance[head] += sum(weight * (t1 - t2) for t2, weight in enumerate(weights)) / 8
    np.testing.assert_allclose(entropy_and_distance(record).numpy(), [entropy, distance], rtol=1e-10)


def test_position_study_plots_losses_beyond_trained_context(tiny_study: MakeStudy, tmp_path: Path) -> None:
    spec = tiny_study(models=decoders(*KINDS), measures=("positions",), beyond=3)
    result = run_study(spec, tmp_path / "out")
    assert not result.failed, result.failed
    rows = {row.title: row for row in result.rows}
    assert [item is None for item in loss_by_length(rows["learned"])] == [False, True, True]
    for kind in set(KINDS) - {"learned"}:
        assert all(item and math.isfinite(item.mean) and item.count == 2 for item in loss_by_length(rows[kind]))
    (plot,) = view_positions(result.rows).plots
    assert plot.rule == 8
    assert max(plot.curves[0].x) <= 24
    assert len(plot.curves[1].x) * 3 == len(plot.curves[0].x)
    assert any("learned ends at position 8" in sentence for sentence in result.conclusion)
    assert "Loss against position" in result.report.read_text()
    saved = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(saved["measures"]["positions"]["alibi"]["losses"]) == len(plot.curves[0].y)
    assert "up to T" in str(result)


def test_study_measures_attention_only_of_attention_models(tiny_study: MakeStudy, tmp_path: Path) -> None:
    models = (*decoders("rotary"), ComparedModel(model="rnn", settings={"width": 4, "hidden": 4}))
    result = run_study(tiny_study(models=models, measures=("attention",)), tmp_path / "out")
    rotary, rnn = result.rows
    heads = estimate_heads(rotary, "entropy")
    assert [(layer, head) for layer, head, _ in heads] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(0 < measure.mean < math.log(8) for _, _, measure in heads)
    assert 0 < mean_over_heads(rotary, "distance").mean < 4
    assert all(measure.more["attention"]["layers"] == [] for measure in rnn.measures.values())
    assert "What the heads do" in result.report.read_text()
    assert set(result.to_dict()["measures"]["attention"]["rows"]) == {"rotary"}


def test_additional_measures_are_computed_without_training(
    tiny_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words: dict[str, Any] = {"models": decoders("alibi"), "seeds": (1,)}
    run_study(tiny_study(**words), tmp_path / "out")
    monkeypatch.setattr(experiment, "train", lambda *args, **kwargs: pytest.fail("nothing is trained again"))
    more = run_study(tiny_study(**words, measures=("positions",)), tmp_path / "out")
    assert more.runs[0].measures
    assert more.runs[0].measures.more["positions"]["asked"] == 32
    further = run_study(tiny_study(**words, measures=("positions",), beyond=2), tmp_path / "out")
    assert further.runs[0].measures
    assert further.runs[0].measures.more["positions"]["asked"] == 16


def shaped_row(title: str, perplexities: list[float], **recipe: float) -> Row:
    ones = {
        seed: measured(value, recipe={**measured(1.0).recipe, "seed": seed, **recipe})
        for seed, value in enumerate(perplexities, start=1)
    }
    return Row(title, {}, title, ones, {})


@pytest.mark.parametrize(
    ("perplexities", "verdict"),
    [([3.9, 4.9, 5.91], "helped"), ([4.1, 5.1, 6.09], "hurt"), ([3.9, 5.2, 6.0], "not significant")],
)
def test_shaping_effect_is_tested_by_paired_seeds(perplexities: list[float], verdict: str) -> None:
    rows = [shaped_row("plain", [4.0, 5.0, 6.0]), shaped_row("focus", perplexities, entropy_penalty=0.01)]
    (help_,) = shaping_effects(rows)
    assert (help_.title, help_.verdict) == ("focus", verdict)


@pytest.mark.parametrize(
    ("gaps", "verdict", "message"),
    [
        (
            [2e-5, 2.1e-5, 2.2e-5],
            "no difference that matters (below 0.1 %)",
            "+0.00 % (95 %: +0.00 to +0.00; p < 0.001",
        ),
        ([-0.1, 0.1, 0.001], "not significant", "+0.00 % (95 %: −0.25 to +0.25; p = 1"),
        ([-0.5, -0.51, -0.49], "helped", "−0.50 % (95 %: −0.52 to −0.48; p < 0.001"),
    ],
)
def test_shaping_effect_reports_relative_gap_above_a_threshold(gaps: list[float], verdict: str, message: str) -> None:
    rows = [shaped_row("plain", [100.0] * 3), shaped_row("near", [100 + gap for gap in gaps], distance_penalty=0.1)]
    (help_,) = shaping_effects(rows)
    assert help_.verdict == verdict
    assert message in str(help_)


def test_attention_heads_are_plotted_with_error_bars() -> None:
    layers = [{"entropy": [1.0, 2.0], "distance": [3.0, 4.0]}, {"entropy": [1.5, 0.5], "distance": [2.0, 1.0]}]
    small = [{"entropy": [9.0], "distance": [9.0]}]
    rows = [
        Row(title, {}, title, {seed: measured(3.0, more={"attention": {"layers": item}}) for seed in (1, 2)}, {})
        for title, item in (("two", layers), ("small", small))
    ]
    plot = plot_heads(rows, "entropy")
    assert (plot.x, plot.ticks, plot.bars) == ("layer.head", ("0.0", "0.1", "1.0", "1.1"), True)
    assert [round(x) for x in plot.curves[0].x] == [0, 1, 2, 3]
    assert [round(x) for x in plot.curves[1].x] == [0]
    assert set(plot.curves[0].x).isdisjoint(plot.curves[1].x), "bars do not hide each other"
    assert ">1.1</text>" in plot.svg()


@pytest.mark.parametrize(("high", "cut"), [(3.5, False), (9.0, True)])
def test_caption_notes_clipped_bands(high: float, cut: bool) -> None:
    plot = Plot("x", "y", (Curve("a", (0.0, 1.0), (1.0, 3.0), (1.0, 3.0), (1.0, high)),), caption="Loss.")
    assert plot.full_caption == ("Loss. Bands that reach further are cut at the edge." if cut else "Loss.")


def test_shaping_effects_compare_rows_with_equal_other_settings() -> None:
    base, other = shaped_row("plain", [4.0, 5.0]), shaped_row("other", [4.0, 5.0], entropy_penalty=0.01, batch=7)
    assert list(shaping_effects([base, other])) == []
    assert list(shaping_effects([base])) == []
    one_seed = next(iter(shaping_effects([base, replace(shaped_row("near", [3.0], distance_penalty=0.1))])))
    assert one_seed.verdict == "too few seeds for a test"


def test_rows_without_measures_are_omitted() -> None:
    outcomes = make_outcomes("a", [3.0, "broke"])
    assert outcomes[0].measures
    assert outcomes[0].measures.more == {}


def test_built_in_studies_request_their_measures() -> None:
    assert read_study("positions").measures == ("positions",)
    assert [model.title for model in read_study("positions").models] == list(KINDS)
    assert read_study("penalties").measures == ("attention",)
    assert [model.title for model in read_study("penalties").models] == ["plain", "entropy", "distance", "both"]
