"""Finished readings kept on disk, under the subject's identity and the versions of all that takes part."""

import json
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from lemma.counting.polynomial import Polynomial
from lemma.counting.probe import Fitted, Place, Probed
from lemma.data.files import data_home, home_folder, write_atomically
from lemma.errors import DataError

OURS = Path(__file__).parents[1]
SOURCES = ("adaptation/*.py", "counting/*.py", "layers/*.py", "models/*.py", "spec/*.py")


class Shelf:
    """One file a subject; without an identity nothing is kept. A damaged file is as good as none."""

    def __init__(self, identity: str | None) -> None:
        self.path = data_home() / "ledger" / f"{_stamp(identity)}.json" if identity else None
        self._held: dict[str, Any] = self._read()

    def probed(self, name: str, work: Callable[[], Probed]) -> Probed:
        """Return a reading from the shelf, or do the work and put it there."""
        return _probed(self.get(name, lambda: _plain(work())))

    def get(self, name: str, work: Callable[[], Any]) -> Any:
        """Return plain values from the shelf, or do the work and put them there."""
        if name not in self._held:
            self._held[name] = work()
            self._keep()
        return self._held[name]

    def _keep(self) -> None:
        """Write it down; where nothing can be written, the work is only done again the next time."""
        if self.path is None:
            return
        with suppress(DataError, OSError):
            home_folder(self.path.parent.name)
            write_atomically(self.path, json.dumps(self._held))

    def _read(self) -> dict[str, Any]:
        try:
            return json.loads(self.path.read_text(encoding="utf-8")) if self.path else {}
        except (OSError, ValueError):
            return {}


def _stamp(identity: str) -> str:
    return sha256(f"{identity}\n{torch.__version__}\n{source_hash()}".encode()).hexdigest()[:32]


def source_hash() -> str:
    """The hash of Lemma's own sources on which a reading depends."""
    files = sorted(path for pattern in SOURCES for path in OURS.glob(pattern))
    return sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


def _plain(probed: Probed) -> dict[str, Any]:
    places = [
        [place.pattern, place.which, terms_of(fitted.repeats), [terms_of(column) for column in fitted.columns]]
        for place, fitted in probed.places.items()
    ]
    return {"places": places, "refused": [[place.pattern, place.which, why] for place, why in probed.refused.items()]}


def _probed(plain: dict[str, Any]) -> Probed:
    places = {
        Place(pattern, which): Fitted(polynomial_of(repeats), tuple(map(polynomial_of, columns)))
        for pattern, which, repeats, columns in plain["places"]
    }
    return Probed(places, {Place(pattern, which): why for pattern, which, why in plain["refused"]})


def terms_of(polynomial: Polynomial) -> list[Any]:
    """A polynomial as plain values."""
    return [[list(map(list, monomial)), str(number)] for monomial, number in polynomial.terms.items()]


def polynomial_of(terms: list[Any]) -> Polynomial:
    """The polynomial of such values."""
    return Polynomial({tuple((name, power) for name, power in factors): Fraction(number) for factors, number in terms})
