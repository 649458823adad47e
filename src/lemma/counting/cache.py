"""What was probed, kept on disk under the subject's identity and the versions of all that takes part."""

import json
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from lemma.counting.piecewise import DerivedSize
from lemma.counting.polynomial import Polynomial
from lemma.counting.probe import FitResult, GroupFit, PathGroup
from lemma.errors import DataError, RunError
from lemma.files import data_home, home_folder, read_checked_json, with_checksum, write_atomically

PACKAGE = Path(__file__).parents[1]
SOURCES = ("adaptation/*.py", "counting/*.py", "layers/*.py", "models/*.py", "spec/*.py")


class CountCache:
    """One file per subject; without an identity nothing is kept. A damaged file is treated as missing."""

    def __init__(self, identity: str | None) -> None:
        self.path: Path | None = None
        self._entries: dict[str, Any] = {}
        if identity is None:
            return
        key = sha256(f"{identity}\n{torch.__version__}\n{source_hash()}".encode()).hexdigest()[:32]
        self.path = data_home() / "counts" / f"{key}.json"
        with suppress(OSError, RunError):
            self._entries = read_checked_json(self.path)

    def get_or_compute(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return plain values from the cache, or do the work and keep them, if the cache can be written."""
        if name not in self._entries:
            self._entries[name] = compute()
            if self.path is not None:
                with suppress(DataError, OSError):
                    home_folder(self.path.parent.name)
                    write_atomically(self.path, json.dumps(with_checksum(self._entries)))
        return self._entries[name]

    def probed(self, name: str, work: Callable[[], FitResult]) -> FitResult:
        """Return what was probed from the cache, or do the work and keep it."""

        def plain() -> dict[str, Any]:
            probed = work()
            groups = [
                [
                    group.pattern,
                    group.subset,
                    polynomial_to_json(fitted.repeats),
                    [polynomial_to_json(column) for column in fitted.columns],
                ]
                for group, fitted in probed.fits.items()
            ]
            refused = [[group.pattern, group.subset, why] for group, why in probed.failures.items()]
            named = [
                [one.kind, [polynomial_to_json(part) for part in one.operands], one.factor, one.dimension]
                for one in probed.derived.values()
            ]
            return {"groups": groups, "refused": refused, "named": named}

        kept = self.get_or_compute(name, plain)
        groups = {
            PathGroup(pattern, which): GroupFit(
                polynomial_from_json(repeats), tuple(map(polynomial_from_json, columns))
            )
            for pattern, which, repeats, columns in kept["groups"]
        }
        sizes = [
            DerivedSize(kind, tuple(map(polynomial_from_json, parts)), times, place)
            for kind, parts, times, place in kept["named"]
        ]
        refused = {PathGroup(pattern, which): why for pattern, which, why in kept["refused"]}
        return FitResult(groups, refused, {one.name: one for one in sizes})


def source_hash() -> str:
    """The hash of Lemma's own sources on which a count depends."""
    files = sorted(path for pattern in SOURCES for path in PACKAGE.glob(pattern))
    return sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


def polynomial_to_json(polynomial: Polynomial) -> list[Any]:
    """A polynomial as plain values."""
    return [[list(map(list, monomial)), str(number)] for monomial, number in polynomial.terms.items()]


def polynomial_from_json(terms: list[Any]) -> Polynomial:
    """The polynomial of such values."""
    return Polynomial({tuple((name, power) for name, power in factors): Fraction(number) for factors, number in terms})
