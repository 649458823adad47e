"""The sources of what other packages bring to a spec, for whoever keeps what was worked out from them."""

from collections.abc import Iterator
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from lemma.spec.base import Spec
from lemma.spec.new_family import NewFamily
from lemma.spec.positions import NewPositions


def brought_sources(spec: Spec) -> str | None:
    """The hash of every package that brings something to this spec; empty if none does, None if one has no sources.

    >>> from lemma.spec import Decoder
    >>> brought_sources(Decoder())
    ''
    """
    packages = sorted({package for part in _brought(spec) for package in _packages(part)})
    hashes = {package: _hash(package) for package in packages}
    return None if None in hashes.values() else "".join(f" {package} {found}" for package, found in hashes.items())


def _brought(spec: Spec) -> Iterator[NewFamily | NewPositions]:
    if isinstance(spec, NewFamily | NewPositions):
        yield spec
    for name in type(spec).model_fields:
        if isinstance(value := getattr(spec, name), Spec):
            yield from _brought(value)


def _packages(part: NewFamily | NewPositions) -> set[str]:
    """The packages of its class and of the modules that it names."""
    named = [part.model] if isinstance(part, NewFamily) else [part.adds, part.turns, part.biases]
    return {module.partition(".")[0].partition(":")[0] for module in (type(part).__module__, *named) if module}


def _hash(package: str) -> str | None:
    """The hash of a package's Python files, or of the one file that a module is."""
    try:
        found = find_spec(package)
    except (ImportError, ValueError):  # such as __main__
        return None
    if found is None or not found.has_location:
        return None
    folders = [Path(folder) for folder in found.submodule_search_locations or ()]
    files = sorted(path for folder in folders for path in folder.rglob("*.py")) or [Path(str(found.origin))]
    return sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()
