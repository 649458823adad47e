"""What was probed, kept on disk under the subject's identity and the versions of all that takes part."""

import json
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from lemma.counting.piecewise import NamedSize
from lemma.counting.polynomial import Polynomial
from lemma.counting.probe import Fitted, PathGroup, Probed
from lemma.data.files import data_home, home_folder, read_sealed, seal, write_atomically
from lemma.errors import DataError, RunError

PACKAGE = Path(__file__).parents[1]
SOURCES = ("adaptation/*.py", "counting/*.py", "layers/*.py", "models/*.py", "spec/*.py")


class CountCache:
    """One file per subject; without an identity nothing is kept. A damaged file is treated as missing."""

    def __init__(self, identity: str | None) -> None:
        self.path: Path | None = None
        self._held: dict[str, Any] = {}
        if identity is None:
            return
        key = sha256(f"{identity}\n{torch.__version__}\n{source_hash()}".encode()).hexdigest()[:32]
        self.path = data_home() / "counts" / f"{key}.json"
        with suppress(OSError, RunError):
            self._held = read_sealed(self.path)

    def get(self, name: str, work: Callable[[], Any]) -> Any:
        """Return plain values from the cache, or do the work and keep them, if the cache can be written."""
        if name not in self._held:
            self._held[name] = work()
            if self.path is not None:
                with suppress(DataError, OSError):
                    home_folder(self.path.parent.name)
                    write_atomically(self.path, json.dumps(seal(self._held)))
        return self._held[name]

    def probed(self, name: str, work: Callable[[], Probed]) -> Probed:
        """Return what was probed from the cache, or do the work and keep it."""

        def plain() -> dict[str, Any]:
            probed = work()
            groups = [
                [group.pattern, group.which, terms_of(fitted.repeats), [terms_of(column) for column in fitted.columns]]
                for group, fitted in probed.groups.items()
            ]
            refused = [[group.pattern, group.which, why] for group, why in probed.refused.items()]
            named = [
                [one.kind, [terms_of(part) for part in one.of], one.times, one.place] for one in probed.named.values()
            ]
            return {"groups": groups, "refused": refused, "named": named}

        kept = self.get(name, plain)
        groups = {
            PathGroup(pattern, which): Fitted(polynomial_of(repeats), tuple(map(polynomial_of, columns)))
            for pattern, which, repeats, columns in kept["groups"]
        }
        sizes = [
            NamedSize(kind, tuple(map(polynomial_of, parts)), times, place)
            for kind, parts, times, place in kept["named"]
        ]
        refused = {PathGroup(pattern, which): why for pattern, which, why in kept["refused"]}
        return Probed(groups, refused, {one.name: one for one in sizes})


def source_hash() -> str:
    """The hash of Lemma's own sources on which a count depends."""
    files = sorted(path for pattern in SOURCES for path in PACKAGE.glob(pattern))
    return sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


def terms_of(polynomial: Polynomial) -> list[Any]:
    """A polynomial as plain values."""
    return [[list(map(list, monomial)), str(number)] for monomial, number in polynomial.terms.items()]


def polynomial_of(terms: list[Any]) -> Polynomial:
    """The polynomial of such values."""
    return Polynomial({tuple((name, power) for name, power in factors): Fraction(number) for factors, number in terms})
