"""Exercises on n-gram models: counts, smoothed probabilities, and the perplexity of a test text."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from lemma.checking.check_values import ValueReport
from lemma.checking.exercises.base import ValueExercise
from lemma.checking.exercises.notation import (
    expect_word,
    format_product,
    format_ratio,
    keep_distinct,
    make_alternatives,
    read_table,
    rewrite_number,
    split_sentences,
    split_words,
)
from lemma.checking.exercises.statements import check_information_units
from lemma.checking.expected_values import ExpectedValue, expect_numbers
from lemma.errors import InputError
from lemma.spec.base import Letter

BOS, EOS, UNKNOWN = "<s>", "</s>", "<unk>"
Words = tuple[str, ...]
Probability = Callable[[Words, str], float | None]  # of a word after a context; None where it is not defined
Padding = Literal["full", "single", "begin", "none"]
Vocabulary = Literal["end", "words", "all"]
Smoothing = Literal["none", "add-k", "backoff", "katz", "interpolation", "kneser-ney", "good-turing"]
SMOOTHING_NAMES = {
    "": "none",
    "mle": "none",
    "ml": "none",
    "maximum likelihood": "none",
    "laplace": "add-k",
    "add-one": "add-k",
    "add-1": "add-k",
    "add-k": "add-k",
    "lidstone": "add-k",
    "stupid backoff": "backoff",
    "stupid back-off": "backoff",
    "stupid-backoff": "backoff",
    "back-off": "backoff",
    "interpolated": "interpolation",
    "linear interpolation": "interpolation",
    "jelinek-mercer": "interpolation",
    "kneser ney": "kneser-ney",
    "kneserney": "kneser-ney",
    "kn": "kneser-ney",
    "katz backoff": "katz",
    "good turing": "good-turing",
}
ORDER_NAMES = {"unigram": 1, "bigram": 2, "trigram": 3, "four-gram": 4, "4-gram": 4}
SYMBOL_NAMES = {"bos": BOS, "<bos>": BOS, "start": BOS, "<start>": BOS, "<s>": BOS}
SYMBOL_NAMES |= {"eos": EOS, "<eos>": EOS, "stop": EOS, "<stop>": EOS, "<end>": EOS, "</s>": EOS, "<\\s>": EOS}
SYMBOL_NAMES |= {"<unk>": UNKNOWN, "unk": UNKNOWN, "⟨s⟩": BOS, "⟨/s⟩": EOS}
UNDEFINED = ("undefined", "not defined", "0/0", "0", "nan", "division by zero", "-")
INFINITE = ("infinite", "infinity", "inf", "∞", "undefined", "not defined")
MAX_LISTED_FACTORS = 12
_CALL = re.compile(r"(?P<name>[^()]*?)\s*\((?P<arguments>.*)\)\s*", re.DOTALL)
_LATEX = (
    (r"\\(?:text|mathrm|mathit|textit|textrm|operatorname|mathbf)\s*\{([^{}]*)\}", r"\1"),
    (r"\\(?:mid|vert)(?![a-z])|∣", "|"),
    (r"\\langle\s*", "<"),
    (r"\s*\\rangle", ">"),
    (r"\\(?:left|right|,|;|!|\s)", ""),
    (r"\\bullet|•|∙|·", "*"),
    (r"λ|\\lambda", "lambda"),
    (r"α|\\alpha", "alpha"),
    (r"[$\\“”\"‘’`]", ""),
)


@dataclass(frozen=True)
class NGramModel:
    """Counts of n-grams and the probabilities estimated from them.

    Attributes:
        counts: occurrences of n-grams of every length up to the order; empty contexts count all tokens.
        bos_count: sentences, each of which has a context of begin symbols.
        vocabulary: types of words, without the symbols.
        extra_types: symbols counted by V.
        is_table: whether the counts are given, so that contexts may have to be summed up.
    """

    order: int
    counts: Mapping[Words, int]
    bos_count: int
    vocabulary: frozenset[str]
    extra_types: int
    padding: Padding = "full"
    smoothing: Smoothing = "none"
    k: float = 1.0
    lambdas: tuple[float, ...] = ()
    backoff: float = 0.4
    discount: float = 0.75
    vocabulary_size: int | None = None
    is_table: bool = False

    @property
    def size(self) -> int:
        """V, the number of types in the vocabulary."""
        return self.vocabulary_size or len(self.vocabulary) + self.extra_types

    @cached_property
    def followers(self) -> dict[Words, Counter[str]]:
        """The words after each context, with their counts."""
        table: dict[Words, Counter[str]] = {}
        for ngram, count in self.counts.items():
            if ngram[-1:] != (BOS,) and ngram:
                table.setdefault(ngram[:-1], Counter())[ngram[-1]] += count
        return table

    @cached_property
    def continuations(self) -> dict[Words, Counter[str]]:
        """For each context, how many different words precede it with each next word: the counts of lower orders."""
        table: dict[Words, Counter[str]] = {}
        for ngram in self.counts:
            if len(ngram) > 1 and ngram[-1] != BOS:
                table.setdefault(ngram[1:-1], Counter())[ngram[-1]] += 1
        return table

    @cached_property
    def token_count(self) -> int:
        """The number of tokens, without begin symbols."""
        return self.counts.get((), 0) or sum(self.followers.get((), {}).values())

    def count(self, ngram: Words) -> int:
        """Return how often an n-gram occurs."""
        if len(ngram) > self.order and not self.is_table:
            raise InputError(f"C({' '.join(ngram)}): the model has n-grams of at most {self.order} words.")
        if ngram and set(ngram) == {BOS} and not self.is_table:
            return self.bos_count
        if self.is_table and ngram not in self.counts and ngram in self.followers:
            return sum(self.followers[ngram].values())
        return self.counts.get(ngram, 0)

    def context_count(self, context: Words) -> int:
        """Return how often a context occurs; all tokens for an empty one."""
        return self.count(context) if context else self.token_count

    def followed_count(self, context: Words) -> int:
        """Return how often a context occurs with a next word."""
        return sum(self.followers.get(context, {}).values())

    def estimate(self, context: Words, word: str) -> float | None:
        """Return the maximum-likelihood probability of a word after a context."""
        total = self.context_count(context)
        return self.count((*context, word)) / total if total else None

    def probability(self, context: Words, word: str) -> float | None:
        """Return the probability of a word after a context, with the smoothing of the model."""
        context = context[-(self.order - 1) :] if self.order > 1 else ()
        match self.smoothing:
            case "add-k":
                total = self.context_count(context) + self.k * self.size
                return (self.count((*context, word)) + self.k) / total if total else None
            case "backoff":
                if self.count((*context, word)) or not context:
                    return self.estimate(context, word)
                return self.backoff * (self.probability_of_order(context[1:], word) or 0.0)
            case "katz":
                return self.katz(context, word)
            case "interpolation":
                return self.interpolate(context, word)
            case "kneser-ney":
                return self.kneser_ney(context, word)
            case "good-turing":
                total = self.context_count(context)
                return self.adjusted_count(self.count((*context, word)), len(context) + 1) / total if total else None
            case _:
                return self.estimate(context, word)

    def probability_of_order(self, context: Words, word: str) -> float | None:
        """Return the probability with the model of the order that fits the context."""
        return (
            replace(self, order=max(1, len(context) + 1)).probability(context, word) if context else self._unigram(word)
        )

    def _unigram(self, word: str) -> float | None:
        return self.count((word,)) / self.token_count if self.token_count else None

    def interpolate(self, context: Words, word: str) -> float:
        """Return the weighted sum of the estimates of all orders; a weight more than orders is for 1/V."""
        estimates = [self.estimate(context[start:], word) or 0.0 for start in range(len(context) + 1)]
        estimates = [0.0] * (self.order - len(estimates)) + estimates
        if len(self.lambdas) > self.order:
            estimates.append(1 / self.size if self.size else 0.0)
        return sum(weight * estimate for weight, estimate in zip(self.lambdas, estimates, strict=True))

    def katz(self, context: Words, word: str) -> float | None:
        """Return the discounted estimate of a seen n-gram, or a share of what the discounts leave."""
        if not context:
            return self._unigram(word)
        total = self.context_count(context)
        if not total:
            return self.katz(context[1:], word)
        if count := self.count((*context, word)):
            return (count - self.discount) / total
        return self.backoff_weight(context) * (self.katz(context[1:], word) or 0.0)

    def backoff_weight(self, context: Words) -> float:
        """Return Katz's α of a context: the probability left by the discounts, over that of unseen words."""
        seen = self.followers.get(context, {})
        total = self.context_count(context)
        left = 1 - sum((count - self.discount) / total for count in seen.values()) if total else 1.0
        unseen = 1 - sum(self.katz(context[1:], word) or 0.0 for word in seen)
        return left / unseen if unseen > 1e-12 else 0.0

    def kneser_ney(self, context: Words, word: str, is_highest: bool = True) -> float:
        """Return the interpolated Kneser–Ney probability of a word."""
        table = self.followers if is_highest else self.continuations
        if not context:
            total = sum(self.continuations.get((), {}).values())
            return self.continuations.get((), Counter())[word] / total if total else 0.0
        seen = table.get(context, Counter())
        lower = self.kneser_ney(context[1:], word, is_highest=False)
        if not (total := sum(seen.values())):
            return lower
        return max(seen[word] - self.discount, 0.0) / total + self.discount * len(seen) / total * lower

    def continuation(self, word: str) -> float:
        """Return the continuation probability of a word: its share of the bigram types."""
        return self.kneser_ney((), word)

    def counts_of_counts(self, length: int) -> Counter[int]:
        """Return how many n-grams of a length occur once, twice and so on."""
        return Counter(
            count for ngram, count in self.counts.items() if len(ngram) == length and ngram[-1] != BOS and count
        )

    def adjusted_count(self, count: int, length: int) -> float:
        """Return the Good–Turing count (c + 1) N_{c+1} / N_c."""
        table = self.counts_of_counts(length)
        total = table[count] if count else max(0, self.size**length - sum(table.values()))
        if not total or not table[count + 1]:
            raise InputError(
                f"Good–Turing: c* of {count} needs N_{count} and N_{count + 1}; one of them is 0, so it is not defined."
            )
        return (count + 1) * table[count + 1] / total

    def pad(self, words: Words) -> tuple[Words, int]:
        """Return a sentence with its begin and end symbols, and the number of begin symbols."""
        num_bos = {"full": self.order - 1, "single": 1, "begin": max(1, self.order - 1), "none": 0}[self.padding]
        return (BOS,) * num_bos + words + ((EOS,) if self.padding in ("full", "single") else ()), num_bos

    def events(self, words: Words) -> list[tuple[Words, str]]:
        """Return the contexts and words whose probabilities are multiplied for a sentence.

        A sentence with symbols is taken as it is.
        """
        if {BOS, EOS} & set(words):
            num_bos = next((index for index, word in enumerate(words) if word != BOS), len(words))
            if num_bos and self.padding == "full":
                words, num_bos = (BOS,) * (self.order - 1) + words[num_bos:], self.order - 1
        else:
            words, num_bos = self.pad(words)
        width = self.order - 1
        return [(words[max(0, index - width) : index], words[index]) for index in range(num_bos, len(words))]


def count_ngrams(
    sentences: Sequence[Words], order: int, padding: Padding, vocabulary: Vocabulary, has_unknown: bool, **options: Any
) -> NGramModel:
    """Return the model of a corpus."""
    counts: Counter[Words] = Counter()
    empty = NGramModel(order, {}, 0, frozenset(), 0, padding)
    for sentence in sentences:
        padded, num_bos = empty.pad(sentence)
        counts[()] += len(padded) - num_bos
        for length in range(1, order + 1):
            counts.update(padded[start : start + length] for start in range(len(padded) - length + 1))
    symbols = {"end": int(padding in ("full", "single")), "words": 0, "all": 2}[vocabulary]
    words = frozenset(word for sentence in sentences for word in sentence) - {UNKNOWN}
    has_unknown = has_unknown or any(UNKNOWN in sentence for sentence in sentences)
    bos_count = len(sentences) if padding != "none" and (order > 1 or padding in ("single", "begin")) else 0
    return NGramModel(order, counts, bos_count, words, symbols + has_unknown, padding, **options)


def _read_order(value: Any) -> Any:
    """Return the number of an order that is named, such as bigram."""
    return ORDER_NAMES.get(str(value).strip().casefold().removesuffix("s"), value)


def _read_smoothing(value: Any) -> Any:
    """Return a smoothing by one of its names."""
    name = str(value).strip().casefold().replace("_", "-").replace("–", "-")
    return SMOOTHING_NAMES.get(name, name)


def _read_counts(value: Any) -> Any:
    """Return a table of counts by n-gram; in text, as in "want: 927, want to: 608"."""
    if isinstance(value, str) and value.strip()[:1] not in ("{", "["):
        table: dict[str, float] = {}
        for item in re.split(r"[,;\n]", value):
            match = re.fullmatch(r"\s*(?:[cC]ount|[cC])?\s*(.+?)\s*[:=\s]\s*(\d+)\s*", item)
            if not match:
                raise ValueError(
                    f"counts: '{item.strip()[:40]}' cannot be read, as in counts=\"want: 927, want to: 608\""
                )
            table[match[1].strip("()")] = int(match[2])
        value = table
    return read_table(value, "counts") if value else {}


def _read_numbers(value: Any) -> Any:
    """Return the weights in a text or list."""
    return tuple(read_table(value, "lambdas")) if isinstance(value, str | list) else value


class NGramExercise(ValueExercise):
    """An n-gram model computed by hand."""

    kind: ClassVar[str] = "n-gram"
    names_with_parameters: ClassVar[str] = (
        "C(v w), P(w | v), P_MLE(w | v), P(w), P(<s> v w </s>), log P(…), PP(v w), next(v), c*(v w)\n"
        "     P_KN(w | v), P_cont(w), lambda(v), alpha(v), N1+(• w)"
    )

    corpus: Annotated[tuple[str, ...], BeforeValidator(lambda value: split_sentences(value, "corpus"))] = ()
    """Sentences, separated by " / " or lines; begin and end symbols are added."""
    counts: Annotated[dict[str, int], BeforeValidator(_read_counts)] = Field(default={})
    """Counts in place of a corpus, as in "want: 927, want to: 608"."""
    order: Annotated[int, Field(ge=1, le=5), BeforeValidator(_read_order), Letter("n")] = 2
    """Length of the n-grams: 1 for unigrams, 2 for bigrams."""
    padding: Padding = "full"
    """Symbols around a sentence: full (n−1 <s> and one </s>), single (one of each), begin (no </s>) or none."""
    lowercase: bool = False
    """Whether words are lower-cased."""
    smoothing: Annotated[Smoothing, BeforeValidator(_read_smoothing)] = "none"
    """Smoothing: none, add-k (Laplace), backoff (stupid), katz, interpolation, kneser-ney or good-turing."""
    k: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Number added to each count by add-k."""
    lambdas: Annotated[tuple[float, ...], BeforeValidator(_read_numbers)] = ()
    """Weights of interpolation, from the highest order to unigrams; one more is for 1/V."""
    backoff: Annotated[float, Field(gt=0, le=1)] = 0.4
    """Factor of stupid back-off."""
    discount: Annotated[float, Field(gt=0, le=1), Letter("d")] = 0.75
    """Discount of Kneser–Ney and Katz."""
    vocabulary: Vocabulary = "end"
    """Types that V counts: end (words and </s>), words, or all (words, <s> and </s>)."""
    vocabulary_size: Annotated[int | None, Field(ge=1, le=10**9)] = None
    """V, where it is given."""
    unknown: bool = False
    """Whether V counts <unk>, which stands for words outside of the vocabulary."""
    min_count: Annotated[int, Field(ge=1, le=1000)] = 1
    """Words of the corpus with fewer occurrences become <unk>."""
    test: Annotated[tuple[str, ...], BeforeValidator(lambda value: split_sentences(value, "test", 500))] = ()
    """Sentences whose probability and perplexity are asked for."""
    perplexity_tokens: Literal["all", "words"] = "all"
    """Tokens that the perplexity is normalized by: all predicted ones, with </s>, or words alone."""
    context: Annotated[tuple[str, ...], BeforeValidator(lambda value: split_words(value, "context"))] = ()
    """Words whose most likely next word is asked for."""
    log_base: Literal["", "e", "2", "10"] = ""
    """Base of logarithms; "" accepts all and says which was used."""

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if bool(self.corpus) == bool(self.counts):
            raise ValueError('give a corpus, as in corpus="I am Sam / Sam I am", or counts="want: 927, want to: 608"')
        if any(count < 0 or count > 10**12 for count in self.counts.values()):
            raise ValueError("counts: each count is a number from 0 to 10^12")
        if self.smoothing == "interpolation":
            if len(self.lambdas) not in (self.order, self.order + 1):
                raise ValueError(f"lambdas: {self.order} weights are expected, from the highest order to unigrams")
            if not math.isclose(sum(self.lambdas), 1, abs_tol=1e-6) or min(self.lambdas) < 0:
                raise ValueError(f"lambdas: the weights sum to 1; yours sum to {sum(self.lambdas):g}")
        if self.smoothing == "kneser-ney" and self.order == 1:
            raise ValueError("smoothing = kneser-ney is for n-grams of order 2 or more")
        return self

    @cached_property
    def sentences(self) -> list[Words]:
        """The sentences of the corpus as words, without symbols; rare words are replaced."""
        sentences = [self._split(sentence) for sentence in self.corpus]
        sentences = [tuple(word for word in sentence if word not in (BOS, EOS)) for sentence in sentences]
        frequencies = Counter(word for sentence in sentences for word in sentence)
        return [
            tuple(word if frequencies[word] >= self.min_count else UNKNOWN for word in sentence)
            for sentence in sentences
            if sentence
        ]

    @cached_property
    def has_typed_symbols(self) -> bool:
        """True if the corpus is written with <s> and no convention is stated: some courses count it as a token."""
        is_typed = any(BOS in self._split(sentence) for sentence in self.corpus)
        return is_typed and "vocabulary" not in self.model_fields_set and not self.vocabulary_size

    @property
    def may_count_bos(self) -> bool:
        """True if <s> may be counted among the tokens: it is a type of the vocabulary, or may be."""
        return bool(self.sentences) and (self.vocabulary == "all" or self.has_typed_symbols)

    @cached_property
    def effective_padding(self) -> Padding:
        """The padding; unigrams have none unless it is stated."""
        return self.padding if self.order > 1 or "padding" in self.model_fields_set else "none"

    def make_model(self, **changes: Any) -> NGramModel:
        """Return the model of the exercise with other conventions."""
        options = {
            "smoothing": self.smoothing,
            "k": self.k,
            "lambdas": self.lambdas,
            "backoff": self.backoff,
            "discount": self.discount,
            "vocabulary_size": self.vocabulary_size,
        }
        conventions = {"padding": self.effective_padding, "vocabulary": self.vocabulary, **changes}
        options |= {key: conventions.pop(key) for key in list(conventions) if key in options}
        if not self.counts:
            unknown = self.unknown or self.min_count > 1
            return count_ngrams(self.sentences, self.order, has_unknown=unknown, **conventions, **options)
        counts = {self._split(ngram): count for ngram, count in self.counts.items()}
        words = frozenset(word for ngram in counts for word in ngram)
        symbols = {"end": {BOS}, "words": {BOS, EOS}, "all": set[str]()}[conventions["vocabulary"]]
        return NGramModel(
            self.order,
            counts,
            counts.get((BOS,), 0),
            words - symbols,
            int(self.unknown),
            conventions["padding"],
            is_table=True,
            **options,
        )

    @cached_property
    def model(self) -> NGramModel:
        """The model of the exercise."""
        return self.make_model()

    @cached_property
    def words_by_casefold(self) -> dict[str, str]:
        """The words of the model by their lower-case form."""
        words = {word for ngram in self.model.counts for word in ngram} | {BOS, EOS, UNKNOWN}
        return {word.casefold(): word for word in sorted(words, reverse=True)}

    def _split(self, text: str) -> Words:
        """Return the words of a text, with symbols in their standard form."""
        words = (SYMBOL_NAMES.get(word.casefold(), word) if word[:1] in "<⟨" else word for word in text.split())
        return tuple(word.lower() if self.lowercase else word for word in words)

    def _read_words(self, text: str) -> Words:
        """Return the words in the brackets of a name; case and symbols are matched to those of the corpus."""
        text = re.sub(r"<\s*(/?)\s*(\w+)\s*>", r" <\1\2> ", text)
        words = (
            text.replace("_", " ").split() if not any("_" in word for word in self.words_by_casefold) else text.split()
        )
        exact = set(self.words_by_casefold.values())
        read = []
        for word in (part for raw in words for part in ([raw] if raw in exact else raw.split(","))):
            word = word.strip("'") or word
            if not word:
                continue
            if word not in exact:
                word = self.words_by_casefold.get(word.casefold(), SYMBOL_NAMES.get(word.casefold(), word))
            if (self.unknown or self.min_count > 1) and word not in exact:
                word = UNKNOWN
            read.append(word)
        if len(read) > 100:
            raise InputError(f"{self.name}: at most 100 words are read in a name; got {len(read)}.")
        return tuple(read)

    # Values

    def check_bare_answer(self, answer: str) -> None:
        """Raise an InputError if the fields do not say what a number without a name is."""
        if not (self.asks or self.test or self.context):
            raise InputError(f"{self.name}: '{answer[:40]}' has no name. Which value is it? As in 'P(Sam | am) = 1/2'")

    def main_names(self) -> tuple[str, ...]:
        """Return the perplexity of a test, the most likely next word, or the number of n-gram types."""
        return ("PP",) if self.test else ("next word",) if self.context else ("n-gram types",)

    def rewrite_line(self, line: str) -> str:
        """Return a line with calculations worked out."""
        variable = r"([(|,]\s*)[wWxX]_?\{?[\w+−-]*\}?\s*=\s*(?=[^=]*\)\s*=)"  # as in P(w_2 = am | w_1 = I)
        line = re.sub(variable, r"\1", re.sub(variable, r"\1", line))
        ratio = re.match(r"\s*(?:C|c|[Cc]ount)\(([^()]+)\)\s*/\s*(?:C|c|[Cc]ount)\(([^()]+)\)\s*=(?!=)", line)
        if ratio:
            words, context = self._read_words(ratio[1]), self._read_words(ratio[2])
            if len(words) == len(context) + 1 and words[:-1] == context:
                line = f"P({words[-1]} | {' '.join(context)}) = {line[ratio.end() :]}"
        return rewrite_number(line)

    def check(self, answers: Sequence[str], show_solution: bool = False) -> ValueReport:
        """Check lines `NAME = VALUE`; a unit such as bits or nats says the base of the logarithms."""
        return check_information_units(self, answers, partial(ValueExercise.check, show_solution=show_solution))

    def expected_values(self) -> Sequence[ExpectedValue]:
        """Return the sizes of the corpus, and the values of the test or context."""
        values = [self._expect_tokens(), self._expect_vocabulary(), self._expect_types()]
        if self.smoothing == "good-turing":
            values += self._expect_good_turing()
        if self.test:
            events = [event for sentence in self.test for event in self.model.events(self._read_words(sentence))]
            for context, word in list(dict.fromkeys(events))[:MAX_LISTED_FACTORS]:
                values.append(self.expect_probability(context, word))
            values += self._expect_text([self._read_words(sentence) for sentence in self.test], "")
        if self.context:
            values.append(self._expect_next(self._read_words(" ".join(self.context)), "next word"))
        return values

    def _expect_tokens(self) -> ExpectedValue:
        """Return the number of tokens."""
        model, words = self.model, sum(map(len, self.sentences))
        mistakes = {
            "the end symbols </s> are left out": float(words),
            "the begin symbols <s> are counted too": float(model.token_count + model.bos_count),
            "types are counted, not tokens": float(len(model.vocabulary)),
        }
        alternatives = [("counted without </s>", float(words))] if self.sentences else []
        if self.may_count_bos:
            alternatives.append(("counted with <s>", float(model.token_count + model.bos_count)))
        return expect_numbers(
            ["N", "number of tokens", "tokens"],
            model.token_count,
            meaning="tokens, with </s> if it is used",
            mistakes=keep_distinct(model.token_count, mistakes),
            scales=make_alternatives(model.token_count, alternatives),
            formula="N = words and end symbols; <s> is never predicted, so it is not counted",
        )

    def _expect_vocabulary(self) -> ExpectedValue:
        """Return the size of the vocabulary."""
        model, types = self.model, len(self.model.vocabulary - {EOS})
        mistakes = {
            "the symbol </s> is left out of V (state vocabulary=words to count so)": float(types + self.unknown),
            "the symbol </s> is counted in V (state vocabulary=end to count so)": float(types + 1 + self.unknown),
            "the begin symbol <s> is counted in V": float(types + 2 + self.unknown),
            "tokens are counted, not types": float(model.token_count),
        }
        is_open = self.smoothing != "add-k" and "vocabulary" not in self.model_fields_set and not self.vocabulary_size
        alternatives = [("the types of words alone", float(types))] if is_open else []
        if self.has_typed_symbols:
            alternatives.append(("the types with <s> and </s>", float(types + 2 + self.unknown)))
        return expect_numbers(
            ["V", "|V|", "vocabulary size"],
            model.size,
            meaning="types in the vocabulary" + (" with </s>" if model.extra_types else ""),
            mistakes=keep_distinct(model.size, mistakes),
            scales=make_alternatives(model.size, alternatives),
            formula={"end": "word types, and </s> if it is used", "words": "word types"}.get(
                self.vocabulary, "word types, <s> and </s>"
            ),
            work=", ".join(sorted(model.vocabulary)[:20]) + ("; </s>" if model.extra_types else ""),
        )

    def _expect_types(self) -> ExpectedValue:
        """Return the number of different n-grams."""
        ngrams = [
            ngram
            for ngram, count in self.model.counts.items()
            if len(ngram) == self.order and ngram[-1] != BOS and count
        ]
        occurrences = sum(self.model.count(ngram) for ngram in ngrams)
        inner = [ngram for ngram in ngrams if not {BOS, EOS} & set(ngram)]
        name = {1: "unigram", 2: "bigram", 3: "trigram"}.get(self.order, f"{self.order}-gram")
        mistakes = {
            f"occurrences are counted, not different {name}s": float(occurrences),
            f"the {name}s with <s> and </s> are left out": float(len(inner)),
            f"all possible {name}s are counted, not those that occur": float(self.model.size**self.order),
        }
        return expect_numbers(
            ["n-gram types", f"{name} types", f"number of {name} types", f"different {name}s"],
            len(ngrams),
            meaning=f"different {name}s, with those of <s> and </s>",
            mistakes=keep_distinct(len(ngrams), mistakes),
            work=", ".join(" ".join(ngram) for ngram in ngrams[:12]) + (", …" if len(ngrams) > 12 else ""),
        )

    def _expect_good_turing(self) -> list[ExpectedValue]:
        """Return the counts of counts, and the probability of what was not seen."""
        table = self.model.counts_of_counts(self.order)
        total = sum(count * number for count, number in table.items())
        values = [
            expect_numbers(
                f"N_{count}",
                table[count],
                meaning=f"n-grams that occur {count} times",
                mistakes=keep_distinct(
                    table[count], {"occurrences are counted, not types": float(count * table[count])}
                ),
            )
            for count in sorted(table)[:8]
        ]
        unseen = table[1] / total if total else 0.0
        mistakes = {
            "the number of types is the denominator, not the number of occurrences": table[1]
            / max(1, sum(table.values())),
            "N_2 is used in place of N_1": table[2] / max(1, total),
            "unseen n-grams get no probability, as without smoothing": 0.0,
        }
        seen = expect_numbers(
            ["P(unseen)", "P_0", "p0", "P_GT(unseen)", "P(new)"],
            unseen,
            meaning="total probability of n-grams that were not seen",
            mistakes=keep_distinct(unseen, mistakes),
            formula="P(unseen) = N_1 / N",
            work=f"{table[1]}/{total}",
        )
        return [*values, seen]

    def find_value(self, name: str) -> ExpectedValue | None:
        """Return a count, probability, weight or perplexity by its name, such as P(Sam | am) or C(I am)."""
        text = name
        for pattern, replacement in _LATEX:
            text = re.sub(pattern, replacement, text)
        match = _CALL.fullmatch(text.strip())
        if not match:
            function = re.sub(r"[\s_{}]", "", text).casefold()
            logarithm = re.fullmatch(r"(log|ln|log2|log10|lg)p", function)
            if not logarithm or not self.test:
                return None
            probability = self._expect_text([self._read_words(sentence) for sentence in self.test], "")[0]
            return self._take_logarithm(name, logarithm[1], probability)
        if re.search(r"\)[^(]*\(", match["arguments"]):  # several brackets, as in C(a b)/C(a)
            return None
        function = re.sub(r"[\s_{}\-^]", "", match["name"]).casefold()
        arguments = re.sub(r"(?<=\S)\s+given\s+(?=\S)", "|", match["arguments"])
        if logarithm := re.fullmatch(r"(log|ln|log2|log10|lg)(p.*)?", function):
            if not logarithm[2]:
                inner = _CALL.fullmatch(arguments.strip())
                return self._expect_logarithm(name, logarithm[1], arguments) if inner else None
            return self._expect_logarithm(name, logarithm[1], f"{logarithm[2]}({arguments})")
        return self._find_function(name, function, arguments)

    def _find_function(self, name: str, function: str, arguments: str) -> ExpectedValue | None:
        """Return the value of a function by its plain name, such as p, pkn, c or lambda."""
        left, bar, right = arguments.partition("|")
        if function in ("c", "count", "freq", "f", "#", "n") and not bar:
            return self._expect_count(self._read_words(arguments), name)
        if function in ("c*", "cstar", "c*gt", "adjustedcount", "c'"):
            return self._expect_adjusted_count(self._read_words(arguments), name)
        if function in ("n1+", "types", "n1", "follow", "ncont"):
            return self._expect_continuation_count(arguments, name)
        if function in ("pcont", "pcontinuation", "pc", "pcn"):
            return self._expect_continuation(self._read_words(arguments), name)
        if function in ("lambda", "lambdakn", "gamma"):
            return self._expect_weight(self._read_words(arguments), name)
        if function in ("alpha", "alphakatz", "bow"):
            return self._expect_backoff_weight(self._read_words(arguments), name)
        if function in ("next", "nextword", "argmax", "best", "mostlikely", "argmaxp"):
            return self._expect_next(self._read_words(right or left), name)
        if function in ("pp", "ppl", "perplexity", "h", "crossentropy", "entropy"):
            values = self._expect_text([self._read_words(arguments)], name)
            return values[-1] if function in ("pp", "ppl", "perplexity") else values[-2]
        if not re.fullmatch(r"(p|pr|s|prob|phat|hatp).*", function):
            return None
        exercise = self._with_smoothing(re.sub(r"^(prob|phat|hatp|pr|p)", "", function))
        if exercise is None:
            return None
        if not bar:
            words = self._read_words(left)
            if len(words) == 1 and words[0] not in (BOS, EOS):
                return exercise.expect_probability((), words[0], name)
            return exercise._expect_text([words], name)[0] if words else None
        context, words = self._read_words(right), self._read_words(left)
        if len(words) != 1 or not context:
            raise InputError(f"{self.name}: {name}: one word before the bar, its context after it, as in P(Sam | am).")
        return exercise.expect_probability(context, words[0], name)

    def _with_smoothing(self, subscript: str) -> "NGramExercise | None":
        """Return the exercise with the smoothing that the subscript of a probability names."""
        if subscript in ("", "lm", "bigram", "trigram", "unigram", "bi", "uni", "tri", self.smoothing.replace("-", "")):
            return self
        if subscript in ("interp", "interpolated", "int", "li", "bo", "backoff", "s", "katz", "kn", "gt", "goodturing"):
            return self
        if subscript in ("mle", "ml"):
            return self.replace_smoothing("none")
        if subscript in ("laplace", "add1", "addone", "l", "lap"):
            return self.replace_smoothing("add-k", 1.0)
        if match := re.fullmatch(r"add(k|0?\.\d+|\d+)", subscript):
            return self.replace_smoothing("add-k", self.k if match[1] == "k" else float(match[1]))
        return None

    def replace_smoothing(self, smoothing: Smoothing, k: float | None = None) -> "NGramExercise":
        """Return the exercise with another smoothing."""
        if smoothing == self.smoothing and k in (None, self.k):
            return self
        fields = {**self.model_dump(exclude_unset=True), "smoothing": smoothing, "k": self.k if k is None else k}
        return NGramExercise.read(fields, self.name)

    def _expect_count(self, words: Words, name: str) -> ExpectedValue:
        """Return how often an n-gram occurs."""
        if not words:
            raise InputError(f"{self.name}: {name}: which words are counted? As in C(I am).")
        right = self.model.count(words) if len(words) <= self.order else self._count_long(words)
        sentences = sum(set(words) <= set(sentence) for sentence in self.sentences)
        mistakes = {
            "that is the count of the words in the other order": float(self._count_long(words[::-1])),
            "that is the number of sentences with these words": float(sentences),
            "that counts all occurrences of the last word": float(self._count_long(words[-1:])),
            "that counts all occurrences of the first word": float(self._count_long(words[:1])),
        }
        return expect_numbers(
            [name],
            right,
            meaning=f"occurrences of '{' '.join(words)}'",
            mistakes=keep_distinct(right, mistakes if len(words) > 1 else {}),
            formula="count in each sentence, with its begin and end symbols",
        )

    def _count_long(self, words: Words) -> int:
        """Return how often words of any number occur in a row."""
        if self.model.is_table or len(words) <= self.order:
            return self.model.count(words)
        padded = [self.model.pad(sentence)[0] for sentence in self.sentences]
        return sum(
            padded_words[start : start + len(words)] == words
            for padded_words in padded
            for start in range(len(padded_words))
        )

    def _expect_adjusted_count(self, words: Words, name: str) -> ExpectedValue:
        """Return the count that a smoothing amounts to."""
        model = self.model
        if self.smoothing == "good-turing":
            is_count = len(words) == 1 and words[0].isdigit() and words[0] not in model.vocabulary
            count = int(words[0][:9]) if is_count else model.count(words)
            length = self.order if is_count else len(words)
            table = model.counts_of_counts(length)
            right = model.adjusted_count(count, length)
            mistakes = {
                "the count is not adjusted": float(count),
                "c is the factor, not c + 1": count * table[count + 1] / max(1, table[count]),
                "N_c and N_{c+1} are exchanged": (count + 1) * table[count] / table[count + 1],
                "the factor c + 1 is left out": table[count + 1] / max(1, table[count]),
            }
            work = f"({count} + 1) · {table[count + 1]} / {format_ratio((count + 1) * table[count + 1] / right)}"
            return expect_numbers(
                [name],
                right,
                mistakes=keep_distinct(right, mistakes),
                formula="c* = (c + 1) N_{c+1} / N_c",
                work=work,
            )
        probability = model.probability(words[:-1], words[-1])
        total = model.context_count(words[:-1])
        right = (probability or 0.0) * total
        count = model.count(words)
        mistakes = {
            "the count is not smoothed": float(count),
            "k is added, but the count is not scaled back": count + self.k,
        }
        return expect_numbers(
            [name],
            right,
            mistakes=keep_distinct(right, mistakes),
            up_to=frozenset({"decimals"}),
            formula="c* = P(w | v) · C(v), for add-k (C(v w) + k) C(v) / (C(v) + k V)",
            work=f"{format_ratio(probability or 0.0)} · {total}",
        )

    def _expect_continuation_count(self, arguments: str, name: str) -> ExpectedValue | None:
        """Return the number of different words before or after others, as in N1+(* Sam)."""
        words = self._read_words(arguments)
        stars = [index for index, word in enumerate(words) if word in ("*", ".", "_")]
        bigrams = [ngram for ngram in self.model.counts if len(ngram) == max(2, len(words)) and ngram[-1] != BOS]
        if not stars:
            stars, words = [len(words)], (*words, "*")
            bigrams = [ngram for ngram in bigrams if len(ngram) == len(words)]
        matching = [
            ngram
            for ngram in bigrams
            if len(ngram) == len(words)
            and all(index in stars or ngram[index] == word for index, word in enumerate(words))
        ]
        right = len(matching)
        mistakes = {"occurrences are counted, not types": float(sum(self.model.count(ngram) for ngram in matching))}
        return expect_numbers(
            [name],
            right,
            mistakes=keep_distinct(right, mistakes),
            formula="count each n-gram type once, however often it occurs",
            work=", ".join(" ".join(ngram) for ngram in matching[:12]),
        )

    def _expect_continuation(self, words: Words, name: str) -> ExpectedValue:
        """Return the continuation probability of a word."""
        if len(words) != 1:
            raise InputError(f"{self.name}: {name}: one word is expected, as in P_cont(Sam).")
        model, word = self.model, words[0]
        before = model.continuations.get((), Counter())[word]
        types = sum(model.continuations.get((), {}).values())
        right = before / types if types else 0.0
        after = len(model.followers.get((word,), {}))
        mistakes = {
            "the relative frequency is given: count the different words before it, not its occurrences": model.estimate(
                (), word
            ),
            "occurrences of the word are divided by bigram types": model.count((word,)) / max(1, types),
            "the words after it are counted, not those before": after / max(1, types),
            "the denominator is the vocabulary, not the number of bigram types": before / max(1, model.size),
            "the denominator is the number of bigrams, not of their types": before
            / max(1, sum(model.count(ngram) for ngram in model.counts if len(ngram) == 2 and ngram[-1] != BOS)),
            "only the numerator is given: divide by the number of bigram types": float(before),
        }
        return expect_numbers(
            [name],
            right,
            mistakes=keep_distinct(right, mistakes),
            formula="P_cont(w) = different words before w / bigram types",
            work=f"{before}/{types}",
            scales={100: "in per cent"},
        )

    def _expect_weight(self, context: Words, name: str) -> ExpectedValue:
        """Return the weight of the lower order in Kneser–Ney smoothing."""
        model = self.model
        if self.smoothing == "interpolation":
            raise InputError(f"{self.name}: the weights of interpolation are given: lambdas = {self.lambdas}.")
        total, types = model.followed_count(context), len(model.followers.get(context, {}))
        right = self.discount * types / total if total else 1.0
        before = model.continuations.get((), Counter())[context[-1]] if context else 0
        mistakes = {
            "the number of different next words is left out": self.discount / max(1, total),
            "the discount is left out": types / max(1, total),
            "the words before it are counted, not those after": self.discount * before / max(1, total),
            "the denominator is the number of types, not the count of the context": self.discount,
            "occurrences are counted, not types": self.discount * total / max(1, total),
            "not divided by the count of the context": self.discount * types,
            "that is 1 − λ": 1 - right,
        }
        return expect_numbers(
            [name],
            right,
            mistakes=keep_distinct(right, mistakes),
            formula="λ(v) = d · (different words after v) / C(v)",
            work=f"{self.discount:g} · {types}/{total}",
        )

    def _expect_backoff_weight(self, context: Words, name: str) -> ExpectedValue:
        """Return the weight of the lower order in Katz's back-off."""
        model, seen = self.model, self.model.followers.get(context, Counter())
        right, total = model.backoff_weight(context), model.context_count(context)
        left = 1 - sum((count - self.discount) / total for count in seen.values()) if total else 1.0
        mistakes = {
            "the left-over probability is not divided by that of the unseen words": left,
            "the discount of one n-gram alone is taken": self.discount / total if total else None,
            "inverted": 1 / right if right else None,
        }
        return expect_numbers(
            [name],
            right,
            mistakes=keep_distinct(right, mistakes),
            formula="α(v) = (1 − Σ_seen P*(w | v)) / (1 − Σ_seen P(w))",
            work=f"{format_ratio(left)} / {format_ratio(left / right if right else 0.0)}",
        )

    def _expect_next(self, context: Words, name: str) -> ExpectedValue:
        """Return the most likely next word; several where they tie."""
        model = self.model
        candidates = sorted(
            (model.vocabulary - {BOS}) | ({EOS} if self.effective_padding in ("full", "single") else set())
        )
        scores = {word: model.probability(context, word) or 0.0 for word in candidates[:5000]}
        best = max(scores.values(), default=0.0)
        if not scores or best <= 0:
            raise InputError(f"{self.name}: {name}: no word follows '{' '.join(context)}'.")
        words = tuple(word for word, score in scores.items() if math.isclose(score, best, rel_tol=1e-12))
        frequent = max(candidates, key=lambda word: model.count((word,)))
        before = model.continuations.get((), {}) and max(
            candidates, key=lambda word: model.counts.get((word, *context[-1:]), 0)
        )
        wrong = {
            "that is the most frequent word of all": frequent,
            "that is the most frequent word before it, not after it": str(before),
        }
        return expect_word(
            [name],
            words,
            meaning=f"most likely word after '{' '.join(context)}'",
            mistakes={text: word for text, word in wrong.items() if word not in words},
            formula="argmax over w of P(w | v)",
            work=", ".join(
                f"P({word}) = {format_ratio(scores[word])}" for word in sorted(scores, key=lambda w: -scores[w])[:4]
            ),
        )

    # Probabilities

    def _mistaken_probabilities(self) -> Iterator[tuple[str, Probability]]:
        """Yield what mistakes make of the probability of a word after a context, by description."""
        model = self.model
        unsmoothed = replace(model, smoothing="none")
        if self.smoothing != "none":
            yield "the counts are not smoothed", lambda context, word: unsmoothed.estimate(self._shorten(context), word)
        yield from getattr(self, f"_mistakes_of_{self.smoothing.replace('-', '_')}", lambda: ())()
        if self.corpus and self.smoothing == "none" and self.effective_padding != "none":
            bare = self.make_model(padding="none")
            yield (
                "the symbols <s> and </s> are left out of the counts",
                lambda context, word: (
                    None
                    if {BOS, EOS} & {*context, word} or not (total := bare.followed_count(self._shorten(context)))
                    else bare.count((*self._shorten(context), word)) / total
                ),
            )

        def reverse(context: Words, word: str) -> float | None:
            if len(context) != 1 or self.order < 2:
                return None
            total = self._reversed_total(word)
            return self._reverse(context[0], word, total) if total else None

        def join(context: Words, word: str) -> float | None:
            context = self._shorten(context)
            total = sum(n for ngram, n in model.counts.items() if len(ngram) == len(context) + 1 and ngram[-1] != BOS)
            return model.count((*context, word)) / total if context and total else None

        yield "the condition is reversed: P(v | w) in place of P(w | v)", reverse
        yield "the joint probability is given: divide by the count of the context, not by all bigrams", join
        yield (
            "the denominator is the number of tokens, not the count of the context",
            lambda context, word: (
                unsmoothed.count((*self._shorten(context), word)) / model.token_count if model.token_count else None
            ),
        )
        yield (
            "the context is ignored: that is the probability of the word alone",
            lambda context, word: unsmoothed.estimate((), word) if context else None,
        )
        yield (
            "the denominator is the size of the vocabulary, not the count of the context",
            lambda context, word: (
                unsmoothed.count((*self._shorten(context), word)) / model.size if model.size else None
            ),
        )
        yield (
            "the denominator is the number of different next words, not the count of the context",
            lambda context, word: (
                unsmoothed.count((*self._shorten(context), word)) / len(seen)
                if (seen := model.followers.get(self._shorten(context), {}))
                else None
            ),
        )
        if self.smoothing == "none":
            for k in (1.0,):
                smoothed = replace(model, smoothing="add-k", k=k)
                yield "smoothed: the maximum-likelihood estimate is asked for", smoothed.probability

    def _reversed_total(self, word: str) -> float:
        extra = self.k * self.model.size if self.smoothing == "add-k" else 0.0
        return self.model.context_count((word,)) + extra

    def _reverse(self, previous: str, word: str, total: float) -> float:
        extra = self.k if self.smoothing == "add-k" else 0.0
        return (self.model.count((previous, word)) + extra) / total

    def _shorten(self, context: Words) -> Words:
        """Return the last n − 1 words of a context."""
        return context[-(self.order - 1) :] if self.order > 1 else ()

    def _mistakes_of_add_k(self) -> Iterator[tuple[str, Probability]]:
        """Yield mistakes with add-k smoothing."""
        model, k = self.model, self.k

        def with_parts(add_to_count: float, add_to_total: float) -> Probability:
            def probability(context: Words, word: str) -> float | None:
                context = self._shorten(context)
                total = model.context_count(context) + add_to_total
                return (model.count((*context, word)) + add_to_count) / total if total else None

            return probability

        yield f"{k:g} is added to the count alone: the denominator grows by k·V", with_parts(k, 0)
        yield "the denominator grows by k·V, but k is not added to the count", with_parts(0, k * model.size)
        yield f"the denominator grows by {k:g} only: add k for each of the V words", with_parts(k, k)
        if k != 1:
            yield "V is not multiplied by k", with_parts(k, model.size)
            yield f"1 is added, not k = {k:g}", with_parts(1, model.size)
        if not self.vocabulary_size:
            types = len(model.vocabulary - {EOS}) + self.unknown
            if self.unknown:
                yield "V leaves out <unk>", with_parts(k, k * (model.size - 1))
            for size, text in (
                (types, "V leaves out </s> (state vocabulary=words to count so)"),
                (types + 1, "V counts </s> (state vocabulary=end to count so)"),
                (types + 2, "V counts <s> too (state vocabulary=all to count so)"),
            ):
                if size != model.size:
                    yield text, with_parts(k, k * size)
        yield "the number of tokens is used for V", with_parts(k, k * model.token_count)

        def with_types(context: Words, word: str) -> float | None:
            context = self._shorten(context)
            return with_parts(k, k * len(model.followers.get(context, {})))(context, word) if context else None

        yield "V counts the words that follow the context, not the whole vocabulary", with_types

    def _mistakes_of_backoff(self) -> Iterator[tuple[str, Probability]]:
        """Yield mistakes with stupid back-off."""
        model, factor = self.model, self.backoff

        def lower(context: Words, word: str) -> float | None:
            context = self._shorten(context)
            return replace(model, smoothing="none").estimate(context[1:], word) if context else None

        yield f"the factor {factor:g} of the back-off is left out", lower
        yield (
            "backed off although the n-gram occurs",
            lambda context, word: factor * (lower(context, word) or 0.0) if context else None,
        )
        yield (
            "the factor is 1 − α, not α",
            lambda context, word: (1 - factor) * (lower(context, word) or 0.0) if context else None,
        )
        yield (
            "the lower order is added: back-off uses it only where the n-gram does not occur",
            lambda context, word: (
                (model.estimate(self._shorten(context), word) or 0.0) + factor * (lower(context, word) or 0.0)
                if context
                else None
            ),
        )

    def _mistakes_of_katz(self) -> Iterator[tuple[str, Probability]]:
        """Yield mistakes with Katz's back-off."""
        model = self.model

        def lower(context: Words, word: str) -> float | None:
            return model.katz(self._shorten(context)[1:], word) if context else None

        def left_over(context: Words, word: str) -> float | None:
            context = self._shorten(context)
            total, seen = model.context_count(context), model.followers.get(context, Counter())
            if not total or seen[word]:
                return None
            return self.discount * len(seen) / total * (lower(context, word) or 0.0)

        yield "the weight α of the back-off is left out", lower
        yield "the left-over probability is not divided by that of the unseen words", left_over

    def _mistakes_of_interpolation(self) -> Iterator[tuple[str, Probability]]:
        """Yield mistakes with linear interpolation."""
        model, unsmoothed = self.model, replace(self.model, smoothing="none")
        yield "the weights are exchanged", replace(model, lambdas=self.lambdas[::-1]).interpolate
        yield (
            "the weights are left out",
            lambda context, word: sum(
                unsmoothed.estimate(self._shorten(context)[start:], word) or 0.0
                for start in range(len(self._shorten(context)) + 1)
            ),
        )
        yield (
            "only the highest order is weighted; the others are left out",
            lambda context, word: self.lambdas[0] * (unsmoothed.estimate(self._shorten(context), word) or 0.0),
        )
        yield (
            "only the lowest order is used",
            lambda context, word: self.lambdas[self.order - 1] * (unsmoothed.estimate((), word) or 0.0),
        )

        def count_bos(context: Words, word: str) -> float | None:
            total = model.token_count + model.bos_count
            unigram_weight = self.lambdas[self.order - 1]
            unigram = unsmoothed.estimate((), word) or 0.0
            return (
                model.interpolate(context, word) + unigram_weight * (model.count((word,)) / total - unigram)
                if total
                else None
            )

        def use_words(context: Words, word: str) -> float | None:
            unigram = unsmoothed.estimate((), word) or 0.0
            unigram_weight = self.lambdas[self.order - 1]
            return model.interpolate(context, word) + unigram_weight * (model.count((word,)) / model.size - unigram)

        yield "the unigram probability counts <s> among the tokens (state vocabulary=all to count so)", count_bos
        yield "the unigram probability is divided by V, not by the number of tokens", use_words

    def _mistakes_of_kneser_ney(self) -> Iterator[tuple[str, Probability]]:
        """Yield mistakes with Kneser–Ney smoothing."""
        model, discount = self.model, self.discount

        def combine(
            first: Callable[[int, int], float], weight: Callable[[int, int], float], lower: Probability
        ) -> Probability:
            def probability(context: Words, word: str) -> float | None:
                context = self._shorten(context)
                seen = model.followers.get(context, Counter())
                total = sum(seen.values())
                if not total or not context:
                    return None
                return first(seen[word], total) + weight(len(seen), total) * (lower(context, word) or 0.0)

            return probability

        def discounted(count: int, total: int) -> float:
            return max(count - discount, 0.0) / total

        def interpolation_weight(types: int, total: int) -> float:
            return discount * types / total

        def continued(context: Words, word: str) -> float:
            return model.kneser_ney(context[1:], word, is_highest=False)

        def unigram(context: Words, word: str) -> float | None:
            return replace(model, smoothing="none").estimate((), word)

        yield "the second term, λ(v)·P_cont(w), is left out", combine(discounted, lambda types, total: 0.0, continued)
        yield (
            "the relative frequency of the word is used, not its continuation probability",
            combine(discounted, interpolation_weight, unigram),
        )
        yield (
            "the discount is not subtracted from the count",
            combine(lambda count, total: count / total, interpolation_weight, continued),
        )
        yield "the weight λ(v) is left out", combine(discounted, lambda types, total: 1.0, continued)
        yield (
            "λ(v) leaves out the number of different next words",
            combine(discounted, lambda types, total: discount / total, continued),
        )
        yield (
            "λ(v) leaves out the discount",
            combine(discounted, lambda types, total: types / total, continued),
        )
        yield "the first term is left out", combine(lambda count, total: 0.0, interpolation_weight, continued)
        yield (
            "the weight is the discount itself, not d·types/C(v)",
            combine(discounted, lambda types, total: discount, continued),
        )
        yield (
            "the discount is subtracted although the count is 0",
            combine(lambda count, total: (count - discount) / total, interpolation_weight, continued),
        )
        yield "only the continuation probability is given", lambda context, word: model.continuation(word)

    def expect_probability(self, context: Words, word: str, name: str = "") -> ExpectedValue:
        """Return the probability of a word after a context."""
        model = self.model
        full = context[-(self.order - 1) :] if self.order > 1 else ()
        if full and set(full) == {BOS} and self.effective_padding == "full":
            full = (BOS,) * (self.order - 1)
        name = name or (f"P({word} | {' '.join(full)})" if full else f"P({word})")
        if not full and self.order > 1:
            right = model._unigram(word) if self.smoothing != "add-k" else replace(model, order=1).probability((), word)
        elif len(full) < self.order - 1:
            right = (
                model.probability_of_order(full, word)
                if self.smoothing != "interpolation"
                else model.estimate(full, word)
            )
        else:
            right = model.probability(full, word)
        formula, work = self._explain_probability(full, word, right)
        if right is None:
            return expect_word([name], UNDEFINED, formula=formula, work="the context does not occur")
        mistakes = {text: probability(full, word) for text, probability in self._mistaken_probabilities()}
        conventions = [*self._alternative_probabilities(full, word)]
        accepted = make_alternatives(right, conventions)
        mistakes = {
            text: value
            for text, value in mistakes.items()
            if value is None or not any(math.isclose(value, right * factor, rel_tol=1e-9) for factor in accepted)
        }
        return expect_numbers(
            [name],
            right,
            meaning=f"probability of '{word}'" + (f" after '{' '.join(full)}'" if full else ""),
            mistakes=keep_distinct(right, mistakes),
            scales={100: "in per cent", **accepted},
            formula=formula,
            work=work,
        )

    def _alternative_probabilities(self, context: Words, word: str) -> Iterator[tuple[str, float]]:
        """Yield the probability in other conventions that textbooks use, for what the statement leaves open."""
        model = self.model
        is_unsmoothed = self.smoothing == "none"
        if not context and is_unsmoothed and self.sentences and model.token_count:
            words = sum(map(len, self.sentences))
            yield "with the words alone as tokens, without </s>", model.count((word,)) / words
        tokens_with_bos = model.token_count + model.bos_count
        can_count_bos = self.may_count_bos and model.bos_count and tokens_with_bos
        if can_count_bos and not context and is_unsmoothed:
            yield "with <s> counted as a token", model.count((word,)) / tokens_with_bos
        if can_count_bos and self.smoothing == "interpolation" and context:
            shifted = model.count((word,)) / tokens_with_bos - model.count((word,)) / model.token_count
            yield (
                "with <s> counted as a token",
                model.interpolate(context, word) + self.lambdas[self.order - 1] * shifted,
            )
        if can_count_bos and self.smoothing == "add-k":
            size = model.size + (1 if self.has_typed_symbols else 0)
            total = model.context_count(context) if context else tokens_with_bos
            yield "with <s> counted in V", (model.count((*context, word)) + self.k) / (total + self.k * size)
        if (
            context
            and is_unsmoothed
            and (total := model.followed_count(context))
            and total != model.context_count(context)
        ):
            yield "with the occurrences of the context that have a next word", model.count((*context, word)) / total
        if self.smoothing == "interpolation" and self.sentences and model.token_count and context:
            words, unigram_weight = sum(map(len, self.sentences)), self.lambdas[self.order - 1]
            shifted = model.count((word,)) / words - model.count((word,)) / model.token_count
            yield (
                "with the words alone as tokens, without </s>",
                model.interpolate(context, word) + unigram_weight * shifted,
            )
        if self.smoothing == "backoff" and self.sentences and context and not model.count((*context, word)):
            words = sum(map(len, self.sentences))
            right = model.probability(context, word)
            if right:
                yield "with the words alone as tokens, without </s>", right * model.token_count / words

    def _explain_probability(self, context: Words, word: str, right: float | None) -> tuple[str, str]:
        """Return the general formula of a probability and the computation with its counts."""
        model, ngram = self.model, " ".join((*context, word))
        count, total = model.count((*context, word)), model.context_count(context)
        before = f"C({' '.join(context)})" if context else "N"
        result = format_ratio(right) if right is not None else "not defined"
        match self.smoothing:
            case "add-k":
                return (
                    "P(w | v) = (C(v w) + k) / (C(v) + k V)",
                    f"(C({ngram}) + {self.k:g}) / ({before} + {self.k:g}·{model.size}) = "
                    f"({count} + {self.k:g}) / ({total} + {self.k * model.size:g}) = {result}",
                )
            case "backoff":
                formula = "S(w | v) = C(v w)/C(v) if C(v w) > 0, else α·S(w)"
                if count or not context:
                    return formula, f"C({ngram})/{before} = {count}/{total}"
                return formula, f"C({ngram}) = 0, so {self.backoff:g} · S({word} | lower order) = {result}"
            case "interpolation":
                terms = [
                    f"{weight:g}·{format_ratio(model.estimate(context[start:], word) or 0.0)}"
                    for start, weight in zip(range(len(context) + 1), self.lambdas, strict=False)
                ]
                return "P(w | v) = λ_n P_ML(w | v) + … + λ_1 P_ML(w)", f"{' + '.join(terms)} = {result}"
            case "kneser-ney" if len(context) == 1:
                seen = model.followers.get(context, Counter())
                total = sum(seen.values())
                return (
                    "P_KN(w | v) = max(C(v w) − d, 0)/C(v) + λ(v) P_cont(w), λ(v) = d·(different words after v)/C(v)",
                    f"max({count} − {self.discount:g}, 0)/{total} + {self.discount:g}·{len(seen)}/{total} · "
                    f"{format_ratio(model.continuation(word))} = {result}",
                )
            case "kneser-ney":
                return (
                    "P_KN(w | u v) = max(C(u v w) − d, 0)/C(u v) + λ(u v) P_KN(w | v), with continuation counts below",
                    f"C({ngram}) = {count}, lower order {format_ratio(model.kneser_ney(context[1:], word, False))}",
                )
            case "katz":
                formula = "P(w | v) = (C(v w) − d)/C(v) if C(v w) > 0, else α(v) P(w)"
                if count or not context:
                    return formula, f"({count} − {self.discount:g})/{total} = {result}"
                weight = format_ratio(model.backoff_weight(context))
                return formula, f"α · P({word}) = {weight} · {format_ratio(model.katz(context[1:], word) or 0.0)}"
            case "good-turing":
                return "P(w | v) = c*/C(v), c* = (c + 1) N_{c+1}/N_c", f"c = {count}, {before} = {total}: {result}"
            case _:
                return (
                    "P(w | v) = C(v w)/C(v)" if context else "P(w) = C(w)/N"
                ), f"C({ngram})/{before} = {count}/{total}"

    def _expect_text(self, sentences: Sequence[Words], name: str) -> list[ExpectedValue]:
        """Return the probability of sentences, its logarithm, the cross-entropy and the perplexity."""
        model = self.model
        events = [event for sentence in sentences for event in model.events(sentence)]
        if not events or len(events) > 1000:
            raise InputError(f"{self.name}: {name or 'test'}: from 1 to 1,000 words are expected, got {len(events)}.")
        factors = [self._event_probability(context, word) for context, word in events]
        words = sum(word != EOS for _, word in events)
        tokens = len(events) if self.perplexity_tokens == "all" or not words else words
        wrong_factors: dict[str, list[float]] = {}
        for text, probability in self._mistaken_probabilities():
            if text.startswith("the symbols <s> and </s>"):
                continue
            if text.startswith("the context is ignored"):
                text = "the contexts are ignored: that is the product of unigram probabilities"
            values = [probability(context, word) for context, word in events]
            wrong_factors[text] = [
                factor if value is None else value for value, factor in zip(values, factors, strict=True)
            ]
        first, last = factors[1:], factors[:-1]
        if events[0][0] and set(events[0][0]) == {BOS} and first:
            wrong_factors["the probability of the first word after <s> is left out"] = first
        elif first and not events[0][0] and self.order > 1:
            wrong_factors["the probability of the first word is left out"] = first
        if events[-1][1] == EOS:
            wrong_factors["the probability of </s> is left out"] = last
            if len(factors) > 2:
                wrong_factors["the probabilities of the first word and of </s> are left out"] = factors[1:-1]
        alternatives: dict[str, list[float]] = {}
        for index, (context, word) in enumerate(events):
            for text, value in self._alternative_probabilities(self._shorten(context), word):
                alternatives.setdefault(text, list(factors))[index] = value
        return self._expect_measures(factors, wrong_factors, tokens, words, len(sentences), name, events, alternatives)

    def _event_probability(self, context: Words, word: str) -> float:
        """Return the probability of a word in a sentence; 0 where it is not defined."""
        model = self.model
        if not context and self.order > 1:
            value = model._unigram(word) if self.smoothing != "add-k" else replace(model, order=1).probability((), word)
        elif len(context) < self.order - 1:
            value = model.probability_of_order(context, word)
        else:
            value = model.probability(context, word)
        return value or 0.0

    def _expect_measures(
        self,
        factors: list[float],
        wrong_factors: Mapping[str, list[float]],
        tokens: int,
        words: int,
        sentence_count: int,
        name: str,
        events: Sequence[tuple[Words, str]],
        alternatives: Mapping[str, list[float]],
    ) -> list[ExpectedValue]:
        """Return the probability, log-probability, cross-entropy and perplexity from the factors of a text."""
        product = math.prod(factors)
        factor_names = [
            f"P({word} | {' '.join(context)})" if context else f"P({word})"
            for context, word in events[:MAX_LISTED_FACTORS]
        ]
        dots = " · …" if len(events) > MAX_LISTED_FACTORS else ""
        accepted = make_alternatives(product, [(text, math.prod(values)) for text, values in alternatives.items()])
        other_logs = {
            text: math.fsum(map(math.log, values)) for text, values in alternatives.items() if min(values) > 0
        }
        wrong_factors = {
            text: values
            for text, values in wrong_factors.items()
            if not any(math.isclose(math.prod(values), product * factor, rel_tol=1e-9) for factor in accepted)
        }
        products = {text: math.prod(values) for text, values in wrong_factors.items()}
        extra = {
            "the probabilities are added, not multiplied": sum(factors),
            "the average of the probabilities is taken, not their product": sum(factors) / len(factors),
        }
        probability = expect_numbers(
            [name] if name else ["P(test)", "P", "P(W)", "P(sentence)", "P(T)", "probability"],
            product,
            meaning="probability of the text",
            mistakes=keep_distinct(product, {**products, **extra}),
            scales=accepted,
            formula="P(w_1 … w_T) = Π P(w_t | w_{t−n+1} … w_{t−1})",
            work=f"{' · '.join(factor_names)}{dots} = {format_product(factors, MAX_LISTED_FACTORS)} = {product:.6g}",
        )
        if min(factors) <= 0:
            impossible = "the probability is 0, so its logarithm and the perplexity are infinite"
            infinite = (*INFINITE, "-∞", "−∞", "-inf", "-infinity")
            return [
                probability,
                expect_word([name] if name else ["logP", "log P(test)", "log probability"], infinite, work=impossible),
                expect_word([name] if name else ["H", "cross-entropy"], infinite, work=impossible),
                expect_word(
                    [name] if name else ["PP", "perplexity", "PPL", "PP(W)", "PP(test)"], infinite, work=impossible
                ),
            ]
        log = math.fsum(map(math.log, factors))
        nats = -log / tokens
        logs = {text: math.fsum(map(math.log, values)) for text, values in wrong_factors.items() if min(values) > 0}
        unit = self.log_base or "2"
        return [
            probability,
            self._expect_log(
                [name] if name else ["logP", "log P(test)", "log probability", "log P(W)"], log, logs, "", other_logs
            ),
            expect_numbers(
                [name] if name else ["H", "cross-entropy", "cross entropy", "H(W)", "entropy"],
                nats / _log_of(unit),
                meaning="cross-entropy per token in " + {"2": "bits", "e": "nats", "10": "digits"}[unit],
                mistakes=self._mistakes_of_entropy(log, logs, tokens, words, sentence_count, unit),
                scales={
                    **make_alternatives(nats, [(text, -other / tokens) for text, other in other_logs.items()]),
                    **(make_alternatives(1.0, [("in nats", math.log(2))]) if not self.log_base else {}),
                },
                formula="H = −(1/M) Σ log P(w_t | …), M tokens with </s>"
                if tokens != words
                else "H = −(1/M) Σ log P(w_t | …)",
                work=f"−{format_ratio(log / _log_of(unit))} / {tokens}".replace("−-", "").replace("--", ""),
            ),
            self._expect_perplexity(name, factors, log, logs, tokens, words, sentence_count, other_logs),
        ]

    def _expect_log(
        self,
        names: list[str],
        log: float,
        logs: Mapping[str, float],
        base: str = "",
        alternatives: Mapping[str, float] | None = None,
    ) -> ExpectedValue:
        """Return a log-probability: in the base of the exercise, or in any, which the verdict then names."""
        base = base or self.log_base
        unit = _log_of(base or "e")
        base_factors = {"in base 2": 1 / math.log(2), "in base 10": 1 / math.log(10), "in base e": 1.0}
        mistakes = {text: value / unit for text, value in logs.items()}
        if base:
            mistakes |= {f"the logarithm is {text}": log * factor for text, factor in base_factors.items()}
        return expect_numbers(
            names,
            log / unit,
            meaning=f"logarithm of the probability in base {base or 'e'}",
            mistakes=keep_distinct(log / unit, mistakes),
            scales={
                **make_alternatives(log, [*(alternatives or {}).items()]),
                **({} if base else {factor: text for text, factor in base_factors.items() if factor != 1.0}),
            },
            formula="log P = Σ log P(w_t | …)",
        )

    def _mistakes_of_entropy(
        self, log: float, logs: Mapping[str, float], tokens: int, words: int, sentence_count: int, unit: str
    ) -> dict[str, float]:
        """Return the cross-entropies that mistakes give."""
        base, right = _log_of(unit), -log / tokens / _log_of(unit)
        mistakes: dict[str, float | None] = {
            "the sum is not divided by the number of tokens": -log / base,
            "normalized by the number of words, without </s>": -log / base / words if words else None,
            "normalized by the number of tokens with <s>": -log / base / (tokens + sentence_count),
            "the logarithm has base 10": -log / tokens / math.log(10),
            "the perplexity is given, not its logarithm": _exponentiate(-log / tokens),
        }
        if self.log_base:
            mistakes |= {
                "the logarithm has base e": -log / tokens,
                "the logarithm has base 2": -log / tokens / math.log(2),
            }
        mistakes |= {text: -value / tokens / base for text, value in logs.items()}
        return keep_distinct(right, mistakes)

    def _expect_perplexity(
        self,
        name: str,
        factors: Sequence[float],
        log: float,
        logs: Mapping[str, float],
        tokens: int,
        words: int,
        sentence_count: int,
        alternatives: Mapping[str, float],
    ) -> ExpectedValue:
        """Return the perplexity of a text."""
        right, bits = _exponentiate(-log / tokens) or math.inf, -log / tokens / math.log(2)
        mistakes: dict[str, float | None] = {
            "normalized by the number of words, without </s>": _exponentiate(-log / words) if words else None,
            "normalized by the number of tokens with <s>": _exponentiate(-log / (tokens + sentence_count)),
            "the root is left out: the perplexity is P^(−1/M)": _exponentiate(-log),
            "not inverted: P^(1/M) is the mean probability": _exponentiate(log / tokens),
            "e is raised to an entropy in bits: use 2^H": _exponentiate(bits),
            "2 is raised to an entropy in nats: use e^H": 2 ** (-log / tokens) if -log / tokens < 1000 else None,
            "the cross-entropy is given in bits: the perplexity is 2^H": bits,
            "the cross-entropy is given in nats: the perplexity is e^H": -log / tokens,
            "inverse of the average probability: the mean is geometric": len(factors) / sum(factors),
            "normalized by one token too few": _exponentiate(-log / (tokens - 1)) if tokens > 1 else None,
            "normalized by one token too many": _exponentiate(-log / (tokens + 1)),
            "the text is counted as one token": _exponentiate(-log),
        }
        for text, value in logs.items():
            mistakes[text] = _exponentiate(-value / tokens)
            if "left out" in text and "probabilit" in text:
                missing = 2 if "first word and" in text else 1
                if tokens > missing:
                    mistakes[f"{text}, in the product and in M"] = _exponentiate(-value / (tokens - missing))
        return expect_numbers(
            [name] if name else ["PP", "perplexity", "PPL", "PP(W)", "PP(test)"],
            right,
            meaning="perplexity per token" + (", </s> counted" if tokens != words else ""),
            mistakes=keep_distinct(right, mistakes),
            up_to=frozenset({"decimals"}),
            scales=make_alternatives(
                right, [(text, _exponentiate(-other / tokens) or math.inf) for text, other in alternatives.items()]
            ),
            formula="PP = P(w_1 … w_T)^(−1/M) = 2^H, with M predicted tokens"
            + (", </s> among them" if tokens != words else ""),
            work=f"({math.exp(log) if log > -700 else 0:.6g})^(−1/{tokens})",
        )

    def _expect_logarithm(self, name: str, function: str, inner: str) -> ExpectedValue | None:
        """Return the logarithm of a probability."""
        value = self.find_value(inner)
        return self._take_logarithm(name, function, value) if value is not None else None

    def _take_logarithm(self, name: str, function: str, value: ExpectedValue) -> ExpectedValue | None:
        """Return the logarithm of a probability."""
        if not value.is_numeric or value.shape:
            return None
        number = float(value.values)
        if number <= 0:
            return expect_word([name], (*INFINITE, "-∞", "−∞", "-inf", "-infinity"))
        base = {"ln": "e", "log2": "2", "log10": "10", "lg": "10"}.get(function, "")
        logs = {text: math.log(float(wrong)) for text, wrong in value.mistakes.items() if float(wrong) > 0}
        scales = {factor: text for factor, text in value.scales.items() if factor != 100 and factor > 0}
        alternative_logs = {text: math.log(number * factor) for factor, text in scales.items()}
        return self._expect_log([name], math.log(number), logs, base, alternative_logs)


def _log_of(base: str) -> float:
    """Return the natural logarithm of a base."""
    return {"e": 1.0, "2": math.log(2), "10": math.log(10)}[base]


def _exponentiate(value: float) -> float | None:
    """Return e to a power; None if it is too large."""
    return math.exp(value) if value < 700 else None
