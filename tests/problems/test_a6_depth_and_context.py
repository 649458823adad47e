"""Problem A6: two claims about depth and context, judged on the published table and on a text of known entropy."""

import random
from collections import Counter
from math import exp, log

import pytest
import torch

from lemma.models.build import build
from lemma.spec.models import TableA5
from lemma.spec.studies import GridStudy, read_study
from lemma.studies.cells import group_rows
from lemma.studies.claims import judge_claims
from lemma.tasks.language import causal_loss
from tests.unit.studies.study_outcomes import make_outcomes

SOURCE = {(2, 3): 8.32, (4, 3): 8.15, (2, 5): 10.63, (4, 5): 6.65}


def verdicts(table: dict[tuple[int, int], float]) -> list[str]:
    """Return the study's verdicts on its claims if three seeds have these perplexities within a hundredth."""
    outcomes = [
        outcome
        for (depth, context), value in table.items()
        for outcome in make_outcomes("table-a5", [value, value + 0.01, value], {"depth": depth, "context": context})
    ]
    study = read_study("table-a5")
    assert isinstance(study, GridStudy)
    return [item.verdict for item in judge_claims(study.claims, group_rows(outcomes))]


def test_a6_published_table_supports_both_claims() -> None:
    assert verdicts(SOURCE) == ["held", "held"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({(4, 3): 8.45}, ["not held", "held"]),
        ({(2, 5): 8.0}, ["held", "not held"]),
        ({(4, 5): 8.3}, ["held", "not held"]),
    ],
)
def test_a6_each_claim_depends_on_its_cells(change: dict[tuple[int, int], float], expected: list[str]) -> None:
    assert verdicts({**SOURCE, **change}) == expected


def echo_text(length: int) -> list[int]:
    """Return a text of four words: each repeats the word four positions earlier with p = 0.9, else is uniform."""
    draw = random.Random(6)
    words = draw.choices(range(4), k=4)
    while len(words) < length:
        words.append(words[-4] if draw.random() < 0.9 else draw.randrange(4))
    return words


def least_perplexity(words: list[int], offsets: tuple[int, ...]) -> float:
    """Return exp of the entropy of a word given those at some earlier offsets, by counting."""
    rows = [(tuple(words[at - index] for index in offsets), words[at]) for at in range(4, len(words))]
    seen, pairs = Counter(context for context, _ in rows), Counter(rows)
    return exp(-sum(count * log(count / seen[context]) for (context, _), count in pairs.items()) / len(rows))


def test_a6_echo_text_has_minimum_perplexities_4_and_1_417() -> None:
    words = echo_text(40_000)
    assert least_perplexity(words, (1, 2)) == pytest.approx(4, rel=0.02)
    expected = exp(-0.925 * log(0.925) - 3 * 0.025 * log(0.025))
    assert expected == pytest.approx(1.417, abs=5e-4)
    assert least_perplexity(words, (4,)) == pytest.approx(expected, rel=0.02)


def test_a6_two_layers_beat_the_shorter_context_minimum() -> None:
    """The second claim is therefore not general: with N = 3 no depth comes below 4."""
    torch.manual_seed(1)
    model, text = build(TableA5(V=4, d_e=16, d=16, L=2, h=2, d_ff=16, N=5)), torch.tensor(echo_text(14_000))
    optimizer = torch.optim.Adam(model.parameters(), 0.015)
    for batch in text[: 25 * 512].view(25, 16, 32).repeat(2, 1, 1):
        optimizer.zero_grad()
        causal_loss(model(batch[:, :-1])[0], batch[:, 1:]).backward()
        optimizer.step()
    reserved = text[None, 25 * 512 :]
    with torch.no_grad():
        perplexity = causal_loss(model.eval()(reserved[:, :-1])[0], reserved[:, 1:]).exp().item()
    assert 1.3 < perplexity < 3
