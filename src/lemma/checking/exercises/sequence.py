"""Exercises on sequence models: hidden Markov models and linear-chain conditional random fields."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from lemma.checking.check_values import AnswerKey, ValueClaim, normalize_name
from lemma.checking.exercises.base import ValueExercise
from lemma.checking.exercises.notation import (
    as_row,
    as_rows,
    expect_word,
    format_ratio,
    keep_distinct,
    make_alternatives,
    read_table,
    rewrite_number,
    split_sentences,
    split_words,
)
from lemma.checking.expected_values import Array, ExpectedValue, expect_numbers, expect_words
from lemma.checking.read_values import read_arithmetic
from lemma.errors import InputError

MAX_STATES, MAX_STEPS, MAX_PATHS = 20, 50, 50
START_NAMES = ("<s>", "start", "<start>", "bos", "<bos>", "begin", "^", "s0", "q0", "init")
FINAL_NAMES = ("</s>", "end", "<end>", "stop", "<stop>", "eos", "<eos>", "$", "qf", "final")
LOG_BASES: dict[str, float] = {"in base 2": 1 / math.log(2), "in base 10": 1 / math.log(10)}
TABLES = {
    "v": ("v", "viterbi", "delta", "V", "vit", "viterbi table"),
    "alpha": ("alpha", "forward", "fwd", "f", "a", "forward table"),
    "beta": ("beta", "backward", "bwd", "backward table"),
    "gamma": ("gamma", "posterior", "posteriors", "marginals"),
    "bp": ("bp", "backpointer", "backpointers", "psi", "back pointer", "pointer"),
}
TABLE_NAMES = {normalize_name(alias): name for name, aliases in TABLES.items() for alias in aliases}
_TABLE_ENTRY = re.compile(
    r"(?P<log>\\?(?:log|ln)[\s_]*(?:\(\s*)?)?\\?(?P<name>[A-Za-zα-ωΑ-Ω]+)\s*_?\s*\{?\s*(?P<step>\d*)\s*\}?\s*"
    r"(?:\((?P<round>[^()]*)\)|\[(?P<square>[^\[\]]*)\])?\s*\)?"
)


@dataclass(frozen=True, eq=False)
class ChainModel:
    """Factors of a chain: the score of a path is the product of its factors, as logarithms.

    Attributes:
        start: of the first state; (states,).
        transition: from a state, by row, to the next; (states, states).
        emission: of each step and state; (steps, states).
        end: of the last state; (states,).
    """

    start: Array
    transition: Array
    emission: Array
    end: Array

    @property
    def steps(self) -> int:
        """The number of observations."""
        return len(self.emission)

    def viterbi(self) -> tuple[Array, Array]:
        """Return the best log-score of the paths to each state at each step, and of each predecessor there."""
        best = [self.start + self.emission[0]]
        through = [np.full_like(self.transition, -np.inf)]
        for emission in self.emission[1:]:
            scores = best[-1][:, None] + self.transition
            through.append(scores)
            best.append(scores.max(axis=0) + emission)
        return np.array(best), np.array(through)

    def forward(self) -> Array:
        """Return the log-sum of the scores of the paths to each state at each step."""
        sums = [self.start + self.emission[0]]
        for emission in self.emission[1:]:
            sums.append(log_sum(sums[-1][:, None] + self.transition, axis=0) + emission)
        return np.array(sums)

    def backward(self) -> Array:
        """Return the log-sum of the scores of the paths from each state to the end."""
        sums = [self.end]
        for emission in self.emission[:0:-1]:
            sums.append(log_sum(self.transition + emission + sums[-1], axis=1))
        return np.array(sums[::-1])

    def total(self) -> float:
        """Return the log-sum of the scores of all paths."""
        return float(log_sum(self.forward()[-1] + self.end, axis=0))

    def score(self, path: Sequence[int]) -> float:
        """Return the log-score of a path."""
        emissions = sum(self.emission[step, state] for step, state in enumerate(path))
        moves = sum(self.transition[left, right] for left, right in pairwise(path))
        return float(self.start[path[0]] + emissions + moves + self.end[path[-1]])

    def best_paths(self, limit: int = MAX_PATHS) -> list[tuple[int, ...]]:
        """Return the best paths: several where they tie."""
        best, through = self.viterbi()
        paths = [(int(state),) for state in _ties(best[-1] + self.end)]
        for step in range(self.steps - 1, 0, -1):
            longer = ((int(left), *path) for path in paths for left in _ties(through[step][:, path[0]]))
            paths = list(islice(longer, limit))
        return paths

    def greedy_path(self) -> tuple[int, ...]:
        """Return the path that takes the best next state at each step."""
        path = [int(np.argmax(self.start + self.emission[0]))]
        for emission in self.emission[1:]:
            path.append(int(np.argmax(self.transition[path[-1]] + emission)))
        return tuple(path)

    def list_mistaken(self) -> dict[str, "ChainModel"]:
        """Return the models that mistakes amount to, by description."""
        start, emission = self.start, self.emission
        first = emission.copy()
        first[0] = 0.0
        last = emission.copy()
        last[-1] = 0.0
        shifted = np.concatenate([emission[:1], emission[:-1]])
        models: dict[str, ChainModel] = {
            "the transitions are transposed: the row is the state before": replace(self, transition=self.transition.T),
            "the start probabilities are left out": replace(self, start=np.zeros_like(start)),
            "the emission of the first step is left out": replace(self, emission=first),
            "the emission of the last step is left out": replace(self, emission=last),
            "the emissions are left out": replace(self, emission=np.zeros_like(emission)),
            "the transitions are left out": replace(self, transition=np.zeros_like(self.transition)),
            "the emission of the step before is used": replace(self, emission=shifted),
            "uniform start probabilities are used": replace(self, start=np.full_like(start, -math.log(len(start)))),
        }
        if np.any(self.end != 0):
            models["the end probabilities are left out"] = replace(self, end=np.zeros_like(self.end))
        return models


def log_sum(values: Array, axis: int) -> Array:
    """Return the logarithm of the sum of exponentials along an axis."""
    highest = np.max(values, axis=axis, keepdims=True)
    highest = np.where(np.isfinite(highest), highest, 0.0)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(values - highest).sum(axis=axis)) + np.squeeze(highest, axis=axis)


def _ties(scores: Array) -> list[int]:
    """Return the indices of the highest scores."""
    highest = scores.max()
    if not np.isfinite(highest):
        return [int(np.argmax(scores))]
    return [int(index) for index in np.flatnonzero(scores >= highest - 1e-9 * max(1.0, abs(highest)))]


def read_tagged(value: Any) -> Any:
    """Return tagged sentences as texts such as "the/D dog/N"."""
    return split_sentences(value, "tagged")


def _optional_table(name: str) -> BeforeValidator:
    """Return a validator of a field that is a table."""
    return BeforeValidator(lambda value: read_table(value, name) if value else {})


class SequenceExercise(ValueExercise):
    """A hidden Markov model or linear-chain CRF computed by hand."""

    kind: ClassVar[str] = "sequence"
    names_with_parameters: ClassVar[str] = (
        "v_2(H) or v[2, H], alpha_2(H), beta_2(H), gamma_2(H), xi_1(H, C), bp_2(H), P(H C H), score(H C H)\n"
        "     of tagged sentences: C(N), C(D, N), P(N | D), P(dog | N), P(D | <s>)"
    )

    model: Literal["hmm", "crf", "factors"] = "hmm"
    """hmm (tables of probabilities), crf (tables of scores that are added) or factors (potentials, multiplied)."""
    states: Annotated[tuple[str, ...], BeforeValidator(lambda value: split_words(value, "states", MAX_STATES))] = ()
    """Names of the states; by default those of the tables."""
    start: Annotated[Any, _optional_table("start")] = Field(default={})
    """Start probabilities by state, as in "H 0.8, C 0.2"; without them, 1 (score 0) for all."""
    transition: Annotated[Any, _optional_table("transition")] = Field(default={})
    """Transitions by state and next state, as in "H: H 0.7, C 0.3; C: H 0.4, C 0.6"."""
    emission: Annotated[Any, _optional_table("emission")] = Field(default={})
    """Emissions by state and word, as in "H: 1=0.2 2=0.4 3=0.4; C: 1=0.5 2=0.4 3=0.1"."""
    unary: Annotated[Any, _optional_table("unary")] = Field(default={})
    """Scores by step (rows) and state in place of emissions, as in "1 0; 0 2; 1 1"."""
    end: Annotated[Any, _optional_table("end")] = Field(default={})
    """End probabilities by state, if the model has them."""
    words: Annotated[tuple[str, ...], BeforeValidator(lambda value: split_words(value, "words"))] = ()
    """Names of the emissions' columns, where these are a matrix."""
    observations: Annotated[
        tuple[str, ...], BeforeValidator(lambda value: split_words(value, "observations", MAX_STEPS))
    ] = ()
    """Observed words, as in "3 1 3"."""
    tagged: Annotated[tuple[str, ...], BeforeValidator(read_tagged)] = ()
    """Tagged sentences in place of tables, as in "the/D dog/N / a/D cat/N"."""
    k: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """Number added to each count of tagged sentences; 0 for relative frequencies."""

    @model_validator(mode="before")
    @classmethod
    def _split_transitions(cls, data: Any) -> Any:
        """Return the fields with a start row and an end column of the transitions as fields of their own."""
        if not isinstance(data, dict) or not data.get("transition"):
            return data
        table = read_table(data["transition"], "transition")
        states = data.get("states") or ()
        is_nested = isinstance(table, dict) and all(isinstance(row, dict) for row in table.values())
        if not is_nested:
            return data
        data = {**data, "transition": table}
        start_label = next((label for label in table if label.casefold() in START_NAMES and label not in states), None)
        if start_label is not None and not data.get("start") and len(table) > 1:
            data["start"] = table[start_label]
            data["transition"] = table = {label: row for label, row in table.items() if label != start_label}
        columns = {label for row in table.values() for label in row}
        last = next((label for label in columns - set(table) if label.casefold() in FINAL_NAMES), None)
        if last is not None and not data.get("end") and last not in states:
            data["end"] = {label: row[last] for label, row in table.items() if last in row}
            data["transition"] = {
                label: {name: number for name, number in row.items() if name != last} for label, row in table.items()
            }
        return data

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if not self.tagged and not self.emission and not self.unary:
            raise ValueError(
                'give start, transition, emission and observations, as in start="H 0.8, C 0.2" '
                'transition="H: H 0.7, C 0.3; C: H 0.4, C 0.6" emission="H: a 0.9, b 0.1; C: a 0.2, b 0.8" '
                'observations="a b", or tagged="the/D dog/N"'
            )
        if self.tagged and (not self._tag_counts or len(self._tag_counts[0]) > MAX_STATES):
            raise ValueError(f"tagged: up to {MAX_STATES} tags are expected, as in the/D dog/N")
        if not self.tagged:
            _ = self.chain  # reports tables that do not fit together
        return self

    # The model

    @cached_property
    def _tag_counts(self) -> tuple[Counter[str], Counter[tuple[str, str]], Counter[tuple[str, str]], Counter[str], int]:
        """The counts of tags, pairs of tags, tags with words, and first tags; and the number of sentences."""
        tags: Counter[str] = Counter()
        moves: Counter[tuple[str, str]] = Counter()
        emitted: Counter[tuple[str, str]] = Counter()
        first: Counter[str] = Counter()
        for sentence in self.tagged:
            pairs = [re.split(r"[/_](?=[^/_]+$)", item) for item in sentence.split()]
            if any(len(pair) != 2 or not all(pair) for pair in pairs):
                raise ValueError(f"tagged: '{sentence[:60]}' is not of the form the/D dog/N")
            labels = [tag for _, tag in pairs]
            tags.update(labels)
            first[labels[0]] += 1
            emitted.update((tag, word) for word, tag in pairs)
            moves.update(pairwise(labels))
        return tags, moves, emitted, first, len(self.tagged)

    @cached_property
    def state_names(self) -> tuple[str, ...]:
        """The names of the states, in the order of the tables."""
        if self.states:
            return self.states
        if self.tagged:
            return tuple(self._tag_counts[0])
        for table in (self.start, self.transition, self.emission):
            if isinstance(table, dict) and table:
                return tuple(table)
        size = len(self.start or self.transition or self.emission or self.unary[0])
        return tuple(str(number) for number in range(1, size + 1))

    @cached_property
    def word_names(self) -> tuple[str, ...]:
        """The words that can be observed, in the order of the emissions' columns."""
        if self.words:
            return self.words
        if self.tagged:
            return tuple(dict.fromkeys(word for _, word in self._tag_counts[2]))
        rows = self.emission.values() if isinstance(self.emission, dict) else self.emission
        names = dict.fromkeys(word for row in rows if isinstance(row, dict) for word in row)
        if names:
            return tuple(names)
        width = max((len(row) for row in rows if isinstance(row, list)), default=0)
        observed = tuple(dict.fromkeys(self.observations))
        if len(observed) == width and not all(word.isdigit() for word in observed):
            return observed
        return tuple(str(number) for number in range(1, width + 1))

    @cached_property
    def chain(self) -> ChainModel:
        """The factors of the chain for the observations, as logarithms."""
        states = self.state_names
        if not 1 <= len(states) <= MAX_STATES:
            raise ValueError(f"from 1 to {MAX_STATES} states are possible, got {len(states)}")
        if self.tagged:
            start, transition, emission = self._estimated_tables()
        else:
            count = len(states)
            neutral = 0.0 if self.model == "crf" else 1.0
            start = as_row(self.start, states, "start") if self.start else [neutral] * count
            if self.transition:
                transition = as_rows(self.transition, states, states, "transition")
            else:
                transition = [[neutral] * count for _ in states]
            emission = as_rows(self.emission, states, self.word_names, "emission") if self.emission else []
        neutral = 0.0 if self.model == "crf" else 1.0
        end = as_row(self.end, states, "end") if self.end else [neutral] * len(states)
        if self.unary:
            rows = self.unary.values() if isinstance(self.unary, dict) else self.unary
            rows = [row if isinstance(row, list | dict) else [row] for row in rows]
            steps = [as_row(row, states, f"unary, step {number}") for number, row in enumerate(rows, 1)]
        else:
            unknown = [word for word in self.observations if word not in self.word_names]
            if unknown:
                choices = ", ".join(self.word_names[:12])
                raise ValueError(f"observations: '{unknown[0][:40]}' has no emission. Choices: {choices}.")
            columns = [self.word_names.index(word) for word in self.observations]
            steps = [[row[column] for row in emission] for column in columns]
        if not steps:
            raise ValueError('observations are missing, as in observations="3 1 3"')
        if len(steps) > MAX_STEPS:
            raise ValueError(f"at most {MAX_STEPS} observations are possible, got {len(steps)}")
        arrays = [np.array(table, dtype=np.float64) for table in (start, transition, steps, end)]
        if self.model == "crf":
            return ChainModel(*arrays)
        if any((array < 0).any() for array in arrays):
            raise ValueError("probabilities are not negative; state model=crf for scores that are added")
        if self.model == "hmm" and not self.unary and any((array > 1 + 1e-9).any() for array in arrays):
            raise ValueError("probabilities are at most 1; state model=factors for potentials, model=crf for scores")
        with np.errstate(divide="ignore"):
            return ChainModel(*(np.log(array) for array in arrays))

    def _estimated_tables(self) -> tuple[list[float], list[list[float]], list[list[float]]]:
        """Return the relative frequencies of the tagged sentences, smoothed by k."""
        tags, moves, emitted, first, sentences = self._tag_counts
        states, words, k = self.state_names, self.word_names, self.k
        start = [(first[tag] + k) / (sentences + k * len(states)) for tag in states]
        transition = [
            [(moves[left, right] + k) / (tags[left] + k * len(states)) for right in states] for left in states
        ]
        emission = [[(emitted[tag, word] + k) / (tags[tag] + k * len(words)) for word in words] for tag in states]
        return start, transition, emission

    @property
    def has_chain(self) -> bool:
        """True if there is something to decode."""
        return bool(self.observations or self.unary)

    # Notation

    def rewrite_line(self, line: str) -> str:
        """Return a line with entries of tables as v[2, H], and paths as lists of states."""
        match = re.fullmatch(r"((?:\([^()]{0,200}\)|[^=()])*)=(.*)", line, re.DOTALL)
        if not match:
            return line
        name = re.sub(r"\([^()]*\)", lambda part: part[0].replace("=", ":"), match[1])  # P(q_2 = C | O) has two signs
        value = match[2]
        is_path = normalize_name(name) in ("path", "bestpath", "viterbipath", "y*", "yhat", "tags", "posteriorpath")
        if is_path and self.has_chain:
            return (
                f"path = {self._rewrite_path(value)}"
                if "posterior" not in name
                else (f"posterior path = {self._rewrite_path(value)}")
            )
        return rewrite_number(f"{self._rewrite_entry(name)} = {value.lstrip('=').strip()}")

    def _rewrite_path(self, value: str) -> str:
        """Return a path as a list of states."""
        normalized = value.strip().strip("[]()<> ")
        items = [item for item in re.split(r"\s*(?:->|→|=>|,|;|\s|\\to)\s*", normalized) if item]
        if len(items) == 1 and items[0] not in self.state_names:
            pieces = items[0].split("-")
            letters = list(items[0])
            if len(pieces) > 1 and all(piece in self.state_names for piece in pieces):
                items = pieces
            elif all(letter in self.state_names for letter in letters):
                items = letters
        items = [self._find_state(item.strip("\"'")) for item in items]
        unknown = [item for item in items if item not in self.state_names]
        if unknown and len(items) != self.chain.steps:
            states = ", ".join(self.state_names)
            raise InputError(f"{self.name}: path: '{unknown[0][:40]}' is no state. Write the states alone: {states}.")
        return "[" + ", ".join(f'"{item}"' for item in items) + "]"

    def _find_state(self, item: str) -> str:
        """Return the state that an item of a path names: itself, the tag of the/DT, or H for hot."""
        names = self.state_names
        if item in names:
            return item
        tag = re.split(r"[/_]", item)[-1]
        if tag in names and (self.tagged or item[: -len(tag) - 1] in self.word_names):
            return tag
        similar = [name for name in names if name.casefold() == item.casefold()]
        if not similar and len({name[:1].casefold() for name in names}) == len(names):
            similar = [name for name in names if item.isalpha() and item.casefold().startswith(name.casefold())]
        return similar[0] if len(similar) == 1 else item

    def _rewrite_entry(self, name: str) -> str:
        """Return the name of a table's entry, such as α_2(H), v(H, 2) or delta2[H], as v[2, H]."""
        name = re.sub(r"\]\s*\[", ", ", name)
        match = _TABLE_ENTRY.fullmatch(name.strip().strip("$").replace("\\mathrm", ""))
        table = TABLE_NAMES.get(normalize_name(match["name"])) if match else None
        if match is None or table is None or not self.has_chain:
            return name
        labels = [label.strip() for label in (match["round"] or match["square"] or "").split(",") if label.strip()]
        if match["step"]:
            labels.insert(0, match["step"])
        if (
            len(labels) == 2
            and labels[0] in self.state_names
            and not (labels[0].isdigit() and labels[1] in self.state_names)
        ):
            labels.reverse()
        labels = [label.removeprefix("t=") for label in labels]
        if table == "bp":
            return f"bp{labels[0]}[{labels[1]}]" if len(labels) == 2 else f"bp{''.join(labels)}"
        prefix = "log " if match["log"] else ""
        return f"{prefix}{table}[{', '.join(labels)}]" if labels else f"{prefix}{table}"

    # Values

    def check_bare_answer(self, answer: str) -> None:
        """Raise an InputError if a number has no name: it could be the probability of a path, or of all paths."""
        if not self.asks and read_arithmetic(answer) is not None and answer not in self.state_names:
            names = "P(O) = … or v_2(H) = …" if self.has_chain else "P(N | D) = …"
            raise InputError(f"{self.name}: '{answer[:40]}' could be several values. Name it, as in {names}")

    def main_names(self) -> tuple[str, ...]:
        """Return the path, or the number of tags."""
        return ("path",) if self.has_chain else ("number of tags",)

    def answer_keys(self, claims: Sequence[ValueClaim]) -> Iterable[AnswerKey]:
        """Yield a key for each of the best paths."""
        if not self.has_chain:
            yield self.make_key(self.expected_values())
            return
        values = self.expected_values()
        claims_path = any(normalize_name(claim.target.name) == "path" for claim in claims)
        for path in self.chain.best_paths() if claims_path else self.chain.best_paths(1):
            yield self.make_key([self._expect_path(path) if value.name == "path" else value for value in values])

    def expected_values(self) -> Sequence[ExpectedValue]:
        """Return the tables of the Viterbi and forward–backward algorithms."""
        if not self.has_chain:
            return [expect_numbers(["number of tags", "tags"], len(self.state_names), meaning="different tags")]
        return self._chain_values

    @cached_property
    def _chain_values(self) -> list[ExpectedValue]:
        chain, wrong = self.chain, self.chain.list_mistaken()
        path = chain.best_paths(1)[0]
        return [
            *self._expect_table("v", chain.viterbi()[0], {text: model.viterbi()[0] for text, model in wrong.items()}),
            *self._expect_pointers(),
            self._expect_path(path),
            *self._expect_best(path),
            *self._expect_table("alpha", chain.forward(), {text: model.forward() for text, model in wrong.items()}),
            *self._expect_total(),
            *self._expect_table("beta", chain.backward(), self._mistaken_backward()),
            self._expect_posteriors(),
            self._expect_posterior_path(),
        ]

    def _expect_table(self, name: str, logs: Array, wrong: dict[str, Array]) -> list[ExpectedValue]:
        """Return a table of steps and states, plain and as logarithms."""
        labels = [tuple(str(step) for step in range(1, len(logs) + 1)), self.state_names]
        formula, meaning = {
            "v": ("v_t(j) = max_i v_{t−1}(i) a_ij b_j(o_t)", "Viterbi: best score of the paths to a state"),
            "alpha": ("α_t(j) = Σ_i α_{t−1}(i) a_ij b_j(o_t)", "forward: sum of the scores of the paths to a state"),
            "beta": ("β_t(i) = Σ_j a_ij b_j(o_{t+1}) β_{t+1}(j), β_T = 1", "backward: sum over the paths from a state"),
        }[name]
        other = {
            "v": ("sums are taken, not maxima: that is the forward table", self.chain.forward()),
            "alpha": ("maxima are taken, not sums: that is the Viterbi table", self.chain.viterbi()[0]),
        }.get(name)
        wrong = {**({other[0]: other[1]} if other else {}), **wrong}
        if name in ("v", "alpha") and self.model != "crf":
            probabilities = np.exp(logs)
            normalized = probabilities / np.maximum(probabilities.sum(axis=1, keepdims=True), 1e-300)
            with np.errstate(divide="ignore"):
                wrong["each step is normalized to sum to 1"] = np.log(normalized)
        if name == "v":
            _, through = self.chain.viterbi()
            before = np.concatenate([logs[:1], through[1:].max(axis=1)])
            wrong["the emission is left out after the maximum is taken"] = before
        is_additive = self.model == "crf" and name == "v"
        aliases = [alias for alias in TABLES[name] if alias != name]
        with np.errstate(over="ignore"):
            score_value = expect_numbers(
                [name, *aliases],
                logs if is_additive else np.exp(logs),
                labels,
                meaning + (" (added)" if is_additive else ""),
                mistakes={text: array if is_additive else np.exp(array) for text, array in wrong.items()},
                formula=formula if not is_additive else "v_t(j) = max_i (v_{t−1}(i) + A_ij) + s_t(j)",
                work=self._describe_steps(name),
                up_to=frozenset({"transposition"}),
            )
        if is_additive:
            return [score_value]
        log_value = expect_numbers(
            [f"log {name}", *(f"log {alias}" for alias in aliases)],
            logs,
            labels,
            f"logarithms of {name}",
            mistakes=wrong,
            scales=LOG_BASES if self.model == "hmm" else {},
            up_to=frozenset({"transposition"}),
        )
        return [score_value, log_value]

    def _describe_steps(self, name: str) -> str:
        """Return the computation of a table, one line per entry, for up to 12 entries."""
        chain, states = self.chain, self.state_names
        is_additive = self.model == "crf" and name == "v"
        if name == "beta" or len(states) * chain.steps > 12:
            return ""
        table = chain.viterbi()[0] if name == "v" else chain.forward()

        def write(log: float) -> str:
            return f"{log:.4g}" if is_additive else f"{math.exp(log):.4g}"

        sign, lines = (" + " if is_additive else "·"), []
        for step in range(chain.steps):
            for index, state in enumerate(states):
                factor = write(chain.emission[step, index])
                if not step:
                    terms = f"{write(chain.start[index])}{sign}{factor}"
                else:
                    parts = [
                        f"{write(table[step - 1, left])}{sign}{write(chain.transition[left, index])}"
                        for left in range(len(states))
                    ]
                    reduction = f"max({', '.join(parts)})" if name == "v" else f"({' + '.join(parts)})"
                    terms = f"{reduction}{sign}{factor}"
                lines.append(f"{name}[{step + 1}, {state}] = {terms} = {write(table[step, index])}")
        return "\n  ".join(lines)

    def _mistaken_backward(self) -> dict[str, Array]:
        """Return the backward tables that mistakes give, as logarithms."""
        chain = self.chain
        emission = np.concatenate([chain.emission[:1], chain.emission[:-1]])
        backward_logs = [chain.end]
        for current in chain.emission[-2::-1]:
            backward_logs.append(log_sum(chain.transition + backward_logs[-1], axis=1) + current)
        wrong = {
            "the emission of step t is used, not that of step t + 1": replace(chain, emission=emission).backward(),
            "the emission of step t is multiplied, not that of t + 1": np.array(backward_logs[::-1]),
        }
        for text, model in chain.list_mistaken().items():
            if "transposed" in text or text in ("the emissions are left out", "the transitions are left out"):
                wrong[text] = model.backward()
        uniform = replace(chain, end=np.full_like(chain.end, -math.log(len(chain.end))))
        return {**wrong, "the last step begins with 1/K, not with 1": uniform.backward()}

    def _expect_pointers(self) -> list[ExpectedValue]:
        """Return the best predecessors of each state, for each step from the second."""
        _, through = self.chain.viterbi()
        values = []
        for step in range(1, self.chain.steps):
            columns = [_ties(through[step][:, state]) for state in range(len(self.state_names))]
            values.append(
                expect_words(
                    [f"bp{step + 1}", f"bp_{step + 1}", f"psi{step + 1}"],
                    [tuple(self.state_names[left] for left in column) for column in columns],
                    self.state_names,
                    f"best states before those at step {step + 1}",
                    formula="bp_t(j) = argmax_i v_{t−1}(i) a_ij",
                )
            )
        return values

    def _name_path(self, path: Sequence[int]) -> list[str]:
        return [self.state_names[state] for state in path]

    def _expect_path(self, path: Sequence[int]) -> ExpectedValue:
        """Return the best path, with the paths that mistakes lead to."""
        chain = self.chain
        wrong = {
            "greedy: the best state is taken at each step; keep the best path to every state": chain.greedy_path(),
            "the most likely state of each step is taken alone (posterior decoding)": self._posterior_states(),
            "the largest entry of each step is taken: follow the back pointers from the end": tuple(
                int(np.argmax(row)) for row in chain.viterbi()[0]
            ),
            "the transitions are ignored: the best emission is taken at each step": tuple(
                int(np.argmax(row)) for row in chain.emission
            ),
            "the path is reversed: back pointers lead from the end to the beginning": tuple(path[::-1]),
        }
        likely = ("the transitions are transposed", "the start probabilities are left out", "the end probabilities")
        wrong |= {
            text: model.best_paths(1)[0] for text, model in chain.list_mistaken().items() if text.startswith(likely)
        }
        best = set(chain.best_paths())
        return expect_words(
            ["path", "best path", "viterbi path", "y*", "y_hat"],
            self._name_path(path),
            [str(step) for step in range(1, chain.steps + 1)],
            "most likely states",
            mistakes={text: self._name_path(other) for text, other in wrong.items() if other and other not in best},
            formula="start at the largest entry of the last step and follow the back pointers",
            work=" → ".join(self._name_path(path)),
        )

    def _expect_best(self, path: Sequence[int]) -> list[ExpectedValue]:
        """Return the probability of the best path with the observations."""
        chain = self.chain
        log = chain.score(path)
        wrong = {text: model.score(model.best_paths(1)[0]) for text, model in chain.list_mistaken().items()}
        wrong |= {f"{text}, along the right path": model.score(path) for text, model in chain.list_mistaken().items()}
        wrong["that is the probability of all paths: take the maximum, not the sum"] = chain.total()
        wrong["that is the score of the greedy path"] = chain.score(chain.greedy_path())
        wrong["divided by the probability of the observations: that is the posterior of the path"] = log - chain.total()
        names = ["P(path)", "P*", "p*", "max P", "P(best path)", "P(O, path)", "probability of the path"]
        if self.model == "crf":
            return [self._expect_score(["score", "best score", "score(path)", "max score"], log, wrong, path)]
        if self.model == "factors":
            names = ["score", "best score", "score(path)"]
        return [
            self._expect_exponential(names, log, wrong, "score of the best path with the observations", path),
            self._expect_log([f"log {name}" for name in names], log, wrong),
        ]

    def _expect_score(
        self, names: list[str], log: float, wrong: dict[str, float], path: Sequence[int] = ()
    ) -> ExpectedValue:
        """Return the score of a path whose terms are added."""
        return expect_numbers(
            names,
            log,
            meaning="score of the path",
            mistakes=keep_distinct(log, {**wrong, "the exponential is taken: scores are added": _exp(log)}),
            formula="score = Σ_t s_t(y_t) + Σ_t A(y_{t−1}, y_t)",
            work=self._write_factors(path),
        )

    def _expect_exponential(
        self, names: list[str], log: float, wrong: dict[str, float], meaning: str, path: Sequence[int] = ()
    ) -> ExpectedValue:
        """Return a value by its logarithm."""
        mistakes = {text: _exp(value) for text, value in wrong.items()}
        return expect_numbers(
            names,
            _exp(log) or 0.0,
            meaning=meaning,
            mistakes=keep_distinct(_exp(log) or 0.0, mistakes),
            formula="product of the start, transition and emission factors along the path",
            work=self._write_factors(path),
        )

    def _write_factors(self, path: Sequence[int]) -> str:
        """Return the factors along a path as a product or sum."""
        if not path:
            return ""
        chain, is_additive = self.chain, self.model == "crf"
        terms = [chain.start[path[0]], chain.emission[0, path[0]]]
        for step in range(1, len(path)):
            terms += [chain.transition[path[step - 1], path[step]], chain.emission[step, path[step]]]
        if np.any(chain.end != 0):
            terms.append(chain.end[path[-1]])
        texts = [f"{term:.4g}" if is_additive else f"{math.exp(term):.4g}" for term in terms]
        return (" + " if is_additive else "·").join(texts[:24]) + (" …" if len(texts) > 24 else "")

    def _expect_log(self, names: list[str], log: float, wrong: dict[str, float]) -> ExpectedValue:
        """Return a logarithm: natural, or in another base, which the verdict names."""
        if not math.isfinite(log):
            return expect_word(names, ("-infinity", "-inf", "−∞", "-∞", "undefined"))
        return expect_numbers(
            names,
            log,
            meaning="natural logarithm",
            mistakes=keep_distinct(log, {**wrong, "the logarithm is taken twice": math.log(abs(log)) if log else None}),
            scales={factor: text for text, factor in LOG_BASES.items()} if self.model == "hmm" else {},
        )

    def _expect_total(self) -> list[ExpectedValue]:
        """Return the probability of the observations, or the partition function."""
        chain = self.chain
        log, last = chain.total(), chain.forward()[-1] + chain.end
        wrong = {
            "that is the best path alone: sum over all paths": chain.score(chain.best_paths(1)[0]),
            "only the largest entry of the last step is taken: sum over the states": float(last.max()),
            "only one state of the last step is taken: sum over the states": float(last.min()),
            "all steps are added: sum the last step alone": float(log_sum(chain.forward().reshape(-1), axis=0)),
        }
        wrong |= {text: model.total() for text, model in chain.list_mistaken().items()}
        is_probability = self.model == "hmm"
        names = (
            ["P(O)", "P(observations)", "P(x)", "P(w)", "likelihood", "P(X)"]
            if is_probability
            else ["Z", "Z(x)", "partition function"]
        )
        meaning = "probability of the observations" if is_probability else "partition function: sum over all paths"
        total = expect_numbers(
            names,
            _exp(log) or 0.0,
            meaning=meaning,
            mistakes=keep_distinct(_exp(log) or 0.0, {text: _exp(value) for text, value in wrong.items()}),
            up_to=frozenset({"decimals"}),
            formula="sum of the forward values of the last step",
            work=" + ".join(f"{_exp(value) or 0:.4g}" for value in last),
        )
        logs = self._expect_log([f"log {name}" for name in names], log, wrong)
        return [total, logs] if log < 700 else [logs]

    def _posteriors(self) -> Array:
        """Return the probability of each state at each step, given all observations."""
        chain = self.chain
        joint = chain.forward() + chain.backward()
        total = chain.total()
        return np.exp(joint - total) if math.isfinite(total) else np.zeros_like(joint)

    def _posterior_states(self) -> tuple[int, ...]:
        return tuple(int(np.argmax(row)) for row in self._posteriors())

    def _expect_posteriors(self) -> ExpectedValue:
        """Return the posterior probabilities of the states."""
        chain, steps = self.chain, [str(step) for step in range(1, self.chain.steps + 1)]
        forward, backward = chain.forward(), chain.backward()
        with np.errstate(over="ignore"):
            wrong = {
                "not divided by the probability of the observations": np.exp(forward + backward),
                "only the forward values are normalized: multiply by the backward values": np.exp(
                    forward - log_sum(forward, axis=1)[:, None]
                ),
                "only the backward values are normalized: multiply by the forward values": np.exp(
                    backward - log_sum(backward, axis=1)[:, None]
                ),
            }
        return expect_numbers(
            ["gamma", *(alias for alias in TABLES["gamma"] if alias != "gamma")],
            self._posteriors(),
            [steps, self.state_names],
            "probability of a state at a step, given all observations",
            mistakes=wrong,
            formula="γ_t(i) = α_t(i) β_t(i) / P(O)",
            up_to=frozenset({"transposition"}),
        )

    def _expect_posterior_path(self) -> ExpectedValue:
        """Return the most likely state of each step alone."""
        posteriors = self._posteriors()
        return expect_words(
            ["posterior path", "posterior states", "most likely states"],
            [tuple(self.state_names[state] for state in _ties(row)) for row in posteriors],
            [str(step) for step in range(1, len(posteriors) + 1)],
            "most likely state of each step alone",
            mistakes={"that is the best path as a whole": self._name_path(self.chain.best_paths(1)[0])},
            formula="argmax_i γ_t(i)",
        )

    # Names with parameters

    def find_value(self, name: str) -> ExpectedValue | None:
        """Return the score of any path, a transition or emission of tagged sentences, or a count."""
        text = re.sub(r"\\(?:text|mathrm)\s*\{([^{}]*)\}", r"\1", name).replace("\\mid", "|").replace("∣", "|")
        match = re.fullmatch(r"\s*(?P<name>[^()]*?)\s*\((?P<inner>.*)\)\s*", text.strip("$ "))
        if not match:
            return None
        function = re.sub(r"[\s_\\{}]", "", match["name"]).casefold()
        inner = match["inner"].strip()
        if function in ("log", "ln") and inner.endswith(")"):
            return self._take_logarithm(name, self.find_value(inner))
        if function.startswith(("logp", "lnp", "logscore")):
            return self._take_logarithm(
                name, self.find_value(f"{function.removeprefix('log').removeprefix('ln')}({inner})")
            )
        is_estimate = self.tagged and function in ("p", "a", "b", "q", "e", "c", "count", "pi", "start")
        if is_estimate and (value := self._find_estimate(name, function, inner)):
            return value
        if not self.has_chain:
            return None
        if function in ("p", "pr", "prob") and self._is_observed(inner):
            values = {value.name: value for value in self._expect_total()}
            return replace(values["P(O)"], name=name) if "P(O)" in values else None
        if function in ("p", "pr", "prob") and re.fullmatch(r"[OoXxWw]\s*,\s*[QqYyTtZz]\*?", inner):
            return replace(self._expect_best(self.chain.best_paths(1)[0])[0], name=name)
        if value := self._find_state_probability(name, function, inner):
            return value
        if function in ("xi", "ξ") or re.fullmatch(r"xi\d+", function):
            return self._find_pair(name, function, inner)
        left, bar, right = inner.partition("|")
        parts = re.split(r"[;,|]", inner)
        states = self._read_states(inner) or next(
            (path for part in (left, right, *parts) if (path := self._read_states(part))), None
        )
        if states is None or function not in ("p", "score", "s", "psi", "pr", "joint"):
            return None
        is_posterior = bool(bar) and self._read_states(left) is not None
        return self._expect_any_path(name, states, is_posterior, bool(bar) and not is_posterior)

    def _is_observed(self, text: str) -> bool:
        """Return whether a text is the observations, as in 3 1 3 or O | λ."""
        left, bar, right = (part.strip() for part in text.partition("|"))
        if bar and normalize_name(right) not in ("lambda", "theta", "hmm", "model", "mu", "m"):
            return False
        observation_text = re.sub(r"^[oxw]\s*[=:]\s*", "", left, flags=re.IGNORECASE)
        words = tuple(item for item in re.split(r"[\s,]+", observation_text.strip("[]() ")) if item)
        is_concatenated = len(words) == 1 and words[0] == "".join(self.observations)
        is_variable = bool(bar) and left in ("O", "o", "X", "x", "w", "W")
        return is_variable or (bool(self.observations) and (is_concatenated or words == self.observations))

    def _find_state_probability(self, name: str, function: str, inner: str) -> ExpectedValue | None:
        """Return the probability of a state at a step, as in P(q_2 = C | O), P(X_2 = C | o_1, o_2) or filtered_2(C)."""
        if not re.fullmatch(r"p|pr|prob|filter(ed)?\d*", function):
            return None
        condition = re.fullmatch(r"[A-Za-z]+_?\{?(\d{1,3})\}?\s*[=:]\s*([^|=:]+?)\s*\|\s*(.+)", inner)
        if condition:
            step, state, evidence = int(condition[1]), condition[2], condition[3].strip("() ")
        elif function.startswith("filter"):
            labels = [label.strip() for label in inner.split(",")]
            step_text = re.sub(r"\D", "", function) or (labels.pop(0) if len(labels) == 2 else "")
            if len(labels) != 1 or not step_text.isdigit():
                return None
            step, state, evidence = int(step_text[:3]), labels[0], ""
        else:
            return None
        chain = self.chain
        if state not in self.state_names or not 1 <= step <= chain.steps:
            return None
        index = self.state_names.index(state)
        range_match = re.search(r"_?\{?1\s*:\s*(\d{1,3})\}?$", evidence)
        items = [item for item in re.split(r"[\s,]+", evidence) if item]
        if function.startswith("filter"):
            last = step
        elif range_match:
            last = int(range_match[1])
        elif items in (["O"], ["o"], ["X"], ["x"], ["w"]) or tuple(items) == self.observations:
            last = chain.steps
        elif all(re.fullmatch(r"[A-Za-z]+_?\{?\d{1,3}\}?([=:].+)?", item) for item in items):
            last = len(items)
        else:
            return None
        if not step <= last <= chain.steps:
            return None
        part = replace(chain, emission=chain.emission[:last], end=chain.end if last == chain.steps else chain.end * 0)
        forward, backward = part.forward(), part.backward()
        joint = float(forward[step - 1, index] + backward[step - 1, index])
        wrong = {
            "not divided by the sum over the states": joint,
            "only the forward values are normalized: multiply by the backward values": float(
                forward[step - 1, index] - log_sum(forward[step - 1], axis=0)
            ),
        }
        return self._expect_exponential([name], joint - part.total(), wrong, "probability of the state")

    def _take_logarithm(self, name: str, value: ExpectedValue | None) -> ExpectedValue | None:
        """Return the logarithm of a value."""
        if value is None or not value.is_numeric or value.shape:
            return None
        number = float(value.values)
        wrong = {text: math.log(float(array)) for text, array in value.mistakes.items() if float(array) > 0}
        return self._expect_log([name], math.log(number) if number > 0 else -math.inf, wrong)

    def _read_states(self, text: str) -> list[int] | None:
        """Return the states that a text lists, if there is one for each step."""
        path_text = re.sub(r"^\s*(?:path|y|states|q)\s*[=:]\s*", "", text).strip("[]() ")
        if path_text in ("path", "y*", "best"):
            return list(self.chain.best_paths(1)[0])
        items = [item for item in re.split(r"[\s,]+|->|→", path_text) if item]
        if len(items) == 1 and len(items[0]) == self.chain.steps > 1:
            items = list(items[0])
        if len(items) != self.chain.steps or not all(item in self.state_names for item in items):
            return None
        return [self.state_names.index(item) for item in items]

    def _expect_any_path(self, name: str, path: list[int], is_posterior: bool, is_emission: bool) -> ExpectedValue:
        """Return the score of any path: with the observations, given them, or of the observations given it."""
        chain = self.chain
        log, total = chain.score(path), chain.total()
        wrong = {text: model.score(path) for text, model in chain.list_mistaken().items()}
        wrong["the path is read from its end to its beginning"] = chain.score(path[::-1])
        if is_emission:
            emissions = replace(
                chain, start=np.zeros_like(chain.start), transition=np.zeros_like(chain.transition), end=chain.end * 0
            )
            joint = {"that is the joint probability: leave out the start and the transitions": log}
            return self._expect_exponential([name], emissions.score(path), joint, "emissions along the path")
        if is_posterior:
            wrong = {text: model.score(path) - model.total() for text, model in chain.list_mistaken().items()}
            wrong["not divided by the sum over all paths"] = log
            return self._expect_exponential([name], log - total, wrong, "probability of the path", ())
        if self.model == "crf" and name.strip().casefold().startswith("p"):
            wrong = {text: model.score(path) - model.total() for text, model in chain.list_mistaken().items()}
            wrong["not divided by the sum over all paths"] = log
            return self._expect_exponential([name], log - total, wrong, "probability of the path: exp(score)/Z", ())
        if self.model == "crf":
            return self._expect_score([name], log, wrong, path)
        wrong["divided by the probability of the observations: the joint probability is asked for"] = log - total
        return self._expect_exponential([name], log, wrong, "score of the path with the observations", path)

    def _find_pair(self, name: str, function: str, inner: str) -> ExpectedValue | None:
        """Return the posterior of two states in a row, ξ_t(i, j)."""
        labels = [label.strip() for label in inner.split(",")]
        step = re.sub(r"\D", "", function) or (labels.pop(0) if len(labels) == 3 else "")
        if len(labels) != 2 or not step.isdigit() or not all(label in self.state_names for label in labels):
            return None
        time, (left, right), chain = int(step[:6]), map(self.state_names.index, labels), self.chain
        if not 1 <= time < chain.steps:
            raise InputError(f"{self.name}: {name}: t is from 1 to {chain.steps - 1}.")
        log = float(
            chain.forward()[time - 1, left]
            + chain.transition[left, right]
            + chain.emission[time, right]
            + chain.backward()[time, right]
        )
        wrong = {"not divided by the probability of the observations": log}
        return self._expect_exponential([name], log - chain.total(), wrong, "posterior of two states in a row")

    def _find_estimate(self, name: str, function: str, inner: str) -> ExpectedValue | None:
        """Return a count or relative frequency of the tagged sentences."""
        tags, moves, emitted, first, sentences = self._tag_counts
        start_symbols = ("<s>", "start", "START", "BOS", "<S>", "begin")
        is_condition = "|" in inner
        parts = [part.strip() for part in re.split(r"\||,|->|→|\s+", inner) if part.strip()]
        if function in ("c", "count"):
            if len(parts) == 1:
                count = (
                    tags[parts[0]]
                    if parts[0] in tags
                    else sum(n for (_, word), n in emitted.items() if word == parts[0])
                )
                return expect_numbers([name], count, meaning="occurrences")
            if len(parts) != 2:
                return None
            left, right = parts
            if left in start_symbols:
                count = first[right]
            elif left in tags and right in tags:
                wrong = {"that is the count of the tags in the other order": float(moves[right, left])}
                return expect_numbers([name], moves[left, right], mistakes=keep_distinct(moves[left, right], wrong))
            else:
                count = emitted[left, right] or emitted[right, left]
            return expect_numbers([name], count, meaning="occurrences")
        if function in ("pi", "start") and len(parts) == 1:
            parts, is_condition = [parts[0], "<s>"], True
        if len(parts) != 2:
            return None
        condition, outcome = (parts[1], parts[0]) if is_condition else (parts[0], parts[1])
        k, words, states = self.k, len(self.word_names), len(self.state_names)
        if condition in start_symbols and outcome in tags:
            count, total, kinds = first[outcome], sentences, states
            wrong = {"that is the frequency of the tag anywhere, not of first tags": tags[outcome] / sum(tags.values())}
            alternatives: list[tuple[str, float]] = []
        elif condition in tags and outcome in tags and function != "b":
            count, total, kinds = moves[condition, outcome], tags[condition], states
            followed = sum(number for (left, _), number in moves.items() if left == condition)
            alternatives = (
                [("with the occurrences of the tag that have a next tag", (count + k) / (followed + k * states))]
                if followed
                else []
            )
            wrong = {
                "the condition is reversed: the tags are exchanged": moves[outcome, condition] / tags[outcome],
                "the denominator is the tag after, not the tag before": count / tags[outcome],
                "that is the frequency of the tag alone": tags[outcome] / sum(tags.values()),
                "the joint probability is given: divide by the count of the tag before": count
                / max(1, sum(moves.values())),
            }
        elif condition in tags:
            count, total, kinds, alternatives = emitted[condition, outcome], tags[condition], words, []
            occurrences = sum(number for (_, word), number in emitted.items() if word == outcome)
            wrong = {
                "the condition is reversed: that is P(tag | word)": count / occurrences if occurrences else None,
                "the denominator is the number of words, not the count of the tag": count / sum(tags.values()),
                "divided by the number of different words of the tag": count
                / max(1, sum(tag == condition for tag, _ in emitted)),
            }
        elif outcome in tags:
            count, kinds, alternatives = emitted[outcome, condition], states, []
            total = sum(number for (_, word), number in emitted.items() if word == condition)
            if not total:
                raise InputError(f"{self.name}: {name}: '{condition[:40]}' is not in the tagged sentences.")
            wrong = {"the condition is reversed: that is P(word | tag)": count / tags[outcome]}
        else:
            return None
        right = (count + k) / (total + k * kinds)
        if k:
            wrong = {"the counts are not smoothed": count / total, **wrong}
        accepted = make_alternatives(right, alternatives)
        return expect_numbers(
            [name],
            right,
            mistakes=keep_distinct(right, wrong),
            scales={100: "in per cent", **accepted},
            formula="relative frequency: C(before, after) / C(before), C(tag, word) / C(tag)",
            work=f"{count}/{total} = {format_ratio(right)}"
            if not k
            else f"({count} + {k:g}) / ({total} + {k:g}·{kinds})",
        )


def _exp(value: float) -> float | None:
    """Return the exponential; None if it is too large."""
    return math.exp(value) if value < 700 else None
