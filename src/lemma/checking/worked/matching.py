"""A cross-modal search worked by hand: images and sentences, two maps, and who fits whom (problem E7)."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, overload

import numpy as np
from jaxtyping import Float
from pydantic import Field, field_validator

from lemma.checking.worked.case import (
    Array,
    Case,
    CaseExamples,
    CaseLike,
    Expected,
    ExpectedWords,
    Labels,
    NumberRows,
    WorkedCase,
    check_sizes,
    directions,
    expect,
    largest,
    list_examples,
    numbered,
    plain_rows,
    read_case,
    rectangle,
)
from lemma.errors import SpecError, unknown
from lemma.report.numbers import counted, numeral, printable, vector
from lemma.report.result import Block, Heading, Matrix, Table, Text

MOST = 6
"""Of the first few images the arithmetic is shown if none is in focus."""
CaseNames = Annotated[tuple[str, ...], Field(max_length=100)]


class MatchingCase(Case):
    """Images and sentences, each a row of numbers, and the maps that take both to one space."""

    kind: ClassVar[str] = "matching"

    I: NumberRows  # noqa: E741  (the problem's own letter)
    """The images, a row each."""
    T: NumberRows
    """The sentences, a row each."""
    W_i: NumberRows
    """The images' map: a row for each number of an image, a column for each number of the shared space."""
    W_t: NumberRows
    """The sentences' map, with as many columns."""
    image_names: CaseNames = ()
    """What the images are called; image 1, image 2 … if no names are given."""
    sentence_names: CaseNames = ()
    """What the sentences are called."""
    focus: tuple[str, ...] = ()
    """The images whose arithmetic is shown; the first few if none is named."""

    @field_validator("focus", "image_names", "sentence_names", mode="before")
    @classmethod
    def _one_name(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


@dataclass(frozen=True, eq=False)
class MatchingSteps:
    """P = I·W_i, Q = T·W_t, scores P·Qᵀ, and the cosines of the same vectors."""

    images: Labels
    sentences: Labels
    image_inputs: Float[np.ndarray, "images image_width"]
    sentence_inputs: Float[np.ndarray, "sentences text_width"]
    image_map: Float[np.ndarray, "image_width shared"]
    sentence_map: Float[np.ndarray, "text_width shared"]

    @cached_property
    def image_vectors(self) -> Float[np.ndarray, "images shared"]:
        """I·W_i."""
        return self.image_inputs @ self.image_map

    @cached_property
    def sentence_vectors(self) -> Float[np.ndarray, "sentences shared"]:
        """T·W_t."""
        return self.sentence_inputs @ self.sentence_map

    @cached_property
    def scores(self) -> Float[np.ndarray, "images sentences"]:
        """The product of every image with every sentence."""
        return self.image_vectors @ self.sentence_vectors.T

    @cached_property
    def cosines(self) -> Float[np.ndarray, "images sentences"]:
        """The products of the same vectors brought to length 1; NaN where a vector is zero."""
        return directions(self.image_vectors) @ directions(self.sentence_vectors).T

    @cached_property
    def image_lengths(self) -> Float[np.ndarray, "images"]:
        """|p| of every image."""
        return np.linalg.norm(self.image_vectors, axis=1)

    @cached_property
    def sentence_lengths(self) -> Float[np.ndarray, "sentences"]:
        """|q| of every sentence."""
        return np.linalg.norm(self.sentence_vectors, axis=1)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; a cosine that is None belongs to a zero vector."""
        names = ("image_vectors", "sentence_vectors", "image_lengths", "sentence_lengths", "scores")
        return {
            "images": list(self.images),
            "sentences": list(self.sentences),
            **{name: getattr(self, name).tolist() for name in names},
            "cosines": plain_rows(self.cosines),
        }


@dataclass(frozen=True)
class BestMatch:
    """What fits one image, or one sentence, best: by product and by cosine; several if they tie."""

    name: str
    by_product: Labels
    product: float
    by_cosine: Labels
    cosine: float | None
    """None where the cosine is not defined."""

    @property
    def agree(self) -> bool:
        """Whether both name the same."""
        return self.by_product == self.by_cosine


def best_matches(rows: Labels, columns: Labels, scores: Array, cosines: Array) -> tuple[BestMatch, ...]:
    """The winner of every row."""
    found: list[BestMatch] = []
    for name, products, row in zip(rows, scores, cosines, strict=True):
        known = row[~np.isnan(row)]
        best, by_cosine = (float(known.max()), largest(columns, row)) if known.size else (None, ())
        found.append(BestMatch(name, largest(columns, products), float(products.max()), by_cosine, best))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class WorkedMatching(WorkedCase):
    """A cross-modal search with every product, and what fits each image and each sentence best."""

    untitled: ClassVar[str] = "A cross-modal search by hand"

    case: MatchingCase
    steps: MatchingSteps
    of_images: tuple[BestMatch, ...]
    of_sentences: tuple[BestMatch, ...]
    focus: tuple[int, ...]
    full: bool = False
    decimals: int = 4

    def blocks(self) -> list[Block]:
        """Every product of the images in focus; with `full` the matrices that were given, too."""
        return self._blocks(self.full)

    def details(self) -> list[Block]:
        """Everything."""
        return self._blocks(every_matrix=True)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, none of them rounded."""
        of_images, of_sentences = (
            [asdict(one) | {"agree": one.agree} for one in some] for some in (self.of_images, self.of_sentences)
        )
        steps = self.steps.to_dict()
        return {"case": self.case.to_dict(), "steps": steps, "of_images": of_images, "of_sentences": of_sentences}

    def expected(self) -> list[Expected]:
        """P, Q, their lengths, scores, cosines, and who fits whom."""
        steps, images, sentences = self.steps, self.steps.images, self.steps.sentences
        width, pair = numbered(steps.image_map.shape[1]), (images, sentences)
        lengths = steps.image_lengths[:, None] * steps.sentence_lengths[None]
        slips = {
            "divided by |p|² |q|²: the lengths count once each": steps.scores / lengths**2,
            "divided by |p| alone": steps.scores / steps.image_lengths[:, None],
            "divided by |q| alone": steps.scores / steps.sentence_lengths[None],
        }
        found: list[Expected] = [
            expect("P", steps.image_vectors, (images, width), "I·W_i", ("p", "image_vectors")),
            expect("Q", steps.sentence_vectors, (sentences, width), "T·W_t", ("q", "sentence_vectors")),
            expect("scores", steps.scores, pair, "P·Qᵀ", ("score", "S", "p·q", "PQ")),
            expect("length_p", steps.image_lengths, (images,), "|p|", ("|p|", "norm_p")),
            expect("length_q", steps.sentence_lengths, (sentences,), "|q|", ("|q|", "norm_q")),
            expect("cosines", steps.cosines, pair, "p·q / (|p| |q|)", ("cosine", "cos"), slips),
        ]
        for end, matches, other in (("", self.of_images, "sentence"), ("_image", self.of_sentences, "image")):
            labels = (tuple(one.name for one in matches),)
            products, cosines = tuple(one.by_product for one in matches), tuple(one.by_cosine for one in matches)
            found.append(ExpectedWords(f"best{end}", products, labels, f"{other} of the largest product"))
            found.append(ExpectedWords(f"best{end}_cosine", cosines, labels, f"{other} of the largest cosine"))
        return found

    def _blocks(self, every_matrix: bool) -> list[Block]:
        steps, images, sentences = self.steps, self.steps.images, self.steps.sentences
        shared = counted(steps.image_map.shape[1], "number")
        about = f"W_i and W_t take images and sentences to {shared}; nothing is rounded on the way."
        left = len(images) - len(self.focus)
        rest = [Text(f"{counted(left, 'image')} not in focus: only the matrices show the rest.")] if left else []
        pairs = [(row, column) for row in self.focus for column in range(len(sentences))]
        given = [
            self._matrix("I", steps.image_inputs, images),
            self._matrix("W_i", steps.image_map),
            self._matrix("T", steps.sentence_inputs, sentences),
            self._matrix("W_t", steps.sentence_map),
        ]
        return [
            self.headline,
            Text(about),
            *rest,
            *(given if every_matrix else []),
            Heading("Images in the shared space: P = I·W_i"),
            *(self._projection("p", images[row], steps.image_inputs[row], steps.image_map) for row in self.focus),
            self._matrix("P = I·W_i", steps.image_vectors, images),
            Heading("Sentences in the shared space: Q = T·W_t"),
            *(
                self._projection("q", name, row, steps.sentence_map)
                for name, row in zip(sentences, steps.sentence_inputs, strict=True)
            ),
            self._matrix("Q = T·W_t", steps.sentence_vectors, sentences),
            Heading("Scores: p·q"),
            *(self._score(*pair) for pair in pairs),
            self._matrix("scores P·Qᵀ", steps.scores, images, sentences),
            Heading("Cosines: p·q / (|p| |q|)"),
            self._lengths("p", images, steps.image_lengths),
            self._lengths("q", sentences, steps.sentence_lengths),
            *(self._cosine(*pair) for pair in pairs),
            self._matrix("cosines", steps.cosines, images, sentences),
            Heading("Who fits whom"),
            self._winners("for each image the sentence", self.of_images),
            self._winners("for each sentence the image", self.of_sentences),
        ]

    def _matrix(self, title: str, values: Array, rows: Labels | None = None, columns: Labels | None = None) -> Matrix:
        height, width = values.shape
        return Matrix(title, rows or numbered(height), columns or numbered(width), values, decimals=self.decimals)

    def _projection(self, letter: str, name: str, given: Array, mapped: Array) -> Text:
        """The arithmetic of every entry of one image or sentence in the shared space."""
        lines = [
            f"{letter}({name}){str(number).translate(SUBSCRIPTS)} = "
            f"{sum_of_products(given, column, self.decimals)} = {short_numeral(made, self.decimals)}"
            for number, (column, made) in enumerate(zip(mapped.T, given @ mapped, strict=True), 1)
        ]
        return Text("\n".join(lines))

    def _score(self, row: int, column: int) -> Text:
        steps = self.steps
        added = sum_of_products(steps.image_vectors[row], steps.sentence_vectors[column], self.decimals)
        value = short_numeral(steps.scores[row, column], self.decimals)
        return Text(f"p({steps.images[row]})·q({steps.sentences[column]}) = {added} = {value}")

    def _lengths(self, letter: str, names: Labels, lengths: Array) -> Text:
        pairs = zip(names, lengths, strict=True)
        return Text(", ".join(f"|{letter}({name})| = {short_numeral(one, self.decimals)}" for name, one in pairs))

    def _cosine(self, row: int, column: int) -> Text:
        steps = self.steps
        score, p, q, cosine = (
            short_numeral(value, self.decimals)
            for value in (
                steps.scores[row, column],
                steps.image_lengths[row],
                steps.sentence_lengths[column],
                steps.cosines[row, column],
            )
        )
        value = "undefined" if np.isnan(steps.cosines[row, column]) else cosine
        return Text(f"cos({steps.images[row]}, {steps.sentences[column]}) = {score} / ({p}·{q}) = {value}")

    def _winners(self, title: str, found: Sequence[BestMatch]) -> Table:
        rows = [
            (
                one.name,
                " = ".join(one.by_product),
                numeral(one.product, self.decimals),
                " = ".join(one.by_cosine) or "none",
                "undefined" if one.cosine is None else numeral(one.cosine, self.decimals),
                "yes" if one.agree else "no",
            )
            for one in found
        ]
        return Table(("", "by product", "p·q", "by cosine", "cosine", "agree"), rows, title, plain=True)


SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def sum_of_products(left: Iterable[float], right: Iterable[float], decimals: int = 4) -> str:
    """A scalar product as a person writes it out.

    >>> sum_of_products([0.2, -1.5], [0.6, 1.3])
    '0.2·0.6 − 1.5·1.3'
    >>> sum_of_products([-1, 2], [3, -4])
    '−1·3 + 2·(−4)'
    """
    text = ""
    for place, (first, second) in enumerate(zip(left, right, strict=True)):
        size, other = short_numeral(abs(first), decimals), short_numeral(second, decimals)
        term = f"{size}·({other})" if second < 0 else f"{size}·{other}"
        sign = ("−" if first < 0 else "") if place == 0 else (" − " if first < 0 else " + ")
        text += sign + term
    return text


def short_numeral(value: float, decimals: int) -> str:
    """A number without zeros that only line up columns."""
    return vector([value], decimals)[1:-1]


@overload
def matching_by_hand(example: None = None) -> CaseExamples: ...
@overload
def matching_by_hand(
    example: CaseLike, *, words: Sequence[str] | None = None, full: bool = False, decimals: int = 4
) -> WorkedMatching: ...
def matching_by_hand(
    example: CaseLike | None = None, *, words: Sequence[str] | None = None, full: bool = False, decimals: int = 4
) -> WorkedMatching | CaseExamples:
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
    case, where = found.case, found.where
    images, sentences = rectangle("I", case.I, where), rectangle("T", case.T, where)
    maps = _map("W_i", case.W_i, "I", images, where), _map("W_t", case.W_t, "T", sentences, where)
    if maps[0].shape[1] != maps[1].shape[1]:
        raise SpecError(
            f"{where}: W_i has {counted(maps[0].shape[1], 'column')}, W_t has {maps[1].shape[1]}; images and sentences "
            "meet in one space, so both need as many."
        )
    image_names = _names("image", case.image_names, len(images), where)
    sentence_names = _names("sentence", case.sentence_names, len(sentences), where)
    steps = MatchingSteps(image_names, sentence_names, images, sentences, *maps)
    check_sizes(where, lambda: (steps.image_vectors, steps.sentence_vectors, steps.scores))
    of_images = best_matches(image_names, sentence_names, steps.scores, steps.cosines)
    of_sentences = best_matches(sentence_names, image_names, steps.scores.T, steps.cosines.T)
    for name in case.focus:
        if printable(name) not in image_names:
            raise SpecError(f"{where}: " + unknown("focus", name, image_names))
    focus = tuple(image_names.index(printable(name)) for name in case.focus) or tuple(range(min(len(images), MOST)))
    return WorkedMatching(case, found.text, steps, of_images, of_sentences, focus, full, decimals)


def _map(name: str, rows: Sequence[Sequence[float]], of: str, given: Array, where: str) -> Array:
    made = rectangle(name, rows, where)
    if made.shape[0] == given.shape[1]:
        return made
    turned = " Its transpose would fit: write its columns as rows." if made.shape[1] == given.shape[1] else ""
    raise SpecError(
        f"{where}: {name} is {made.shape[0]}×{made.shape[1]}; for {of}·{name} and rows of {of} of length "
        f"{given.shape[1]} it needs {counted(given.shape[1], 'row')}.{turned}"
    )


def _names(what: str, given: Sequence[str], count: int, where: str) -> Labels:
    if not given:
        return tuple(f"{what} {number}" for number in range(1, count + 1))
    if len(given) != count:
        raise SpecError(f"{where}: {what}_names has {counted(len(given), 'name')} for {counted(count, what)}.")
    if len(set(given)) < count:
        raise SpecError(f"{where}: {what}_names has a name twice; give each {what} its own.")
    return tuple(map(printable, given))
