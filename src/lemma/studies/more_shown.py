"""How what a study's `measures` found is shown: sections of the report, sentences, tables for the terminal."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from lemma.spec import StudySpec
from lemma.studies import attention_shown, positions_shown
from lemma.studies.row import Row


class Shown(Protocol):
    """What each measure's module offers."""

    def section_of(self, rows: Sequence[Row]) -> str:
        """A section of the report, or nothing."""
        ...

    def sentences_of(self, rows: Sequence[Row]) -> Iterator[str]:
        """What the numbers say."""
        ...

    def text_of(self, rows: Sequence[Row]) -> str:
        """A table for the terminal, or nothing."""
        ...

    def summary_of(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Means over the seeds, as plain values."""
        ...


SHOWN: dict[str, Shown] = {"positions": positions_shown, "attention": attention_shown}


def sections(spec: StudySpec, rows: Sequence[Row]) -> list[str]:
    """The sections of the report that the study's measures make."""
    return [SHOWN[name].section_of(rows) for name in spec.measures]


def sentences(spec: StudySpec, rows: Sequence[Row]) -> list[str]:
    """What the study's measures say."""
    return [sentence for name in spec.measures for sentence in SHOWN[name].sentences_of(rows)]


def texts(spec: StudySpec, rows: Sequence[Row]) -> list[str]:
    """The tables of the study's measures, for the terminal."""
    return [text for name in spec.measures if (text := SHOWN[name].text_of(rows))]


def summary(name: str, rows: Sequence[Row]) -> dict[str, Any]:
    """The means of one measure over the seeds, as plain values."""
    return SHOWN[name].summary_of(rows)
