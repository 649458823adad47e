"""Attention and cross-attention worked by hand, step by step (after Vaswani et al. 2017)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from pydantic import Field
from scipy.special import softmax

from lemma.checking.worked.case import (
    Array,
    Case,
    CaseLike,
    ExpectedNumbers,
    ExpectedValue,
    ExpectedWords,
    Labels,
    NumberRow,
    NumberRows,
    Strings,
    WorkedCase,
    argmax_names,
    as_matrix,
    best_matches,
    best_table,
    check_magnitudes,
    expect_numbers,
    json_rows,
    number_labels,
    read_case,
    unit_vectors,
)
from lemma.errors import SpecError, describe_unknown
from lemma.report.numbers import escape_invisible, format_number, format_vector
from lemma.report.result import Block, Heading, Matrix, Table, Text

NamedVectors = Annotated[dict[str, NumberRow], Field(min_length=1, max_length=100)]
MAX_WORDS = 100
"""A longer sentence is not a small case: its tables could not be read."""
MAX_WEIGHTS = 1_000_000
"""Attention weights of all sentences and passes together; each pass holds some ten matrices of this size."""
SHIFT_THRESHOLD = 50.0
"""From a score of this size on, exponentials are taken of the distance to the row's largest score."""
MAX_SHORT_SENTENCE = 6
"""Of a sentence of at most this many words everything is printed, unless some of its words are in focus."""
MAX_RANKED = 12
"""How many of the words that a word attends to are named, the most attended first."""


class BaseAttentionCase(Case):
    """What attention and cross-attention have in common."""

    focus: Strings = ()
    """The words, or named vectors, whose row of arithmetic is shown."""
    scaled: bool = True
    """Whether q·k is divided by the square root of the key's length."""
    apply: Literal["W x", "x W"] = "W x"
    """How a matrix is written: with a row for each output, or with a row for each input."""
    W_Q: NumberRows
    """The query map."""
    W_K: NumberRows
    """The key map."""
    W_V: NumberRows
    """The value map."""

    def formula(self, letter: str) -> str:
        """How a vector is mapped: `q = W_Q x` or `q = x W_Q`."""
        name = f"W_{letter.upper()}"
        return f"{letter} = {name} x" if self.apply == "W x" else f"{letter} = x {name}"


class AttentionCase(BaseAttentionCase):
    """Sentences whose words look at each other."""

    kind: ClassVar[str] = "attention"

    sentences: Annotated[Strings, Field(min_length=1, max_length=20)]
    """Each a text of words separated by white space."""
    passes: Annotated[int, Field(strict=True, ge=1, le=50)] = 1
    """How often attention is applied; the outputs of one pass are the encodings of the next."""
    mask: Literal["none", "causal"] = "none"
    """Whether later words are hidden."""
    vectors: dict[str, NumberRow] = Field(default_factory=dict)
    """The encoding of each word."""
    other_words: NumberRow | None = None
    """The encoding of every word that is not listed."""


class CrossCase(BaseAttentionCase):
    """Named vectors that look at other named vectors."""

    kind: ClassVar[str] = "cross"

    queries: NamedVectors
    """The vectors that look."""
    source: NamedVectors
    """The vectors that are looked at."""


@dataclass(frozen=True, eq=False)
class AttentionSteps:
    """softmax(q kᵀ / divisor) v, step by step, for `rows` that look at `columns`."""

    case: BaseAttentionCase
    rows: Labels
    columns: Labels
    inputs: Float[np.ndarray, "rows query_input"]
    source: Float[np.ndarray, "columns source_input"]
    allowed: Bool[np.ndarray, "rows columns"]
    maps: Mapping[str, Float[np.ndarray, "input output"]]
    """W_Q, W_K and W_V, turned so that they act on row vectors from the right: q = x W."""
    divisor: float
    """What q·k is divided by: √(the key's length), or 1."""
    queries: Float[np.ndarray, "rows key_width"]
    keys: Float[np.ndarray, "columns key_width"]
    values: Float[np.ndarray, "columns value_width"]
    products: Float[np.ndarray, "rows columns"]
    """q·k."""
    scores: Float[np.ndarray, "rows columns"]
    """q·k over the divisor, −∞ where a row may not look."""
    is_shifted: bool
    """Whether the row's largest score is subtracted before exponentials, which leaves the weights as they are."""
    exponentials: Float[np.ndarray, "rows columns"]
    sums: Float[np.ndarray, " rows"]
    """The sum of each row's exponentials."""
    weights: Float[np.ndarray, "rows columns"]
    """α: each exponential over its row's sum."""
    outputs: Float[np.ndarray, "rows value_width"]
    """Σ α·v."""

    def contributions(self, row: int) -> Float[np.ndarray, "columns value_width"]:
        """α·v of one row, column by column."""
        return self.weights[row][:, None] * self.values

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; a score that is None belongs to what may not be looked at."""
        names = ("queries", "keys", "values", "products", "exponentials", "sums", "weights", "outputs")
        return {
            "inputs": self.inputs.tolist(),
            "source": self.source.tolist(),
            "divisor": self.divisor,
            "largest_score_subtracted": self.is_shifted,
            **{name: getattr(self, name).tolist() for name in names},
            "scores": json_rows(self.scores),
        }


def attend(
    case: BaseAttentionCase,
    rows: Labels,
    columns: Labels,
    inputs: Float[np.ndarray, "rows query_input"],
    source: Float[np.ndarray, "columns source_input"],
    where: str,
    *,
    causal: bool = False,
    number: int | None = None,
) -> AttentionSteps:
    """Let `inputs` look at `source`, for pass `number`; causal hides the columns after a row's own place."""
    maps: dict[str, Array] = {}
    for name, width in (("W_Q", inputs.shape[1]), ("W_K", source.shape[1]), ("W_V", source.shape[1])):
        written = as_matrix(name, getattr(case, name), where)
        maps[name] = written.T if case.apply == "W x" else written
        if len(maps[name]) != width:
            side, other = ("columns", "x W") if case.apply == "W x" else ("rows", "W x")
            hint = f' It would fit with apply = "{other}".' if maps[name].shape[1] == width else ""
            raise SpecError(
                f'{where}: {name} is {written.shape[0]}×{written.shape[1]}; with apply = "{case.apply}" and vectors of '
                f"length {width} it needs {width} {side}.{hint}"
            )
    key_width = maps["W_K"].shape[1]
    if maps["W_Q"].shape[1] != key_width:
        raise SpecError(
            f"{where}: W_Q makes vectors of length {maps['W_Q'].shape[1]}, W_K of length {key_width}; "
            "q·k needs equal lengths."
        )
    allowed = np.ones((len(rows), len(columns)), dtype=bool)
    allowed = np.tril(allowed) if causal else allowed
    with np.errstate(over="ignore", invalid="ignore"):
        queries, keys, values = inputs @ maps["W_Q"], source @ maps["W_K"], source @ maps["W_V"]
        products = queries @ keys.T
    check_magnitudes(f"{where}: pass {number}" if number else where, queries, keys, values, products)
    divisor = float(np.sqrt(key_width)) if case.scaled else 1.0
    scores = np.where(allowed, products / divisor, -np.inf)
    shifted = bool(np.abs(scores[allowed]).max() > SHIFT_THRESHOLD)
    exponentials = np.exp(scores - (scores.max(axis=1, keepdims=True) if shifted else 0.0))
    sums = exponentials.sum(axis=1)
    weights = exponentials / sums[:, None]
    made = (queries, keys, values, products, scores, shifted, exponentials, sums, weights, weights @ values)
    return AttentionSteps(case, rows, columns, inputs, source, allowed, maps, divisor, *made)


def describe_pass(steps: AttentionSteps, causal: bool = False) -> Text:
    """How a pass is computed, in one paragraph."""
    scores = f"score = q·k / √{steps.keys.shape[1]}" if steps.case.scaled else "score = q·k, not scaled"
    hidden = "; later words are hidden (score −∞)" if causal else ""
    maps = ", ".join(steps.case.formula(letter) for letter in "qkv")
    return Text(f"{maps}; {scores}{hidden}; α = exp(score) / sum over the row; output = Σ α·v")


def matrix_blocks(steps: AttentionSteps, decimals: int) -> list[Block]:
    """Every matrix of a pass, in the order in which they arise."""

    def matrix(title: str, values: Array, rows: Labels, columns: Labels = (), sums: Sequence[float] = ()) -> Matrix:
        return Matrix(title, rows, columns or number_labels(values.shape[1]), values, sums=sums, decimals=decimals)

    rows, columns, formula = steps.rows, steps.columns, steps.case.formula
    if steps.inputs is steps.source:
        found = [matrix("encodings x", steps.inputs, rows)]
    else:
        found = [matrix("vectors x that look", steps.inputs, rows)]
        found += [matrix("vectors x looked at", steps.source, columns)]
    found += [
        matrix(f"queries {formula('q')}", steps.queries, rows),
        matrix(f"keys {formula('k')}", steps.keys, columns),
        matrix(f"values {formula('v')}", steps.values, columns),
        matrix("q·k", steps.products, rows, columns),
    ]
    if steps.case.scaled or not steps.allowed.all():
        over = f" / √{steps.keys.shape[1]}" if steps.case.scaled else ""
        found.append(matrix(f"scores q·k{over}", steps.scores, rows, columns))
    exponential = "exp(score − row's largest)" if steps.is_shifted else "exp(score)"
    found.append(matrix(exponential, steps.exponentials, rows, columns, steps.sums.tolist()))
    return [*found, *output_blocks(steps, decimals)]


def output_blocks(steps: AttentionSteps, decimals: int) -> list[Block]:
    """The matrices of attention weights and of outputs."""
    columns = number_labels(steps.outputs.shape[1])
    return [
        Matrix("weights α", steps.rows, steps.columns, steps.weights, "share", decimals=decimals),
        Matrix("outputs Σ α·v", steps.rows, columns, steps.outputs, decimals=decimals),
    ]


def row_blocks(steps: AttentionSteps, row: int, decimals: int) -> list[Block]:
    """All that happens to one row: its query, then column by column the key, the score, the weight and α·v."""

    def vectors(some: Array) -> list[str]:
        return [format_vector(one, decimals) for one in some]

    def numbers(some: Array) -> list[str]:
        return [format_number(one, decimals) for one in some]

    name, output = steps.rows[row], format_vector(steps.outputs[row], decimals)
    exponential = "exp(score − largest)" if steps.is_shifted else "exp"
    columns: dict[str, Iterable[str]] = {
        "": steps.columns,
        "x": vectors(steps.source),
        "k": vectors(steps.keys),
        "q·k": numbers(steps.products[row]),
        "score": numbers(steps.scores[row]),
        exponential: numbers(steps.exponentials[row]),
        "α": numbers(steps.weights[row]),
        "v": vectors(steps.values),
        "α·v": vectors(steps.contributions(row)),
    }
    if not steps.case.scaled and steps.allowed[row].all():
        del columns["score"]
    total = {"": "sum", exponential: format_number(steps.sums[row], decimals), "α": "1", "α·v": output}
    asked = f"q({name}) = {format_vector(steps.queries[row], decimals)}"
    return [
        Text(f"{asked}, from x({name}) = {format_vector(steps.inputs[row], decimals)}"),
        Table(
            tuple(columns),
            tuple(zip(*columns.values(), strict=True)),
            bars=steps.weights[row].tolist(),
            total=[total.get(column, "") for column in columns],
        ),
        Text(f"output({name}) = Σ α·v = {output}"),
    ]


def expected_values(steps: AttentionSteps, cross: bool = False) -> list[ExpectedValue]:
    """One pass: x, q, k, v, q·k, scores, exponentials, sums, weights, outputs, and what each row attends to most."""
    rows, columns, formula, slips = steps.rows, steps.columns, steps.case.formula, _common_mistakes(steps)

    def numbers(names: str, values: Array, labels: tuple[Labels, ...], meaning: str) -> ExpectedNumbers:
        return expect_numbers(names, values, labels, meaning, slips.get(names.split()[0]))

    over = f"/√{steps.keys.shape[1]}" if steps.case.scaled else ""
    shifted = " − row's largest" if steps.is_shifted else ""
    best = tuple(argmax_names(columns, weights) for weights in steps.weights)
    return [
        numbers("x encodings inputs", steps.inputs, (rows,), "vectors that look" if cross else "encodings"),
        *([numbers("y source", steps.source, (columns,), "vectors looked at")] if cross else []),
        numbers("q queries query Q", steps.queries, (rows,), formula("q")),
        numbers("k keys key K", steps.keys, (columns,), formula("k")),
        numbers("v values value V", steps.values, (columns,), formula("v")),
        numbers("qk q·k q.k products product QK", steps.products, (rows, columns), "q·k"),
        numbers("score scores s", steps.scores, (rows, columns), f"q·k{over}"),
        numbers("exp exponentials exponential exp(score)", steps.exponentials, (rows, columns), f"exp(score{shifted})"),
        numbers("sum sums Z", steps.sums, (rows,), "sum of a row's exponentials"),
        numbers("alpha α weights weight", steps.weights, (rows, columns), "weights: exp / sum"),
        numbers("output outputs out", steps.outputs, (rows,), "Σ α·v"),
        ExpectedWords("preferred", best, (rows,), "what each attends to most", ("prefers", "most", "argmax")),
    ]


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # a slip that overflows explains nothing
def _common_mistakes(steps: AttentionSteps) -> dict[str, dict[str, Array]]:
    """What comes out by each slip, by the quantity in which it shows."""
    width, values = steps.keys.shape[1], steps.values
    found: dict[str, dict[str, Array]] = {name: {} for name in ("score", "exp", "sum", "alpha", "output")}
    if steps.case.scaled:
        divisors = {
            f"scores are not divided by √{width}": 1.0,
            f"scores are divided by {width} in place of √{width}": float(width),
            f"scores are multiplied by √{width}; they must be divided": width**-0.5,
        }
    else:
        divisors = {f"scores are divided by √{width}; this case does not scale": width**0.5}
    for said, divisor in divisors.items():
        scores = steps.products / divisor
        weights = softmax(np.where(steps.allowed, scores, -np.inf), axis=1)
        found["score"][said], found["exp"][said] = scores, np.exp(scores)
        found["sum"][said] = np.exp(scores).sum(axis=1)
        found["alpha"][said], found["output"][said] = weights, weights @ values
    down = steps.exponentials / steps.exponentials.sum(axis=0)
    said = "the softmax is taken down the columns; each row must sum to one"
    found["alpha"][said], found["output"][said] = down, down @ values
    said = "the weights are not normalised: divide by the sum of the row"
    found["output"][said] = steps.exponentials @ values
    if not steps.allowed.all():
        said = "later words are not hidden"
        weights = softmax(steps.products / steps.divisor, axis=1)
        found["alpha"][said], found["output"][said] = weights, weights @ values
    return found


@dataclass(frozen=True, eq=False)
class WorkedSentence:
    """One sentence: its words, the places in focus, and every pass over it."""

    text: str
    words: Labels
    focus: tuple[int, ...]
    passes: tuple[AttentionSteps, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; α·v for the words in focus."""
        passes = [
            one.to_dict() | {"contributions": {one.rows[row]: one.contributions(row).tolist() for row in self.focus}}
            for one in self.passes
        ]
        return {"text": self.text, "words": list(self.words), "focus": list(self.focus), "passes": passes}


@dataclass(frozen=True, eq=False)
class WorkedAttention(WorkedCase):
    """Attention with every step. Long sentences are printed short unless `full`; files and notebooks show it all."""

    default_title: ClassVar[str] = "Attention by hand"
    hint: ClassVar[str] = "--full prints q, k, v and scores; --word WORD the arithmetic of one row"

    case: AttentionCase
    sentences: tuple[WorkedSentence, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_abridged(self) -> bool:
        """Whether a sentence is too long to be printed whole, and no words are in focus."""
        return not self.case.focus and not all(map(self._prints_all, self.sentences))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        sentences = [sentence.to_dict() for sentence in self.sentences]
        return {"case": self.case.to_dict(), "notes": list(self.notes), "sentences": sentences}

    def expected(self) -> list[ExpectedValue]:
        """Every pass, its number behind the names where there are several; `sentence2.` begins those of sentence 2."""
        found: list[ExpectedValue] = []
        for number, sentence in enumerate(self.sentences, 1):
            for place, steps in enumerate(sentence.passes, 1):
                for one in expected_values(steps):
                    own = (one.name, *one.aliases)
                    with_pass = tuple(f"{name}{place}" for name in own)
                    names = with_pass if len(sentence.passes) > 1 else (*own, *with_pass)
                    prefixed = tuple(f"sentence{number}.{name}" for name in names)
                    first, *others = (*names, *prefixed) if number == 1 else prefixed
                    found.append(replace(one, name=first, aliases=tuple(others)))
        return found

    def _prints_all(self, sentence: WorkedSentence) -> bool:
        """Whether every matrix and every row of it is printed."""
        return self.full or (not self.case.focus and len(sentence.words) <= MAX_SHORT_SENTENCE)

    def step_blocks(self, every_matrix: bool) -> list[Block]:
        """The arithmetic of the words in focus; without them everything, of a long sentence only if `full`."""
        about = describe_pass(self.sentences[0].passes[0], causal=self.case.mask == "causal")
        blocks: list[Block] = [about, *map(Text, self.notes)]
        for sentence in self.sentences:
            whole = self.full if every_matrix else self._prints_all(sentence)
            rows = range(len(sentence.words)) if whole else sentence.focus
            for number, steps in enumerate(sentence.passes, 1):
                blocks.append(Heading(f"{sentence.text}: pass {number} of {len(sentence.passes)}"))
                if every_matrix or whole:
                    blocks += matrix_blocks(steps, self.decimals)
                elif not rows:  # otherwise the arithmetic of some rows says enough
                    blocks += output_blocks(steps, self.decimals)
                for row in rows:
                    weights = steps.weights[row]
                    order = np.argsort(-weights, kind="stable")[:MAX_RANKED]
                    named = [
                        f"{steps.columns[place]} {format_number(weights[place], self.decimals)}" for place in order
                    ]
                    left = len(weights) - len(order)
                    ranking = " · ".join([*named, *([f"and {left} more"] if left else [])])
                    said = Text(f"{steps.rows[row]} attends to: {ranking}")
                    blocks += [*row_blocks(steps, row, self.decimals), said]
        return blocks


def work_attention(
    example: CaseLike,
    *,
    words: Sequence[str] | None = None,
    passes: int | None = None,
    scaled: bool | None = None,
    mask: str | None = None,
    full: bool = False,
    decimals: int = 3,
) -> WorkedAttention:
    """Work attention out step by step, for an example by name, a TOML file or a table of the same words.

    α_ij = softmax_j(q_i·k_j / √d_k), output_i = Σ_j α_ij v_j; the outputs are the encodings of the next pass. `words`
    (those in focus), `passes`, `scaled` and `mask` take the place of what the case says.

    >>> worked = attention_by_hand("e1", passes=1)
    >>> worked.sentences[0].passes[0].weights[5].round(3).tolist()
    [0.08, 0.08, 0.08, 0.08, 0.08, 0.219, 0.08, 0.08, 0.219]
    """
    changes = {"focus": words or None, "passes": passes, "scaled": scaled, "mask": mask}
    case, where, text = read_case(AttentionCase, example, changes)
    sentences = [sentence.split() for sentence in case.sentences]
    for sentence, split in zip(case.sentences, sentences, strict=True):
        if not split or len(split) > MAX_WORDS:
            raise SpecError(
                f"{where}: sentences: {sentence[:40]!r} has {len(split)} words; give from 1 to {MAX_WORDS}. "
                "For longer text: lemma look RUN --text"
            )
    weights = case.passes * sum(len(split) ** 2 for split in sentences)
    if weights > MAX_WEIGHTS:
        raise SpecError(
            f"{where}: {case.passes} passes over {len(sentences)} sentences make {weights:,} attention weights; "
            f"at most {MAX_WEIGHTS:,} are worked out. Give fewer passes, or fewer or shorter sentences."
        )
    there = {name: None for split in sentences for name in (*split, *_word_labels(split))}
    for word in case.focus:
        if word not in there:
            raise SpecError(f"{where}: " + describe_unknown("focus", word, there))
    used = {word for split in sentences for word in split}
    idle = [escape_invisible(word) for word in case.vectors if word not in used]
    notes = (f"In no sentence, so not used: {', '.join(idle)}",) if idle else ()
    worked = tuple(_work_sentence(case, where, split) for split in sentences)
    return WorkedAttention(case, text, worked, notes, full=full, decimals=decimals)


def _work_sentence(case: AttentionCase, where: str, words: list[str]) -> WorkedSentence:
    """All passes over one sentence."""
    labels = _word_labels(words)
    for word in words:
        if word not in case.vectors and case.other_words is None:
            known = describe_unknown("the word", word, case.vectors) if case.vectors else f"'{word}' has no vector."
            raise SpecError(f"{where}: vectors: {known} Give it a vector, or set other_words for all that have none.")
    given = [case.vectors.get(word, case.other_words or ()) for word in words]
    vectors = as_matrix("vectors", given, where, labels)
    passes: list[AttentionSteps] = []
    for number in range(1, case.passes + 1):
        causal = case.mask == "causal"
        passes.append(attend(case, labels, labels, vectors, vectors, where, causal=causal, number=number))
        width, made = vectors.shape[1], passes[-1].outputs
        if number < case.passes and made.shape[1] != width:
            raise SpecError(
                f"{where}: W_V makes vectors of length {made.shape[1]} from vectors of length {width}, so that its "
                "outputs cannot be encodings again. Set passes = 1, or give a W_V that keeps the length."
            )
        vectors = made
    focus = tuple(place for place, label in enumerate(labels) if {label, words[place]} & set(case.focus))
    return WorkedSentence(escape_invisible(" ".join(words)), labels, focus, tuple(passes))


def _word_labels(words: list[str]) -> Labels:
    """The words, numbered where one occurs twice: the#1, the#2."""
    counts, seen = Counter(words), Counter[str]()
    labels: list[str] = []
    for word in words:
        seen[word] += 1
        labels.append(escape_invisible(word) + (f"#{seen[word]}" if counts[word] > 1 else ""))
    return tuple(labels)


class Preference(NamedTuple):
    """What one vector prefers: by weight (and so by score), and by the cosine of query and key; several if they tie."""

    name: str
    by_weight: Labels
    weight: float
    by_cosine: Labels
    cosine: float | None
    """None where the query or all keys are zero."""
    agree: bool


@dataclass(frozen=True, eq=False)
class WorkedCross(WorkedCase):
    """Cross-attention with every step, and what each vector prefers."""

    default_title: ClassVar[str] = "Cross-attention by hand"

    case: CrossCase
    steps: AttentionSteps
    cosines: Float[np.ndarray, "queries source"]
    preferences: Sequence[Preference]
    focus: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        steps = {"queries_from": list(self.steps.rows), "source": list(self.steps.columns), **self.steps.to_dict()}
        preferences = [one._asdict() for one in self.preferences]
        cosines = json_rows(self.cosines)
        return {"case": self.case.to_dict(), "steps": steps, "cosines": cosines, "preferences": preferences}

    def expected(self) -> list[ExpectedValue]:
        """The steps, the cosines, and what is nearest by cosine."""
        rows, columns = self.steps.rows, self.steps.columns
        best = tuple(one.by_cosine for one in self.preferences)
        return [
            *expected_values(self.steps, cross=True),
            expect_numbers("cosine cosines cos", self.cosines, (rows, columns), "cosine of q and k"),
            ExpectedWords("preferred_cosine", best, (rows,), "nearest by cosine", ("prefers_cosine",)),
        ]

    def step_blocks(self, every_matrix: bool) -> list[Block]:
        """The arithmetic of the vectors in focus and the comparison."""
        steps, decimals = self.steps, self.decimals
        blocks: list[Block] = [describe_pass(steps), *(matrix_blocks(steps, decimals) if every_matrix else [])]
        for row in self.focus:
            blocks += [Heading(f"From {steps.rows[row]}"), *row_blocks(steps, row, decimals)]
        return [
            *blocks,
            *([] if every_matrix else output_blocks(steps, decimals)),
            Heading("What each prefers"),
            Matrix("cosine of q and k", steps.rows, steps.columns, self.cosines, decimals=decimals),
            best_table(("most attended", "α"), self.preferences, decimals),
        ]


def work_cross_attention(
    example: CaseLike,
    *,
    words: Sequence[str] | None = None,
    scaled: bool | None = None,
    full: bool = False,
    decimals: int = 4,
) -> WorkedCross:
    """Work cross-attention out step by step, for an example by name, a TOML file or a table of the same words.

    q = W_Q x of the vectors that look, k = W_K y and v = W_V y of those looked at, α = softmax(q·k / √d_k).
    `words` (the names in focus) and `scaled` take the place of what the case says.

    >>> cross_by_hand("e8").steps.products.round(4).tolist()
    [[1.3314, -1.5003, 1.5844], [-0.0702, 0.0789, -0.0828]]
    """
    case, where, text = read_case(CrossCase, example, {"focus": words or None, "scaled": scaled})
    rows, columns = tuple(map(escape_invisible, case.queries)), tuple(map(escape_invisible, case.source))
    inputs = as_matrix("queries", list(case.queries.values()), where, rows)
    source = as_matrix("source", list(case.source.values()), where, columns)
    steps = attend(case, rows, columns, inputs, source, where)
    for name in case.focus:
        if name not in case.queries:
            raise SpecError(f"{where}: " + describe_unknown("focus", name, case.queries))
    focus = tuple(place for place, name in enumerate(case.queries) if not case.focus or name in case.focus)
    cosines = unit_vectors(steps.queries) @ unit_vectors(steps.keys).T
    preferences = best_matches(Preference, rows, columns, steps.weights, cosines)
    return WorkedCross(case, text, steps, cosines, preferences, focus, full=full, decimals=decimals)
