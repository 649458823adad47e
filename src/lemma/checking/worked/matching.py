"""A cross-modal search with every number on the way: projections, products, cosines, winners."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
from jaxtyping import Float

from lemma.checking.worked.attention import LARGEST, plain_rows, rectangle
from lemma.checking.worked.case import Examples, Given, MatchingCase, directions, largest, list_examples, read_case
from lemma.errors import InputError, SpecError, unknown
from lemma.report.blocks import Block, Blocks, Grid, Heading, Words, Worked
from lemma.report.blocks import Matrix as MatrixBlock
from lemma.report.numbers import counted, numeral, printable, vector

Matrix = Float[np.ndarray, "rows columns"]


@dataclass(frozen=True, eq=False)
class MatchingSteps:
    """P = I·W_i, Q = T·W_t, scores P·Qᵀ, and the cosines of the same vectors."""

    images: tuple[str, ...]
    sentences: tuple[str, ...]
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
        """The products of the same vectors brought to length 1; no number where a vector is zero."""
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
        """Return plain values; a cosine that is None belongs to a vector of nothing but zeros."""
        return {
            "images": list(self.images),
            "sentences": list(self.sentences),
            "image_vectors": self.image_vectors.tolist(),
            "sentence_vectors": self.sentence_vectors.tolist(),
            "image_lengths": self.image_lengths.tolist(),
            "sentence_lengths": self.sentence_lengths.tolist(),
            "scores": self.scores.tolist(),
            "cosines": plain_rows(self.cosines),
        }


@dataclass(frozen=True)
class Match:
    """What fits one image, or one sentence, best: by product and by cosine; several if they tie."""

    name: str
    by_product: tuple[str, ...]
    product: float
    by_cosine: tuple[str, ...]
    cosine: float | None
    """None where the cosine is not defined."""

    @property
    def agree(self) -> bool:
        """Whether both name the same."""
        return self.by_product == self.by_cosine


def matches(rows: Sequence[str], columns: Sequence[str], scores: Matrix, cosines: Matrix) -> tuple[Match, ...]:
    """The winner of every row."""
    return tuple(_match(name, columns, *pair) for name, *pair in zip(rows, scores, cosines, strict=True))


def _match(name: str, columns: Sequence[str], scores: np.ndarray, cosines: np.ndarray) -> Match:
    known = cosines[~np.isnan(cosines)]
    best = float(known.max()) if known.size else None
    by_cosine = largest(columns, cosines) if best is not None else ()
    return Match(name, largest(columns, scores), float(scores.max()), by_cosine, best)


# The steps of a cross-modal search as blocks: every matrix, and every product of the images in focus.


Vector = Float[np.ndarray, "width"]
Table = Float[np.ndarray, "rows columns"]


def inputs(steps: MatchingSteps, decimals: int) -> list[Block]:
    """What was given."""
    return [
        _matrix("I", steps.images, None, steps.image_inputs, decimals),
        _matrix("W_i", None, None, steps.image_map, decimals),
        _matrix("T", steps.sentences, None, steps.sentence_inputs, decimals),
        _matrix("W_t", None, None, steps.sentence_map, decimals),
    ]


def projections(steps: MatchingSteps, focus: Sequence[int], decimals: int) -> list[Block]:
    """Both projections: each entry's arithmetic, then the matrix."""
    every = range(len(steps.sentences))
    return [
        Heading("Images in the shared space: P = I·W_i"),
        *_entries("p", steps.images, focus, steps.image_inputs, steps.image_map, decimals),
        _matrix("P = I·W_i", steps.images, None, steps.image_vectors, decimals),
        Heading("Sentences in the shared space: Q = T·W_t"),
        *_entries("q", steps.sentences, every, steps.sentence_inputs, steps.sentence_map, decimals),
        _matrix("Q = T·W_t", steps.sentences, None, steps.sentence_vectors, decimals),
    ]


def comparisons(steps: MatchingSteps, focus: Sequence[int], decimals: int) -> list[Block]:
    """Products and cosines: each pair's arithmetic, then the matrix."""
    scores, cosines = [], []
    for row in focus:
        for column in range(len(steps.sentences)):
            scores.append(_product(steps, row, column, decimals))
            cosines.append(_cosine(steps, row, column, decimals))
    return [
        Heading("Scores: p·q"),
        *map(Words, scores),
        _matrix("scores P·Qᵀ", steps.images, steps.sentences, steps.scores, decimals),
        Heading("Cosines: p·q / (|p| |q|)"),
        Words(_lengths("p", steps.images, steps.image_vectors, decimals)),
        Words(_lengths("q", steps.sentences, steps.sentence_vectors, decimals)),
        *map(Words, cosines),
        _matrix("cosines", steps.images, steps.sentences, steps.cosines, decimals),
    ]


def winners(title: str, found: Sequence[Match], decimals: int) -> Grid:
    """The best of every row by product and by cosine, and whether they agree."""
    rows = tuple(
        (
            one.name,
            " = ".join(one.by_product),
            numeral(one.product, decimals),
            " = ".join(one.by_cosine) or "none",
            "undefined" if one.cosine is None else numeral(one.cosine, decimals),
            "yes" if one.agree else "no",
        )
        for one in found
    )
    return Grid(title, ("", "by product", "p·q", "by cosine", "cosine", "agree"), rows, plain=True)


def sum_of_products(left: Iterable[float], right: Iterable[float], decimals: int = 4) -> str:
    """A scalar product as a person writes it out.

    >>> sum_of_products([0.2, -1.5], [0.6, 1.3])
    '0.2·0.6 − 1.5·1.3'
    >>> sum_of_products([-1, 2], [3, -4])
    '−1·3 + 2·(−4)'
    """
    text = ""
    for place, (first, second) in enumerate(zip(left, right, strict=True)):
        size, other = numeral_of(abs(first), decimals), numeral_of(second, decimals)
        term = f"{size}·({other})" if second < 0 else f"{size}·{other}"
        sign = ("−" if first < 0 else "") if place == 0 else (" − " if first < 0 else " + ")
        text += sign + term
    return text


def numeral_of(value: float, decimals: int) -> str:
    """A number without zeros that only line up columns."""
    return vector([value], decimals)[1:-1]


def _entries(
    letter: str, names: Sequence[str], focus: Sequence[int], given: Table, mapped: Table, decimals: int
) -> list[Block]:
    made = given @ mapped
    blocks: list[Block] = []
    for row in focus:
        lines = [
            f"{letter}({names[row]}){_below(column + 1)} = {sum_of_products(given[row], mapped[:, column], decimals)} "
            f"= {numeral_of(made[row, column], decimals)}"
            for column in range(mapped.shape[1])
        ]
        blocks.append(Words("\n".join(lines)))
    return blocks


def _product(steps: MatchingSteps, row: int, column: int, decimals: int) -> str:
    image, sentence = steps.image_vectors[row], steps.sentence_vectors[column]
    value = numeral_of(steps.scores[row, column], decimals)
    return f"{_pair(steps, row, column)} = {sum_of_products(image, sentence, decimals)} = {value}"


def _cosine(steps: MatchingSteps, row: int, column: int, decimals: int) -> str:
    lengths = (steps.image_lengths[row], steps.sentence_lengths[column])
    below = "·".join(numeral_of(length, decimals) for length in lengths)
    cosine = steps.cosines[row, column]
    value = "undefined" if np.isnan(cosine) else numeral_of(cosine, decimals)
    return f"cos({steps.images[row]}, {steps.sentences[column]}) = " + (
        f"{numeral_of(steps.scores[row, column], decimals)} / ({below}) = {value}"
    )


def _pair(steps: MatchingSteps, row: int, column: int) -> str:
    return f"p({steps.images[row]})·q({steps.sentences[column]})"


def _lengths(letter: str, names: Sequence[str], vectors: Table, decimals: int) -> str:
    lengths = np.linalg.norm(vectors, axis=1)
    return ", ".join(
        f"|{letter}({name})| = {numeral_of(length, decimals)}" for name, length in zip(names, lengths, strict=True)
    )


def _matrix(
    title: str, rows: Sequence[str] | None, columns: Sequence[str] | None, values: Table, decimals: int
) -> MatrixBlock:
    numbered = [tuple(map(str, range(1, size + 1))) for size in values.shape]
    return MatrixBlock(title, tuple(rows or numbered[0]), tuple(columns or numbered[1]), values, decimals=decimals)


def _below(number: int) -> str:
    return str(number).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


# A cross-modal search worked by hand: images and sentences, two maps, and who fits whom (problem E7).


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
