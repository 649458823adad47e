"""The identities of the problems, each run on Lemma's modules next to arithmetic written out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lemma.checking.identities import attention, heads, models, scores  # noqa: F401 — each registers its identities
from lemma.checking.identities.base import REGISTRY, Identity, IdentityReport
from lemma.errors import SpecError, describe_unknown
from lemma.report.result import Block, Heading, Result, Table, Text

IDENTITIES: dict[str, Identity] = dict(  # in the order of the problems
    sorted(REGISTRY.items(), key=lambda item: (item[1].row[0], int(item[1].row[1:])))
)


def check_identity(name: str, sizes: Mapping[str, Any] | None = None) -> IdentityReport:
    """Run an identity by number, such as c7, or alias, such as products; `sizes` replace its defaults, as in {"D": 3}.

    >>> check_identity("products", {"D": 3, "samples": 1000}).holds
    True
    """
    return find_identity(name)(**(sizes or {}))


def find_identity(name: str) -> Identity:
    """Return the identity of this number, such as c7, or alias, such as products; a SpecError says if none has it."""
    by_name = {alias: identity for identity in IDENTITIES.values() for alias in (identity.name, *identity.aliases)}
    key = name.strip().lower().replace("_", "-").replace(" ", "-")
    if key not in by_name:
        raise SpecError(describe_unknown("identity", name, by_name))
    return by_name[key]


def list_identities() -> "IdentityList":
    """Return all identities as a result that can be printed and saved."""
    return IdentityList(tuple(IDENTITIES.values()))


@dataclass(frozen=True)
class IdentityList(Result):
    """A list of the identities that can be checked, with their default sizes."""

    identities: tuple[Identity, ...]
    title = "The identities that can be checked"

    def blocks(self) -> list[Block]:
        """Return the report blocks: names, titles and default sizes, and how to run one."""
        first = self.identities[0]
        usage = f"As in: lemma check identity {first.aliases[0]} {first.default_sizes.split()[0]}"
        return [Text("\n".join(map(str, self.identities))), Text(usage, blank_before=True)]

    def details(self) -> list[Block]:
        """Return the report blocks with a table of the identities."""
        rows = [
            (identity.name, ", ".join(identity.aliases), identity.title, identity.default_sizes)
            for identity in self.identities
        ]
        return [Heading(self.title, 1), Table(("name", "or", "what it is about", "sizes"), rows, is_text=True)]

    def to_dict(self) -> dict[str, Any]:
        """Return name, aliases, title and default sizes of each identity as plain values for JSON."""
        return {
            "identities": [
                {
                    "name": identity.name,
                    "words": list(identity.aliases),
                    "title": identity.title,
                    "sizes": identity.sizes().to_dict(),
                }
                for identity in self.identities
            ]
        }
