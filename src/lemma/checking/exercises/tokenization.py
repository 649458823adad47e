"""Exercises on tokenization: byte pairs, WordPiece and Unigram, learned and applied by hand."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import exp, log
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from lemma.checking.check_values import AnswerKey, ValueClaim, normalize_name
from lemma.checking.exercises.statements import (
    ConventionExercise,
    StatementText,
    Table,
    Words,
    expect,
    show,
    show_terms,
)
from lemma.checking.expected_values import ExpectedValue, expect_words
from lemma.checking.read_values import write_value
from lemma.report.numbers import format_times

MAX_TYPES, MAX_WORD_CHARS, MAX_CORPUS_CHARS, MAX_ORDERS = 60, 40, 1000, 60
MAX_WORDPIECE_MERGES, MAX_STEPS = 30, 200
END_MARKS = ("</w>", r"\w", "_", "▁", "·", "$", "#", "<eow>", "<end>", "⟨/w⟩")
_STEP = re.compile(r"(merge|counts?)(\d{1,4})")
_CALL = re.compile(r"(tokens|encode|encoding|tokenize|segmentation|p|logp|probability|score|count)\((.{1,80})\)")
UNKNOWN = "[UNK]"
Pieces = tuple[str, ...]


class TokenizationExercise(ConventionExercise):
    """Tokenizers worked by hand."""

    kind: ClassVar[str] = "tokenization"
    first_field: ClassVar[str] = "algorithm"
    renamed: ClassVar[Mapping[str, str]] = {
        "vocab": "pieces",
        "dictionary": "pieces",
        "word": "encode",
        "num_merges": "max_merges",
        "k": "max_merges",
        "word_counts": "words",
        "sentence": "encode",
    }

    algorithm: Literal["bpe", "wordpiece", "unigram"] = "bpe"
    """Algorithm: byte pairs, WordPiece or Unigram."""
    corpus: StatementText = ""
    """Text to learn from; its words are separated by blanks."""
    words: Table = Field({})
    """Counts of the words to learn from, instead of a corpus, as in {low: 5, lower: 2}."""
    end_of_word: str = "</w>"
    """Symbol at the end of every word, for byte pairs; none for no symbol."""
    max_merges: Annotated[int, Field(ge=0, le=1000)] = 0
    """Number of merges; 0 for as many as there are."""
    minimum: Annotated[int, Field(ge=1, le=10**9)] = 2
    """Fewest occurrences of a pair that is merged."""
    ties: Literal["any", "first", "alphabetical"] = "any"
    """Pair that is merged of equally frequent ones: any, the first in the text, or the first in alphabetical order."""
    given_merges: Words = ()
    """Given merges in their order, such as "e s, es t", to encode with instead of learned ones."""
    encode: Words = ()
    """Words to encode."""
    pieces: Words = ()
    """Vocabulary of WordPiece, such as "un ##happy ##ly"."""
    probabilities: Table = Field({})
    """Probabilities or counts of the pieces of Unigram, as in {hug: 0.2, h: 0.1}."""
    remove: StatementText = ""
    """Piece of Unigram whose removal is asked for: how much the loss of the words grows."""
    log_base: Literal["", "e", "2", "10"] = ""
    """Base of logarithms: by default any, and the report says which."""

    @classmethod
    def setting_names(cls) -> list[str]:
        """Return the names of the fields, and other names of them."""
        return [*super().setting_names(), *cls.renamed]

    @model_validator(mode="before")
    @classmethod
    def _read_texts(cls, data: Any) -> Any:
        """Return the settings with merges in one notation, and numbers as text where text is expected."""
        if isinstance(data, dict):
            data = dict(data)
            end = data.get("end_of_word")
            if end is not None:
                data["end_of_word"] = "" if str(end).casefold() in ("none", "false", "no") else str(end)
            if "log_base" in data:
                data["log_base"] = str(data["log_base"])
            merges = data.get("given_merges")
            if isinstance(merges, list | tuple):
                pairs = [" ".join(map(str, pair)) if isinstance(pair, list | tuple) else str(pair) for pair in merges]
                data["given_merges"] = pairs
            elif isinstance(merges, str):
                parts = re.sub(r"[\[\]()]", "", merges) if "), (" not in merges else merges
                tuples = re.findall(r"\(([^()]*)\)", merges)
                pairs = [re.sub(r"[,'\"]+", " ", pair) for pair in tuples] or re.split(r"[,;/]", parts)
                data["given_merges"] = [" ".join(pair.replace("+", " ").split()) for pair in pairs if pair.strip()]
        return data

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        """Raise an error for fields that are missing or too large."""
        counts = self.word_counts()
        if len(self.corpus) > MAX_CORPUS_CHARS or len(counts) > MAX_TYPES:
            raise ValueError(f"at most {MAX_CORPUS_CHARS} characters, and {MAX_TYPES} different words, are worked out.")
        if any(len(word) > MAX_WORD_CHARS for word in (*counts, *self.encode, *self.pieces, *self.probabilities)):
            raise ValueError(f"a word has at most {MAX_WORD_CHARS} characters here.")
        if any(count < 1 or count % 1 for count in self.words.values()):
            raise ValueError("words: counts are whole numbers from 1.")
        if any(not word.strip() or len(word.split()) > 1 for word in self.words):
            raise ValueError("words: a word holds no blanks, and is not empty.")
        if len(self.encode) > 20:
            raise ValueError("encode: at most 20 words are encoded.")
        match self.algorithm:
            case "bpe":
                if not counts and not (self.given_merges and self.encode):
                    raise ValueError("a corpus is needed, as in corpus='low low lower' or words='{low: 5, lower: 2}'.")
                if len(self.end_of_word) == 1 and any(self.end_of_word in word for word in counts):
                    raise ValueError(f"end_of_word = '{self.end_of_word}': the words use it. Give another, as in </w>.")
                if len(self.end_of_word) > 10 or len(self.end_of_word.split()) > 1:
                    raise ValueError("end_of_word is a short symbol without blanks, as in </w>.")
                for pair in self.given_merges:
                    if len(pair.split()) != 2:
                        raise ValueError(
                            f"given_merges: '{pair}' is no pair of symbols. As in: given_merges='e s, es t'."
                        )
            case "wordpiece":
                if not counts and not (self.pieces and self.encode):
                    raise ValueError("a corpus is needed, or pieces and encode, as in pieces='un ##do' encode='undo'.")
            case "unigram":
                if not self.probabilities or not (self.encode or counts):
                    raise ValueError("probabilities and encode are needed, as in probabilities='{hug: 0.2, h: 0.1}'.")
                if min(self.probabilities.values()) <= 0:
                    raise ValueError("probabilities: each is above 0.")
                if self.remove and self.remove not in self.probabilities:
                    raise ValueError(f"remove = '{self.remove}' is none of the pieces.")
        return self

    def word_counts(self) -> Counter[str]:
        """Return the counts of the words to learn from."""
        if self.words:
            return Counter({word: int(count) for word, count in self.words.items()})
        return Counter(self.corpus.split())

    def expected_values(self) -> Sequence[ExpectedValue]:
        """Return the values of the first answer key."""
        return next(iter(self.answer_keys(()))).expected

    def main_names(self) -> tuple[str, ...]:
        """Return the encoding of the words, or the merges."""
        if self.remove:
            return ("loss_increase",)
        if self.encode:
            first, *other_words = self.encode
            return ("tokens",) if other_words and self.algorithm == "bpe" else (f"tokens({first})",)
        return ("loss",) if self.algorithm == "unigram" else ("merges",)

    def answer_keys(self, claims: Sequence[ValueClaim]) -> Iterable[AnswerKey]:
        """Yield the right answers, one for each order of tied merges; the claimed order first."""
        if self.algorithm == "bpe" and self.word_counts():
            yield from self._byte_pair_keys(claims)
        elif self.algorithm == "bpe":
            merges = [tuple(pair.split()) for pair in self.given_merges]
            values = self._expect_encoded(merges)
            yield self._key(values, partial(self._find_merged, merges))
        elif self.algorithm == "wordpiece":
            values = self._expect_wordpiece(claims) if self.word_counts() else []
            if self.pieces:
                values += [self._expect_longest(word) for word in self.encode]
            yield self._key(values, self._find_wordpiece)
        else:
            yield self._key(self._expect_unigram(), self._find_unigram)

    def _key(self, expected: Sequence[ExpectedValue], find: Any) -> AnswerKey:
        """Return an answer key with a function that finds further values."""
        return AnswerKey(self.name, expected, find, names_command=f"lemma check {self.kind} … --names")

    def find_value(self, name: str) -> ExpectedValue | None:
        """Return the tokens of any word, and other values with parameters."""
        return next(iter(self.answer_keys(()))).find_more(name)

    def rewrite_line(self, line: str) -> str:
        """Return a line with pairs as lists: (b'e', b's'), (e, s) -> es; (es, t) -> est, or (e,s) (es,t)."""
        name, sign, value = line.partition("=")
        if sign and re.fullmatch(r"\s*(?:\[[^\[\],]+\]\s*){2,}", value):  # [the] [c] [a] [t]
            return f"{name}= {' '.join(re.findall(r'[^][]+', value))}"
        if not sign or not re.match(r"merge", normalize_name(name)) or re.search(r"[();]", self.corpus):
            return line
        value = re.sub(r"(?<!\w)b(?=['\"])", "", value)
        value = re.sub(r"\)\s*(?:->|→|=>|⇒)\s*[^\s,;()]+", ")", value)
        value = re.sub(r"\)\s+(?=\()", "), ", value)
        return f"{name}= {value.strip().replace(';', ',')}"

    # Byte pairs

    def normalize(self, text: str) -> str:
        """Return written symbols in a standard form: single blanks, no quotes, one mark for the end of word."""
        text = re.sub(r"['\"`+,()|→]", " ", text) if not re.search(r"['+|]", self.corpus) else text
        end = self.end_of_word
        if end:
            alphabet = "".join(self.word_counts()) + "".join(self.encode)
            for mark in END_MARKS:
                if mark not in alphabet and mark != end:
                    text = text.replace(mark, end)
        return " ".join(text.split())

    def _byte_pair_keys(self, claims: Sequence[ValueClaim]) -> Iterable[AnswerKey]:
        """Yield an answer key for each order of tied merges."""
        from lemma.checking.worked.bpe import MergeRules, expected_byte_pairs

        words = self.word_counts()
        rules = MergeRules(self.end_of_word, self.minimum, self.max_merges or None, self.ties, self.normalize)
        steps = [_STEP.fullmatch(normalize_name(claim.target.name)) for claim in claims]
        count_steps = [1, *(int(step[2]) for step in steps if step)]
        unit_counts = dict.fromkeys(words, 1)
        other_end = "" if self.end_of_word else "</w>"
        wrong = {
            "each word counts once: the word counts are ignored": next(
                expected_byte_pairs(unit_counts, {}, [1], 1, MergeRules(self.end_of_word, 1, self.max_merges or None))
            )[0],
            "the end of word is a symbol here" if self.end_of_word else "the end of word is no symbol here": next(
                expected_byte_pairs(words, {}, [1], 1, MergeRules(other_end, self.minimum, self.max_merges or None))
            )[0],
        }
        if self.max_merges:
            for text, shift in (("one merge too many is made", 1), ("one merge too few is made", -1)):
                if self.max_merges + shift:
                    shifted = MergeRules(self.end_of_word, self.minimum, self.max_merges + shift)
                    wrong[text] = next(expected_byte_pairs(words, {}, [1], 1, shifted))[0]
        size = sum(len(claim.text) for claim in claims)
        orders = max(1, MAX_ORDERS * 100 // max(100, size, sum(map(len, words)) + 10 * len(self.encode)))
        for expected, count in expected_byte_pairs(words, self._claimed(claims), count_steps, orders, rules):
            by_name = {value.name: value for value in expected}
            merges = [tuple(alternatives[1].split()) for alternatives in by_name["merges"].values]
            values = [self._add_mistakes(value, wrong, by_name) for value in expected]
            values += self._expect_sizes(words, merges, int(by_name["symbols"].values))
            values += self._expect_encoded(merges)
            yield AnswerKey(
                self.name,
                values,
                partial(self._find_merged, merges),
                partial(self._explain_absence, count),
                f"lemma check {self.kind} … --names",
            )

    def _explain_absence(self, merges: int, name: str) -> tuple[str, str] | None:
        """Return the number of merges, and a reason, if a name is about a step after the last one."""
        step = _STEP.fullmatch(normalize_name(name))
        if step and int(step[2]) > merges + (step[1] == "counts"):
            return f"steps = {merges}", f"there are {merges} merges"
        return None

    def _claimed(self, claims: Sequence[ValueClaim]) -> dict[int, str]:
        """Return the claimed pairs by step from 1, from lines such as merges = [es, est] and merge2 = es t."""
        merges: dict[int, str] = {}
        for claim in claims:
            name, labels = normalize_name(claim.target.name), claim.target.labels
            if claim.sign != "=":
                continue
            if name == "merges":
                value = [claim.value] if labels else claim.value
                first = int(labels[0]) if labels and labels[0].isdecimal() else 1
                pairs = value if isinstance(value, list) else write_value(value).split("/")
                merges |= {step: write_value(pair) for step, pair in enumerate(pairs, first)}
            elif (step := _STEP.fullmatch(name)) and step[1] == "merge":
                merges[int(step[2])] = write_value(claim.value)
        return {step: text for step, text in merges.items() if step <= MAX_STEPS}

    def _add_mistakes(
        self,
        value: ExpectedValue,
        wrong: Mapping[str, Sequence[ExpectedValue]],
        by_name: Mapping[str, ExpectedValue],
    ) -> ExpectedValue:
        """Return a value with what it is under mistaken rules."""
        from dataclasses import replace

        mistakes: dict[str, Any] = {}
        for text, values in wrong.items():
            other = next((other for other in values if other.name == value.name), None)
            if other is None:
                continue
            if value.is_numeric:
                if other.shape == value.shape and not np.array_equal(other.values, value.values):
                    mistakes[text] = other.values
            else:
                words = tuple(alternatives[1] for alternatives in other.values)
                right = tuple(alternatives[1] for alternatives in value.values)
                if words != right:
                    mistakes[text] = words
        meanings = {"symbols": "tokens of the whole text at the end"}
        aliases = {
            "steps": ("num_merges", "number_of_merges"),
            "symbols": ("num_tokens", "tokens_total", "corpus_tokens"),
            "merges": ("merge_rules", "pairs"),
        }.get(value.name, ())
        meaning = meanings.get(value.name, value.meaning)
        formula = {
            "merges": "merge the most frequent pair of neighbouring symbols, count again, and so on",
            "segmentation": "apply the merges to each word in their order",
        }.get(value.name, "")
        step = value.name.removeprefix("merge")
        if step.isdigit() and f"counts{step}" in by_name:
            counts = by_name[f"counts{step}"]
            largest = counts.values.max()
            for labels in zip(counts.labels[0], counts.label_aliases, counts.values, strict=True):
                *notations, count = labels
                if count < largest:
                    for notation in {*notations, *(text.replace(" ", "") for text in notations)}:
                        text = f"{notation} occurs {format_times(int(count))}; another pair occurs more often"
                        mistakes.setdefault(text, (notation,))
        values, work = value.values, ""
        if not value.is_numeric:  # spellings first, the letters that name merges after them
            values = tuple((words[1], words[0], *words[2:]) for words in values)
        elif value.name.startswith("counts"):
            pairs = zip(value.labels[0], value.values, strict=True)
            work = ", ".join(f"{pair} {int(count)}" for pair, count in list(pairs)[:30])
        extra_names = (alias for alias in value.aliases if alias != "words")
        return replace(
            value,
            values=values,
            mistakes=mistakes,
            meaning=meaning,
            aliases=(*extra_names, *aliases),
            formula=formula,
            work=work,
        )

    def _expect_sizes(
        self, words: Counter[str], merges: Sequence[tuple[str, ...]], symbols: int
    ) -> list[ExpectedValue]:
        """Return the sizes of the vocabulary and the compression."""
        characters = {character for word in words for character in word}
        end = int(bool(self.end_of_word))
        base, size = len(characters) + end, len(characters) + end + len(merges)
        before = sum((len(word) + end) * count for word, count in words.items())
        total = words.total()
        alphabet = sorted(characters) + [self.end_of_word] * end
        return [
            expect_words(
                "alphabet base_vocabulary characters",
                alphabet,
                meaning="symbols before the first merge",
                up_to=frozenset({"order"}),
                normalize=self.normalize,
            ),
            expect(
                "base_size initial_vocabulary_size",
                base,
                "number of symbols before the first merge",
                mistakes={"the end of word is left out": base - 1, "the end of word is counted": base + 1},
            ),
            expect(
                "vocabulary_size vocab_size |V| V",
                size,
                "symbols before the first merge, and one for each merge",
                "base symbols + merges",
                f"{base} + {len(merges)}",
                {
                    "the end of word is left out" if end else "the end of word is counted": size - 1
                    if end
                    else size + 1,
                    "only the merges are counted": len(merges),
                    "only the base symbols are counted": base,
                    "the two parts of a merge are dropped; they stay in the vocabulary": base - len(merges),
                },
            ),
            expect("symbols_before initial_tokens", before, "symbols of the text before the first merge"),
            expect(
                "compression_ratio compression",
                before / symbols,
                "symbols before / after",
                "symbols at first / symbols at the end",
                f"{before} / {symbols}",
                {
                    "the fraction is inverted": symbols / before,
                    "the end of word is not counted": (before - end * total) / symbols,
                },
                scales={100.0: "in per cent"},
            ),
            expect(
                "fertility tokens_per_word",
                symbols / total,
                "tokens per word",
                "symbols at the end / words",
                f"{symbols} / {total}",
                {"the fraction is inverted": total / symbols},
            ),
        ]

    def _merge_word(self, word: str, merges: Sequence[tuple[str, ...]], wrong: str = "") -> list[str]:
        """Return the symbols of a word after the merges in their order, or with a mistake."""
        symbols = [*word, *([self.end_of_word] if self.end_of_word and wrong != "no end" else [])]
        if wrong == "longest":
            vocabulary = {left + right for left, right in merges} | set(symbols)
            text, symbols = "".join(symbols), []
            while text:
                piece = next(text[:size] for size in range(len(text), 0, -1) if text[:size] in vocabulary or size == 1)
                symbols.append(piece)
                text = text[len(piece) :]
            return symbols
        for left, right in reversed(merges) if wrong == "reversed" else merges:
            if left in symbols and right in symbols:
                symbols = _join_pairs(symbols, left, right, 1 if wrong == "once" else len(symbols))
        return symbols

    def _expect_merged(self, word: str, merges: Sequence[tuple[str, ...]]) -> list[ExpectedValue]:
        """Return the tokens of a word, and their number."""
        tokens = self._merge_word(word, merges)
        mistakes = {
            "the longest symbols are matched from the left; merges are applied in their order": "longest",
            "the merges are applied in reverse order": "reversed",
            "the end of word is left out": "no end",
            "a merge is applied once only": "once",
        }
        wrong = {text: self._merge_word(word, merges, mode) for text, mode in mistakes.items()}
        wrong["no merge is applied"] = [*word, *([self.end_of_word] if self.end_of_word else [])]
        names = self._token_names(word)
        used, symbols = list[str](), list(wrong["no merge is applied"])
        for left, right in merges:
            if left in symbols and right in symbols:
                after = _join_pairs(symbols, left, right)
                if after != symbols:
                    used.append(" ".join(after))
                    symbols = after
        return [
            expect(
                [f"num_tokens({word})"],
                len(tokens),
                f"number of tokens of {word}",
                mistakes={text: len(other) for text, other in wrong.items()},
            ),
            expect_words(
                names,
                " ".join(tokens),
                meaning=f"tokens of {word}",
                mistakes={text: " ".join(other) for text, other in wrong.items() if other != tokens},
                formula="split into characters, then apply the merges in the order in which they were learned",
                work=" → ".join([" ".join(wrong["no merge is applied"]), *used]),
                normalize=self.normalize,
            ),
        ]

    def _expect_encoded(self, merges: Sequence[tuple[str, ...]]) -> list[ExpectedValue]:
        """Return the tokens of each word, and of all words together if there are several."""
        values = [value for word in self.encode for value in self._expect_merged(word, merges)]
        if len(self.encode) > 1:
            tokens = [token for word in self.encode for token in self._merge_word(word, merges)]
            values.append(
                expect_words(
                    "tokens encoding", " ".join(tokens), meaning="tokens of all words", normalize=self.normalize
                )
            )
        return values

    def _token_names(self, word: str) -> list[str]:
        """Return the names of the tokens of a word."""
        names = [f"{name}({word})" for name in ("tokens", "encode", "encoding", "tokenize", "segmentation")]
        names.append(word) if len(word) > 2 else None
        return [*names, "tokens", "encoding"] if len(self.encode) == 1 else names

    def _find_merged(self, merges: Sequence[tuple[str, ...]], name: str) -> ExpectedValue | None:
        """Return the tokens of any word, as in tokens(lowest)."""
        match = re.fullmatch(r"\s*(?:tokens|encode|encoding|tokenize)\s*\(\s*(\S{1,40})\s*\)\s*", name)
        if (counted := re.fullmatch(r"\s*count\s*\((.{1,40})\)\s*", name)) and self.word_counts():
            merged_symbol = "".join(self.normalize(counted[1]).split())
            step = next((step for step, pair in enumerate(merges, 1) if "".join(pair) == merged_symbol), 0)
            names = {value.name: value for value in self.expected_values()} if step else {}
            return names.get(f"count{step}")
        return self._expect_merged(match[1].strip("'\""), merges)[1] if match else None

    # WordPiece

    def _expect_wordpiece(self, claims: Sequence[ValueClaim]) -> list[ExpectedValue]:
        """Return pair counts, scores and merges of WordPiece's training."""
        words = self.word_counts()
        rows = {word: [word[0], *(f"##{character}" for character in word[1:])] for word in words}
        claimed = {step: self._close(text) for step, text in self._claimed(claims).items()}
        values: list[ExpectedValue] = []
        merges: list[tuple[str, ...]] = []
        by_count: list[tuple[str, ...]] = []
        limit = min(self.max_merges or 1, MAX_WORDPIECE_MERGES)
        while len(merges) < limit:
            symbols, pairs = self._count_symbols(rows, words)
            scores = {
                pair: count / (symbols[pair[0]] * symbols[pair[1]])
                for pair, count in pairs.items()
                if count >= min(self.minimum, 1)
            }
            if not scores:
                break
            step = len(merges) + 1
            best = max(scores.values())
            ties = [pair for pair, score in scores.items() if abs(score - best) < 1e-12]
            choice = next((pair for pair in ties if claimed.get(step) in self._notations(pair)), ties[0])
            if self.ties == "alphabetical":
                choice = min(ties)
            frequent = max(pairs, key=lambda pair: pairs[pair])
            text = "the most frequent pair is merged, as in byte-pair encoding; WordPiece divides by both counts"
            if step == 1:
                labels = [f"{left} {right}" for left, right in scores]
                counts = [pairs[pair] for pair in scores]
                closed = tuple(f"{left}{right}" for left, right in scores)
                score_list = [scores[pair] for pair in scores]
                values.append(
                    expect(
                        "counts pair_counts",
                        np.array(counts),
                        "count of each pair",
                        labels=[labels],
                        label_aliases=closed,
                    )
                )
                values.append(
                    expect(
                        "scores",
                        np.array(score_list),
                        "score of each pair",
                        "count(ab) / (count(a)·count(b))",
                        labels=[labels],
                        label_aliases=closed,
                        mistakes={"the counts of the symbols are left out": np.array(counts, dtype=float)},
                    )
                )
            left, right = choice
            values.append(
                expect(
                    f"score{step}",
                    best,
                    f"score of the pair of step {step}",
                    "count(ab) / (count(a)·count(b))",
                    f"{pairs[choice]} / ({symbols[left]}·{symbols[right]})",
                    {
                        "that is the count of the pair: the counts of its symbols are left out": pairs[choice],
                        "the count is divided by the count of the left symbol alone": pairs[choice] / symbols[left],
                        "the count is divided by the count of the right symbol alone": pairs[choice] / symbols[right],
                        "the counts of the symbols are added instead of multiplied": pairs[choice]
                        / (symbols[left] + symbols[right]),
                    },
                )
            )
            wrong = {text: (" ".join(frequent),)} if frequent not in ties else {}
            merged = left + right.removeprefix("##")
            values.append(
                ExpectedValue(
                    f"merge{step}",
                    (self._notations(choice),),
                    (),
                    f"pair of step {step}",
                    ("best", "best_pair") if step == 1 else (),
                    mistakes=wrong,
                    normalize=self._close,
                    formula="the pair with the largest count(ab) / (count(a)·count(b))",
                )
            )
            merges.append(choice)
            by_count.append(frequent)
            for word, row in rows.items():
                merged_row: list[str] = []
                for symbol in row:
                    if merged_row and merged_row[-1] == left and symbol == right:
                        merged_row[-1] = merged
                    else:
                        merged_row.append(symbol)
                rows[word] = merged_row
        notations = tuple(map(self._notations, merges))
        segmentation = tuple((" ".join(row),) for row in rows.values())
        labels = tuple(map(str, range(1, len(merges) + 1)))
        values.append(
            ExpectedValue(
                "segmentation", segmentation, (tuple(words),), "each word in its symbols", normalize=self._close_words
            )
        )
        meaning = "pairs in the order of merging"
        values.append(ExpectedValue("merges", notations, (labels,), meaning, normalize=self._close))
        return values

    def _count_symbols(
        self, rows: Mapping[str, list[str]], words: Counter[str]
    ) -> tuple[Counter[str], Counter[tuple[str, str]]]:
        """Return the counts of symbols and of neighbouring pairs."""
        symbols: Counter[str] = Counter()
        pairs: Counter[tuple[str, str]] = Counter()
        for word, row in rows.items():
            for symbol in row:
                symbols[symbol] += words[word]
            for pair in pairwise(row):
                pairs[pair] += words[word]
        return symbols, pairs

    def _notations(self, pair: tuple[str, ...]) -> tuple[str, ...]:
        """Return the ways to write a pair: with ## or without, apart or closed up."""
        left, right = pair
        continuation = right.removeprefix("##")
        texts = (
            f"{left} {right}",
            f"{left} {continuation}",
            f"{left.removeprefix('##')} {continuation}",
            f"{left}{continuation}",
        )
        return tuple(dict.fromkeys(map(self._close, (*texts, f"{left.removeprefix('##')}{continuation}"))))

    def _close(self, text: str) -> str:
        """Return a pair as written by a person with single blanks, without signs around it."""
        return " ".join(re.sub(r"['\"`+,()|→]", " ", text).split())

    def _close_words(self, text: str) -> str:
        """Return the symbols of a word with single blanks."""
        return self._close(text)

    def _match_longest(self, word: str, wrong: str = "") -> list[str]:
        """Return the pieces of a word by the longest match from the left, or with a mistake."""
        pieces = set(self.pieces)
        tokens: list[str] = []
        remainder = word
        while remainder:
            sizes = range(1, len(remainder) + 1) if wrong == "shortest" else range(len(remainder), 0, -1)
            prefix = "" if not tokens or wrong == "no prefix" else "##"
            size = next(
                (
                    size
                    for size in sizes
                    if prefix + remainder[:size] in pieces
                    or (wrong == "no prefix" and f"##{remainder[:size]}" in pieces)
                ),
                0,
            )
            if not size:
                return [*tokens, UNKNOWN] if wrong == "partial" else [UNKNOWN]
            tokens.append(prefix + remainder[:size])
            remainder = remainder[size:]
        return tokens

    def _expect_longest(self, word: str) -> ExpectedValue:
        """Return the tokens of a word by WordPiece."""
        tokens = self._match_longest(word)
        wrong = {
            "the shortest piece is taken each time; the longest comes first": self._match_longest(word, "shortest"),
            "## is left out of pieces inside the word": self._match_longest(word, "no prefix"),
            f"the whole word becomes {UNKNOWN} where a part has no piece": self._match_longest(word, "partial"),
            "the word is split into characters": [word[0], *(f"##{character}" for character in word[1:])],
        }
        return expect_words(
            self._token_names(word),
            " ".join(tokens),
            meaning=f"tokens of {word}",
            mistakes={text: " ".join(other) for text, other in wrong.items() if other != tokens},
            formula="take the longest piece that the rest begins with; pieces inside the word begin with ##",
            work=" | ".join(tokens),
            normalize=self._normalize_unknown,
        )

    def _normalize_unknown(self, text: str) -> str:
        """Return a piece in one notation, [UNK] without its brackets."""
        pieces = self._close(text).split()
        return " ".join(UNKNOWN if piece.strip("[]<>").casefold() == "unk" else piece for piece in pieces)

    def _find_wordpiece(self, name: str) -> ExpectedValue | None:
        """Return the tokens of any word, or the score of any pair in the first step."""
        match = re.fullmatch(r"\s*(tokens|encode|encoding|tokenize|score|count)\s*\(\s*(.{1,80}?)\s*\)\s*", name)
        if not match:
            return None
        parts = [part.strip("'\" ") for part in re.split(r"[,\s]+", match[2]) if part.strip("'\" ")]
        if match[1] not in ("score", "count"):
            return self._expect_longest(parts[0]) if len(parts) == 1 and self.pieces else None
        words = self.word_counts()
        rows = {word: [word[0], *(f"##{character}" for character in word[1:])] for word in words}
        symbols, pairs = self._count_symbols(rows, words)
        if match[1] == "count" and len(parts) == 1:
            return expect([name], symbols[parts[0]]) if parts[0] in symbols else None
        if len(parts) != 2:
            return None
        pair = next((pair for pair in pairs if parts == list(pair) or parts == [pair[0], pair[1][2:]]), None)
        if pair is None:
            return None
        if match[1] == "count":
            return expect([name], pairs[pair])
        product = symbols[pair[0]] * symbols[pair[1]]
        work = f"{pairs[pair]} / ({symbols[pair[0]]}·{symbols[pair[1]]})"
        formula = "count(ab) / (count(a)·count(b))"
        wrong = {"the counts of the symbols are left out": pairs[pair]}
        return expect([name], pairs[pair] / product, formula=formula, work=work, mistakes=wrong)

    # Unigram

    def piece_probabilities(self) -> dict[str, float]:
        """Return the probabilities of the pieces; counts are divided by their sum."""
        total = sum(self.probabilities.values())
        if any(value > 1 for value in self.probabilities.values()):
            return {piece: value / total for piece, value in self.probabilities.items()}
        return dict(self.probabilities)

    def _list_best(self, word: str, probabilities: Mapping[str, float]) -> list[tuple[float, Pieces]]:
        """Return the most probable segmentations of a word, several if they tie, with their natural log probability."""
        best: list[list[tuple[float, Pieces]]] = [[(0.0, ())]]
        for end in range(1, len(word) + 1):
            options = [
                (value + log(probabilities[word[start:end]]), (*pieces, word[start:end]))
                for start in range(end)
                if word[start:end] in probabilities
                for value, pieces in best[start]
            ]
            top = max((value for value, _ in options), default=0.0)
            best.append([option for option in options if abs(option[0] - top) < 1e-9][:6])
        return best[-1]

    def _sum_segmentations(self, word: str, probabilities: Mapping[str, float]) -> tuple[float, int]:
        """Return the probability of all segmentations of a word, and their number."""
        sums, counts = [1.0], [1]
        for end in range(1, len(word) + 1):
            starts = [start for start in range(end) if word[start:end] in probabilities]
            sums.append(sum(sums[start] * probabilities[word[start:end]] for start in starts))
            counts.append(sum(counts[start] for start in starts))
        return sums[-1], counts[-1]

    def _expect_word(self, word: str) -> list[ExpectedValue]:
        """Return the best segmentation of a word, its probability and its log probability."""
        probabilities = self.piece_probabilities()
        best = self._list_best(word, probabilities)
        if not best:
            text = "the pieces do not spell the word"
            return [expect([f"probability({word})", f"P({word})"], 0.0, text, work=text)]
        base = {"e": 1.0, "2": log(2), "10": log(10)}[self.log_base or "e"]
        value, pieces = best[0]
        probability, (total, count) = exp(value), self._sum_segmentations(word, probabilities)
        single = len(self.encode) == 1
        greedy = self._take_longest(word, probabilities)
        shortest = self._take_fewest(word, probabilities)
        wrong: dict[str, Pieces] = {
            "the longest piece is taken each time; the most probable segmentation counts": greedy,
            "the fewest pieces are taken; the most probable segmentation counts": shortest,
            "the word is split into characters": tuple(word),
        }
        all_best = {pieces for _, pieces in best}
        wrong = {text: other for text, other in wrong.items() if other and other not in all_best}

        def multiply(other: Pieces) -> float:
            return float(np.prod([probabilities[piece] for piece in other])) if other else np.nan

        factors = [probabilities[piece] for piece in pieces]
        mistakes = {
            f"another segmentation, {' '.join(other)}": multiply(other)
            for other in wrong.values()
            if all(piece in probabilities for piece in other)
        }
        mistakes |= {
            "the probabilities are added instead of multiplied": sum(factors),
            "all segmentations are added; the best one alone is asked for": total,
            "the mean of the probabilities is taken": sum(factors) / len(factors),
        }
        first = ["tokens", "segmentation", "encoding", "best"] if single else []
        alternatives = tuple(" ".join(pieces) for _, pieces in best)
        return [
            expect([f"num_segmentations({word})", *(["num_segmentations"] if single else [])], count, "segmentations"),
            expect(
                [f"total_probability({word})", *(["total_probability"] if single else [])],
                total,
                "probability of all segmentations together",
                mistakes={"that is the best segmentation alone": probability},
            ),
            expect(
                [f"probability({word})", f"P({word})", *(["probability", "p"] if single else [])],
                probability,
                f"probability of the best segmentation of {word}",
                "product of the probabilities of its pieces",
                show_terms(factors, "·"),
                mistakes,
            ),
            expect(
                [
                    f"log_probability({word})",
                    f"logP({word})",
                    f"log P({word})",
                    *(["log_probability", "logP", "log P"] if single else []),
                ],
                value / base,
                f"log probability of the best segmentation of {word}",
                "sum of the log probabilities of its pieces",
                show_terms([log(factor) / base for factor in factors]),
                {text: log(other) / base for text, other in mistakes.items() if other > 0},
            ),
            ExpectedValue(
                f"tokens({word})",
                (alternatives,),
                (),
                f"most probable pieces of {word}",
                (*self._token_names(word)[1:], *first),
                mistakes={text: (" ".join(other),) for text, other in wrong.items()},
                formula="the segmentation with the largest product of probabilities (Viterbi)",
                work=f"{show_terms(factors, '·')} = {show(probability)}",
                normalize=self._close,
            ),
        ]

    def _take_longest(self, word: str, probabilities: Mapping[str, float]) -> Pieces:
        """Return the pieces of a word by the longest match from the left; () if they do not spell it."""
        pieces: list[str] = []
        while word:
            size = next((size for size in range(len(word), 0, -1) if word[:size] in probabilities), 0)
            if not size:
                return ()
            pieces.append(word[:size])
            word = word[size:]
        return tuple(pieces)

    def _take_fewest(self, word: str, probabilities: Mapping[str, float]) -> Pieces:
        """Return the most probable of the segmentations with the fewest pieces; () if there is none."""
        scaled = {piece: value * 1e-9 for piece, value in probabilities.items()}
        best = self._list_best(word, scaled)
        return best[0][1] if best else ()

    def _loss(self, probabilities: Mapping[str, float]) -> float | None:
        """Return the negative log-likelihood of the words by their best segmentations; None if a word has none."""
        total = 0.0
        for word, count in self.word_counts().items():
            best = self._list_best(word, probabilities)
            if not best:
                return None
            total -= count * best[0][0]
        return total / {"e": 1.0, "2": log(2), "10": log(10)}[self.log_base or "e"]

    def _expect_unigram(self) -> list[ExpectedValue]:
        """Return the segmentations of words, the loss of the corpus, and its growth where a piece is removed."""
        probabilities = self.piece_probabilities()
        values = [
            expect(
                "piece_probabilities",
                np.array(list(probabilities.values())),
                "probability of each piece",
                "count / sum of the counts" if probabilities != self.probabilities else "",
                labels=[list(probabilities)],
            )
        ]
        words = dict.fromkeys([*self.word_counts(), *self.encode])
        for word in [word for word in words if word not in self.encode] + list(self.encode):
            values += self._expect_word(word)
        loss = self._loss(probabilities) if self.word_counts() else None
        if loss is None:
            return values
        type_loss = (
            sum(-self._list_best(word, probabilities)[0][0] for word in self.word_counts())
            / {"e": 1.0, "2": log(2), "10": log(10)}[self.log_base or "e"]
        )
        total = self.word_counts().total()
        values.append(
            expect(
                "loss NLL L",
                loss,
                "negative log-likelihood of the words",
                "−Σ count(word)·log P(word)",
                mistakes={
                    "each word counts once: the word counts are ignored": type_loss,
                    "the loss is divided by the number of words": loss / total,
                    "the sign is left out": -loss,
                },
            )
        )
        if not self.remove:
            return values
        remaining = {piece: value for piece, value in probabilities.items() if piece != self.remove}
        remaining_sum = sum(remaining.values())
        renormalized = {piece: value / remaining_sum for piece, value in remaining.items()}
        right, other = self._loss(remaining), self._loss(renormalized)
        if right is None or other is None:
            return values
        text = "the probabilities of the other pieces are divided by their new sum; here they stay"
        values.append(
            expect(
                ["loss_without", f"loss_without({self.remove})", "new_loss"],
                right,
                f"loss without {self.remove}",
                mistakes={text: other, "that is the loss with the piece": loss},
            )
        )
        values.append(
            expect(
                ["loss_increase", f"loss_increase({self.remove})", "increase", "delta"],
                right - loss,
                f"growth of the loss without {self.remove}",
                "loss without the piece − loss",
                f"{show(right)} − {show(loss)}",
                {text: other - loss, "that is the new loss": right, "the loss falls by that": loss - right},
            )
        )
        return values

    def _find_unigram(self, name: str) -> ExpectedValue | None:
        """Return values of any word, as in tokens(hug) and P(hug)."""
        match = _CALL.fullmatch(normalize_name(name))
        word = re.fullmatch(r"[^()]*\(\s*(\S{1,40})\s*\)\s*", name)
        if not match or not word:
            return None
        values = self._expect_word(word[1].strip("'\""))
        target_name = normalize_name(name)
        return next(
            (value for value in values if target_name in map(normalize_name, (value.name, *value.aliases))), None
        )

    def conventions(self) -> Iterable[tuple[str, Self]]:
        """Yield the other bases of logarithms, where the statement leaves the base open."""
        if self.algorithm == "unigram" and not self.log_base:
            for base in ("2", "10"):
                yield f"Read with logarithms to the base {base}.", self.model_copy(update={"log_base": base})


def _join_pairs(symbols: Sequence[str], left: str, right: str, limit: int = MAX_CORPUS_CHARS) -> list[str]:
    """Return symbols in which a pair is joined, from left to right, at most `limit` times."""
    row: list[str] = []
    for symbol in symbols:
        if limit and row and row[-1] == left and symbol == right:
            row[-1] = left + right
            limit -= 1
        else:
            row.append(symbol)
    return row
