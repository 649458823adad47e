"""The identities of the problems: listed, found by name, and run as checks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lemma.checking import attention_identities, identity, model_identities, position_identities
from lemma.checking.identity import Identity, IdentityReport
from lemma.errors import SpecError, unknown
from lemma.report.text import fit

_MODULES = (attention_identities, model_identities, position_identities)  # each registers its identities
IDENTITIES: dict[str, Identity] = dict(
    sorted(identity.IDENTITIES.items(), key=lambda item: (item[1].row[0], int(item[1].row[1:])))
)
"""All identities by name, in the order of the problems."""


@dataclass(frozen=True)
class IdentityList:
    """The identities that can be checked, with the sizes each may be tried at."""

    identities: tuple[Identity, ...]

    def __str__(self) -> str:
        first = self.identities[0]
        word, value = next(iter(first.sizes().to_dict().items()))
        lines = "\n".join(map(str, self.identities))
        return fit(f"{lines}\n\nAs in: lemma check identity {first.words[0]} {word}={value}")

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


def find_identity(name: str) -> Identity:
    """Find an identity by its number (c7) or by a word (products)."""
    named = {word: one for one in IDENTITIES.values() for word in (one.name, *one.words)}
    asked = name.strip().lower().replace("_", "-").replace(" ", "-")
    if asked not in named:
        raise SpecError(unknown("identity", name, named))
    return named[asked]


def check_identity(name: str, sizes: Mapping[str, Any] | None = None) -> IdentityReport:
    """Run the identity of that number or name at these sizes.

    >>> check_identity("products", {"D": 3, "samples": 1000}).holds
    True
    """
    return find_identity(name)(**(sizes or {}))
