"""The identities of the problems, run as checks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lemma.checking.attention_identities import (
    DENSE_LAYER,
    FOCUS,
    HEAD_COSTS,
    MERGED_MATRICES,
    MERGED_PARAMETERS,
    NEAR,
    ORTHOGONAL_INPUTS,
    PERMUTATION,
    PRODUCT_VARIANCE,
    RELATION_HEAD,
    SUM_OVER_HEADS,
    TEMPERATURE,
    WINDOW_HEAD,
)
from lemma.checking.identity import Identity, IdentityReport
from lemma.checking.model_identities import CROSS_ENTROPY, GRAPH_CONVOLUTION, GREEDY_LOOPS, LSTM_STEP, PRETRAINING
from lemma.checking.position_identities import POSITION_TABLE, ROTARY_DISTANCE
from lemma.errors import SpecError, unknown
from lemma.report.text import fit

IDENTITIES: dict[str, Identity] = {
    one.name: one
    for one in (
        WINDOW_HEAD,
        RELATION_HEAD,
        FOCUS,
        NEAR,
        TEMPERATURE,
        MERGED_MATRICES,
        MERGED_PARAMETERS,
        GREEDY_LOOPS,
        LSTM_STEP,
        ORTHOGONAL_INPUTS,
        PRODUCT_VARIANCE,
        SUM_OVER_HEADS,
        POSITION_TABLE,
        ROTARY_DISTANCE,
        DENSE_LAYER,
        PERMUTATION,
        CROSS_ENTROPY,
        HEAD_COSTS,
        GRAPH_CONVOLUTION,
        PRETRAINING,
    )
}


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
