"""The identities of the problems: listed, found by name, and run as checks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lemma.checking import attention_identities, model_identities, position_identities
from lemma.checking.identity import REGISTERED, Identity, IdentityReport
from lemma.errors import SpecError, unknown
from lemma.report.result import Block, Heading, Result, Table, Text

_MODULES = (attention_identities, model_identities, position_identities)  # each registers its identities
IDENTITIES: dict[str, Identity] = dict(
    sorted(REGISTERED.items(), key=lambda item: (item[1].row[0], int(item[1].row[1:])))
)
"""All identities by name, in the order of the problems."""


@dataclass(frozen=True)
class IdentityList(Result):
    """The identities that can be checked, with the sizes each may be tried at."""

    identities: tuple[Identity, ...]
    title = "The identities that can be checked"

    def blocks(self) -> list[Block]:
        """Two lines for each."""
        first = self.identities[0]
        word, value = next(iter(first.sizes().to_dict().items()))
        usage = f"As in: lemma check identity {first.words[0]} {word}={value}"
        return [Text("\n".join(map(str, self.identities))), Text(usage, apart=True)]

    def details(self) -> list[Block]:
        """The same as a table."""
        rows = [
            (one.name, ", ".join(one.words), one.title, " ".join(f"{k}={v}" for k, v in one.sizes().to_dict().items()))
            for one in self.identities
        ]
        return [Heading(self.title, 1), Table(("name", "or", "what it is about", "sizes"), rows, plain=True)]

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
