"""The steps of a cross-modal search as blocks: every matrix, and every product of the images in focus."""

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float

from lemma.looking.worked.blocks import Block, Grid, Heading, Matrix, Words
from lemma.looking.worked.matching_steps import Match, MatchingSteps
from lemma.looking.worked.numerals import numeral, vector

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
) -> Matrix:
    numbered = [tuple(map(str, range(1, size + 1))) for size in values.shape]
    return Matrix(title, tuple(rows or numbered[0]), tuple(columns or numbered[1]), values, decimals=decimals)


def _below(number: int) -> str:
    return str(number).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))
