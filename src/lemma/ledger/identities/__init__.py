"""The sources' identities, run: `check_identity("c7", {"D": 256})` sets number beside number, with the tolerance."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lemma.errors import SpecError, unknown
from lemma.ledger.identities import budget, dense, heads, merged, orthogonal, permutation, products, rotary, temperature
from lemma.ledger.identities.identity import Identity
from lemma.ledger.identities.report import Finding, IdentityReport

IDENTITIES: dict[str, Identity] = {
    module.IDENTITY.name: module.IDENTITY
    for module in (temperature, merged, budget, orthogonal, products, heads, dense, permutation, rotary)
}

__all__ = ["IDENTITIES", "Finding", "Identity", "IdentityList", "IdentityReport", "check_identity", "list_identities"]


@dataclass(frozen=True)
class IdentityList:
    """The identities that can be checked, with the sizes each may be tried at."""

    identities: tuple[Identity, ...]

    def __str__(self) -> str:
        lines = "\n".join(map(str, self.identities))
        return f"{lines}\n\nAs in: lemma check identity {self.identities[0].words[0]} {_first_size(self.identities[0])}"

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
