"""Attention and cross-attention worked by hand, step by step (after Vaswani et al. 2017)."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Float
from pydantic import Field
from scipy.special import softmax

from lemma.checking.expected_values import Array, ExpectedValue, Labels, expect_numbers, number_labels
from lemma.checking.worked.case import (
    Case,
    CaseLike,
    NumberRow,
    NumberRows,
    Strings,
    WorkedCase,
    argmax_names,
    as_matrix,
    best_matches,
    best_table,
    check_magnitudes,
    prefix_errors,
    read_case,
    unit_vectors,
)
from lemma.errors import SpecError, describe_unknown
from lemma.report.numbers import escape_invisible, format_number, format_vector
from lemma.report.result import Block, Heading, Matrix, Table, Text, to_plain

NamedVectors = Annotated[dict[str, NumberRow], Field(min_length=1, max_length=100)]
MAX_WORDS = 100  # tables of a longer sentence could not be read
MAX_WEIGHTS = 1_000_000  # of all sentences and passes together; each pass holds some ten matrices of this size
SHIFT_THRESHOLD = 50.0  # for larger scores, the largest of the row is subtracted before exponentials
MAX_SHORT_SENTENCE = 6  # words; a sentence this short is printed in full, unless some words are in focus
MAX_RANKED = 12  # words listed as attended to by a word, the most attended first


class BaseAttentionCase(Case):
    """The fields that cases of self-attention and of cross-attention share: the maps, and how they are applied."""

    focus: Strings = ()  # the words, or named vectors, whose row of arithmetic is shown
    scaled: bool = True  # whether q·k is divided by the square root of the key's length
    # how a matrix is written: with a row for each output, or with a row for each input
    apply: Literal["W x", "x W"] = "W x"
    W_Q: NumberRows  # the query map
    W_K: NumberRows  # the key map
    W_V: NumberRows  # the value map

    def formula(self, letter: str) -> str:
        """Return the formula of the map to `letter` ("q", "k" or "v"): `q = W_Q x` or, by `apply`, `q = x W_Q`."""
        name = f"W_{letter.upper()}"
        return f"{letter} = {name} x" if self.apply == "W x" else f"{letter} = x {name}"


class AttentionCase(BaseAttentionCase):
    """A case of self-attention: sentences, the vectors of their words, and the maps."""

    kind: ClassVar[str] = "attention"

    sentences: Annotated[Strings, Field(min_length=1, max_length=20)]  # each a text of words separated by white space
    # how often attention is applied; the outputs of one pass are the encodings of the next
    passes: Annotated[int, Field(strict=True, ge=1, le=50)] = 1
    mask: Literal["none", "causal"] = "none"  # whether later words are hidden
    vectors: dict[str, NumberRow] = Field(default_factory=dict)  # the encoding of each word
    other_words: NumberRow | None = None  # the encoding of every word that is not listed


class CrossCase(BaseAttentionCase):
    """A case of cross-attention: the named vectors of `queries` attend to the named vectors of `source`."""

    kind: ClassVar[str] = "cross"

    queries: NamedVectors  # the vectors that look
    source: NamedVectors  # the vectors that are looked at


@dataclass(frozen=True, eq=False)
class AttentionSteps:
    """Every matrix of one pass of attention, softmax(q kᵀ / divisor) v, of labelled `rows` to labelled `columns`."""

    case: BaseAttentionCase
    rows: Labels
    columns: Labels
    inputs: Float[np.ndarray, "rows query_input"]
    source: Float[np.ndarray, "columns source_input"]
    allowed: Bool[np.ndarray, "rows columns"]
    maps: Mapping[str, Float[np.ndarray, "input output"]]  # W_Q, W_K, W_V, transposed if needed: q = x W
    divisor: float  # √(the key's length), or 1
    queries: Float[np.ndarray, "rows key_width"]
    keys: Float[np.ndarray, "columns key_width"]
    values: Float[np.ndarray, "columns value_width"]
    products: Float[np.ndarray, "rows columns"]  # q·k
    scores: Float[np.ndarray, "rows columns"]  # q·k / divisor, −∞ where attention is masked
    is_shifted: bool  # whether the row's largest score is subtracted before exponentials; weights stay the same
    exponentials: Float[np.ndarray, "rows columns"]
    sums: Float[np.ndarray, " rows"]  # of each row's exponentials
    weights: Float[np.ndarray, "rows columns"]  # α: each exponential over its row's sum
    outputs: Float[np.ndarray, "rows value_width"]  # Σ α·v

    def contributions(self, row: int) -> Float[np.ndarray, "columns value_width"]:
        """Return α·v of every column for the row with the index `row`; their sum is the output of that row."""
        return self.weights[row][:, None] * self.values

    def to_dict(self) -> dict[str, Any]:
        """Return the matrices by name as plain values for JSON; a masked score is None."""
        names = ("inputs", "source", "divisor", "queries", "keys", "values", "products", "scores")
        values = {name: getattr(self, name) for name in (*names, "exponentials", "sums", "weights", "outputs")}
        return to_plain(values) | {"largest_score_subtracted": self.is_shifted}


def attend(
    case: BaseAttentionCase,
    maps: Mapping[str, Array],
    rows: Labels,
    columns: Labels,
    inputs: Float[np.ndarray, "rows query_input"],
    source: Float[np.ndarray, "columns source_input"],
    causal: bool = False,
) -> AttentionSteps:
    """Compute one pass of attention of `inputs` to `source`, with every intermediate value.

    `case` says whether scores are scaled; `rows` and `columns` label the vectors of `inputs` and `source`; `maps` are
    W_Q, W_K and W_V by name, so that q = x W. If `causal`, each row attends only to columns up to its own index.
    """
    key_width = maps["W_K"].shape[1]
    allowed = np.ones((len(rows), len(columns)), dtype=bool)
    allowed = np.tril(allowed) if causal else allowed
    with np.errstate(over="ignore", invalid="ignore"):
        queries, keys, values = inputs @ maps["W_Q"], source @ maps["W_K"], source @ maps["W_V"]
        products = queries @ keys.T
    check_magnitudes(queries, keys, values, products)
    divisor = float(np.sqrt(key_width)) if case.scaled else 1.0
    scores = np.where(allowed, products / divisor, -np.inf)
    is_shifted = bool(np.abs(scores[allowed]).max() > SHIFT_THRESHOLD)
    exponentials = np.exp(scores - (scores.max(axis=1, keepdims=True) if is_shifted else 0.0))
    sums = exponentials.sum(axis=1)
    weights = exponentials / sums[:, None]
    computed = (queries, keys, values, products, scores, is_shifted, exponentials, sums, weights, weights @ values)
    return AttentionSteps(case, rows, columns, inputs, source, allowed, maps, divisor, *computed)


def _read_maps(case: BaseAttentionCase, input_width: int, source_width: int) -> dict[str, Array]:
    """Return W_Q, W_K and W_V by name, transposed if needed so that q = x W; check that they fit the widths."""
    maps: dict[str, Array] = {}
    for name, width in (("W_Q", input_width), ("W_K", source_width), ("W_V", source_width)):
        matrix = as_matrix(name, getattr(case, name))
        maps[name] = matrix.T if case.apply == "W x" else matrix
        if len(maps[name]) != width:
            side, other = ("columns", "x W") if case.apply == "W x" else ("rows", "W x")
            hint = f' It would fit with apply = "{other}".' if maps[name].shape[1] == width else ""
            raise SpecError(
                f'{name} is {matrix.shape[0]}×{matrix.shape[1]}; with apply = "{case.apply}" and vectors of '
                f"length {width} it needs {width} {side}.{hint}"
            )
    query_width, key_width = maps["W_Q"].shape[1], maps["W_K"].shape[1]
    if query_width != key_width:
        raise SpecError(
            f"W_Q makes vectors of length {query_width}, W_K of length {key_width}; q·k needs equal lengths."
        )
    return maps


def describe_pass(steps: AttentionSteps, causal: bool = False) -> Text:
    """Return a paragraph with the formulas of a pass of attention; `causal` if later words are masked."""
    scores = f"score = q·k / √{steps.keys.shape[1]}" if steps.case.scaled else "score = q·k, not scaled"
    mask = "; later words are hidden (score −∞)" if causal else ""
    maps = ", ".join(steps.case.formula(letter) for letter in "qkv")
    return Text(f"{maps}; {scores}{mask}; α = exp(score) / sum over the row; output = Σ α·v")


def matrix_blocks(steps: AttentionSteps, decimals: int) -> list[Block]:
    """Return report blocks of every matrix of a pass, in the order of computation; numbers have this many decimals."""

    def matrix(title: str, values: Array, rows: Labels, columns: Labels = (), sums: Sequence[float] = ()) -> Matrix:
        return Matrix(title, rows, columns or number_labels(values.shape[1]), values, sums=sums, decimals=decimals)

    rows, columns, formula = steps.rows, steps.columns, steps.case.formula
    if steps.inputs is steps.source:
        blocks = [matrix("encodings x", steps.inputs, rows)]
    else:
        blocks = [matrix("vectors x that look", steps.inputs, rows)]
        blocks += [matrix("vectors x looked at", steps.source, columns)]
    blocks += [
        matrix(f"queries {formula('q')}", steps.queries, rows),
        matrix(f"keys {formula('k')}", steps.keys, columns),
        matrix(f"values {formula('v')}", steps.values, columns),
        matrix("q·k", steps.products, rows, columns),
    ]
    if steps.case.scaled or not steps.allowed.all():
        over = f" / √{steps.keys.shape[1]}" if steps.case.scaled else ""
        blocks.append(matrix(f"scores q·k{over}", steps.scores, rows, columns))
    exponential = "exp(score − row's largest)" if steps.is_shifted else "exp(score)"
    blocks.append(matrix(exponential, steps.exponentials, rows, columns, steps.sums.tolist()))
    return [*blocks, *output_blocks(steps, decimals)]


def output_blocks(steps: AttentionSteps, decimals: int) -> list[Block]:
    """Return report blocks of the attention weights and of the outputs; numbers have this many decimals."""
    columns = number_labels(steps.outputs.shape[1])
    return [
        Matrix("weights α", steps.rows, steps.columns, steps.weights, "share", decimals=decimals),
        Matrix("outputs Σ α·v", steps.rows, columns, steps.outputs, decimals=decimals),
    ]


def row_blocks(steps: AttentionSteps, row: int, decimals: int) -> list[Block]:
    """Return report blocks of the arithmetic of the row with this index: query, keys, scores, weights, α·v, output."""

    def vectors(matrix: Array) -> list[str]:
        return [format_vector(row, decimals) for row in matrix]

    def numbers(values: Array) -> list[str]:
        return [format_number(value, decimals) for value in values]

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
    query = f"q({name}) = {format_vector(steps.queries[row], decimals)}"
    return [
        Text(f"{query}, from x({name}) = {format_vector(steps.inputs[row], decimals)}"),
        Table(
            tuple(columns),
            tuple(zip(*columns.values(), strict=True)),
            bars=steps.weights[row].tolist(),
            total=[total.get(column, "") for column in columns],
        ),
        Text(f"output({name}) = Σ α·v = {output}"),
    ]


def expected_values(steps: AttentionSteps, cross: bool = False) -> list[ExpectedValue]:
    """Return the right value of every quantity of a pass; `cross`, for cross-attention, adds the source."""
    rows, columns, formula, mistakes = steps.rows, steps.columns, steps.case.formula, _common_mistakes(steps)

    def numbers(names: str, values: Array, labels: tuple[Labels, ...], meaning: str) -> ExpectedValue:
        return expect_numbers(names, values, labels, meaning, mistakes.get(names.split()[0]))

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
        ExpectedValue("preferred", best, (rows,), "what each attends to most", ("prefers", "most", "argmax")),
    ]


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # a mistake that overflows explains nothing
def _common_mistakes(steps: AttentionSteps) -> dict[str, dict[str, Array]]:
    """Return for each quantity ("score", "alpha", …) the wrong arrays that common mistakes give, by description."""
    width, values = steps.keys.shape[1], steps.values
    mistakes: defaultdict[str, dict[str, Array]] = defaultdict(dict)

    def add(mistake: str, **arrays: Array) -> None:
        for name, array in arrays.items():
            mistakes[name][mistake] = array

    if steps.case.scaled:
        divisors = {
            f"scores are not divided by √{width}": 1.0,
            f"scores are divided by {width} in place of √{width}": float(width),
            f"scores are multiplied by √{width}; they must be divided": width**-0.5,
        }
    else:
        divisors = {f"scores are divided by √{width}; this case does not scale": width**0.5}
    for mistake, divisor in divisors.items():
        scores = steps.products / divisor
        weights = softmax(np.where(steps.allowed, scores, -np.inf), axis=1)
        sums = np.exp(scores).sum(axis=1)
        add(mistake, score=scores, exp=np.exp(scores), sum=sums, alpha=weights, output=weights @ values)
    weights = steps.exponentials / steps.exponentials.sum(axis=0)
    add("the softmax is taken down the columns; each row must sum to one", alpha=weights, output=weights @ values)
    add("the weights are not normalised: divide by the sum of the row", output=steps.exponentials @ values)
    if not steps.allowed.all():
        weights = softmax(steps.products / steps.divisor, axis=1)
        add("later words are not hidden", alpha=weights, output=weights @ values)
    return mistakes


@dataclass(frozen=True, eq=False)
class WorkedSentence:
    """A sentence: its words, the indices of the words in focus, and every pass over it."""

    text: str
    words: Labels
    focus: tuple[int, ...]
    passes: tuple[AttentionSteps, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the words, the focus and the matrices of every pass as plain values for JSON."""
        passes = [
            steps.to_dict()
            | {"contributions": {steps.rows[row]: steps.contributions(row).tolist() for row in self.focus}}
            for steps in self.passes
        ]
        return {"text": self.text, "words": list(self.words), "focus": list(self.focus), "passes": passes}


@dataclass(frozen=True, eq=False)
class WorkedAttention(WorkedCase):
    """Attention with every step; long sentences are abridged in print unless `full`."""

    default_title: ClassVar[str] = "Attention by hand"
    json_names = ("case", "notes", "sentences")
    hint: ClassVar[str] = "--full prints q, k, v and scores; --word WORD the arithmetic of one row"

    case: AttentionCase
    sentences: tuple[WorkedSentence, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_abridged(self) -> bool:
        """True if no word is in focus and some sentence is too long for all its steps to be printed."""
        return not self.case.focus and not all(map(self._prints_all, self.sentences))

    def expected(self) -> list[ExpectedValue]:
        """Return the right value of every quantity of each sentence and pass, such as `sentence2.alpha1`.

        Names end in the number of the pass if there are several passes; those of sentence 2 start with `sentence2.`.
        """
        expected: list[ExpectedValue] = []
        for number, sentence in enumerate(self.sentences, 1):
            for pass_number, steps in enumerate(sentence.passes, 1):
                for value in expected_values(steps):
                    base = (value.name, *value.aliases)
                    with_pass = tuple(f"{name}{pass_number}" for name in base)
                    names = with_pass if len(sentence.passes) > 1 else (*base, *with_pass)
                    prefixed = tuple(f"sentence{number}.{name}" for name in names)
                    first, *aliases = (*names, *prefixed) if number == 1 else prefixed
                    expected.append(replace(value, name=first, aliases=tuple(aliases)))
        return expected

    def _prints_all(self, sentence: WorkedSentence) -> bool:
        """Return whether all steps of a sentence are printed: by `full`, or if it is short and no word is in focus."""
        return self.full or (not self.case.focus and len(sentence.words) <= MAX_SHORT_SENTENCE)

    def step_blocks(self, every_matrix: bool) -> list[Block]:
        """Return report blocks of the formulas and of each pass; `every_matrix` adds the matrices of long sentences."""
        description = describe_pass(self.sentences[0].passes[0], causal=self.case.mask == "causal")
        blocks: list[Block] = [description, *map(Text, self.notes)]
        for sentence in self.sentences:
            prints_all = self.full if every_matrix else self._prints_all(sentence)
            rows = range(len(sentence.words)) if prints_all else sentence.focus
            for number, steps in enumerate(sentence.passes, 1):
                blocks.append(Heading(f"{sentence.text}: pass {number} of {len(sentence.passes)}"))
                if every_matrix or prints_all:
                    blocks += matrix_blocks(steps, self.decimals)
                elif not rows:  # otherwise the arithmetic of some rows says enough
                    blocks += output_blocks(steps, self.decimals)
                for row in rows:
                    blocks += [*row_blocks(steps, row, self.decimals), self._ranking(steps, row)]
        return blocks

    def _ranking(self, steps: AttentionSteps, row: int) -> Text:
        """Return a line such as "it attends to: cat 0.7 · sat 0.3" for the word with index `row`, sorted."""
        weights = steps.weights[row]
        order = np.argsort(-weights, kind="stable")
        ranking = [f"{steps.columns[i]} {format_number(weights[i], self.decimals)}" for i in order[:MAX_RANKED]]
        ranking += [f"and {len(order) - MAX_RANKED} more"] if len(order) > MAX_RANKED else []
        return Text(f"{steps.rows[row]} attends to: {' · '.join(ranking)}")


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
    """Compute an example of attention step by step, with every intermediate value.

    α_ij = softmax_j(q_i·k_j / √d_k), output_i = Σ_j α_ij v_j; the outputs are the encodings of the next pass.

    `example` is the name of an example, a TOML file or a dict of fields. `words` replaces its field `focus`; `passes`,
    `scaled` and `mask` replace the fields of these names. `full` prints long sentences in full.

    >>> worked = work_attention("e1", passes=1)
    >>> worked.sentences[0].passes[0].weights[5].round(3).tolist()
    [0.08, 0.08, 0.08, 0.08, 0.08, 0.219, 0.08, 0.08, 0.219]
    """
    overrides = {"focus": words or None, "passes": passes, "scaled": scaled, "mask": mask}
    case, label, text = read_case(AttentionCase, example, overrides)
    sentences = [sentence.split() for sentence in case.sentences]
    with prefix_errors(label):
        _check_sentences(case, sentences)
        worked = tuple(_work_sentence(case, split) for split in sentences)
    used = {word for split in sentences for word in split}
    unused = [escape_invisible(word) for word in case.vectors if word not in used]
    notes = (f"In no sentence, so not used: {', '.join(unused)}",) if unused else ()
    return WorkedAttention(case, text, worked, notes, full=full, decimals=decimals)


def _check_sentences(case: AttentionCase, sentences: list[list[str]]) -> None:
    """Raise a SpecError for a sentence (a list of words) of a wrong length, too many weights, or an unknown focus."""
    for sentence, split in zip(case.sentences, sentences, strict=True):
        if not split or len(split) > MAX_WORDS:
            raise SpecError(
                f"sentences: {sentence[:40]!r} has {len(split)} words; give from 1 to {MAX_WORDS}. "
                "For longer text: lemma look RUN --text"
            )
    weights = case.passes * sum(len(split) ** 2 for split in sentences)
    if weights > MAX_WEIGHTS:
        raise SpecError(
            f"{case.passes} passes over {len(sentences)} sentences make {weights:,} attention weights; "
            f"at most {MAX_WEIGHTS:,} are worked out. Give fewer passes, or fewer or shorter sentences."
        )
    names = {name: None for split in sentences for name in (*split, *_word_labels(split))}
    for word in case.focus:
        if word not in names:
            raise SpecError(describe_unknown("focus", word, names))


def _work_sentence(case: AttentionCase, words: list[str]) -> WorkedSentence:
    """Compute all passes of attention over a sentence, given as its words."""
    labels = _word_labels(words)
    for word in words:
        if word not in case.vectors and case.other_words is None:
            problem = describe_unknown("word", word, case.vectors) if case.vectors else f"'{word}' has no vector."
            raise SpecError(f"vectors: {problem} Give it a vector, or set other_words for all that have none.")
    rows = [case.vectors.get(word, case.other_words or ()) for word in words]
    vectors = as_matrix("vectors", rows, labels)
    maps = _read_maps(case, vectors.shape[1], vectors.shape[1])
    passes: list[AttentionSteps] = []
    for number in range(1, case.passes + 1):
        with prefix_errors(f"pass {number}"):
            passes.append(attend(case, maps, labels, labels, vectors, vectors, causal=case.mask == "causal"))
        width, outputs = vectors.shape[1], passes[-1].outputs
        if number < case.passes and outputs.shape[1] != width:
            raise SpecError(
                f"W_V makes vectors of length {outputs.shape[1]} from vectors of length {width}, so that its "
                "outputs cannot be encodings again. Set passes = 1, or give a W_V that keeps the length."
            )
        vectors = outputs
    focus = tuple(index for index, name in enumerate(labels) if {name, words[index]} & set(case.focus))
    return WorkedSentence(escape_invisible(" ".join(words)), labels, focus, tuple(passes))


def _word_labels(words: list[str]) -> Labels:
    """Return the words as unique labels: repeated words are numbered, as in the#1 and the#2."""
    counts, seen = Counter(words), Counter[str]()
    labels: list[str] = []
    for word in words:
        seen[word] += 1
        labels.append(escape_invisible(word) + (f"#{seen[word]}" if counts[word] > 1 else ""))
    return tuple(labels)


@dataclass(frozen=True)
class Preference:
    """The vectors that a query prefers: those of the largest weight and of the largest cosine, several if they tie."""

    name: str
    by_weight: Labels
    weight: float
    by_cosine: Labels
    cosine: float | None  # None where the query or all keys are zero
    agree: bool


@dataclass(frozen=True, eq=False)
class WorkedCross(WorkedCase):
    """Cross-attention with every step, and what each vector prefers."""

    default_title: ClassVar[str] = "Cross-attention by hand"
    json_names = ("case", "cosines", "preferences")

    case: CrossCase
    steps: AttentionSteps
    cosines: Float[np.ndarray, "queries source"]
    preferences: Sequence[Preference]
    focus: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, with the names and matrices of the steps, as plain values for JSON."""
        names = {"queries_from": list(self.steps.rows), "source": list(self.steps.columns)}
        return super().to_dict() | {"steps": names | self.steps.to_dict()}

    def expected(self) -> list[ExpectedValue]:
        """Return the right value of every quantity: those of attention, the cosines and the preferred vectors."""
        rows, columns = self.steps.rows, self.steps.columns
        nearest = tuple(preference.by_cosine for preference in self.preferences)
        return [
            *expected_values(self.steps, cross=True),
            expect_numbers("cosine cosines cos", self.cosines, (rows, columns), "cosine of q and k"),
            ExpectedValue("preferred_cosine", nearest, (rows,), "nearest by cosine", ("prefers_cosine",)),
        ]

    def step_blocks(self, every_matrix: bool) -> list[Block]:
        """Return report blocks of the rows in focus, outputs and preferences; `every_matrix` adds q, k, v and q·k."""
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
    """Compute an example of cross-attention step by step, with every intermediate value.

    q = W_Q x of the queries x, k = W_K y and v = W_V y of the source y, α = softmax(q·k / √d_k).

    `words`, the names of the queries whose arithmetic is shown, replaces the field `focus`; `scaled` replaces its own.

    >>> work_cross_attention("e8").steps.products.round(4).tolist()
    [[1.3314, -1.5003, 1.5844], [-0.0702, 0.0789, -0.0828]]
    """
    case, label, text = read_case(CrossCase, example, {"focus": words or None, "scaled": scaled})
    rows, columns = tuple(map(escape_invisible, case.queries)), tuple(map(escape_invisible, case.source))
    with prefix_errors(label):
        inputs = as_matrix("queries", list(case.queries.values()), rows)
        source = as_matrix("source", list(case.source.values()), columns)
        steps = attend(case, _read_maps(case, inputs.shape[1], source.shape[1]), rows, columns, inputs, source)
        for name in case.focus:
            if name not in case.queries:
                raise SpecError(describe_unknown("focus", name, case.queries))
    focus = tuple(index for index, name in enumerate(case.queries) if not case.focus or name in case.focus)
    cosines = unit_vectors(steps.queries) @ unit_vectors(steps.keys).T
    preferences = best_matches(Preference, rows, columns, steps.weights, cosines)
    return WorkedCross(case, text, steps, cosines, preferences, focus, full=full, decimals=decimals)
