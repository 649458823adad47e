"""The sources' identities, run: `check_identity("c7", {"D": 256})` sets number beside number, with the tolerance."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lemma.errors import SpecError, unknown
from lemma.ledger.identities import (
    budget,
    convolution,
    dense,
    entropy,
    head_costs,
    heads,
    loops,
    lstm_step,
    merged,
    orthogonal,
    permutation,
    position_table,
    pretraining,
    products,
    relations,
    rotary,
    shaping,
    temperature,
    window,
)
from lemma.ledger.identities.identity import Identity
from lemma.ledger.identities.report import Finding, IdentityReport
from lemma.typeset import fit

IDENTITIES: dict[str, Identity] = {
    one.name: one
    for one in (
        window.IDENTITY,
        relations.IDENTITY,
        shaping.FOCUS,
        shaping.NEAR,
        temperature.IDENTITY,
        merged.IDENTITY,
        budget.IDENTITY,
        loops.IDENTITY,
        lstm_step.IDENTITY,
        orthogonal.IDENTITY,
        products.IDENTITY,
        heads.IDENTITY,
        position_table.IDENTITY,
        rotary.IDENTITY,
        dense.IDENTITY,
        permutation.IDENTITY,
        entropy.IDENTITY,
        head_costs.IDENTITY,
        convolution.IDENTITY,
        pretraining.IDENTITY,
    )
}

__all__ = ["IDENTITIES", "Finding", "Identity", "IdentityList", "IdentityReport", "check_identity", "list_identities"]


@dataclass(frozen=True)
class IdentityList:
    """The identities that can be checked, with the sizes each may be tried at."""

    identities: tuple[Identity, ...]

    def __str__(self) -> str:
        lines = "\n".join(map(str, self.identities))
        first = self.identities[0]
        return fit(f"{lines}\n\nAs in: lemma check identity {first.words[0]} {_first_size(first)}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "identities": [
                {"name": one.name, "words": list(one.words), "title": one.title, "sizes": one.sizes().to_dict()}
                for one in self.identities
            ]
        }


def list_identities() -> IdentityList:
    """All identities that can be checked."""
    return IdentityList(tuple(IDENTITIES.values()))


def check_identity(name: str, sizes: Mapping[str, Any] | None = None) -> IdentityReport:
    """Run the identity of that number or name at these sizes.

    >>> check_identity("products", {"D": 3, "samples": 1000}).holds
    True
    """
    identity = find_identity(name)
    given, where = dict(sizes or {}), f"identity {identity.name}"
    _check_case(given, identity.sizes().to_dict(), where)
    return identity.run(identity.sizes.read(given, where))


def _check_case(given: Mapping[str, Any], known: Mapping[str, Any], where: str) -> None:
    """Letters differ in case alone from what they should be more often than not: i for I, d_K for D_k."""
    for word in given.keys() - known.keys():
        if meant := [one for one in known if one.lower() == word.lower()]:
            raise SpecError(f"{where}: '{word}' is unknown. Did you mean '{meant[0]}'? Known: {', '.join(known)}.")


def find_identity(name: str) -> Identity:
    """Find an identity by its number (c7) or by a word (products)."""
    named = {word: one for one in IDENTITIES.values() for word in (one.name, *one.words)}
    asked = name.strip().lower().replace("_", "-").replace(" ", "-")
    if asked not in named:
        raise SpecError(unknown("identity", name, named))
    return named[asked]


def _first_size(identity: Identity) -> str:
    word, value = next(iter(identity.sizes().to_dict().items()))
    return f"{word}={value}"
