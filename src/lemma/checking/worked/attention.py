"""The three matrices of attention, checked against the vectors that they act on."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
from jaxtyping import Bool, Float

from lemma.checking.worked.case import (
    MOST_WORDS,
    Attending,
    AttentionCase,
    CrossCase,
    Examples,
    Found,
    Given,
    directions,
    largest,
    list_examples,
    read_case,
)
from lemma.errors import InputError, SpecError, unknown
from lemma.report.blocks import Block, Blocks, Grid, Heading, Matrix, Words, Worked
from lemma.report.numbers import counted, numeral, printable, vector

Columns = Float[np.ndarray, "rows columns"]


@dataclass(frozen=True, eq=False)
class Maps:
    """Query, key and value map, all turned so that they act on row vectors from the right: q = x W."""

    query: Float[np.ndarray, "query_input key_width"]
    key: Float[np.ndarray, "source_input key_width"]
    value: Float[np.ndarray, "source_input value_width"]
    apply: str
    scaled: bool

    @property
    def divisor(self) -> float:
        """What q·k is divided by: √(the key's length), or 1."""
        return float(np.sqrt(self.key.shape[1])) if self.scaled else 1.0

    def formula(self, letter: str) -> str:
        """How a vector is mapped, as it is written in the case: `q = W_Q x` or `q = x W_Q`."""
        name = f"W_{letter.upper()}"
        return f"{letter} = {name} x" if self.apply == "W x" else f"{letter} = x {name}"


def make_maps(case: Attending, query_width: int, source_width: int, where: str) -> Maps:
    """The maps of a case for vectors of these lengths."""
    query = _matrix(case, "W_Q", query_width, where)
    key = _matrix(case, "W_K", source_width, where)
    value = _matrix(case, "W_V", source_width, where)
    if query.shape[1] != key.shape[1]:
        raise SpecError(
            f"{where}: W_Q makes vectors of length {query.shape[1]}, W_K of length {key.shape[1]}; "
            "q·k needs equal lengths."
        )
    return Maps(query, key, value, case.apply, case.scaled)


def _matrix(case: Attending, name: str, width: int, where: str) -> Columns:
    written = rectangle(name, getattr(case, name), where)
    turned = written.T if case.apply == "W x" else written
    if turned.shape[0] == width:
        return turned
    side, other = ("columns", "x W") if case.apply == "W x" else ("rows", "W x")
    hint = f' It would fit with apply = "{other}".' if turned.shape[1] == width else ""
    raise SpecError(
        f'{where}: {name} is {written.shape[0]}×{written.shape[1]}; with apply = "{case.apply}" and vectors of length '
        f"{width} it needs {width} {side}.{hint}"
    )


def rectangle(name: str, rows: Sequence[Sequence[float]], where: str) -> Columns:
    """A matrix as it was written; its rows must be equally long."""
    odd = next((number for number, row in enumerate(rows, 1) if len(row) != len(rows[0])), None)
    if odd is not None:
        raise SpecError(
            f"{where}: {name}: row {odd} has {counted(len(rows[odd - 1]), 'number')}, row 1 has {len(rows[0])}; "
            "all rows of a matrix are equally long."
        )
    return np.array(rows, dtype=np.float64)


def stack(names: Sequence[str], vectors: Sequence[Sequence[float]], what: str, where: str) -> Columns:
    """Named vectors as the rows of a matrix; they must be equally long."""
    for name, one in zip(names, vectors, strict=True):
        if len(one) != len(vectors[0]):
            raise SpecError(
                f"{where}: {what}: '{name}' has {counted(len(one), 'number')}, '{names[0]}' has {len(vectors[0])}; "
                "all vectors are equally long."
            )
    return np.array(vectors, dtype=np.float64)


# One pass of attention with every number on the way: the one mechanism behind self- and cross-attention.


LARGEST = 1e100
LARGE = 50.0
"""From a score of this size on, exponentials are taken of the distance to the row's largest score."""


@dataclass(frozen=True, eq=False)
class Steps:
    """softmax(q kᵀ / divisor) v, step by step, for `rows` that look at `columns`."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    maps: Maps
    inputs: Float[np.ndarray, "rows query_input"]
    source: Float[np.ndarray, "columns source_input"]
    allowed: Bool[np.ndarray, "rows columns"]

    @cached_property
    def queries(self) -> Float[np.ndarray, "rows key_width"]:
        """What each row asks."""
        return self.inputs @ self.maps.query

    @cached_property
    def keys(self) -> Float[np.ndarray, "columns key_width"]:
        """What each column answers to."""
        return self.source @ self.maps.key

    @cached_property
    def values(self) -> Float[np.ndarray, "columns value_width"]:
        """What each column gives."""
        return self.source @ self.maps.value

    @cached_property
    def products(self) -> Float[np.ndarray, "rows columns"]:
        """q·k."""
        return self.queries @ self.keys.T

    @cached_property
    def scores(self) -> Float[np.ndarray, "rows columns"]:
        """q·k over the divisor, −∞ where a row may not look."""
        return np.where(self.allowed, self.products / self.maps.divisor, -np.inf)

    @cached_property
    def shifted(self) -> bool:
        """Whether the row's largest score is taken off before exponentials, which leaves the weights as they are."""
        return bool(np.abs(self.scores[self.allowed]).max() > LARGE)

    @cached_property
    def exponentials(self) -> Float[np.ndarray, "rows columns"]:
        """exp(score), or exp(score − the row's largest) where scores are large."""
        shift = self.scores.max(axis=1, keepdims=True) if self.shifted else 0.0
        return np.exp(self.scores - shift)

    @cached_property
    def sums(self) -> Float[np.ndarray, "rows"]:
        """The sum of each row's exponentials."""
        return self.exponentials.sum(axis=1)

    @cached_property
    def weights(self) -> Float[np.ndarray, "rows columns"]:
        """α: each exponential over its row's sum."""
        return self.exponentials / self.sums[:, None]

    @cached_property
    def outputs(self) -> Float[np.ndarray, "rows value_width"]:
        """Σ α·v."""
        return self.weights @ self.values

    def contributions(self, row: int) -> Float[np.ndarray, "columns value_width"]:
        """α·v of one row, column by column."""
        return self.weights[row][:, None] * self.values

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; a score that is None belongs to what may not be looked at."""
        named = {
            "queries": self.queries,
            "keys": self.keys,
            "values": self.values,
            "products": self.products,
            "exponentials": self.exponentials,
            "sums": self.sums,
            "weights": self.weights,
            "outputs": self.outputs,
        }
        about = {"inputs": self.inputs.tolist(), "source": self.source.tolist(), "divisor": self.maps.divisor}
        shift = {"largest_score_subtracted": self.shifted}
        plain = {name: values.tolist() for name, values in named.items()}
        return about | shift | plain | {"scores": plain_rows(self.scores)}


def plain_rows(values: Float[np.ndarray, "rows columns"]) -> list[list[float | None]]:
    """The rows of a matrix; None for what is no finite number, since JSON has no word for it."""
    return [[value if np.isfinite(value) else None for value in row] for row in values.tolist()]


def attend(
    rows: tuple[str, ...],
    columns: tuple[str, ...],
    inputs: Float[np.ndarray, "rows query_input"],
    source: Float[np.ndarray, "columns source_input"],
    maps: Maps,
    *,
    causal: bool = False,
    where: str = "attention",
) -> Steps:
    """Let `inputs` look at `source`; causal hides the columns after a row's own place."""
    allowed = np.ones((len(rows), len(columns)), dtype=bool)
    steps = Steps(rows, columns, maps, inputs, source, np.tril(allowed) if causal else allowed)
    with np.errstate(over="ignore", invalid="ignore"):
        kept = [np.abs(made).max() <= LARGEST for made in (steps.queries, steps.keys, steps.values, steps.products)]
    if not all(kept):
        raise InputError(f"{where}: a number grows past {LARGEST:.0e}, too large to work with. Give smaller ones.")
    return steps


# The steps of attention as blocks: every matrix, and the arithmetic of one row.


def describe_maps(steps: Steps, causal: bool = False) -> Words:
    """How a pass is computed, in one paragraph."""
    width = steps.keys.shape[1]
    scores = f"score = q·k / √{width}" if steps.maps.scaled else "score = q·k, not scaled"
    hidden = "; later words are hidden (score −∞)" if causal else ""
    maps = ", ".join(steps.maps.formula(letter) for letter in "qkv")
    return Words(f"{maps}; {scores}{hidden}; α = exp(score) / sum over the row; output = Σ α·v")


def matrices(steps: Steps, decimals: int) -> list[Block]:
    """Every matrix of a pass, in the order in which they arise."""
    vectors = [
        *_inputs(steps, decimals),
        _vectors(f"queries {steps.maps.formula('q')}", steps.rows, steps.queries, decimals),
        _vectors(f"keys {steps.maps.formula('k')}", steps.columns, steps.keys, decimals),
        _vectors(f"values {steps.maps.formula('v')}", steps.columns, steps.values, decimals),
    ]
    return [*vectors, *_squares(steps, decimals), _vectors("outputs Σ α·v", steps.rows, steps.outputs, decimals)]


def weights(steps: Steps, decimals: int) -> Matrix:
    """The matrix of attention weights."""
    return Matrix("weights α", steps.rows, steps.columns, steps.weights, "share", decimals=decimals)


def outputs(steps: Steps, decimals: int) -> Matrix:
    """The matrix of outputs."""
    return _vectors("outputs Σ α·v", steps.rows, steps.outputs, decimals)


def row_arithmetic(steps: Steps, row: int, decimals: int) -> list[Block]:
    """All that happens to one row: its query, then column by column the key, the score, the weight and α·v."""
    name = steps.rows[row]
    asked = f"q({name}) = {vector(steps.queries[row], decimals)}"
    given = vector(steps.outputs[row], decimals)
    return [
        Words(f"{asked}, from x({name}) = {vector(steps.inputs[row], decimals)}"),
        _arithmetic(steps, row, decimals),
        Words(f"output({name}) = Σ α·v = {given}"),
    ]


def ranking(steps: Steps, row: int, decimals: int, most: int = 12) -> Words:
    """What a row attends to, the most attended first."""
    order = np.argsort(-steps.weights[row], kind="stable")[:most]
    named = " · ".join(f"{steps.columns[place]} {numeral(steps.weights[row][place], decimals)}" for place in order)
    left = len(steps.columns) - len(order)
    return Words(f"{steps.rows[row]} attends to: {named}" + (f" · and {left} more" if left else ""))


def _inputs(steps: Steps, decimals: int) -> list[Block]:
    if steps.inputs is steps.source:
        return [_vectors("encodings x", steps.rows, steps.inputs, decimals)]
    return [
        _vectors("vectors x that look", steps.rows, steps.inputs, decimals),
        _vectors("vectors x looked at", steps.columns, steps.source, decimals),
    ]


def _squares(steps: Steps, decimals: int) -> list[Block]:
    """The matrices with a row for each query and a column for each key."""
    square = [Matrix("q·k", steps.rows, steps.columns, steps.products, decimals=decimals)]
    if steps.maps.scaled or not steps.allowed.all():
        over = f" / √{steps.keys.shape[1]}" if steps.maps.scaled else ""
        square.append(Matrix(f"scores q·k{over}", steps.rows, steps.columns, steps.scores, decimals=decimals))
    exponentials = Matrix(
        "exp(score − row's largest)" if steps.shifted else "exp(score)",
        steps.rows,
        steps.columns,
        steps.exponentials,
        sums=tuple(steps.sums.tolist()),
        decimals=decimals,
    )
    return [*square, exponentials, weights(steps, decimals)]


def _arithmetic(steps: Steps, row: int, decimals: int) -> Grid:
    exponential = "exp(score − largest)" if steps.shifted else "exp"
    columns: dict[str, Iterable[str]] = {
        "": steps.columns,
        "x": _written(steps.source, decimals),
        "k": _written(steps.keys, decimals),
        "q·k": _numbers(steps.products[row], decimals),
        "score": _numbers(steps.scores[row], decimals),
        exponential: _numbers(steps.exponentials[row], decimals),
        "α": _numbers(steps.weights[row], decimals),
        "v": _written(steps.values, decimals),
        "α·v": _written(steps.contributions(row), decimals),
    }
    if not steps.maps.scaled and steps.allowed[row].all():
        del columns["score"]
    total = {"": "sum", exponential: numeral(steps.sums[row], decimals), "α": "1"}
    total["α·v"] = vector(steps.outputs[row], decimals)
    return Grid(
        "",
        tuple(columns),
        tuple(zip(*columns.values(), strict=True)),
        bars=tuple(steps.weights[row].tolist()),
        total=tuple(total.get(name, "") for name in columns),
    )


def _vectors(title: str, names: tuple[str, ...], values: Float[np.ndarray, "names width"], decimals: int) -> Matrix:
    return Matrix(title, names, tuple(str(place) for place in range(1, values.shape[1] + 1)), values, decimals=decimals)


def _written(vectors: Float[np.ndarray, "names width"], decimals: int) -> list[str]:
    return [vector(values, decimals) for values in vectors]


def _numbers(values: Float[np.ndarray, "names"], decimals: int) -> list[str]:
    return [numeral(value, decimals) for value in values]


# What attention worked by hand holds, and how it is shown.


SHORT = 6
"""Of a sentence of so many words everything is printed, unless some of its words are in focus."""
HINT = "--full prints q, k, v and scores; --word WORD the arithmetic of one row"


@dataclass(frozen=True, eq=False)
class WorkedSentence:
    """One sentence: its words, the places in focus, and every pass over it."""

    text: str
    words: tuple[str, ...]
    focus: tuple[int, ...]
    passes: tuple[Steps, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; α·v for the words in focus."""
        passes = [
            one.to_dict() | {"contributions": {one.rows[row]: one.contributions(row).tolist() for row in self.focus}}
            for one in self.passes
        ]
        return {"text": self.text, "words": list(self.words), "focus": list(self.focus), "passes": passes}


@dataclass(frozen=True, eq=False)
class WorkedAttention(Worked):
    """Attention with every step. Long sentences are printed short unless `full`; files and notebooks show it all."""

    case: AttentionCase
    source: str
    """The case as it was written."""
    sentences: tuple[WorkedSentence, ...]
    notes: tuple[str, ...] = ()
    full: bool = False
    decimals: int = 3

    @property
    def heading(self) -> str:
        """The title of the case."""
        return printable(self.case.title) or "Attention by hand"

    def shown(self) -> Blocks:
        """The arithmetic of the words in focus; without them everything, of a long sentence only if `full`."""
        cut = not self.case.focus and not all(map(self._whole, self.sentences))
        return [*self._blocks(every_matrix=False), *([Heading(HINT)] if cut else [])]

    def drawn(self) -> Blocks:
        """Every matrix, and the arithmetic of the words in focus."""
        return self._blocks(every_matrix=True)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        sentences = [sentence.to_dict() for sentence in self.sentences]
        return {"case": self.case.to_dict(), "notes": list(self.notes), "sentences": sentences}

    def writers(self) -> dict[str, Callable[[], str]]:
        """The usual files, and the case itself to start another from."""
        return super().writers() | {".toml": lambda: self.source}

    def _whole(self, sentence: WorkedSentence) -> bool:
        """Whether every matrix and every row of it is printed."""
        return self.full or (not self.case.focus and len(sentence.words) <= SHORT)

    def _blocks(self, every_matrix: bool) -> list[Block]:
        causal = self.case.mask == "causal"
        blocks: list[Block] = [Heading(self.heading, 1), describe_maps(self.sentences[0].passes[0], causal)]
        blocks += [Words(note) for note in self.notes]
        for sentence in self.sentences:
            whole = self.full if every_matrix else self._whole(sentence)
            rows = tuple(range(len(sentence.words))) if whole else sentence.focus
            for number, steps in enumerate(sentence.passes, 1):
                blocks.append(Heading(f"{sentence.text}: pass {number} of {len(sentence.passes)}"))
                blocks += [*self._tables(steps, every_matrix or whole, bool(rows)), *self._arithmetic(steps, rows)]
        return blocks

    def _tables(self, steps: Steps, every_matrix: bool, focused: bool) -> list[Block]:
        """Every matrix; else the weights and outputs, unless the arithmetic of some rows says enough."""
        if every_matrix:
            return matrices(steps, self.decimals)
        return [] if focused else [weights(steps, self.decimals), outputs(steps, self.decimals)]

    def _arithmetic(self, steps: Steps, rows: Sequence[int]) -> list[Block]:
        return [
            block
            for row in rows
            for block in (*row_arithmetic(steps, row, self.decimals), ranking(steps, row, self.decimals))
        ]


# Attention worked by hand: words with vectors look at each other, pass after pass (after Vaswani et al. 2017).


@overload
def attention_by_hand(example: None = None) -> Examples: ...
@overload
def attention_by_hand(
    example: Given,
    *,
    words: Sequence[str] | None = None,
    passes: int | None = None,
    scaled: bool | None = None,
    mask: str | None = None,
    full: bool = False,
    decimals: int = 3,
) -> WorkedAttention: ...
def attention_by_hand(
    example: Given | None = None,
    *,
    words: Sequence[str] | None = None,
    passes: int | None = None,
    scaled: bool | None = None,
    mask: str | None = None,
    full: bool = False,
    decimals: int = 3,
) -> WorkedAttention | Examples:
    """Work attention out step by step, for an example by name, a TOML file or a table of the same words.

    α_ij = softmax_j(q_i·k_j / √d_k), output_i = Σ_j α_ij v_j; the outputs are the encodings of the next pass. `words`
    (those in focus), `passes`, `scaled` and `mask` take the place of what the case says. Without an example, those that
    come with Lemma are listed.

    >>> worked = attention_by_hand("e1", passes=1)
    >>> worked.sentences[0].passes[0].weights[5].round(3).tolist()
    [0.08, 0.08, 0.08, 0.08, 0.08, 0.219, 0.08, 0.08, 0.219]
    """
    if example is None:
        return list_examples("attention")
    changes = {"focus": words or None, "passes": passes, "scaled": scaled, "mask": mask}
    found = read_case(AttentionCase, example, changes)
    sentences = [_split(sentence, found.where) for sentence in found.case.sentences]
    _check_focus(found, sentences)
    worked = tuple(_work(found, words) for words in sentences)
    return WorkedAttention(found.case, found.text, worked, _notes(found.case, sentences), full, decimals)


def _split(sentence: str, where: str) -> list[str]:
    words = sentence.split()
    if not words or len(words) > MOST_WORDS:
        raise SpecError(
            f"{where}: sentences: {sentence[:40]!r} has {len(words)} words; give from 1 to {MOST_WORDS}. "
            "For longer text: lemma look RUN --text"
        )
    return words


def _work(found: Found[AttentionCase], words: list[str]) -> WorkedSentence:
    case, labels = found.case, _labels(words)
    vectors = stack(labels, [_vector(found, word) for word in words], "vectors", found.where)
    width = vectors.shape[1]
    maps = make_maps(case, width, width, found.where)
    if case.passes > 1 and maps.value.shape[1] != width:
        raise SpecError(
            f"{found.where}: W_V makes vectors of length {maps.value.shape[1]} from vectors of length {width}, so that "
            "its outputs cannot be encodings again. Set passes = 1, or give a W_V that keeps the length."
        )
    focus = tuple(place for place, label in enumerate(labels) if {label, words[place]} & set(case.focus))
    passes = _passes(found, labels, vectors, maps)
    return WorkedSentence(printable(" ".join(words)), tuple(labels), focus, passes)


def _passes(
    found: Found[AttentionCase], labels: tuple[str, ...], vectors: Float[np.ndarray, "words width"], maps: Maps
) -> tuple[Steps, ...]:
    passes: list[Steps] = []
    for number in range(1, found.case.passes + 1):
        where = f"{found.where}: pass {number}"
        passes.append(attend(labels, labels, vectors, vectors, maps, causal=found.case.mask == "causal", where=where))
        vectors = passes[-1].outputs
    return tuple(passes)


def _labels(words: list[str]) -> tuple[str, ...]:
    """The words, numbered where one occurs twice: the#1, the#2."""
    counts, seen = Counter(words), Counter[str]()
    labels: list[str] = []
    for word in words:
        seen[word] += 1
        labels.append(printable(word) + (f"#{seen[word]}" if counts[word] > 1 else ""))
    return tuple(labels)


def _vector(found: Found[AttentionCase], word: str) -> Sequence[float]:
    vector = found.case.vectors.get(word, found.case.other_words)
    if vector is None:
        known = unknown("the word", word, found.case.vectors) if found.case.vectors else f"'{word}' has no vector."
        raise SpecError(f"{found.where}: vectors: {known} Give it a vector, or set other_words for all that have none.")
    return vector


def _check_focus(found: Found[AttentionCase], sentences: list[list[str]]) -> None:
    there = {name: None for words in sentences for name in (*words, *_labels(words))}
    for word in found.case.focus:
        if word not in there:
            raise SpecError(f"{found.where}: " + unknown("focus", word, there))


def _notes(case: AttentionCase, sentences: list[list[str]]) -> tuple[str, ...]:
    """What a person may have meant otherwise: vectors of words that are in no sentence."""
    used = {word for words in sentences for word in words}
    idle = [printable(word) for word in case.vectors if word not in used]
    return (f"In no sentence, so not used: {', '.join(idle)}",) if idle else ()


# Cross-attention worked by hand: some vectors look at others, as images at sentences.


@dataclass(frozen=True)
class Preference:
    """What one vector prefers: by weight (and so by score), and by the cosine of query and key."""

    name: str
    by_weight: tuple[str, ...]
    """The most attended; several if they tie."""
    weight: float
    by_cosine: tuple[str, ...]
    cosine: float | None
    """None where a query or all keys are zero."""

    @property
    def agree(self) -> bool:
        """Whether both name the same."""
        return self.by_weight == self.by_cosine


@dataclass(frozen=True, eq=False)
class WorkedCross(Worked):
    """Cross-attention with every step, and what each vector prefers."""

    case: CrossCase
    source: str
    """The case as it was written."""
    steps: Steps
    cosines: Float[np.ndarray, "queries source"]
    preferences: tuple[Preference, ...]
    focus: tuple[int, ...]
    full: bool = False
    decimals: int = 4

    @property
    def heading(self) -> str:
        """The title of the case."""
        return printable(self.case.title) or "Cross-attention by hand"

    def shown(self) -> Blocks:
        """The arithmetic of the vectors in focus and the comparison; with `full` every matrix."""
        tables = matrices(self.steps, self.decimals) if self.full else []
        ends = [] if self.full else [weights(self.steps, self.decimals), outputs(self.steps, self.decimals)]
        return [*self._begin(), *tables, *self._arithmetic(), *ends, *self._end()]

    def drawn(self) -> Blocks:
        """Everything."""
        return [*self._begin(), *matrices(self.steps, self.decimals), *self._arithmetic(), *self._end()]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        cosines = plain_rows(self.cosines)
        preferences = [asdict(one) | {"agree": one.agree} for one in self.preferences]
        steps = {"queries_from": list(self.steps.rows), "source": list(self.steps.columns), **self.steps.to_dict()}
        return {"case": self.case.to_dict(), "steps": steps, "cosines": cosines, "preferences": preferences}

    def writers(self) -> dict[str, Callable[[], str]]:
        """The usual files, and the case itself to start another from."""
        return super().writers() | {".toml": lambda: self.source}

    def _begin(self) -> list[Block]:
        return [Heading(self.heading, 1), describe_maps(self.steps)]

    def _arithmetic(self) -> list[Block]:
        blocks: list[Block] = []
        for row in self.focus:
            blocks += [Heading(f"From {self.steps.rows[row]}"), *row_arithmetic(self.steps, row, self.decimals)]
        return blocks

    def _end(self) -> list[Block]:
        cosines = Matrix("cosine of q and k", self.steps.rows, self.steps.columns, self.cosines, decimals=self.decimals)
        return [Heading("What each prefers"), cosines, self._comparison()]

    def _comparison(self) -> Grid:
        rows = tuple(
            (
                one.name,
                " = ".join(one.by_weight),
                numeral(one.weight, self.decimals),
                " = ".join(one.by_cosine) or "none",
                "undefined" if one.cosine is None else numeral(one.cosine, self.decimals),
                "yes" if one.agree else "no",
            )
            for one in self.preferences
        )
        return Grid("", ("", "most attended", "α", "by cosine", "cosine", "agree"), rows, plain=True)


@overload
def cross_by_hand(example: None = None) -> Examples: ...
@overload
def cross_by_hand(
    example: Given,
    *,
    words: Sequence[str] | None = None,
    scaled: bool | None = None,
    full: bool = False,
    decimals: int = 4,
) -> WorkedCross: ...
def cross_by_hand(
    example: Given | None = None,
    *,
    words: Sequence[str] | None = None,
    scaled: bool | None = None,
    full: bool = False,
    decimals: int = 4,
) -> WorkedCross | Examples:
    """Work cross-attention out step by step, for an example by name, a TOML file or a table of the same words.

    q = W_Q x of the vectors that look, k = W_K y and v = W_V y of those looked at, α = softmax(q·k / √d_k).
    `words` (the names in focus) and `scaled` take the place of what the case says. Without an example, those that
    come with Lemma are listed.

    >>> cross_by_hand("e8").steps.products.round(4).tolist()
    [[1.3314, -1.5003, 1.5844], [-0.0702, 0.0789, -0.0828]]
    """
    if example is None:
        return list_examples("cross")
    found = read_case(CrossCase, example, {"focus": words or None, "scaled": scaled})
    case, where = found.case, found.where
    rows, columns = tuple(map(printable, case.queries)), tuple(map(printable, case.source))
    inputs = stack(rows, list(case.queries.values()), "queries", where)
    source = stack(columns, list(case.source.values()), "source", where)
    maps = make_maps(case, inputs.shape[1], source.shape[1], where)
    steps = attend(rows, columns, inputs, source, maps, where=where)
    cosines = _cosines(steps)
    preferences = tuple(_preference(steps, cosines, row) for row in range(len(rows)))
    return WorkedCross(case, found.text, steps, cosines, preferences, _focus(case, where), full, decimals)


def _focus(case: CrossCase, where: str) -> tuple[int, ...]:
    """The places of the vectors in focus; all of them if none is named."""
    names = list(case.queries)
    for name in case.focus:
        if name not in names:
            raise SpecError(f"{where}: " + unknown("focus", name, names))
    return tuple(place for place, name in enumerate(names) if not case.focus or name in case.focus)


def _cosines(steps: Steps) -> Float[np.ndarray, "rows columns"]:
    """q·k / (|q| |k|); no number where one of them is zero."""
    return directions(steps.queries) @ directions(steps.keys).T


def _preference(steps: Steps, cosines: Float[np.ndarray, "rows columns"], row: int) -> Preference:
    known = cosines[row][~np.isnan(cosines[row])]
    best = float(known.max()) if known.size else None
    return Preference(
        steps.rows[row],
        largest(steps.columns, steps.weights[row]),
        float(steps.weights[row].max()),
        largest(steps.columns, cosines[row]) if best is not None else (),
        best,
    )
