"""One's own files into training and validation text: the end is held out, cut at a line if one ends near."""

from collections.abc import Sequence

from lemma.data.reading import next_character, read_bytes
from lemma.data.sections import Section, Splits, total_size
from lemma.errors import DataError

NEAR = 1 << 16
"""A line's end is looked for at most so many bytes away, and never so far that a part would lose half its length."""


def hold_out(documents: Sequence[Section], share: float) -> Splits:
    """Divide documents into `train`, the first bytes of them all, and `validation`, the last `share`."""
    total = total_size(documents)
    place = min(max(round(total * (1 - share)), 1), total - 1)
    near = min(NEAR, place // 2, (total - place) // 2)
    splits: Splits = {"train": [], "validation": []}
    for document in documents:
        cut = _cut(document, place, near)
        splits["train"].append(Section(document.path, document.start, cut))
        splits["validation"].append(Section(document.path, cut, document.stop))
        place -= document.size
    return {name: _filled(name, sections, total) for name, sections in splits.items()}


def _filled(name: str, sections: list[Section], total: int) -> list[Section]:
    if not total_size(sections):
        raise DataError(f"a text of {total} bytes leaves nothing for the split '{name}'. Give more text.")
    return [section for section in sections if section.size]


def _cut(document: Section, place: int, near: int) -> int:
    """Where the document is cut if training text ends `place` bytes after its start."""
    if place <= 0 or place >= document.size:
        return document.start if place <= 0 else document.stop
    wanted = document.start + place
    return (
        _after(b"\n", document, wanted, near)
        or _after(b" ", document, wanted, near)
        or next_character(document.path, wanted)
    )


def _after(separator: bytes, document: Section, wanted: int, near: int) -> int | None:
    """The place after a separator that lies nearest to the wanted one; None if there is none near."""
    first = max(wanted - near, document.start)
    window = read_bytes(Section(document.path, first, min(wanted + near, document.stop)))
    found = (window.rfind(separator, 0, wanted - first), window.find(separator, wanted - first))
    places = [first + place + 1 for place in found if place >= 0]
    return min(places, key=lambda place: abs(place - wanted), default=None)
