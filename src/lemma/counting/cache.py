"""Readings and formulas on disk, under the subject's identity and the versions of all that takes part."""

import json
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from lemma.counting.derived import DerivedSize
from lemma.counting.fit import FitResult, GroupFit, PathGroup
from lemma.counting.polynomial import Polynomial
from lemma.errors import DataError, RunError
from lemma.files import data_home, home_folder, read_checked_json, with_checksum, write_atomically

PACKAGE = Path(__file__).parents[1]
SOURCES = ("adaptation/*.py", "counting/**/*.py", "layers/*.py", "models/*.py", "spec/*.py")


class CountCache:
    """The cache of one subject, in one file; without an identity it lives in memory only.

    A damaged file is treated as missing, and a file that cannot be written is left alone.
    """

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
        """Return JSON values from the cache, or compute and store them."""
        if name not in self._entries:
            self._entries[name] = compute()
            if self.path is not None:
                with suppress(DataError, OSError):
                    home_folder(self.path.parent.name)
                    write_atomically(self.path, json.dumps(with_checksum(self._entries)))
        return self._entries[name]

    def get_or_fit(self, name: str, fit: Callable[[], FitResult]) -> FitResult:
        """Return formulas from the cache, or fit and store them."""
        return _fit_from_json(self.get_or_compute(name, lambda: _fit_to_json(fit())))


def source_hash() -> str:
    """Return the hash of Lemma's own sources on which a count depends."""
    files = sorted(path for pattern in SOURCES for path in PACKAGE.glob(pattern))
    return sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


def _fit_to_json(result: FitResult) -> dict[str, Any]:
    return {
        "fits": [
            [group.pattern, group.subset, polynomial_to_json(fit.repeats), [*map(polynomial_to_json, fit.columns)]]
            for group, fit in result.fits.items()
        ],
        "failures": [[group.pattern, group.subset, reason] for group, reason in result.failures.items()],
        "derived": [
            [size.kind, [*map(polynomial_to_json, size.operands)], size.factor, size.dimension]
            for size in result.derived.values()
        ],
    }


def _fit_from_json(fields: dict[str, Any]) -> FitResult:
    fits = {
        PathGroup(pattern, subset): GroupFit(polynomial_from_json(repeats), tuple(map(polynomial_from_json, columns)))
        for pattern, subset, repeats, columns in fields["fits"]
    }
    failures = {PathGroup(pattern, subset): reason for pattern, subset, reason in fields["failures"]}
    derived = [
        DerivedSize(kind, tuple(map(polynomial_from_json, operands)), factor, dimension)
        for kind, operands, factor, dimension in fields["derived"]
    ]
    return FitResult(fits, failures, {size.name: size for size in derived})


def polynomial_to_json(polynomial: Polynomial) -> list[Any]:
    """Return the terms as lists: symbols with their powers, then the coefficient as text."""
    return [[list(map(list, monomial)), str(number)] for monomial, number in polynomial.terms.items()]


def polynomial_from_json(terms: list[Any]) -> Polynomial:
    """Read what `polynomial_to_json` returned."""
    return Polynomial({tuple((name, power) for name, power in factors): Fraction(number) for factors, number in terms})
