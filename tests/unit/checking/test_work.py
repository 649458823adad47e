"""Work budgets: every check of a text ends in bounded time, with a verdict or an error."""

import random
import time
from collections.abc import Callable

import pytest

from faults.hostile import expensive
from lemma.checking.check_formula import check_formula
from lemma.checking.derivation import check_derivation
from lemma.checking.marking import mark_answers
from lemma.counting.polynomial import spend
from lemma.errors import InputError

SUM = "V+d+L+h+T+d_ff"
COSTLY = f"({SUM}+1)^5/({SUM}+2)^5 = ({SUM}+3)^5/({SUM}+4)^5"
SECONDS = 2.0


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    try:
        work()
    except InputError as error:
        assert len(str(error)) < 2_000
    return time.process_time() - start


def test_difference_of_large_quotients_is_refused() -> None:
    check_formula("decoder", "parameters", "V*d")
    for work in (lambda: check_derivation(COSTLY), lambda: check_formula("decoder", "parameters", COSTLY)):
        start = time.process_time()
        with pytest.raises(InputError, match="too much work"):
            work()
        assert time.process_time() - start < SECONDS


@pytest.mark.parametrize("kind", ["expensive formulas", "expensive derivations"])
def test_generated_formulas_and_derivations_take_bounded_time(kind: str) -> None:
    check_formula("decoder", "parameters", "V*d")
    chance = random.Random(3)
    for text in [expensive(kind, chance) for _ in range(12)]:
        check = check_derivation if "derivation" in kind else lambda text: check_formula("decoder", "parameters", text)
        assert seconds(lambda check=check, text=text: check(text)) < SECONDS, text


def test_lines_of_a_derivation_share_one_work_budget() -> None:
    lines = "\n= ".join(f"(a + b + c + {number})^9" for number in range(90))
    with pytest.raises(InputError, match="too much work"):
        check_derivation(lines)


def test_long_names_are_read_in_bounded_time() -> None:
    long = "xy" * 1_000
    text = "\n".join(f"{long} + {' + '.join(['ab' * 99] * 40)} = {number}" for number in range(150))
    assert seconds(lambda: check_derivation(text)) < SECONDS


def test_expensive_answer_is_unreadable_and_others_are_marked() -> None:
    questions = [{"id": "Q1", "kind": "parameters", "model": "lora"}, {"id": "Q2", "kind": "formula", "value": "16*Q1"}]
    costly = "(R + W_in + W_out + 1)^9/(R + W_in + 2)^9 = (R + W_out + 3)^9/(R + W_out + W_in + 4)^9"
    result = mark_answers({"questions": questions}, {"Q1": "R*(W_in + W_out) + W_in*W_out", "Q2": costly})
    assert [mark.verdict for mark in result.marks] == ["right", "unreadable"]
    assert "too much work" in result["Q2"].reason


def test_gradients_do_not_use_the_formula_work_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lemma.checking.tokens.spend", lambda steps: spend(1_000 * steps))
    question = {"id": "Q1", "kind": "gradient", "cell": "rnn", "lines": ["dU"]}
    assert mark_answers({"questions": [question]}, {"Q1": "dU = h.T @ (y_hat - y)"})


def test_verdict_on_a_long_wrong_formula_is_short() -> None:
    verdict = check_formula("decoder", "parameters", "(V + d + L + h)^9")
    assert not verdict.equal and "terms" in verdict.headline and len(str(verdict)) < 500
