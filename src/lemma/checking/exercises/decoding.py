"""Exercises on decoding: temperature, truncation and penalties for a next token, greedy and beam search."""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, islice, pairwise
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from lemma.checking.check_values import AnswerKey, ValueClaim, normalize_name
from lemma.checking.exercises.base import ValueExercise
from lemma.checking.exercises.notation import (
    as_row,
    expect_word,
    format_product,
    format_ratio,
    keep_distinct,
    read_table,
    rewrite_number,
    split_words,
    strip_brackets,
)
from lemma.checking.expected_values import Array, ExpectedValue, expect_numbers, expect_words
from lemma.errors import InputError

MAX_TOKENS, MAX_LENGTH, MAX_SEQUENCES, MAX_TIES = 200, 12, 20_000, 40
TOLERANCE = 1e-12
START_NAMES = ("", "<s>", "start", "bos", "<bos>", "ε", "begin")
END_NAMES = ("</s>", "<eos>", "eos", "<end>", "<|endoftext|>")
LOG_BASES = {"in base 2": 1 / math.log(2), "in base 10": 1 / math.log(10)}
RENORMALIZED = ["q", "renormalized", "renormalised", "renormalized probabilities", "p'", "p_new", "P'"]
Sequence_ = tuple[str, ...]
Method = Literal["", "temperature", "top-k", "top-p", "min-p"]


def softmax(logits: Array, temperature: float = 1.0) -> Array:
    """Return the softmax of logits, divided by the temperature."""
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    return weights / weights.sum()


@dataclass(frozen=True)
class Hypothesis:
    """A sequence of beam search with its log-probability."""

    tokens: Sequence_
    log_probability: float
    is_finished: bool = False


def read_tree(value: Any) -> Any:
    """Return the next-token probabilities by prefix; in text, as in "<s>: a 0.6, b 0.4; a: a 0.5, b 0.5"."""
    if not value:
        return {}
    if isinstance(value, str) and value.strip()[:1] not in ("{", "["):
        tree: dict[str, Any] = {}
        for row in re.split(r"[;\n]", value):
            prefix, colon, table_text = row.partition(":")
            if not row.strip():
                continue
            if not colon:
                raise ValueError(f"tree: '{row.strip()[:60]}' is not of the form PREFIX: token 0.6, token 0.4")
            tree[" ".join(prefix.split())] = read_table(table_text, f"tree, {prefix.strip() or 'start'}")
        value = tree
    table = read_table(value, "tree")
    if isinstance(table, list):
        table = {f"step {number}": row for number, row in enumerate(table, 1)}
    if not all(isinstance(row, dict | list) for row in table.values()):
        raise ValueError('tree: each prefix has a table of tokens, as in tree="<s>: a 0.6, b 0.4; a: a 0.5, b 0.5"')
    return {str(prefix).strip(): row for prefix, row in table.items()}


class DecodingExercise(ValueExercise):
    """Decoding computed by hand: the distribution of a next token, or a search over sequences."""

    kind: ClassVar[str] = "decoding"
    names_with_parameters: ClassVar[str] = (
        "p(token), q(token), number of kept; of a tree: P(a b), log P(a b), score(a b), P(b | a), number of sequences"
    )

    probabilities: Annotated[
        Any, BeforeValidator(lambda value: read_table(value, "probabilities") if value else {})
    ] = Field(default={})
    """Probabilities of the next token, as in "a 0.5, b 0.3, c 0.2"."""
    logits: Annotated[Any, BeforeValidator(lambda value: read_table(value, "logits") if value else {})] = Field(
        default={}
    )
    """Logits of the next token in place of probabilities, as in "a 2, b 1, c 0"."""
    tokens: Annotated[tuple[str, ...], BeforeValidator(lambda value: split_words(value, "tokens", MAX_TOKENS))] = ()
    """Names of the tokens, where probabilities or logits are a list."""
    temperature: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Temperature that the logits are divided by; of probabilities, their logarithms."""
    top_k: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Number of tokens that top-k keeps; 0 for all."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Mass of top-p: the smallest set of most likely tokens whose probabilities sum to at least this."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    """min-p keeps tokens whose probability is at least this fraction of the highest."""
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] = 1.0
    """Penalty of tokens generated before: positive logits are divided by it, negative ones multiplied."""
    generated: Annotated[tuple[str, ...], BeforeValidator(lambda value: split_words(value, "generated"))] = ()
    """Tokens generated before, which the repetition penalty is for."""
    tree: Annotated[dict[str, Any], BeforeValidator(read_tree)] = Field(default={})
    """Next-token probabilities by prefix or last token, as in "<s>: a 0.6, b 0.4; a: a 0.5, b 0.5; b: a 0.9, b 0.1"."""
    beam: Annotated[int, Field(ge=1, le=50)] = 2
    """Width of beam search."""
    steps: Annotated[int, Field(ge=0, le=MAX_LENGTH)] = 0
    """Length of the sequences at most; 0 for that of the tree."""
    end: str = ""
    """Token that ends a sequence; by default </s> or EOS, if the tree has it."""
    length_penalty: Annotated[float, Field(ge=0, le=5)] = 0.0
    """Exponent α of length normalization, log P / length^α; 1 for the mean, 0 for none."""

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        sources = [name for name in ("probabilities", "logits", "tree") if getattr(self, name)]
        if len(sources) != 1:
            raise ValueError(
                'give probabilities="a 0.5, b 0.3, c 0.2", logits="a 2, b 1, c 0", '
                'or tree="<s>: a 0.6, b 0.4; a: a 0.5, b 0.5; b: a 0.9, b 0.1"'
            )
        if self.tree:
            self._check_tree()
            return self
        table = self.probabilities or self.logits
        numbers = list(table.values()) if isinstance(table, dict) else table
        if not all(isinstance(number, float) for number in numbers) or not 1 <= len(numbers) <= MAX_TOKENS:
            raise ValueError(f"{sources[0]}: one number for each of at most {MAX_TOKENS} tokens is expected")
        if self.probabilities:
            check_distribution(numbers, "probabilities")
        if self.logits and not all(math.isfinite(number) or number == -math.inf for number in numbers):
            raise ValueError("logits: finite numbers are expected")
        if self.logits and max(numbers) == -math.inf:
            raise ValueError("logits: at least one finite number is expected")
        if self.tokens and len(self.tokens) != len(numbers):
            raise ValueError(f"tokens: {len(numbers)} names are expected, got {len(self.tokens)}")
        if unknown := [token for token in self.generated if token not in self.token_names]:
            raise ValueError(
                f"generated: '{unknown[0][:40]}' is not a token. Choices: {', '.join(self.token_names[:12])}."
            )
        return self

    def _check_tree(self) -> None:
        """Raise an error if a table of the tree is not a distribution."""
        for prefix, row in self.tree.items():
            numbers = list(row.values()) if isinstance(row, dict) else row
            check_distribution(numbers, f"tree, after '{prefix}'")
            if isinstance(row, list) and len(row) != len(self.tokens):
                raise ValueError('tree: rows without names need tokens, as in tokens="a b c"')
        if self._lookup(()) is None:
            raise ValueError("tree: the probabilities of the first token are missing; their prefix is <s>")

    # One step

    @cached_property
    def token_names(self) -> tuple[str, ...]:
        """The names of the tokens."""
        table = self.probabilities or self.logits
        if isinstance(table, dict):
            return tuple(table)
        return self.tokens or tuple(str(number) for number in range(1, len(table) + 1))

    @cached_property
    def scores(self) -> Array:
        """The logits, or the logarithms of the probabilities."""
        table = self.probabilities or self.logits
        numbers = np.array(as_row(table, self.token_names, "probabilities"))
        with np.errstate(divide="ignore"):
            return np.log(numbers) if self.probabilities else numbers

    @cached_property
    def penalized(self) -> Array:
        """The scores after the repetition penalty."""
        scores = self.scores.copy()
        for index, token in enumerate(self.token_names):
            if token in self.generated:
                factor = 1 / self.repetition_penalty if scores[index] > 0 else self.repetition_penalty
                scores[index] *= factor
        return scores

    @cached_property
    def distribution(self) -> Array:
        """The probabilities after penalty and temperature, before truncation."""
        return softmax(self.penalized, self.temperature)

    def rank(self, probabilities: Array) -> list[int]:
        """Return the indices of the tokens by descending probability; ties keep the order of the statement."""
        return sorted(range(len(probabilities)), key=lambda index: (-round(float(probabilities[index]), 14), index))

    def keep(self, probabilities: Array, method: Method = "") -> list[int]:
        """Return the indices of the tokens that top-k, top-p and min-p keep, applied in this order."""
        selected = self.rank(probabilities)
        if self.top_k and method in ("", "top-k"):
            selected = selected[: self.top_k]
        if self.top_p < 1 and method in ("", "top-p"):
            mass = np.cumsum(probabilities[selected] / probabilities[selected].sum())
            count = int(np.searchsorted(mass, self.top_p - TOLERANCE)) + 1
            selected = selected[: min(count, len(selected))]
        if self.min_p and method in ("", "min-p"):
            highest = probabilities[selected].max()
            selected = [index for index in selected if probabilities[index] >= self.min_p * highest - TOLERANCE]
        return [index for index in selected if probabilities[index] > 0] or selected[:1]

    @property
    def is_truncated(self) -> bool:
        """True if tokens may be left out."""
        return bool(self.top_k or self.top_p < 1 or self.min_p)

    # Names and answers

    @classmethod
    def is_answer(cls, name: str, value: str, stated: Collection[str]) -> bool:
        """Return whether a beam is an answer: its sequences, not its width."""
        return name.strip() == "beam" and not value.strip().isdigit()

    def main_names(self) -> tuple[str, ...]:
        """Return the best sequence, the renormalized probabilities, or the probabilities."""
        return ("best",) if self.tree else ("q",) if self.is_truncated else ("p",)

    def rewrite_line(self, line: str) -> str:
        """Return a line with sets as lists, and sequences as lists of quoted texts."""
        name, sign, value = line.partition("=")
        if not sign:
            return line
        value = value.lstrip("=").strip()
        normalized = normalize_name(name)
        if not self.tree and re.fullmatch(r"[pq]", normalized) and re.match(r"\{?\s*['\"]?[^\W\d]\w*['\"]?\s*:", value):
            return f"{name.strip()} = {{{value.strip('{} ')}}}"
        is_set = normalized in (
            "kept",
            "keep",
            "tokens",
            "keptset",
            "nucleus",
            "candidateset",
            "k",
            "topk",
            "topp",
            "set",
        )
        if is_set:
            value = strip_brackets(value)
            separator = r"\s*,\s*(?:and\s+)?|\s+and\s+" if "," in value or " and " in value else r"\s+"
            items = [item.strip("\"'") for item in re.split(separator, value) if item]
            order = {token: index for index, token in enumerate(() if self.tree else self.token_names)}
            value = "[" + ", ".join(quote(item) for item in sorted(items, key=lambda item: order.get(item, 0))) + "]"
        if re.fullmatch(
            r"(best|greedy|bestsequence|greedysequence|argmax|exhaustive|optimal|beamresult)\*?", normalized
        ):
            return f"{name.strip()} = {quote(join_tokens(value))}" if self.tree else line
        if re.fullmatch(r"(beam|finished|hypotheses|step)\d*", normalized):
            return f"{name.strip()} = {self._rewrite_beam(value)}"
        if is_set:
            return f"{name.strip()} = {value}"
        if re.fullmatch(r"[^{}\[\]:]+:\s*[\d.]+%?(\s*,[^{}\[\]:]+:\s*[\d.]+%?)+", value):
            return f"{name.strip()} = {{{value}}}"
        return rewrite_number(line)

    def _rewrite_beam(self, value: str) -> str:
        """Return the sequences of a beam as a list of quoted texts."""
        inner = strip_brackets(value)
        nested = re.findall(r"[\[(]([^\[\]()]*)[\])]", inner)
        items = nested or re.split(r"[,;]", inner)
        items = [re.sub(r"[:=]\s*[-−]?[\d.]+(?:e-?\d+)?\s*$", "", item) for item in items]
        return "[" + ", ".join(sorted(quote(join_tokens(item)) for item in items if item.strip())) + "]"

    def answer_keys(self, claims: Sequence[ValueClaim]) -> Iterable[AnswerKey]:
        """Yield a key for each way to break ties; a vector of all tokens may stand for that of the kept ones."""
        if self.tree:
            for beams, greedy in self._tied_searches():
                yield self.make_key(self._expect_search(beams, greedy))
            return
        is_full = any(self._is_full(claim) for claim in claims)
        for selected in islice(self._tied_sets(), MAX_TIES):
            yield self.make_key(self._expect_step(selected, is_full))

    def _is_full(self, claim: ValueClaim) -> bool:
        """Return whether a claim lists the renormalized probabilities of all tokens, with zeros."""
        if normalize_name(claim.target.name) not in map(normalize_name, RENORMALIZED):
            return False
        try:
            return isinstance(claim.value, list | dict) and len(claim.value) == len(self.token_names)
        except InputError:
            return False

    def expected_values(self) -> Sequence[ExpectedValue]:
        """Return the values of the search, or of the next token."""
        if self.tree:
            return self._expect_search(self.search(self.beam), self.search(1))
        return self._expect_step(self.keep(self.distribution), False)

    def _tied_sets(self) -> Iterator[list[int]]:
        """Yield the sets of kept tokens: several where the least likely one ties with tokens left out."""
        selected = self.keep(self.distribution)
        yield selected
        threshold = self.distribution[selected[-1]]
        tied = [index for index, number in enumerate(self.distribution) if abs(number - threshold) <= 1e-12]
        sure = [index for index in selected if index not in tied]
        number = len(selected) - len(sure)
        if len(tied) > number and (self.top_k or self.top_p < 1):
            for subset in combinations(tied, number):
                if set(sure) | set(subset) != set(selected):
                    yield [*sure, *subset]
            if self.top_k:
                yield [*sure, *tied]

    def _expect_step(self, selected: list[int], is_full: bool) -> list[ExpectedValue]:
        """Return the values of a next token: scores, probabilities and the tokens that are kept."""
        values = []
        if self.repetition_penalty != 1:
            values.append(self._expect_penalized())
        if self.temperature != 1 or self.logits:
            values.append(self._expect_scaled())
        values.append(self._expect_distribution())
        if self.is_truncated:
            values += [self._expect_selected(selected), *self._expect_renormalized(selected, is_full)]
        final = self._renormalize(selected)
        best = [self.token_names[index] for index in range(len(final)) if final[index] >= final.max() - TOLERANCE]
        worst = self.token_names[int(np.argmin(self.distribution))]
        values.append(self._expect_entropy(final))
        values.append(
            expect_word(
                ["greedy", "argmax", "greedy token", "most likely token"],
                best,
                meaning="most likely token",
                mistakes={} if worst in best else {"that is the least likely token": worst},
            )
        )
        return values

    def _renormalize(self, selected: Sequence[int]) -> Array:
        """Return the probabilities of all tokens after those that are not kept are set to 0."""
        final = np.zeros_like(self.distribution)
        final[list(selected)] = self.distribution[list(selected)]
        return final / final.sum()

    def _expect_penalized(self) -> ExpectedValue:
        """Return the scores after the repetition penalty."""
        is_generated = np.array([token in self.generated for token in self.token_names])
        penalty = self.repetition_penalty
        wrong = {
            "negative scores are divided too: multiply them, or the penalty is a reward": np.where(
                is_generated, self.scores / penalty, self.scores
            ),
            "the penalty is subtracted, not divided by": np.where(is_generated, self.scores - penalty, self.scores),
            "multiplied by the penalty: positive scores are divided": np.where(
                is_generated, self.scores * penalty, self.scores
            ),
            "the penalty is applied to all tokens": np.where(
                self.scores > 0, self.scores / penalty, self.scores * penalty
            ),
            "the penalty is left out": self.scores,
            "the penalty is applied to the tokens that were not generated": np.where(
                is_generated, self.scores, np.where(self.scores > 0, self.scores / penalty, self.scores * penalty)
            ),
        }
        return expect_numbers(
            ["penalized", "penalized logits", "penalised logits", "penalized scores", "z'", "logits", "scores"],
            self.penalized,
            [self.token_names],
            "scores after the repetition penalty",
            mistakes=wrong,
            formula="z/θ if z > 0, z·θ if z < 0, for tokens generated before",
        )

    def _expect_scaled(self) -> ExpectedValue:
        """Return the scores divided by the temperature."""
        scaled = self.penalized / self.temperature
        wrong = {
            "multiplied by the temperature: divide by it": self.penalized * self.temperature,
            "the repetition penalty is left out": self.scores / self.temperature,
        }
        return expect_numbers(
            ["scaled logits", "logits/T", "z/T", "scaled", "scaled scores"],
            scaled,
            [self.token_names],
            "logits divided by the temperature" if self.logits else "log-probabilities divided by the temperature",
            mistakes=wrong,
            formula="z / T",
        )

    def _mistaken_distributions(self) -> dict[str, Array]:
        """Return the distributions that mistakes with temperature, softmax and penalty lead to."""
        scores, temperature, unscaled = self.penalized, self.temperature, softmax(self.penalized)
        wrong: dict[str, Array] = {}
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            if temperature != 1:
                wrong["multiplied by the temperature: divide the logits by it"] = softmax(scores, 1 / temperature)
                wrong["the temperature is left out"] = unscaled
                wrong["the probabilities are divided by the temperature, not the logits"] = unscaled / temperature
                wrong["the probabilities are multiplied by the temperature"] = unscaled * temperature
                wrong["the softmax is taken of probabilities divided by the temperature, not of logits"] = softmax(
                    unscaled, temperature
                )
                powers = unscaled ** (1 / temperature)
                wrong["p^(1/T) is not normalized to sum to 1"] = powers
                wrong["p^T is not normalized, and the exponent is 1/T"] = unscaled**temperature
            if self.logits:
                exponentials = np.exp(np.minimum(scores / temperature, 700))
                wrong["the exponentials are not normalized"] = exponentials
                wrong["the softmax has base 2, not e"] = softmax(scores * math.log(2), temperature)
                wrong["the softmax has base 10, not e"] = softmax(scores * math.log(10), temperature)
                if scores.sum():
                    wrong["the logits are divided by their sum: take exponentials first"] = scores / scores.sum()
                wrong["the signs of the logits are reversed"] = softmax(-scores, temperature)
                wrong["each exponential is put through a sigmoid, not a softmax"] = 1 / (
                    1 + 1 / np.maximum(exponentials, 1e-300)
                )
            elif temperature == 1:
                wrong["the softmax is taken of what are probabilities already"] = softmax(np.exp(self.scores))
            if self.repetition_penalty != 1:
                wrong["the repetition penalty is left out"] = softmax(self.scores, temperature)
                is_generated = np.array([token in self.generated for token in self.token_names])
                divided = np.where(is_generated, self.scores / self.repetition_penalty, self.scores)
                wrong["negative scores are divided by the penalty too: multiply them"] = softmax(divided, temperature)
        right = self.distribution
        return {
            text: array for text, array in wrong.items() if np.isfinite(array).all() and not np.allclose(array, right)
        }

    def _expect_distribution(self) -> ExpectedValue:
        """Return the probabilities of the tokens before truncation."""
        scaled = self.penalized / self.temperature
        is_softmax = bool(self.logits) or self.temperature != 1 or self.repetition_penalty != 1
        terms = ", ".join(f"e^{number:.4g}" for number in scaled[:8]) + (", …" if len(scaled) > 8 else "")
        total = np.exp(np.minimum(scaled, 700)).sum()
        powers = ", ".join(f"{math.exp(number):.4g}^(1/{self.temperature:g})" for number in self.penalized[:8])
        work = (
            f"{terms} divided by their sum {total:.4g}" if self.logits else f"{powers} divided by their sum {total:.4g}"
        )
        return expect_numbers(
            ["p", "probabilities", "probs", "softmax", "P", *(() if self.is_truncated else RENORMALIZED)],
            self.distribution,
            [self.token_names],
            "probabilities of the tokens, before any are left out",
            mistakes=self._mistaken_distributions(),
            scales={100: "in per cent"},
            formula="p_i = exp(z_i/T) / Σ_j exp(z_j/T)" if self.logits else "p_i^(1/T) / Σ_j p_j^(1/T)",
            work=work if is_softmax else "",
        )

    def _mistaken_sets(self, selected: list[int]) -> Iterator[tuple[str, list[int]]]:
        """Yield the sets of tokens that mistakes lead to."""
        ranked = self.rank(self.distribution)
        position = len(selected)
        if self.top_p < 1 and not self.top_k and not self.min_p:
            yield (
                "one token too few: the sum must reach p, so the token that crosses it is kept",
                ranked[: position - 1],
            )
            yield "one token too many: stop as soon as the sum reaches p", ranked[: position + 1]
            at_least_p = [index for index in ranked if self.distribution[index] >= self.top_p]
            yield "each probability is compared with p, not their sum", at_least_p
            at_least_complement = [index for index in ranked if self.distribution[index] >= 1 - self.top_p]
            yield "each probability is compared with 1 − p: add them up from the largest", at_least_complement
            ascending = ranked[::-1]
            count = int(np.searchsorted(np.cumsum(self.distribution[ascending]), self.top_p - TOLERANCE)) + 1
            yield "the tokens are added from the smallest, not the largest", ascending[:count]
            listed = list(range(len(ranked)))
            count = int(np.searchsorted(np.cumsum(self.distribution), self.top_p - TOLERANCE)) + 1
            yield "the tokens are added in the order of the list: sort them first", listed[:count]
        if self.top_k and self.top_p == 1 and not self.min_p:
            yield "one token too few is kept", ranked[: position - 1]
            yield "one token too many is kept", ranked[: position + 1]
            yield "the least likely tokens are kept", ranked[::-1][:position]
            yield "the first tokens of the list are kept: sort by probability", list(range(position))
        if self.min_p:
            absolute = [index for index in ranked if self.distribution[index] >= self.min_p]
            yield "compared with min-p itself: the threshold is min-p times the highest probability", absolute
        if self.temperature != 1:
            yield "the temperature is left out", self.keep(softmax(self.penalized))
            yield "multiplied by the temperature", self.keep(softmax(self.penalized, 1 / self.temperature))
        methods: list[tuple[str, Method]] = [("top-k", "top-k"), ("top-p", "top-p"), ("min-p", "min-p")]
        if sum((bool(self.top_k), self.top_p < 1, bool(self.min_p))) > 1:
            for text, method in methods:
                yield f"only {text} is applied", self.keep(self.distribution, method)
            if self.top_k and self.top_p < 1:
                both = set(self.keep(self.distribution, "top-k")) & set(self.keep(self.distribution, "top-p"))
                yield "the probabilities are not renormalized between top-k and top-p", [i for i in ranked if i in both]

    def _expect_selected(self, selected: list[int]) -> ExpectedValue:
        """Return the tokens that are kept."""
        wrong = {
            text: [self.token_names[index] for index in sorted(other)] for text, other in self._mistaken_sets(selected)
        }
        right = {self.token_names[index] for index in selected}
        orders = {}
        for text, names in wrong.items():
            if names and set(names) != right:
                orders[text] = names
        running, texts = 0.0, []
        for index in selected[:12]:
            running += float(self.distribution[index])
            texts.append(f"{self.token_names[index]} (sum {running:.4g})")
        rule = [f"top-k: the {self.top_k} most likely"] if self.top_k else []
        rule += [f"top-p: add from the largest until the sum is ≥ {self.top_p:g}"] if self.top_p < 1 else []
        rule += [f"min-p: at least {self.min_p:g} times the highest"] if self.min_p else []
        return expect_words(
            ["kept", "kept tokens", "nucleus", "tokens", "kept set", "top-k", "top-p", "V_k", "V_p"],
            [self.token_names[index] for index in selected],
            meaning="tokens that are kept",
            mistakes=orders,
            formula="; then ".join(rule),
            work=", ".join(texts),
            up_to=frozenset({"order"}),
        )

    def _expect_renormalized(self, selected: list[int], is_full: bool) -> list[ExpectedValue]:
        """Return the renormalized probabilities, and the mass of the kept tokens."""
        final, mass = self._renormalize(selected), float(self.distribution[selected].sum())
        indices = list(range(len(final))) if is_full else sorted(selected)
        removed = np.zeros_like(final)
        removed[selected] = self.distribution[selected]
        wrong: dict[str, Array] = {"not renormalized: divide by the sum of the kept probabilities": removed[indices]}
        exponentials = np.zeros_like(final)
        exponentials[selected] = softmax(self.distribution[selected])
        wrong["the softmax is taken of the kept probabilities: divide by their sum"] = exponentials[indices]
        if is_full:
            wrong |= {text: self._renormalize(other) for text, other in self._mistaken_sets(selected) if other}
        for text, array in self._mistaken_distributions().items():
            if (total := float(array[selected].sum())) > 0:
                zeros = np.zeros_like(final)
                zeros[selected] = array[selected] / total
                wrong.setdefault(text, zeros[indices])
        spread = np.zeros_like(final)
        spread[selected] = self.distribution[selected] + (1 - mass) / len(selected)
        wrong["the mass of the removed tokens is spread evenly: divide by the sum"] = spread[indices]
        names = [self.token_names[index] for index in indices]
        largest = self.token_names[max(selected, key=lambda index: self.distribution[index])]
        return [
            expect_numbers(
                ["mass", "kept mass", "sum"],
                mass,
                meaning="sum of the kept probabilities",
                mistakes=keep_distinct(mass, {"that is the mass of the removed tokens": 1 - mass}),
                scales={100: "in per cent"},
                work=format_product([float(self.distribution[index]) for index in selected]).replace(" · ", " + "),
            ),
            expect_numbers(
                RENORMALIZED,
                final[indices],
                [names],
                "probabilities of the kept tokens in the order of the statement",
                mistakes=wrong,
                scales={100: "in per cent"},
                formula="q_i = p_i / Σ of the kept p_j",
                work=f"such as {largest}: {self.distribution.max():.4g}/{mass:.4g} = {final.max():.4g}",
            ),
        ]

    def _expect_entropy(self, final: Array) -> ExpectedValue:
        """Return the entropy of the final distribution in bits."""
        positive = final[final > 0]
        bits = float(-(positive * np.log2(positive)).sum())
        before = self.distribution[self.distribution > 0]
        wrong = {
            "the sign is wrong: entropy is not negative": -bits,
            "the probabilities are not multiplied: −Σ log p": float(-np.log2(positive).sum()),
            "the logarithm has base 10": bits * math.log10(2),
            "that is the entropy before tokens were left out": float(-(before * np.log2(before)).sum()),
        }
        for text, array in self._mistaken_distributions().items():
            if abs(array.sum() - 1) < 1e-9:
                used = array[array > 0]
                wrong[text] = float(-(used * np.log2(used)).sum())
        return expect_numbers(
            ["H", "entropy"],
            bits + 0.0,
            meaning="entropy in bits",
            mistakes=keep_distinct(bits, wrong),
            scales={math.log(2): "in nats"},
            formula="H = −Σ p log2 p",
            work=" + ".join(f"{number:.4g}·{-math.log2(number):.4g}" for number in positive[:8]),
        )

    # Sequences

    @cached_property
    def end_token(self) -> str:
        """The token that ends a sequence; "" without one."""
        if self.end:
            return self.end
        tokens = {token for prefix in self.tree for token in self._row(prefix)}
        return next((token for token in sorted(tokens) if token.casefold() in END_NAMES), "")

    def _row(self, prefix: str) -> dict[str, float]:
        """Return the table at a prefix of the tree."""
        row = self.tree[prefix]
        return row if isinstance(row, dict) else dict(zip(self.tokens, row, strict=True))

    @cached_property
    def _prefixes(self) -> dict[Sequence_, str]:
        """The prefixes of the tree as tokens, without the begin symbol."""
        prefixes: dict[Sequence_, str] = {}
        for prefix in self.tree:
            words = re.split(r"[\s,]+|->|→", prefix.strip())
            words = words[1:] if words and words[0].casefold() in START_NAMES else words
            prefixes[tuple(words)] = prefix
        return prefixes

    def _lookup(self, tokens: Sequence_) -> Mapping[str, float] | None:
        """Return the probabilities after some tokens: by the whole prefix, by the step, or by the last tokens."""
        step = f"step {len(tokens) + 1}"
        if tokens in self._prefixes:
            return self._row(self._prefixes[tokens])
        if step in self.tree:
            return self._row(step)
        concatenated = "".join(tokens)
        if tokens and (concatenated,) in self._prefixes:
            return self._row(self._prefixes[concatenated,])
        if any(len(prefix) > 1 for prefix in self._prefixes):
            return None
        return self._row(self._prefixes[tokens[-1:]]) if tokens and tokens[-1:] in self._prefixes else None

    @cached_property
    def depth(self) -> int:
        """The length of the sequences at most."""
        if self.steps:
            return self.steps
        if any(prefix.startswith("step ") for prefix in self.tree):
            return min(len(self.tree), MAX_LENGTH)
        longest = max(len(prefix) for prefix in self._prefixes)
        is_markov = longest == 1 and any(
            (token,) in self._prefixes
            for prefix in self._prefixes
            if prefix
            for token in self._row(self._prefixes[prefix])
        )
        return min(3 if is_markov else longest + 1, MAX_LENGTH)

    def normalized_score(self, tokens: Sequence_, log_probability: float, alpha: float | None = None) -> float:
        """Return the score by which sequences are compared."""
        exponent = self.length_penalty if alpha is None else alpha
        return log_probability / max(1, len(tokens)) ** exponent

    def extend(self, hypothesis: Hypothesis) -> list[Hypothesis]:
        """Return a hypothesis with each next token; itself if it is finished."""
        row = None if hypothesis.is_finished else self._lookup(hypothesis.tokens)
        if row is None or len(hypothesis.tokens) >= self.depth:
            return [Hypothesis(hypothesis.tokens, hypothesis.log_probability, True)]
        return [
            Hypothesis(
                (*hypothesis.tokens, token), hypothesis.log_probability + math.log(number), token == self.end_token
            )
            for token, number in row.items()
            if number > 0
        ]

    def search(self, beam: int, alpha: float | None = None, tie_breaker: int = 0) -> list[list[Hypothesis]]:
        """Return the beams after each step, the best hypothesis first.

        Args:
            beam: how many hypotheses are kept.
            alpha: exponent of length normalization; None for that of the exercise.
            tie_breaker: which of several hypotheses that tie is preferred: 0 the first, 1 the last, others any.
        """
        beams = [[Hypothesis((), 0.0)]]
        for _ in range(self.depth):
            if all(hypothesis.is_finished for hypothesis in beams[-1]):
                break
            candidates = [longer for hypothesis in beams[-1] for longer in self.extend(hypothesis)]
            ranked = sorted(
                enumerate(candidates),
                key=lambda item: (
                    -round(self.normalized_score(item[1].tokens, item[1].log_probability, alpha), 12),
                    _break_tie(item[0], tie_breaker),
                ),
            )
            next_beams = [candidate for _, candidate in ranked[:beam]]
            if next_beams == beams[-1]:
                break
            beams.append(next_beams)
        return beams[1:]

    def _tied_searches(self) -> Iterator[tuple[list[list[Hypothesis]], list[list[Hypothesis]]]]:
        """Yield the results of beam and greedy search with ties broken in several ways."""
        results: list[Any] = []
        for tie_breaker in range(MAX_TIES):
            result = self.search(self.beam, None, tie_breaker), self.search(1, None, tie_breaker)
            if result not in results:
                results.append(result)
                yield result
            elif tie_breaker == 1 and len(results) == 1 and not self._has_ties:
                return

    @cached_property
    def _has_ties(self) -> bool:
        """True if two probabilities of the same table, or of two prefixes, are equal."""
        sequences = self.all_sequences or []
        scores = sorted(round(item.log_probability, 10) for item in sequences)
        rows = [sorted(self._row(prefix).values()) for prefix in self.tree]
        lists = [scores, *rows]
        return any(left == right for numbers in lists for left, right in pairwise(numbers))

    @cached_property
    def all_sequences(self) -> list[Hypothesis] | None:
        """The complete sequences, the most likely first; None if there are too many."""
        level, count = [Hypothesis((), 0.0)], 0
        finished: list[Hypothesis] = []
        for _ in range(self.depth + 1):
            following = []
            for hypothesis in level:
                for longer in self.extend(hypothesis):
                    is_complete = longer.is_finished or len(longer.tokens) >= self.depth
                    (finished if is_complete else following).append(longer)
                    count += 1
                    if count > MAX_SEQUENCES:
                        return None
            level = following
        return sorted(finished, key=lambda item: -self.normalized_score(item.tokens, item.log_probability))

    def _expect_search(
        self, beams: list[list[Hypothesis]], greedy_beams: list[list[Hypothesis]]
    ) -> list[ExpectedValue]:
        """Return the values of greedy and beam search."""
        greedy = greedy_beams[-1][0]
        best = beams[-1][0]
        values = [
            self._expect_sequence(
                "greedy", ["greedy sequence", "greedy"], greedy, {"that is the result of beam search": best}
            ),
            self._expect_sequence_probability(greedy.tokens, "P(greedy)"),
        ]
        for number, hypotheses in enumerate(beams, 1):
            values += self._expect_beam(number, hypotheses, beams)
        other_normalization = self.search(self.beam, 1.0 if self.length_penalty == 0 else 0.0)[-1][0]
        text = (
            "normalized by the length, which is not asked for"
            if self.length_penalty == 0
            else "not normalized by the length"
        )
        wrong = {"greedy: the best token is taken at each step": greedy, text: other_normalization}
        if self.all_sequences:
            wrong["that is the best of all sequences: the beam has lost it"] = self.all_sequences[0]
        if len(beams[-1]) > 1:
            wrong["that is the second best of the last beam"] = beams[-1][1]
        values.append(
            self._expect_sequence("best", ["best sequence", "beam result", "beam search"], best, wrong, beams)
        )
        values.append(self._expect_sequence_probability(best.tokens, "P(best)"))
        values.append(self._expect_score(best.tokens, "score(best)"))
        if self.all_sequences:
            optimum = self.all_sequences[0]
            values.append(
                self._expect_sequence(
                    "optimal",
                    ["exhaustive", "most likely sequence"],
                    optimum,
                    {"that is the greedy sequence": greedy, "that is the result of beam search": best},
                )
            )
        return values

    def _expect_sequence(
        self,
        name: str,
        aliases: Sequence[str],
        hypothesis: Hypothesis,
        wrong: Mapping[str, Hypothesis],
        beams: list[list[Hypothesis]] | None = None,
    ) -> ExpectedValue:
        """Return a sequence as a word of its tokens."""
        accepted = self._write_alternatives(hypothesis.tokens)
        mistakes = {text: " ".join(other.tokens) for text, other in wrong.items() if other.tokens != hypothesis.tokens}
        formulas = {
            "greedy": "take the most likely token at each step",
            "best": f"keep the {self.beam} best prefixes at each step; the best at the end",
            "optimal": "the best of all sequences",
        }
        work = ""
        if beams:
            work = "; ".join(
                f"step {number}: " + ", ".join(f"{' '.join(h.tokens)} {math.exp(h.log_probability):.4g}" for h in step)
                for number, step in enumerate(beams, 1)
            )
        return expect_word(
            [name, *aliases],
            accepted,
            meaning={"greedy": "sequence of greedy search", "best": "result of beam search"}.get(
                name, "best sequence of all"
            ),
            mistakes=mistakes,
            formula=formulas[name],
            work=work,
            normalize=normalize_sequence,
        )

    def _write_alternatives(self, tokens: Sequence_) -> tuple[str, ...]:
        """Return the texts that stand for a sequence: with and without the end token."""
        texts = [" ".join(tokens)]
        if tokens[-1:] == (self.end_token,) and len(tokens) > 1:
            texts.append(" ".join(tokens[:-1]))
        return tuple(texts)

    def _expect_beam(
        self, number: int, hypotheses: list[Hypothesis], beams: list[list[Hypothesis]]
    ) -> list[ExpectedValue]:
        """Return the hypotheses after a step, and how many candidates they were chosen from."""
        before = beams[number - 2] if number > 1 else [Hypothesis((), 0.0)]
        candidates = [longer for hypothesis in before for longer in self.extend(hypothesis)]
        wrong: dict[str, list[str]] = {}
        best_of_each = [max(self.extend(hypothesis), key=lambda item: item.log_probability) for hypothesis in before]
        wrong["the best continuation of each prefix is kept: compare all candidates with each other"] = [
            " ".join(item.tokens) for item in best_of_each
        ]
        local = sorted(candidates, key=lambda item: -((self._lookup(item.tokens[:-1]) or {}).get(item.tokens[-1], 0.0)))
        wrong["the last probabilities alone are compared: multiply along the sequence"] = [
            " ".join(item.tokens) for item in local[: self.beam]
        ]
        right = {" ".join(item.tokens) for item in hypotheses}
        wrong = {text: sorted(words) for text, words in wrong.items() if set(words) != right}
        counted = len(candidates)
        return [
            expect_words(
                [f"beam{number}", f"beam_{number}", f"step{number}", f"hypotheses{number}"],
                [self._write_alternatives(item.tokens) for item in hypotheses],
                meaning=f"hypotheses after step {number}",
                mistakes=wrong,
                formula=f"the {self.beam} candidates of the highest probability",
                work=", ".join(
                    f"{' '.join(item.tokens)} {math.exp(item.log_probability):.4g}"
                    for item in sorted(candidates, key=lambda item: -item.log_probability)[:10]
                ),
                normalize=normalize_sequence,
                up_to=frozenset({"order"}),
            ),
            expect_numbers(
                [f"candidates{number}", f"candidates_{number}", f"number of candidates {number}"],
                counted,
                meaning=f"candidates compared at step {number}",
                mistakes=keep_distinct(
                    counted,
                    {
                        "all sequences are counted, also those that left the beam": float(
                            len(candidates) / max(1, len(before))
                        )
                        ** number,
                        "only those that are kept are counted": float(len(hypotheses)),
                    },
                ),
                formula="hypotheses in the beam times possible tokens",
            ),
        ]

    def _factors(self, tokens: Sequence_, name: str) -> list[float]:
        """Return the probability of each token of a sequence."""
        factors = []
        for index, token in enumerate(tokens):
            row = self._lookup(tokens[:index])
            if row is None:
                raise InputError(
                    f"{self.name}: {name}: the tree has no probabilities after '{' '.join(tokens[:index])}'."
                )
            if token not in row:
                raise InputError(
                    f"{self.name}: {name}: '{token[:40]}' cannot follow '{' '.join(tokens[:index])}'. "
                    f"Choices: {', '.join(list(row)[:12])}."
                )
            factors.append(float(row[token]))
        return factors

    def _expect_sequence_probability(self, tokens: Sequence_, name: str) -> ExpectedValue:
        """Return the probability of a sequence."""
        factors = self._factors(tokens, name)
        right = math.prod(factors)
        return expect_numbers(
            [name],
            right,
            meaning=f"probability of '{' '.join(tokens)}'",
            mistakes=keep_distinct(right, self._mistakes_of_product(factors)),
            scales={100: "in per cent"},
            formula="product of the probabilities of its tokens",
            work=format_product(factors),
        )

    def _mistakes_of_product(self, factors: Sequence[float]) -> dict[str, float | None]:
        """Return what mistakes make of the probability of a sequence."""
        right = math.prod(factors)
        return {
            "the probabilities are added, not multiplied": sum(factors),
            "that is the probability of the last token alone": factors[-1],
            "the first factor is left out": math.prod(factors[1:]),
            "the last factor is left out": math.prod(factors[:-1]),
            "the mean of the probabilities is taken": sum(factors) / len(factors),
            "the geometric mean is taken, which is not asked for": right ** (1 / len(factors)) if right > 0 else None,
        }

    def _expect_score(self, tokens: Sequence_, name: str) -> ExpectedValue:
        """Return the log-probability of a sequence, normalized by its length if the exercise asks for that."""
        factors = self._factors(tokens, name)
        if min(factors) <= 0:
            return expect_word([name], ("-infinity", "-inf", "−∞", "-∞", "undefined"))
        log, length = math.fsum(map(math.log, factors)), len(factors)
        right = self.normalized_score(tokens, log)
        wrong: dict[str, float | None] = {
            "the probabilities are added, not their logarithms": sum(factors),
            "the logarithm of the sum is taken, not the sum of the logarithms": math.log(sum(factors)),
            "the probability is given, not its logarithm": math.prod(factors),
            "the sign is wrong: logarithms of probabilities are negative": -right,
            "multiplied by the length: divide by it": log * length if self.length_penalty else None,
            "not divided by the length": log if self.length_penalty else None,
            "divided by the length, which is not asked for": None if self.length_penalty else log / length,
            "the last factor is left out": math.fsum(map(math.log, factors[:-1]))
            / max(1, length - 1) ** self.length_penalty,
        }
        if self.length_penalty:
            wrong["divided by the length less one"] = log / (length - 1) ** self.length_penalty if length > 1 else None
            wrong["divided by the length plus one"] = log / (length + 1) ** self.length_penalty
            if self.length_penalty != 1:
                wrong[f"divided by the length itself, not by its power {self.length_penalty:g}"] = log / length
                wrong["divided by α times the length, not by length^α"] = log / (self.length_penalty * length)
        logs = " + ".join(f"ln {format_ratio(factor)}" for factor in factors[:10])
        return expect_numbers(
            [name],
            right,
            meaning=f"score of '{' '.join(tokens)}'",
            mistakes=keep_distinct(right, wrong),
            scales={factor: text for text, factor in LOG_BASES.items()},
            formula="Σ log p" + (f" / length^{self.length_penalty:g}" if self.length_penalty else ""),
            work=f"{logs} = {log:.4g}"
            + (f", divided by {length}^{self.length_penalty:g}" if self.length_penalty else ""),
        )

    def find_value(self, name: str) -> ExpectedValue | None:
        """Return the probability of a token or sequence, its logarithm, or the number of sequences."""
        text = re.sub(r"\\(?:text|mathrm)\s*\{([^{}]*)\}", r"\1", name).replace("\\mid", "|").strip("$ ")
        match = re.fullmatch(r"\s*(?P<name>[^()]*?)\s*\((?P<inner>.*)\)\s*", text)
        if not match:
            is_token = not self.tree and text in self.token_names and self.repetition_penalty == 1
            return self._find_token(name, "p", text) if is_token else self._find_count(name)
        function = re.sub(r"[\s_\\{}]", "", match["name"]).casefold()
        inner = match["inner"].strip()
        if not self.tree:
            return self._find_token(name, function, inner)
        if function in ("log", "ln", "logp", "lnp"):
            wrapped = re.fullmatch(r"[Pp]r?\s*\((.*)\)", inner)
            return self._expect_unnormalized_score(self._read_tokens(wrapped[1] if wrapped else inner), name)
        if function in ("score", "s", "normalizedscore"):
            return self._expect_score(self._read_tokens(inner), name)
        if function not in ("p", "pr", "prob"):
            return None
        left, bar, right = inner.partition("|")
        if bar:
            prefix, token = self._read_tokens(right), self._read_tokens(left)
            row = self._lookup(prefix)
            if row is None or len(token) != 1 or token[0] not in row:
                raise InputError(f"{self.name}: {name} is not in the tree, as in P(a | b).")
            return expect_numbers([name], row[token[0]], scales={100: "in per cent"})
        return self._expect_sequence_probability(self._read_tokens(inner), name)

    def _expect_unnormalized_score(self, tokens: Sequence_, name: str) -> ExpectedValue:
        """Return the log-probability of a sequence without normalization."""
        unnormalized = self.model_copy(update={"length_penalty": 0.0})
        return unnormalized._expect_score(tokens, name)

    def _find_count(self, name: str) -> ExpectedValue | None:
        """Return the number of sequences, if that is the name."""
        if self.tree and normalize_name(name) in ("numberofsequences", "sequences", "allsequences"):
            if self.all_sequences is None:
                raise InputError(f"{self.name}: more than {MAX_SEQUENCES:,} sequences are possible.")
            return expect_numbers([name], len(self.all_sequences), meaning="complete sequences of positive probability")
        if not self.tree and normalize_name(name) in ("numberofkept", "|kept|", "numberofkepttokens", "numkept", "k"):
            selected = self.keep(self.distribution)
            mistaken_counts = {text: float(len(other)) for text, other in self._mistaken_sets(selected)}
            return expect_numbers([name], len(selected), mistakes=keep_distinct(len(selected), mistaken_counts))
        return None

    def _find_token(self, name: str, function: str, inner: str) -> ExpectedValue | None:
        """Return the probability of a token before truncation, p(token), or after it, q(token)."""
        token = inner.strip("\"'")
        if token not in self.token_names:
            names_by_casefold = {token_name.casefold(): token_name for token_name in self.token_names}
            if token.casefold() not in names_by_casefold:
                return None
            token = names_by_casefold[token.casefold()]
        index, selected = self.token_names.index(token), self.keep(self.distribution)
        is_final = function in ("q", "p'", "pnew", "renormalized") or (function in ("p", "pr") and self.is_truncated)
        if function not in ("p", "pr", "q", "p'", "pnew", "renormalized", "softmax"):
            return None
        before, after = float(self.distribution[index]), float(self._renormalize(selected)[index])
        right = after if is_final else before
        wrong = {text: float(array[index]) for text, array in self._mistaken_distributions().items()}
        if is_final:
            total = {text: float(array[selected].sum()) for text, array in self._mistaken_distributions().items()}
            wrong = {
                text: value / total[text] for text, value in wrong.items() if total[text] > 0 and index in selected
            }
            for text, other in self._mistaken_sets(selected):
                if other:
                    wrong[text] = float(self._renormalize(other)[index])
            wrong = {"not renormalized: divide by the sum of the kept probabilities": before, **wrong}
        return expect_numbers(
            [name],
            right,
            meaning=f"probability of '{token}'",
            mistakes=keep_distinct(right, wrong),
            scales={100: "in per cent"},
        )

    def _read_tokens(self, text: str) -> Sequence_:
        """Return the tokens of a sequence in a name; tokens of one letter may be written together."""
        normalized = normalize_name(text)
        if normalized in ("greedy", "best"):
            return (self.search(1) if normalized == "greedy" else self.search(self.beam))[-1][0].tokens
        items = [item.strip("\"'") for item in re.split(r"[\s,]+|->|→", text.strip("[] ")) if item]
        items = items[1:] if items and items[0].casefold() in START_NAMES else items
        vocabulary = {token for prefix in self.tree for token in self._row(prefix)}
        if len(items) == 1 and items[0] not in vocabulary and all(letter in vocabulary for letter in items[0]):
            items = list(items[0])
        if not items or len(items) > MAX_LENGTH:
            return tuple(items[:MAX_LENGTH])
        return tuple(items)


def _break_tie(index: int, tie_breaker: int) -> int:
    """Return a key that sorts candidates which tie."""
    if tie_breaker < 2:
        return -index if tie_breaker else index
    return (index + 1) * (2 * tie_breaker + 1) * 2654435761 % 4294967291


def check_distribution(numbers: Sequence[Any], name: str) -> None:
    """Raise a ValueError if numbers are not probabilities that sum to 1, up to rounding."""
    if not all(isinstance(number, float) and 0 <= number <= 1 for number in numbers):
        raise ValueError(f"{name}: probabilities are from 0 to 1")
    if abs(sum(numbers) - 1) > 0.02:
        raise ValueError(f"{name}: the probabilities sum to 1; yours sum to {sum(numbers):.4g}")


def join_tokens(text: str) -> str:
    """Return a sequence of tokens with blanks between them, without brackets, arrows and commas."""
    return " ".join(re.sub(r"[\[\](){},\"']|->|→|=>", " ", text).split())


def quote(text: str) -> str:
    """Return a text in quotes, as a word of an answer."""
    return '"' + text.replace('"', "") + '"'


def normalize_sequence(text: str) -> str:
    """Return a sequence for comparison: in lower case, without blanks and begin symbols."""
    tokens = join_tokens(text.casefold()).split()
    return "".join(tokens[1:] if tokens and tokens[0] in START_NAMES else tokens)
