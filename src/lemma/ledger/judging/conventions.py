"""Formulas of operations that are right under another convention than the one asked for."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from lemma.ledger.account import Account
from lemma.ledger.counting import Conventions, count
from lemma.ledger.polynomial import Polynomial, symbol, total
from lemma.ledger.sources import Model, subject_of
from lemma.ledger.subject import BATCH

PASSES = {
    (): ("flops",),
    ("for the backward pass alone",): ("backward",),
    ("for the forward and the backward pass together",): ("flops", "backward"),
}


@dataclass(frozen=True)
class Reading:
    """Another way of counting: the words for what differs, and the formula."""

    words: tuple[str, ...]
    formula: Polynomial


def other_readings(
    model: Model, words: Mapping[str, Any] | None, asked: Conventions, defaults: Mapping[str, Polynomial]
) -> list[Reading]:
    """All ways of counting but the one asked for, those that differ least first."""
    subject = subject_of(model, words)
    accounts = {said: count(subject, ("flops", "backward"), one) for said, one in _conventions(asked).items()}
    found = [
        Reading((*said, *phase, *portion), put_all(formula, defaults))
        for (said, account), (phase, names) in product(accounts.items(), PASSES.items())
        for portion, formula in _portions(account, names)
    ]
    return sorted((one for one in found if one.words), key=lambda one: len(one.words))


def rule_of_thumb(
    yours: Polynomial | None, model: Model, words: Mapping[str, Any] | None, defaults: Mapping[str, Polynomial]
) -> str:
    """Recognise 2 (or, with the backward pass, 6) operations for each parameter and token."""
    parameters = count(subject_of(model, words), ("parameters",)).quantities["parameters"].polynomial
    for number in (2, 6):
        rule = put_all(parameters, defaults) * number * symbol(BATCH) * symbol("T")
        if yours == rule:
            return (
                f"It is the rule of thumb of {number} operations for each parameter and token, which takes look-ups, "
                "biases and norms for products and leaves out what attention multiplies."
            )
    return ""


def put_all(formula: Polynomial, defaults: Mapping[str, Polynomial]) -> Polynomial:
    """Put the defaults in the place of their symbols."""
    for name, default in defaults.items():
        formula = formula.put(name, default)
    return formula


def _conventions(asked: Conventions) -> dict[tuple[str, ...], Conventions]:
    other = 3 - asked.multiply_add
    fused = {(): asked, (f"with a multiply–add counted as {other}",): replace(asked, multiply_add=other)}
    turned = "full" if asked.causal == "half" else "half"
    words = "with causal attention counted in full" if turned == "full" else "with causal attention counted half"
    halves = {(): "same", (words,): turned}
    return {
        (*one, *two): convention if causal == "same" else replace(convention, causal=turned)
        for (one, convention), (two, causal) in product(fused.items(), halves.items())
    }


def _portions(account: Account, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Polynomial]]:
    """For the batch, for one row of it, for one token: people leave B or T out."""
    whole = total(account.quantities[name].polynomial for name in names)
    time = symbol("T") if "T" in whole.symbols else None
    yield (), whole
    yield ("for one row of the batch (without B)",), whole / symbol(BATCH)
    if time is not None:
        yield ("for one token of each row (without T)",), whole / time
        yield ("for one token (without B and T)",), whole / symbol(BATCH) / time
