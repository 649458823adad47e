"""A cross-modal search worked by hand: images and sentences, two maps, and who fits whom (problem E7)."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, overload

import numpy as np

from lemma.errors import InputError, SpecError, unknown
from lemma.looking.words import counted
from lemma.looking.worked.blocks import Block, Blocks, Heading, Words
from lemma.looking.worked.maps import rectangle
from lemma.looking.worked.matching_case import MatchingCase
from lemma.looking.worked.matching_steps import Match, MatchingSteps, Matrix, matches
from lemma.looking.worked.matching_views import comparisons, inputs, projections, winners
from lemma.looking.worked.numerals import printable
from lemma.looking.worked.reading import Examples, Given, list_examples, read_case
from lemma.looking.worked.result import Worked
from lemma.looking.worked.steps import LARGEST

MOST = 6
"""Of so many images the arithmetic is shown if none is in focus."""


@dataclass(frozen=True, eq=False)
class WorkedMatching(Worked):
    """A cross-modal search with every product, and what fits each image and each sentence best."""

    case: MatchingCase
    source: str
    """The case as it was written."""
    steps: MatchingSteps
    of_images: tuple[Match, ...]
    of_sentences: tuple[Match, ...]
    focus: tuple[int, ...]
    full: bool = False
    decimals: int = 4

    @property
    def heading(self) -> str:
        """The title of the case."""
        return printable(self.case.title) or "A cross-modal search by hand"

    def shown(self) -> Blocks:
        """Every product of the images in focus; with `full` the matrices that were given, too."""
        return self._blocks(self.full)

    def drawn(self) -> Blocks:
        """Everything."""
        return self._blocks(True)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, none of them rounded."""
        found = {"of_images": self.of_images, "of_sentences": self.of_sentences}
        plain = {name: [asdict(one) | {"agree": one.agree} for one in some] for name, some in found.items()}
        return {"case": self.case.to_dict(), "steps": self.steps.to_dict(), **plain}

    def writers(self) -> dict[str, Callable[[], str]]:
        """The usual files, and the case itself to start another from."""
        return super().writers() | {".toml": lambda: self.source}

    def _blocks(self, every_matrix: bool) -> list[Block]:
        shared = counted(self.steps.image_map.shape[1], "number")
        about = f"W_i and W_t take images and sentences to {shared}; nothing is rounded on the way."
        left = len(self.steps.images) - len(self.focus)
        rest = [Words(f"{counted(left, 'image')} not in focus: only the matrices show the rest.")] if left else []
        return [
            Heading(self.heading, 1),
            Words(about),
            *rest,
            *(inputs(self.steps, self.decimals) if every_matrix else []),
            *projections(self.steps, self.focus, self.decimals),
            *comparisons(self.steps, self.focus, self.decimals),
            Heading("Who fits whom"),
            winners("for each image the sentence", self.of_images, self.decimals),
            winners("for each sentence the image", self.of_sentences, self.decimals),
        ]


@overload
def matching_by_hand(example: None = None) -> Examples: ...
@overload
def matching_by_hand(
    example: Given, *, words: Sequence[str] | None = None, full: bool = False, decimals: int = 4
) -> WorkedMatching: ...
def matching_by_hand(
    example: Given | None = None, *, words: Sequence[str] | None = None, full: bool = False, decimals: int = 4
) -> WorkedMatching | Examples:
    """Work a cross-modal search out, for an example by name, a TOML file or a table of the same words.

    P = I·W_i and Q = T·W_t are images and sentences in one space; an image and a sentence fit by p·q, or by the cosine
    p·q / (|p| |q|). `words` (names of images) take the place of the case's focus. Without an example, those that come
    with Lemma are listed.

    >>> worked = matching_by_hand("e7")
    >>> worked.steps.scores.round(4).tolist()
    [[1.3314, -1.5003, 1.5844], [-0.0702, 0.0789, -0.0828]]
    >>> [one.by_product for one in worked.of_images]
    [('sentence 3',), ('sentence 2',)]
    """
    if example is None:
        return list_examples("matching")
    found = read_case(MatchingCase, example, {"focus": words or None})
    case, steps = found.case, _steps(found.case, found.where)
    of_images = matches(steps.images, steps.sentences, steps.scores, steps.cosines)
    of_sentences = matches(steps.sentences, steps.images, steps.scores.T, steps.cosines.T)
    focus = _focus(case, steps.images, found.where)
    return WorkedMatching(case, found.text, steps, of_images, of_sentences, focus, full, decimals)


def _steps(case: MatchingCase, where: str) -> MatchingSteps:
    images, sentences = rectangle("I", case.I, where), rectangle("T", case.T, where)
    maps = _map("W_i", case.W_i, "I", images, where), _map("W_t", case.W_t, "T", sentences, where)
    if maps[0].shape[1] != maps[1].shape[1]:
        raise SpecError(
            f"{where}: W_i has {counted(maps[0].shape[1], 'column')}, W_t has {maps[1].shape[1]}; images and sentences "
            "meet in one space, so both need as many."
        )
    names = (
        _names("image", case.image_names, len(images), where),
        _names("sentence", case.sentence_names, len(sentences), where),
    )
    steps = MatchingSteps(*names, images, sentences, *maps)
    _refuse_large(steps, where)
    return steps


def _map(name: str, rows: Sequence[Sequence[float]], of: str, given: Matrix, where: str) -> Matrix:
    made = rectangle(name, rows, where)
    if made.shape[0] == given.shape[1]:
        return made
    turned = " Its transpose would fit: write its columns as rows." if made.shape[1] == given.shape[1] else ""
    raise SpecError(
        f"{where}: {name} is {made.shape[0]}×{made.shape[1]}; for {of}·{name} and rows of {of} of length "
        f"{given.shape[1]} it needs {counted(given.shape[1], 'row')}.{turned}"
    )


def _names(what: str, given: Sequence[str], count: int, where: str) -> tuple[str, ...]:
    if not given:
        return tuple(f"{what} {number}" for number in range(1, count + 1))
    if len(given) != count:
        raise SpecError(f"{where}: {what}_names has {counted(len(given), 'name')} for {counted(count, what)}.")
    if len(set(given)) < count:
        raise SpecError(f"{where}: {what}_names has a name twice; give each {what} its own.")
    return tuple(map(printable, given))


def _focus(case: MatchingCase, images: tuple[str, ...], where: str) -> tuple[int, ...]:
    for name in case.focus:
        if printable(name) not in images:
            raise SpecError(f"{where}: " + unknown("focus", name, images))
    chosen = tuple(images.index(printable(name)) for name in case.focus)
    return chosen or tuple(range(min(len(images), MOST)))


def _refuse_large(steps: MatchingSteps, where: str) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        made = (steps.image_vectors, steps.sentence_vectors, steps.scores)
        kept = all(np.abs(one).max() <= LARGEST for one in made)
    if not kept:
        raise InputError(f"{where}: a number grows past {LARGEST:.0e}, too large to work with. Give smaller ones.")
