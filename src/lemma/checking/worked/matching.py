"""A cross-modal search worked by hand: images and sentences mapped to one space and compared (problem E7)."""

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from jaxtyping import Float
from pydantic import Field

from lemma.checking.expected_values import Array, ExpectedValue, Labels, expect_numbers, number_labels
from lemma.checking.worked.case import (
    Case,
    CaseLike,
    NumberRows,
    Strings,
    WorkedCase,
    as_matrix,
    best_matches,
    best_table,
    check_magnitudes,
    prefix_errors,
    read_case,
    unit_vectors,
)
from lemma.errors import SpecError, describe_unknown
from lemma.report.numbers import escape_invisible, format_short, pluralize
from lemma.report.result import Block, Heading, Matrix, Text, to_plain

MAX_DETAILED_IMAGES = 6  # images whose arithmetic is shown if none is in focus
CaseNames = Annotated[Strings, Field(max_length=100)]
SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


class MatchingCase(Case):
    """A case of cross-modal search: images and sentences as rows of numbers, and the maps of both to a shared space."""

    kind: ClassVar[str] = "matching"

    I: NumberRows  # noqa: E741 — the images, a row each
    T: NumberRows  # the sentences, a row each
    W_i: NumberRows  # the images' map: a row for each number of an image, a column for each number of the shared space
    W_t: NumberRows  # the sentences' map, with as many columns
    image_names: CaseNames = ()  # what the images are called; image 1, image 2 … if no names are given
    sentence_names: CaseNames = ()  # what the sentences are called
    focus: Strings = ()  # the images whose arithmetic is shown; the first few if none is named


@dataclass(frozen=True, eq=False)
class MatchingSteps:
    """Every matrix of a search: P = I·W_i, Q = T·W_t, scores P·Qᵀ, and the cosines of the same vectors."""

    images: Labels
    sentences: Labels
    image_inputs: Float[np.ndarray, "images image_width"]
    sentence_inputs: Float[np.ndarray, "sentences text_width"]
    image_map: Float[np.ndarray, "image_width shared"]
    sentence_map: Float[np.ndarray, "text_width shared"]
    image_vectors: Float[np.ndarray, "images shared"]  # I·W_i
    sentence_vectors: Float[np.ndarray, "sentences shared"]  # T·W_t
    scores: Float[np.ndarray, "images sentences"]  # p·q
    image_lengths: Float[np.ndarray, " images"]  # |p|
    sentence_lengths: Float[np.ndarray, " sentences"]  # |q|
    cosines: Float[np.ndarray, "images sentences"]  # NaN where a vector is zero

    def to_dict(self) -> dict[str, Any]:
        """Return names and matrices as plain values for JSON; the cosine of a zero vector is None."""
        vectors = ("image_vectors", "sentence_vectors", "image_lengths", "sentence_lengths")
        return to_plain({name: getattr(self, name) for name in ("images", "sentences", *vectors, "scores", "cosines")})


@dataclass(frozen=True)
class BestMatch:
    """The best matches of an image or sentence, by scalar product and by cosine; several if they tie."""

    name: str
    by_product: Labels
    product: float
    by_cosine: Labels
    cosine: float | None  # None where it is not defined
    agree: bool


@dataclass(frozen=True, eq=False)
class WorkedMatching(WorkedCase):
    """A worked cross-modal search: every product, and the best match of each image and each sentence."""

    default_title: ClassVar[str] = "A cross-modal search by hand"
    json_names = ("case", "steps", "of_images", "of_sentences")

    case: MatchingCase
    steps: MatchingSteps
    of_images: Sequence[BestMatch]
    of_sentences: Sequence[BestMatch]
    focus: tuple[int, ...]

    def expected(self) -> list[ExpectedValue]:
        """Return the right values of vectors, scores, lengths and cosines, and the best matches."""
        steps, images, sentences = self.steps, self.steps.images, self.steps.sentences
        pair = (images, sentences)
        lengths = steps.image_lengths[:, None] * steps.sentence_lengths[None]
        mistakes = {
            "divided by |p|² |q|²: the lengths count once each": steps.scores / lengths**2,
            "divided by |p| alone": steps.scores / steps.image_lengths[:, None],
            "divided by |q| alone": steps.scores / steps.sentence_lengths[None],
        }
        expected: list[ExpectedValue] = [
            expect_numbers("P p image_vectors", steps.image_vectors, (images,), "I·W_i"),
            expect_numbers("Q q sentence_vectors", steps.sentence_vectors, (sentences,), "T·W_t"),
            expect_numbers("scores score S p·q PQ", steps.scores, pair, "P·Qᵀ"),
            expect_numbers("length_p |p| norm_p", steps.image_lengths, (images,), "|p|"),
            expect_numbers("length_q |q| norm_q", steps.sentence_lengths, (sentences,), "|q|"),
            expect_numbers("cosines cosine cos", steps.cosines, pair, "p·q / (|p| |q|)", mistakes),
        ]
        for suffix, matches, other in (("", self.of_images, "sentence"), ("_image", self.of_sentences, "image")):
            names, by_product, _, by_cosine, *_ = zip(*map(astuple, matches), strict=True)
            expected.append(ExpectedValue(f"best{suffix}", by_product, (names,), f"{other} of the largest product"))
            expected.append(
                ExpectedValue(f"best{suffix}_cosine", by_cosine, (names,), f"{other} of the largest cosine")
            )
        return expected

    def step_blocks(self, every_matrix: bool) -> list[Block]:
        """Return report blocks of the products and matrices in order; `every_matrix` adds I, T and the maps."""
        steps, images, sentences = self.steps, self.steps.images, self.steps.sentences

        def number(value: float) -> str:
            return format_short(value, self.decimals)

        def matrix(title: str, values: Array, rows: Labels = (), columns: Labels = ()) -> Matrix:
            names = rows or number_labels(values.shape[0]), columns or number_labels(values.shape[1])
            return Matrix(title, *names, values, decimals=self.decimals)

        def projection(letter: str, name: str, inputs: Array, weights: Array) -> Text:
            """Return the arithmetic of every entry of one image or sentence in the shared space."""
            lines = [
                f"{letter}({name}){str(index).translate(SUBSCRIPTS)} = "
                f"{format_dot_product(inputs, column, self.decimals)} = {number(value)}"
                for index, (column, value) in enumerate(zip(weights.T, inputs @ weights, strict=True), 1)
            ]
            return Text("\n".join(lines))

        def lengths(letter: str, names: Labels, values: Array) -> Text:
            pairs = zip(names, values, strict=True)
            return Text(", ".join(f"|{letter}({name})| = {number(value)}" for name, value in pairs))

        products, cosines = [], []
        for row in self.focus:
            for column, sentence in enumerate(sentences):
                score, cosine = number(steps.scores[row, column]), steps.cosines[row, column]
                terms = format_dot_product(steps.image_vectors[row], steps.sentence_vectors[column], self.decimals)
                products.append(Text(f"p({images[row]})·q({sentence}) = {terms} = {score}"))
                p, q = number(steps.image_lengths[row]), number(steps.sentence_lengths[column])
                value = "undefined" if np.isnan(cosine) else number(cosine)
                cosines.append(Text(f"cos({images[row]}, {sentence}) = {score} / ({p}·{q}) = {value}"))
        shared, more = pluralize(steps.image_map.shape[1], "number"), len(images) - len(self.focus)
        inputs = [matrix("I", steps.image_inputs, images), matrix("W_i", steps.image_map)]
        inputs += [matrix("T", steps.sentence_inputs, sentences), matrix("W_t", steps.sentence_map)]
        return [
            Text(f"W_i and W_t take images and sentences to {shared}; nothing is rounded on the way."),
            *([Text(f"{pluralize(more, 'image')} not in focus: only the matrices show the rest.")] if more else []),
            *(inputs if every_matrix else []),
            Heading("Images in the shared space: P = I·W_i"),
            *(projection("p", images[row], steps.image_inputs[row], steps.image_map) for row in self.focus),
            matrix("P = I·W_i", steps.image_vectors, images),
            Heading("Sentences in the shared space: Q = T·W_t"),
            *(
                projection("q", name, row, steps.sentence_map)
                for name, row in zip(sentences, steps.sentence_inputs, strict=True)
            ),
            matrix("Q = T·W_t", steps.sentence_vectors, sentences),
            Heading("Scores: p·q"),
            *products,
            matrix("scores P·Qᵀ", steps.scores, images, sentences),
            Heading("Cosines: p·q / (|p| |q|)"),
            lengths("p", images, steps.image_lengths),
            lengths("q", sentences, steps.sentence_lengths),
            *cosines,
            matrix("cosines", steps.cosines, images, sentences),
            Heading("Who fits whom"),
            best_table(("by product", "p·q"), self.of_images, self.decimals, "for each image the sentence"),
            best_table(("by product", "p·q"), self.of_sentences, self.decimals, "for each sentence the image"),
        ]


def format_dot_product(left: Iterable[float], right: Iterable[float], decimals: int = 4) -> str:
    """Write the terms of the scalar product of two vectors, each number with at most this many decimals.

    >>> format_dot_product([0.2, -1.5], [0.6, 1.3])
    '0.2·0.6 − 1.5·1.3'
    >>> format_dot_product([-1, 2], [3, -4])
    '−1·3 + 2·(−4)'
    """
    text = ""
    for index, (first, second) in enumerate(zip(left, right, strict=True)):
        size, other = format_short(abs(first), decimals), format_short(second, decimals)
        term = f"{size}·({other})" if second < 0 else f"{size}·{other}"
        sign = ("−" if first < 0 else "") if index == 0 else (" − " if first < 0 else " + ")
        text += sign + term
    return text


def work_matching(
    example: CaseLike, *, words: Sequence[str] | None = None, full: bool = False, decimals: int = 4
) -> WorkedMatching:
    """Compute an example of cross-modal search: vectors in a shared space, scores, cosines and best matches.

    P = I·W_i and Q = T·W_t are images and sentences in one space, compared by p·q and by cosine, p·q / (|p| |q|).
    `words`, names of images whose arithmetic is shown, replaces the field `focus`.

    >>> worked = work_matching("e7")
    >>> worked.steps.scores.round(4).tolist()
    [[1.3314, -1.5003, 1.5844], [-0.0702, 0.0789, -0.0828]]
    >>> [match.by_product for match in worked.of_images]
    [('sentence 3',), ('sentence 2',)]
    """
    case, label, text = read_case(MatchingCase, example, {"focus": words or None})
    with prefix_errors(label), np.errstate(over="ignore", invalid="ignore"):
        images, image_inputs, image_map = _read_side(case, "image", "I")
        sentences, sentence_inputs, sentence_map = _read_side(case, "sentence", "T")
        if image_map.shape[1] != sentence_map.shape[1]:
            raise SpecError(
                f"W_i has {pluralize(image_map.shape[1], 'column')}, W_t has {sentence_map.shape[1]}; images and "
                "sentences meet in one space, so both need as many."
            )
        p, q = image_inputs @ image_map, sentence_inputs @ sentence_map
        scores = p @ q.T
        check_magnitudes(p, q, scores)
        for name in case.focus:
            if escape_invisible(name) not in images:
                raise SpecError(describe_unknown("focus", name, images))
    focus = tuple(images.index(escape_invisible(name)) for name in case.focus)
    lengths, cosines = (np.linalg.norm(p, axis=1), np.linalg.norm(q, axis=1)), unit_vectors(p) @ unit_vectors(q).T
    inputs = (images, sentences, image_inputs, sentence_inputs, image_map, sentence_map)
    return WorkedMatching(
        case,
        text,
        MatchingSteps(*inputs, p, q, scores, *lengths, cosines),
        best_matches(BestMatch, images, sentences, scores, cosines),
        best_matches(BestMatch, sentences, images, scores.T, cosines.T),
        focus or tuple(range(min(len(images), MAX_DETAILED_IMAGES))),
        full=full,
        decimals=decimals,
    )


def _read_side(case: MatchingCase, kind: str, letter: str) -> tuple[Labels, Array, Array]:
    """Return the names, vectors and map of the images ("image", "I") or sentences ("sentence", "T"), checked."""
    inputs, map_name = as_matrix(letter, getattr(case, letter)), f"W_{letter.lower()}"
    weights = as_matrix(map_name, getattr(case, map_name))
    if weights.shape[0] != inputs.shape[1]:
        is_transposed = weights.shape[1] == inputs.shape[1]
        hint = " Its transpose would fit: write its columns as rows." if is_transposed else ""
        raise SpecError(
            f"{map_name} is {weights.shape[0]}×{weights.shape[1]}; for {letter}·{map_name} and rows of "
            f"{letter} of length {inputs.shape[1]} it needs {pluralize(inputs.shape[1], 'row')}.{hint}"
        )
    names: tuple[str, ...] = getattr(case, f"{kind}_names") or number_labels(len(inputs), f"{kind} ")
    if len(names) != len(inputs):
        raise SpecError(f"{kind}_names has {pluralize(len(names), 'name')} for {pluralize(len(inputs), kind)}.")
    if len(set(names)) < len(inputs):
        raise SpecError(f"{kind}_names has a name twice; give each {kind} its own.")
    return tuple(map(escape_invisible, names)), inputs, weights
