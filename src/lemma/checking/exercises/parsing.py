"""Exercises on parsing: transition-based and graph-based dependency parsing, and CKY."""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BeforeValidator, model_validator

from lemma.checking.check_values import AnswerKey, ValueClaim, normalize_name
from lemma.checking.exercises.base import ValueExercise
from lemma.checking.exercises.notation import (
    expect_word,
    format_product,
    is_number,
    keep_distinct,
    make_alternatives,
    read_table,
    rewrite_number,
    split_words,
    strip_brackets,
)
from lemma.checking.expected_values import ExpectedValue, expect_numbers, expect_words
from lemma.errors import InputError

ROOT = "ROOT"
MAX_WORDS, MAX_KEYS, MAX_TREES, MAX_RULES = 40, 24, 50, 300
System = Literal["arc-standard", "arc-eager", "arc-hybrid"]
SHIFT, LEFT, RIGHT, REDUCE = "SHIFT", "LEFT-ARC", "RIGHT-ARC", "REDUCE"
TRANSITION_NAMES = {"shift": SHIFT, "sh": SHIFT, "s": SHIFT, "reduce": REDUCE, "re": REDUCE, "red": REDUCE, "d": REDUCE}
TRANSITION_NAMES |= dict.fromkeys(("leftarc", "la", "left", "l", "leftreduce", "lreduce"), LEFT)
TRANSITION_NAMES |= dict.fromkeys(("rightarc", "ra", "right", "r", "rightreduce", "rreduce"), RIGHT)
YES, NO = (
    ("yes", "true", "projective", "y", "1"),
    (
        "no",
        "false",
        "non-projective",
        "nonprojective",
        "not projective",
        "n",
        "0",
    ),
)
NOTHING = ("", "∅", "empty", "-", "–", "none", "[]", "{}", "ε", "\\emptyset", "nothing")
Arc = tuple[int, int]


# Transition-based parsing


@dataclass(frozen=True)
class Configuration:
    """A state of a transition-based parser, with tokens numbered from 1 and ROOT as 0; the stack's top is its last."""

    stack: tuple[int, ...]
    buffer: tuple[int, ...]
    arcs: frozenset[Arc] = frozenset()  # heads and dependents

    def has_head(self, token: int) -> bool:
        """Return whether a token has a head."""
        return any(dependent == token for _, dependent in self.arcs)

    def apply(self, system: System, transition: str) -> "Configuration | str":
        """Return the next configuration, or why the transition is not possible."""
        stack, buffer, arcs = self.stack, self.buffer, self.arcs
        if transition == SHIFT:
            if not buffer:
                return "the buffer is empty, so nothing can be shifted"
            return Configuration((*stack, buffer[0]), buffer[1:], arcs)
        if transition == REDUCE:
            if system != "arc-eager":
                return f"{system} has no REDUCE"
            if not stack or not self.has_head(stack[-1]):
                return "REDUCE needs a top of the stack that has a head"
            return Configuration(stack[:-1], buffer, arcs)
        if system == "arc-standard" or (system == "arc-hybrid" and transition == RIGHT):
            if len(stack) < 2:
                return f"{transition} needs two items on the stack"
            top, second = stack[-1], stack[-2]
            if transition == RIGHT:
                return Configuration(stack[:-1], buffer, arcs | {(second, top)})
            if second == 0:
                return "LEFT-ARC would give ROOT a head"
            return Configuration((*stack[:-2], top), buffer, arcs | {(top, second)})
        if not stack or not buffer:
            return f"{transition} needs a top of the stack and a front of the buffer"
        top, front = stack[-1], buffer[0]
        if transition == RIGHT:
            return Configuration((*stack, front), buffer[1:], arcs | {(top, front)})
        if top == 0:
            return "LEFT-ARC would give ROOT a head"
        if self.has_head(top):
            return "LEFT-ARC needs a top of the stack without a head"
        return Configuration(stack[:-1], buffer, arcs | {(front, top)})

    def is_final(self, system: System) -> bool:
        """Return whether the parse is complete."""
        return not self.buffer and (system == "arc-eager" or len(self.stack) == 1)


def find_oracle_violation(configuration: Configuration, system: System, transition: str, heads: Sequence[int]) -> str:
    """Return why a transition loses the gold tree; "" if it does not.

    Args:
        configuration: from which the gold tree can be reached.
        system: the transitions.
        transition: one that is possible.
        heads: gold head of each token, with an entry for ROOT.
    """
    stack, buffer, arcs = configuration.stack, configuration.buffer, configuration.arcs
    missing = [(heads[token], token) for token in range(1, len(heads)) if (heads[token], token) not in arcs]

    def waits(token: int) -> bool:
        """Return whether a dependent of a token is still to be attached."""
        return any(head == token for head, _ in missing)

    top = stack[-1] if stack else -1
    second = stack[-2] if len(stack) > 1 else -1
    front = buffer[0] if buffer else -1
    if system == "arc-standard" or (system == "arc-hybrid" and transition == RIGHT):
        if transition == LEFT:
            if heads[second] != top:
                return "LEFT-ARC adds an arc that is not in the tree"
            return "LEFT-ARC comes too early: its dependent still lacks dependents of its own" if waits(second) else ""
        if transition == RIGHT:
            if heads[top] != second:
                return "RIGHT-ARC adds an arc that is not in the tree"
            return "RIGHT-ARC comes too early: its dependent still lacks dependents of its own" if waits(top) else ""
        if top > 0 and heads[top] == second and not waits(top):
            return "SHIFT comes too early: RIGHT-ARC is due"
        if (
            second > 0
            and heads[second] == top
            and not waits(second)
            and not any(h == top and d in buffer for h, d in missing)
        ):
            return "SHIFT comes too early: LEFT-ARC is due"
        return ""
    if transition == LEFT:
        if heads[top] != front:
            return "LEFT-ARC adds an arc that is not in the tree"
        return "LEFT-ARC comes too early: its dependent still lacks dependents of its own" if waits(top) else ""
    if transition == RIGHT:
        if heads[front] != top:
            return "RIGHT-ARC adds an arc that is not in the tree"
        return ""
    if transition == REDUCE:
        return "REDUCE comes too early: the top of the stack still lacks dependents" if waits(top) else ""
    if system == "arc-hybrid":
        if heads[front] in stack[:-1]:
            return "SHIFT comes too early: RIGHT-ARC is due"
        if any(heads[token] == front for token in stack if token > 0):
            return "SHIFT comes too early: LEFT-ARC is due"
        return ""
    if heads[front] in stack:
        return "SHIFT comes too early: the front of the buffer has its head on the stack"
    if any(heads[token] == front for token in stack if token > 0):
        return "SHIFT comes too early: the front of the buffer has a dependent on the stack"
    return ""


def list_oracles(heads: Sequence[int], system: System) -> Iterator[tuple[str, ...]]:
    """Yield the sequences of transitions that derive a tree; the arcs come as early as possible in the first."""
    start = Configuration((0,), tuple(range(1, len(heads))))
    pending: list[tuple[Configuration, tuple[str, ...]]] = [(start, ())]
    visited = 0
    while pending and visited < 20_000:
        configuration, done = pending.pop()
        visited += 1
        if configuration.is_final(system):
            if len(configuration.arcs) == len(heads) - 1:
                yield done
            continue
        for transition in (SHIFT, REDUCE, RIGHT, LEFT):  # the last is tried first
            following = configuration.apply(system, transition)
            if isinstance(following, Configuration) and not find_oracle_violation(
                configuration, system, transition, heads
            ):
                pending.append((following, (*done, transition)))


def crosses(left: Arc, right: Arc) -> bool:
    """Return whether two arcs cross when they are drawn above the sentence."""
    (a, b), (c, d) = sorted(left), sorted(right)
    return a < c < b < d or c < a < d < b


def split_transitions(text: str) -> list[str]:
    """Return the transitions of a text in their standard names, with labels in brackets."""
    normalized = strip_brackets(text)
    normalized = re.sub(r"\b(left|right)[\s_-]*(arc|reduce)", r"\1\2", normalized, flags=re.IGNORECASE)
    normalized = re.sub(r"->|→|=>|;|\d+[.:]", ",", normalized)
    items = re.findall(r"[A-Za-z][\w-]*(?:\s*[(\[:]\s*[\w:]+\s*[)\]]?)?", normalized)
    transitions = []
    for item in items:
        match = re.fullmatch(r"([A-Za-z]+)\s*[-_(\[:]?\s*([\w:]*)[)\]]?", item.replace(" ", ""))
        name = TRANSITION_NAMES.get((match[1] if match else item).casefold(), item)
        transitions.append(f"{name}({match[2]})" if match and match[2] and name in (LEFT, RIGHT) else name)
    if len(items) == 1 and len(normalized) > 2 and set(normalized.upper()) <= set("SLRD"):
        transitions = [TRANSITION_NAMES[letter.casefold()] for letter in normalized]
    return transitions


def split_heads(value: Any) -> Any:
    """Return the heads of a text or list as texts, or arcs as "head->dependent"."""
    if isinstance(value, dict):
        return tuple(f"{head}->{dependent}" for dependent, head in value.items())
    if isinstance(value, str) and re.search(r"->|→", value):
        return tuple(item.replace("→", "->").replace(" ", "") for item in re.split(r"[,;\n]", value) if item.strip())
    return split_words(value, "heads", MAX_WORDS)


HeadList = Annotated[tuple[str, ...], BeforeValidator(split_heads)]
WordList = Annotated[tuple[str, ...], BeforeValidator(lambda value: split_words(value, "sentence", MAX_WORDS))]


class DependencyExercise(ValueExercise):
    """A dependency tree: its transitions, its projectivity, and its comparison with a predicted tree."""

    kind: ClassVar[str] = "parsing"
    names_with_parameters: ClassVar[str] = "stack3, buffer3, arcs3 and transition3 of each step, head(word)"

    sentence: WordList
    """Words of the sentence."""
    heads: HeadList = ()
    """Gold head of each word, as a number (0 for ROOT) or word, as in "2 0 4 2"."""
    labels: Annotated[tuple[str, ...], BeforeValidator(lambda value: split_words(value, "labels", MAX_WORDS))] = ()
    """Gold label of each word's arc, as in "nsubj root det obj"."""
    system: System = "arc-standard"
    """Transitions: arc-standard (arcs between the two top items of the stack), arc-eager or arc-hybrid."""
    given: Annotated[
        tuple[str, ...], BeforeValidator(lambda value: split_transitions(value) if isinstance(value, str) else value)
    ] = ()
    """Transitions to follow in place of a gold tree, as in "SHIFT SHIFT LEFT-ARC"."""
    predicted: HeadList = ()
    """Predicted head of each word, for attachment scores."""
    predicted_labels: Annotated[
        tuple[str, ...], BeforeValidator(lambda value: split_words(value, "predicted_labels", MAX_WORDS))
    ] = ()
    """Predicted label of each word's arc."""
    ignore: WordList = ()
    """Words that attachment scores leave out, such as punctuation."""

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if not self.sentence:
            raise ValueError('sentence: words are expected, as in sentence="She ate fish"')
        if not self.heads and not self.given:
            raise ValueError('give heads="2 0 2", the head of each word, or given="SHIFT SHIFT LEFT-ARC …"')
        for name in ("labels", "predicted_labels"):
            if getattr(self, name) and len(getattr(self, name)) != len(self.sentence):
                raise ValueError(f"{name}: {len(self.sentence)} labels are expected, one for each word")
        for name in ("heads", "predicted"):
            if getattr(self, name):
                self._read_heads(name)
        if self.predicted and not self.heads:
            raise ValueError('predicted needs the gold tree, as in heads="2 0 2"')
        if self.heads and not is_tree(self.gold):
            raise ValueError("heads: each word must reach ROOT (0) through its heads; these have a cycle")
        if self.given:
            self._follow(self._normalize_transitions(self.given))
        return self

    # Tokens

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """ROOT and the words; words that occur more than once with their numbers."""
        words = [
            word if self.sentence.count(word) == 1 else f"{word}-{number}"
            for number, word in enumerate(self.sentence, 1)
        ]
        return (ROOT, *words)

    def _find_tokens(self, text: str) -> list[int]:
        """Return the tokens that a text may stand for."""
        text = text.strip().strip("\"'")
        if text.strip("[]<>").casefold() == "root" and text not in self.sentence:
            return [0]
        for normalize in (str, str.casefold):
            matching = [index for index, token in enumerate(self.tokens) if normalize(token) == normalize(text)]
            matching = matching or [
                index for index, word in enumerate(self.sentence, 1) if normalize(word) == normalize(text)
            ]
            if matching:
                return matching
        if text.isdigit() and int(text[:4]) < len(self.tokens):
            return [int(text)]
        return []

    def _read_heads(self, name: str) -> list[int]:
        """Return the head of each token by number, with an entry for ROOT."""
        items: Sequence[str] = getattr(self, name)
        heads = [-1] * len(self.tokens)
        if any("->" in item for item in items):
            for item in items:
                left, _, right = item.partition("->")
                head, dependent = self._find_tokens(left), self._find_tokens(right)
                if not head or not dependent or dependent[0] == 0:
                    raise ValueError(f"{name}: '{item[:60]}' is not an arc between words of the sentence")
                heads[dependent[0]] = head[0]
        else:
            if len(items) != len(self.sentence):
                raise ValueError(
                    f"{name}: {len(self.sentence)} heads are expected, one for each word; got {len(items)}"
                )
            for dependent, item in enumerate(items, 1):
                head = [int(item)] if item.isdigit() and int(item[:4]) < len(self.tokens) else self._find_tokens(item)
                if not head:
                    raise ValueError(f"{name}: '{item[:40]}' is not a number from 0 to {len(self.sentence)} or a word")
                heads[dependent] = head[0]
        if -1 in heads[1:]:
            raise ValueError(f"{name}: '{self.tokens[heads.index(-1, 1)]}' has no head")
        return heads

    @cached_property
    def gold(self) -> list[int]:
        """The gold heads; those that the given transitions lead to without them."""
        if self.heads:
            return self._read_heads("heads")
        heads = [-1] * len(self.tokens)
        for head, dependent in self._follow(self._normalize_transitions(self.given))[-1].arcs:
            heads[dependent] = head
        return heads

    def _name_arc(self, arc: Arc) -> str:
        return f"{self.tokens[arc[0]]}→{self.tokens[arc[1]]}"

    # Transitions

    def _normalize_transitions(self, items: Sequence[str]) -> tuple[str, ...]:
        """Return transitions without labels."""
        return tuple(re.sub(r"\(.*", "", item) for item in split_transitions(", ".join(items)))

    def _follow(self, transitions: Sequence[str]) -> list[Configuration]:
        """Return the configurations that transitions lead through; a ValueError names the first impossible one."""
        configurations = [Configuration((0,), tuple(range(1, len(self.tokens))))]
        for number, transition in enumerate(transitions[: 4 * MAX_WORDS], 1):
            if transition not in (SHIFT, LEFT, RIGHT, REDUCE):
                raise ValueError(f"step {number}: '{transition[:40]}' is not a transition: SHIFT, LEFT-ARC, RIGHT-ARC")
            following = configurations[-1].apply(self.system, transition)
            if isinstance(following, str):
                raise ValueError(f"step {number}: {following}")
            configurations.append(following)
        return configurations

    @property
    def crossing(self) -> list[tuple[Arc, Arc]]:
        """The pairs of gold arcs that cross."""
        arcs = [(head, dependent) for dependent, head in enumerate(self.gold) if dependent and head >= 0]
        return [(left, right) for index, left in enumerate(arcs) for right in arcs[:index] if crosses(left, right)]

    def _describe_wrong_step(self, transitions: Sequence[str]) -> str:
        """Return the first transition that is not possible or loses the gold tree."""
        configuration = Configuration((0,), tuple(range(1, len(self.tokens))))
        for number, transition in enumerate(transitions, 1):
            if transition not in (SHIFT, LEFT, RIGHT, REDUCE):
                return f"step {number}: '{transition[:40]}' is not a transition"
            if configuration.is_final(self.system) and transition != REDUCE:
                return f"step {number} is one too many: the parse is complete before it"
            following = configuration.apply(self.system, transition)
            if isinstance(following, str):
                return f"step {number}: {following}"
            if self.heads and (reason := find_oracle_violation(configuration, self.system, transition, self.gold)):
                return f"step {number}: {reason}"
            configuration = following
        return "" if configuration.is_final(self.system) else f"after step {len(transitions)} the parse is not complete"

    # Notation

    @classmethod
    def is_answer(cls, name: str, value: str, stated: Collection[str]) -> bool:
        """Return whether heads are an answer: those that given transitions lead to."""
        return name.strip() == "heads" and "given" in stated

    def main_names(self) -> tuple[str, ...]:
        """Return the attachment scores, the transitions, or the heads that given transitions lead to."""
        if self.predicted:
            return ("LAS",) if self.labels and self.predicted_labels else ("UAS",)
        if self.given:
            return ("heads",)
        return ("projective",) if self.crossing else ("transitions",)

    def rewrite_line(self, line: str) -> str:
        """Return a line with transitions, tokens and arcs as lists of quoted words."""
        match = re.match(r"([^=]*?)\s*==?(?![>])\s*(.*)", line, re.DOTALL)
        if not match:
            return line
        name, value = re.sub(r"\[\s*(\d+)\s*\]|\(\s*(\d+)\s*\)", r"\1\2", match[1].strip()), match[2].strip()
        normalized_name = normalize_name(name)
        items: list[str] | None = None
        if normalized_name in ("transitions", "oracle", "sequence", "actions", "moves"):
            items = split_transitions(value)
        elif re.fullmatch(r"(transition|action|move)\d+", normalized_name):
            items = split_transitions(value)
            return f'{name} = "{items[0]}"' if len(items) == 1 else line
        elif re.fullmatch(r"(stack|buffer|queue|sigma|beta)\d*", normalized_name):
            inner = strip_brackets(value)
            inner = re.sub(r"\[ROOT\]|<ROOT>", ROOT, inner)
            items = [item for item in re.split(r"[\s,|]+", inner) if item.strip("\"'")]
            items = [] if inner.strip().casefold() in NOTHING else items
        elif re.fullmatch(r"(arcs|a|edges|relations)\d*", normalized_name) or normalized_name == "crossingarcs":
            items = self._split_arcs(value)
        elif normalized_name == "heads" and not value.startswith("{"):
            items = [item for item in re.split(r"[\s,]+", strip_brackets(value)) if item]
            numbers = [self._find_tokens(item) for item in items]
            if all(numbers) and not all(item.isdigit() for item in items):
                items = [str(number[0]) for number in numbers]
            return f"heads = [{', '.join(items)}]"
        if items is None:
            return line if normalized_name.startswith("head(") else rewrite_number(line)
        return f"{name} = [" + ", ".join(f'"{item.strip(chr(34))}"' for item in items) + "]"

    def _split_arcs(self, value: str) -> list[str]:
        """Return arcs such as (ate, She), ate -> She or nsubj(ate, She) as sorted words."""
        if strip_brackets(value).casefold() in NOTHING:
            return []
        arcs = re.findall(r"([\w'.?!-]+?)\s*(?:->|→|\\to)\s*([\w'.?!-]+)", value)
        if not arcs:
            triples = re.findall(r"\(([^()]+)\)", value)
            parts = [re.split(r"[\s,]+", triple.strip()) for triple in triples]
            arcs = [(part[0], part[-1]) for part in parts if len(part) in (2, 3)]
        gold = {(head, dependent) for dependent, head in enumerate(self.gold) if dependent}
        names = []
        for left, right in arcs:
            pairs = [(head, dependent) for head in self._find_tokens(left) for dependent in self._find_tokens(right)]
            pair = next((pair for pair in pairs if pair in gold), pairs[0] if pairs else None)
            names.append(self._name_arc(pair) if pair else f"{left}→{right}")
        return sorted(set(names)) if names else [value]

    # Values

    def answer_keys(self, claims: Sequence[ValueClaim]) -> Iterable[AnswerKey]:
        """Yield a key for each sequence of transitions that derives the tree, that of the answer first."""
        claimed: tuple[str, ...] = ()
        for claim in claims:
            if normalize_name(claim.target.name) in ("transitions", "oracle", "sequence", "actions", "moves"):
                value = claim.value
                claimed = tuple(map(str, value)) if isinstance(value, list) else ()
        if self.given or self.crossing:
            yield self._make_step_key(self._normalize_transitions(self.given), ())
            return
        unlabeled = tuple(re.sub(r"\(.*", "", item) for item in claimed)
        if claimed and not self._describe_wrong_step(unlabeled):
            yield self._make_step_key(unlabeled, claimed)
            return
        for transitions in islice(list_oracles(self.gold, self.system), MAX_KEYS):
            yield self._make_step_key(transitions, claimed)

    def _make_step_key(self, transitions: tuple[str, ...], claimed: tuple[str, ...]) -> AnswerKey:
        find = partial(self._find_step, transitions)
        command = f"lemma check {self.kind} … --names"
        return AnswerKey(self.name, self._list_values(transitions, claimed), find, names_command=command)

    def expected_values(self) -> Sequence[ExpectedValue]:
        """Return the transitions, the arcs and the attachment scores."""
        return self._list_values(self._default_transitions, ())

    @cached_property
    def _default_transitions(self) -> tuple[str, ...]:
        """The given transitions, or the first sequence that derives the tree."""
        if self.given:
            return self._normalize_transitions(self.given)
        return () if self.crossing else next(list_oracles(self.gold, self.system), ())

    def find_value(self, name: str) -> ExpectedValue | None:
        """Return the stack, buffer or arcs after a step, or the head of a word."""
        return self._find_step(self._default_transitions, name)

    def _list_values(self, transitions: tuple[str, ...], claimed: tuple[str, ...]) -> list[ExpectedValue]:
        """Return the values of a sequence of transitions; `claimed` is that of an answer, with labels."""
        values: list[ExpectedValue] = []
        if transitions:
            values += [self._expect_transitions(transitions, claimed)]
            count = len(transitions)
            mistakes = {"one transition for each word: a word is shifted and attached": float(len(self.sentence))}
            values.append(
                expect_numbers(
                    ["number of transitions", "steps"],
                    count,
                    mistakes=keep_distinct(count, {**mistakes, "ROOT needs no SHIFT of its own": float(count + 1)}),
                    formula="2n for arc-standard: each of n words is shifted once and attached once",
                )
            )
            values += [
                value for name in ("stack1", "buffer1", "arcs1") if (value := self._find_step(transitions, name))
            ]
        if self.heads:
            values += self._expect_projectivity()
        values += self._expect_tree()
        if self.predicted:
            values += self._expect_scores()
        return values

    def _expect_transitions(self, transitions: tuple[str, ...], claimed: tuple[str, ...]) -> ExpectedValue:
        """Return the transitions, with the first wrong step of an answer as its mistake."""
        configurations = self._follow(transitions)
        alternatives, previous = [], configurations[0]
        for transition, configuration in zip(transitions, configurations[1:], strict=True):
            added = configuration.arcs - previous.arcs
            label = self.labels[next(iter(added))[1] - 1] if added and self.labels else ""
            claim = claimed[len(alternatives)] if len(alternatives) < len(claimed) else ""
            if added and not self.labels and claim.startswith(f"{transition}("):  # no gold labels to compare with
                label = claim.removeprefix(f"{transition}(").removesuffix(")")
            alternatives.append((transition, f"{transition}({label})") if label else (transition,))
            previous = configuration
        unlabeled = tuple(re.sub(r"\(.*", "", item) for item in claimed)
        reason = self._describe_wrong_step(unlabeled) if claimed else ""
        rows = [
            f"{number}. {transition}: [{' '.join(self._names(after.stack))}] [{' '.join(self._names(after.buffer))}]"
            for number, (transition, after) in enumerate(zip(transitions, configurations[1:], strict=True), 1)
        ]
        rules = {
            "arc-standard": "LEFT-ARC: top → second, RIGHT-ARC: second → top, once the dependent has all of its own",
            "arc-eager": "LEFT-ARC: front → top, RIGHT-ARC: top → front and push it, REDUCE what is complete",
            "arc-hybrid": "LEFT-ARC: front → top, RIGHT-ARC: second → top, once the dependent has all of its own",
        }
        return expect_words(
            ["transitions", "oracle", "actions", "moves"],
            alternatives,
            meaning="transitions that derive the tree; after step i: stack{i}, buffer{i}, arcs{i}, transition{i}",
            mistakes={reason: claimed} if reason else {},
            formula=rules[self.system],
            work="\n  ".join(rows),
        )

    def _names(self, tokens: Iterable[int]) -> list[str]:
        return [self.tokens[token] for token in tokens]

    def _find_step(self, transitions: tuple[str, ...], name: str) -> ExpectedValue | None:
        """Return the configuration after a step of some transitions, or the head of a word."""
        normalized_name = normalize_name(name)
        if match := re.fullmatch(r"head(?:of)?\(?(.+?)\)?", normalized_name):
            tokens = [token for token in self._find_tokens(match[1]) if token]
            if not tokens:
                raise InputError(f"{self.name}: '{match[1][:40]}' is not a word of the sentence.")
            head = self.gold[tokens[0]]
            return expect_word(
                [name], [self.tokens[head], str(head)] if head >= 0 else ["none"], meaning="head of the word"
            )
        match = re.fullmatch(
            r"(stack|sigma|buffer|queue|beta|arcs|a|edges|relations|transition|action|move)(\d+)", normalized_name
        )
        if not match or not transitions:
            return None
        step, configurations = int(match[2][:6]), self._follow(transitions)
        if step >= len(configurations):
            raise InputError(f"{self.name}: {name}: the steps are from 0 (the start) to {len(configurations) - 1}.")
        configuration, kind = configurations[step], match[1]
        if kind in ("transition", "action", "move"):
            if not step:
                raise InputError(f"{self.name}: {name}: transitions are counted from 1.")
            return expect_word([name], [transitions[step - 1]], meaning=f"transition {step}")
        if kind in ("arcs", "a", "edges", "relations"):
            names = sorted(map(self._name_arc, configuration.arcs))
            wrong = {
                "heads and dependents are exchanged": sorted(self._name_arc((d, h)) for h, d in configuration.arcs),
            }
            neighbors = self._neighboring_steps(configurations, step)
            for text, other in neighbors.items():
                wrong[text] = sorted(map(self._name_arc, other.arcs))
            wrong = {text: words for text, words in wrong.items() if words != names}
            return expect_words(
                [name], names, names, f"arcs after step {step}", mistakes=wrong, up_to=frozenset({"order"})
            )
        is_stack = kind in ("stack", "sigma")
        tokens = configuration.stack if is_stack else configuration.buffer
        alternatives = [self._write_token(token) for token in tokens]
        wrong_tokens: dict[str, Sequence[int]] = {
            "the order is reversed: the top of the stack is on the right": tokens[::-1]
        }
        if not is_stack:
            wrong_tokens = {"the order is reversed: the front of the buffer is on the left": tokens[::-1]}
        wrong_tokens["that is the buffer, not the stack" if is_stack else "that is the stack, not the buffer"] = (
            configuration.buffer if is_stack else configuration.stack
        )
        if is_stack:
            wrong_tokens["ROOT is at the bottom of the stack"] = [token for token in tokens if token]
        for text, other in self._neighboring_steps(configurations, step).items():
            wrong_tokens[text] = other.stack if is_stack else other.buffer
        if is_stack and step and transitions[step - 1] in (LEFT, RIGHT):
            wrong_tokens["the head is removed, not the dependent"] = self._remove_head(
                configurations[step - 1], step, transitions
            )
            wrong_tokens["the dependent stays on the stack: an arc removes it"] = configurations[step - 1].stack
        mistakes = {text: self._names(other) for text, other in wrong_tokens.items() if tuple(other) != tuple(tokens)}
        return expect_words(
            [name],
            alternatives,
            [str(number) for number in range(1, len(tokens) + 1)],
            f"{'stack' if is_stack else 'buffer'} after step {step}" + (", its top on the right" if is_stack else ""),
            mistakes=mistakes,
        )

    def _remove_head(self, before: Configuration, step: int, transitions: tuple[str, ...]) -> Sequence[int]:
        """Return the stack of a step whose arc removes the head by mistake."""
        if self.system != "arc-standard" or len(before.stack) < 2:
            return ()
        top, second = before.stack[-1], before.stack[-2]
        return (*before.stack[:-2], second if transitions[step - 1] == LEFT else top)

    def _neighboring_steps(self, configurations: Sequence[Configuration], step: int) -> dict[str, Configuration]:
        """Return the configurations before and after a step, by the mistake of giving them."""
        neighbors: dict[str, Configuration] = {}
        if step + 1 < len(configurations):
            neighbors[f"that is the state after step {step + 1}, one step too late"] = configurations[step + 1]
        if step:
            neighbors[f"that is the state after step {step - 1}, one step too early"] = configurations[step - 1]
        return neighbors

    def _write_token(self, token: int) -> tuple[str, ...]:
        """Return the texts that stand for a token."""
        return (self.tokens[token], self.sentence[token - 1] if token else "root", str(token))

    def _expect_projectivity(self) -> list[ExpectedValue]:
        """Return whether the tree is projective, and the arcs that cross."""
        crossing = self.crossing
        pairs = "; ".join(f"{self._name_arc(left)} crosses {self._name_arc(right)}" for left, right in crossing[:4])
        right, wrong = (NO, YES) if crossing else (YES, NO)
        reason = f"{pairs.split(';')[0]}" if crossing else "no arcs cross"
        inner = [pair for pair in crossing if all(head for head, _ in pair)]
        return [
            expect_word(
                ["projective", "projectivity", "is projective"],
                right,
                meaning="yes or no",
                mistakes={reason: wrong[0]},
                normalize=lambda word: (
                    "yes" if word.strip().casefold() in YES else "no" if word.strip().casefold() in NO else word
                ),
                formula="projective: no two arcs cross, that of ROOT included",
                work=pairs or "no two arcs cross",
            ),
            expect_numbers(
                ["crossing pairs", "number of crossings", "crossings"],
                len(crossing),
                meaning="pairs of arcs that cross",
                mistakes=keep_distinct(
                    len(crossing),
                    {"arcs are counted, not pairs": float(len({arc for pair in crossing for arc in pair}))},
                ),
                scales=make_alternatives(
                    len(crossing), [("without the arc from ROOT", float(len(inner)))] if inner else []
                ),
            ),
        ]

    def _expect_tree(self) -> list[ExpectedValue]:
        """Return the arcs of the tree and the heads of the words."""
        arcs = [(head, dependent) for dependent, head in enumerate(self.gold) if dependent and head >= 0]
        names = sorted(map(self._name_arc, arcs))
        exchanged = sorted(self._name_arc((dependent, head)) for head, dependent in arcs)
        without_root = sorted(self._name_arc(arc) for arc in arcs if arc[0])
        values = [
            expect_words(
                ["arcs", "edges", "tree"],
                names,
                names,
                "arcs of the tree",
                mistakes={
                    "heads and dependents are exchanged": exchanged,
                    "the arc from ROOT is left out": without_root,
                },
                up_to=frozenset({"order"}),
            )
        ]
        if -1 not in self.gold[1:]:
            values.append(
                expect_numbers(
                    ["heads", "head"],
                    np.array(self.gold[1:]),
                    [self.tokens[1:]],
                    "number of each word's head, 0 for ROOT",
                )
            )
        return values

    def _expect_scores(self) -> list[ExpectedValue]:
        """Return the attachment scores of the predicted tree."""
        predicted = self._read_heads("predicted")
        scored = [index for index in range(1, len(self.tokens)) if self.sentence[index - 1] not in self.ignore]
        right = [index for index in scored if predicted[index] == self.gold[index]]
        total, everything = len(scored), range(1, len(self.tokens))
        all_right = sum(predicted[index] == self.gold[index] for index in everything)
        has_labels = bool(self.labels and self.predicted_labels)
        labeled = [
            index for index in right if has_labels and self.labels[index - 1] == self.predicted_labels[index - 1]
        ]
        label_only = [
            index for index in scored if has_labels and self.labels[index - 1] == self.predicted_labels[index - 1]
        ]
        uas, las = len(right) / max(1, total), len(labeled) / max(1, total)
        directions = sum(
            predicted[index] == self.gold[index]
            or (predicted[predicted[index]] == index and self.gold[predicted[index]] == index)
            for index in scored
        )
        common = {
            "that is the share of wrong arcs": 1 - uas,
            "ROOT is counted as a word": len(right) / (total + 1),
            "ROOT is counted as a word with a right head": (len(right) + 1) / (total + 1),
            "one word too few in the denominator": len(right) / (total - 1) if total > 1 else None,
        }
        if self.ignore:
            common["the ignored words are counted"] = all_right / len(self.sentence)
        unlabeled = {
            "the label counts too: that is the labelled score": las if has_labels else None,
            "only labels are compared, not heads": len(label_only) / max(1, total) if has_labels else None,
            "arcs are compared without their direction": directions / max(1, total),
            **common,
        }
        correct = ", ".join(self._names(right)) or "none"
        values = [
            expect_numbers(
                ["UAS", "unlabeled attachment score", "unlabelled attachment score"],
                uas,
                meaning="words with the right head / words",
                mistakes=keep_distinct(uas, unlabeled),
                scales={100: "in per cent"},
                formula="UAS = words with the right head / words",
                work=f"right: {correct}; {len(right)}/{total}",
            )
        ]
        if has_labels:
            wrong = {
                "the label is not compared: that is the unlabelled score": uas,
                "only labels are compared, not heads": len(label_only) / max(1, total),
                "the denominator is the number of right heads, not of words": len(labeled) / len(right)
                if right
                else None,
                "that is the share of words whose arc or label is wrong": 1 - las,
                "ROOT is counted as a word": len(labeled) / (total + 1),
                "ROOT is counted as a word with a right head": (len(labeled) + 1) / (total + 1),
            }
            if self.ignore:
                count = sum(
                    predicted[index] == self.gold[index] and self.labels[index - 1] == self.predicted_labels[index - 1]
                    for index in everything
                )
                wrong["the ignored words are counted"] = count / len(self.sentence)
            label_accuracy = len(label_only) / max(1, total)
            values += [
                expect_numbers(
                    ["LAS", "labeled attachment score", "labelled attachment score"],
                    las,
                    meaning="words with the right head and label / words",
                    mistakes=keep_distinct(las, wrong),
                    scales={100: "in per cent"},
                    formula="LAS = words with the right head and label / words",
                    work=f"right: {', '.join(self._names(labeled)) or 'none'}; {len(labeled)}/{total}",
                ),
                expect_numbers(
                    ["label accuracy", "LA"],
                    label_accuracy,
                    meaning="words with the right label / words",
                    scales={100: "in per cent"},
                ),
            ]
        return values


def is_tree(heads: Sequence[int]) -> bool:
    """Return whether every token reaches ROOT through its heads."""
    for token in range(1, len(heads)):
        seen: set[int] = set()
        while token > 0 and token not in seen:
            seen.add(token)
            token = heads[token]
        if token != 0:
            return False
    return True


# Graph-based parsing

Scores = dict[Arc, float]  # by head and dependent


def best_incoming(scores: Scores, nodes: Iterable[int]) -> dict[int, int]:
    """Return the head of the highest score for each node; the first of those that tie."""
    best: dict[int, int] = {}
    for dependent in nodes:
        heads = [head for head, other in scores if other == dependent]
        if heads:
            best[dependent] = max(heads, key=lambda head: (scores[head, dependent], -head))
    return best


def find_cycle(heads: dict[int, int]) -> list[int]:
    """Return the nodes of a cycle in order of their numbers; an empty list without one."""
    for start in sorted(heads):
        path, node = [start], heads.get(start, 0)
        while node in heads and node not in path:
            path.append(node)
            node = heads[node]
        if node in path:
            return sorted(path[path.index(node) :])
    return []


def spanning_tree(scores: Scores, nodes: Sequence[int]) -> dict[int, int]:
    """Return the heads of the maximum spanning tree from node 0, by the algorithm of Chu, Liu and Edmonds."""
    heads = best_incoming(scores, nodes)
    cycle = find_cycle(heads)
    if not cycle:
        return heads
    new = max(nodes) + 1
    contracted: Scores = {}
    entering: dict[int, int] = {}
    leaving: dict[int, int] = {}
    for (head, dependent), score in scores.items():
        if head in cycle and dependent in cycle:
            continue
        if dependent in cycle:
            gain = score - scores[heads[dependent], dependent]
            if (head, new) not in contracted or gain > contracted[head, new]:
                contracted[head, new], entering[head] = gain, dependent
        elif head in cycle:
            if (new, dependent) not in contracted or score > contracted[new, dependent]:
                contracted[new, dependent], leaving[dependent] = score, head
        else:
            contracted[head, dependent] = score
    nodes_outside_cycle = [node for node in nodes if node not in cycle]
    tree = spanning_tree(contracted, [*nodes_outside_cycle, new])
    result = {node: heads[node] for node in cycle}
    for dependent, head in tree.items():
        if dependent == new:
            result[entering[head]] = head
        else:
            result[dependent] = leaving[dependent] if head == new else head
    return result


class SpanningTreeExercise(ValueExercise):
    """A maximum spanning tree computed by hand with the algorithm of Chu, Liu and Edmonds."""

    kind: ClassVar[str] = "spanning-tree"
    names_with_parameters: ClassVar[str] = "head(word), s(ROOT, C) and s(C, word) with the contracted cycle C"

    sentence: WordList = ()
    """Words; by default the dependents of the table."""
    scores: Annotated[Any, BeforeValidator(lambda value: read_table(value, "scores"))]
    """Scores of arcs by head (rows, ROOT first) and dependent, as in "ROOT: a 5, b 1; a: b 3; b: a 7"."""
    single_root: bool = False
    """Whether only one word may depend on ROOT."""

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if not 1 <= len(self.words) <= 20:
            raise ValueError("scores: from 1 to 20 words are possible")
        _ = self.arcs
        for dependent, word in enumerate(self.words, 1):
            if not any(other == dependent for _, other in self.arcs):
                raise ValueError(f"scores: no arc leads to '{word}'")
        if not is_tree(self.tree) or any(head < 0 for head in self.tree[1:]):
            raise ValueError("scores: there is no tree that reaches all words from ROOT")
        return self

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The words without ROOT."""
        if self.sentence:
            return tuple(word for word in self.sentence if word.casefold() != "root")
        if isinstance(self.scores, dict):
            rows = [label for label in self.scores if label.casefold() != "root"]
            columns = [label for row in self.scores.values() if isinstance(row, dict) for label in row]
            return tuple(dict.fromkeys([*rows, *(label for label in columns if label.casefold() != "root")]))
        return tuple(str(number) for number in range(1, len(self.scores)))

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """ROOT and the words."""
        return (ROOT, *self.words)

    def _find_node(self, label: str) -> int:
        """Return the number of a word, with ROOT as 0; −1 for other text."""
        normalized = label.strip().strip("\"'[]").casefold()
        if normalized == "root":
            return 0
        names = [word.casefold() for word in self.words]
        if normalized in names:
            return names.index(normalized) + 1
        return int(normalized) if normalized.isdigit() and int(normalized[:4]) <= len(names) else -1

    @cached_property
    def arcs(self) -> Scores:
        """The scores by head and dependent."""
        arcs: Scores = {}
        size = len(self.nodes)
        if isinstance(self.scores, dict):
            for label, row in self.scores.items():
                head = self._find_node(label)
                if head < 0:
                    raise ValueError(f"scores: '{label[:40]}' is not ROOT or a word")
                if not isinstance(row, dict):
                    row = self._name_columns(row, label)
                for other, score in row.items():
                    dependent = self._find_node(other)
                    if dependent < 0:
                        raise ValueError(f"scores: '{other[:40]}' is not a word")
                    arcs[head, dependent] = score
        else:
            if len(self.scores) != size or not all(isinstance(row, list) for row in self.scores):
                raise ValueError(f"scores: {size} rows are expected: ROOT, {', '.join(self.words)}")
            for head, row in enumerate(self.scores):
                for other, score in self._name_columns(row, self.nodes[head]).items():
                    arcs[head, self._find_node(other)] = score
        return {
            (head, dependent): score
            for (head, dependent), score in arcs.items()
            if dependent != 0 and head != dependent and math.isfinite(score)
        }

    def _name_columns(self, row: Any, label: str) -> dict[str, float]:
        """Return a row of numbers by dependent, with or without a column for ROOT."""
        names = self.nodes if isinstance(row, list) and len(row) == len(self.nodes) else self.words
        if not isinstance(row, list) or len(row) != len(names):
            raise ValueError(
                f"scores, row {label[:40]}: {len(self.words)} numbers are expected, for {', '.join(self.words)}"
            )
        return dict(zip(names, row, strict=True))

    def _solve(self, arcs: Scores) -> list[int]:
        """Return the heads of the best tree, with an entry for ROOT; −1 where there is none."""
        nodes = list(range(1, len(self.nodes)))
        options = [arcs]
        if self.single_root:
            options = [{arc: score for arc, score in arcs.items() if arc[0] or arc[1] == child} for child in nodes]
        best: list[int] = [-1] * len(self.nodes)
        for option in options:
            try:
                tree = spanning_tree(option, nodes)
            except (KeyError, ValueError):
                continue
            heads = [-1, *(tree.get(node, -1) for node in nodes)]
            if is_tree(heads) and (best[-1] < 0 or self._total(heads) > self._total(best)):
                best = heads
        return best

    @cached_property
    def tree(self) -> list[int]:
        """The heads of the best tree."""
        return self._solve(self.arcs)

    def _total(self, heads: Sequence[int]) -> float:
        return sum(self.arcs.get((heads[node], node), -math.inf) for node in range(1, len(heads)))

    def main_names(self) -> tuple[str, ...]:
        """Return the heads."""
        return ("heads",)

    def rewrite_line(self, line: str) -> str:
        """Return a line with heads as words in the order of the sentence, and a cycle as a list."""
        match = re.match(r"((?:->|[^=])*?)\s*==?(?![>])\s*(.*)", line, re.DOTALL)
        if not match:
            return line
        value, key = match[2].strip(), normalize_name(match[1])
        if key in ("heads", "tree", "arcs", "mst", "edges", "bestheads", "greedy", "greedyheads", "bestincoming"):
            heads = self._read_tree(value)
            target = "heads" if key in ("heads", "tree", "arcs", "mst", "edges") else "best heads"
            return f"{target} = [" + ", ".join(f'"{head}"' for head in heads) + "]" if heads else line
        if key in ("cycle", "cyclenodes", "c"):
            nodes = [self._find_node(item) for item in re.split(r"[\s,]+|->|→", strip_brackets(value)) if item.strip()]
            if value.strip().casefold() in (*NOTHING, "no", "no cycle"):
                return "cycle = [none]"
            names = [self.nodes[node] for node in sorted(set(nodes)) if node >= 0]
            return "cycle = [" + ", ".join(f'"{item}"' for item in names) + "]" if names else line
        return line if key.startswith("head(") else rewrite_number(line)

    def _read_tree(self, value: str) -> list[str]:
        """Return the heads of a text: arcs, numbers or words, or a table by word."""
        arcs = re.findall(r"([\w'.-]+?)\s*(?:->|→|\\to)\s*([\w'.-]+)", value)
        if not arcs and (triples := re.findall(r"\(([^()]+)\)", strip_brackets(value))):
            parts = [re.split(r"[\s,]+", triple.strip()) for triple in triples]
            arcs = [(part[0], part[-1]) for part in parts if len(part) in (2, 3)]
        if not arcs and ":" in value:
            arcs = [(right, left) for left, right in re.findall(r"([\w'.-]+)\s*:\s*([\w'.-]+)", value)]
        heads = [-1] * len(self.nodes)
        if arcs:
            for left, right in arcs:
                dependent = self._find_node(right)
                if dependent > 0:
                    heads[dependent] = self._find_node(left)
        else:
            items = [self._find_node(item) for item in re.split(r"[\s,]+", strip_brackets(value)) if item]
            heads = [-1, *items]
        return [self.nodes[head] if head >= 0 else "none" for head in heads[1:]]

    def answer_keys(self, claims: Sequence[ValueClaim]) -> Iterable[AnswerKey]:
        """Yield a key with the tree of the answer if it is as good as the best one."""
        for claim in claims:
            value = claim.value if normalize_name(claim.target.name) == "heads" else None
            if isinstance(value, list) and len(value) == len(self.words):
                heads = [-1, *(self._find_node(str(item)) for item in value)]
                roots = heads[1:].count(0)
                is_allowed = roots == 1 or not self.single_root
                if (
                    min(heads[1:]) >= 0
                    and is_tree(heads)
                    and is_allowed
                    and self._total(heads) >= self._total(self.tree) - 1e-9
                ):
                    yield self.make_key(self._list_values(heads))
        yield self.make_key(self.expected_values())

    def expected_values(self) -> Sequence[ExpectedValue]:
        """Return the best incoming arcs, the cycle, the tree and its score."""
        return self._list_values(self.tree)

    def _list_values(self, tree: Sequence[int]) -> list[ExpectedValue]:
        greedy = best_incoming(self.arcs, range(1, len(self.nodes)))
        tied = [
            tuple(
                self.nodes[head]
                for head in (greedy[node], *range(len(self.nodes)))
                if self.arcs.get((head, node), -math.inf) == self.arcs[greedy[node], node]
            )
            for node in range(1, len(self.nodes))
        ]
        cycle = find_cycle(greedy)
        outgoing = [
            max(range(1, len(self.nodes)), key=lambda node: self.arcs.get((node, dependent), -math.inf))
            for dependent in range(1, len(self.nodes))
        ]
        worst = self._solve({arc: -score for arc, score in self.arcs.items()})
        greedy_names = [self.nodes[greedy[node]] for node in range(1, len(self.nodes))]
        names = [self.nodes[head] for head in tree[1:]]
        cycle_names = [self.nodes[node] for node in cycle]
        from_root = [ROOT] * len(self.words)
        greedy_total = sum(self.arcs[greedy[node], node] for node in greedy)
        total = self._total(tree)
        wrong = {
            "that is the best head of each word alone, which has a cycle": greedy_names,
            "that is the best head of each word alone: only one word may depend on ROOT": greedy_names,
            "that is the tree of the lowest score": [self.nodes[head] for head in worst[1:]],
            "arcs from ROOT are left out": [self.nodes[head] for head in outgoing],
            "all words depend on ROOT, which is not the best tree": from_root,
        }
        if cycle:
            del wrong["that is the best head of each word alone: only one word may depend on ROOT"]
        else:
            del wrong["that is the best head of each word alone, which has a cycle"]
        wrong = {text: heads for text, heads in wrong.items() if heads != names and "none" not in heads}
        work = " + ".join(f"{self.arcs[tree[node], node]:g}" for node in range(1, len(self.nodes)))
        cycle_scores = ", ".join(f"{self.nodes[greedy[node]]}→{self.nodes[node]}" for node in cycle)
        return [
            expect_words(
                ["best heads", "greedy heads", "greedy", "best incoming"],
                tied,
                self.words,
                "best head of each word alone",
                formula="for each word the head of the highest score",
                work=", ".join(
                    f"{self.nodes[greedy[node]]}→{self.nodes[node]} {self.arcs[greedy[node], node]:g}"
                    for node in greedy
                ),
            ),
            expect_words(
                ["cycle"],
                cycle_names or ["none"],
                cycle_names or ["none"],
                "words of the cycle among these arcs, or none",
                formula="follow the best heads until a word comes again",
                work=cycle_scores or "there is none, so the best heads are the tree",
                up_to=frozenset({"order"}),
            ),
            expect_words(
                ["heads", "tree", "arcs", "mst"],
                names,
                self.words,
                "head of each word in the best tree",
                mistakes=wrong,
                formula="contract the cycle to C with s(u→C) = max_v s(u→v) − s(best head→v), solve, and expand",
                work=", ".join(f"{self.nodes[tree[node]]}→{self.nodes[node]}" for node in range(1, len(self.nodes))),
            ),
            expect_numbers(
                ["total", "score", "total score", "weight"],
                total,
                meaning="score of the best tree",
                mistakes=keep_distinct(
                    total,
                    {
                        "that is the sum of the best incoming arcs, which have a cycle": greedy_total,
                        "the arc from ROOT is left out": total
                        - sum(self.arcs[0, node] for node in range(1, len(tree)) if tree[node] == 0),
                        "that is the score of the worst tree": self._total(worst),
                    },
                ),
                work=work,
            ),
        ]

    def find_value(self, name: str) -> ExpectedValue | None:
        """Return the head of a word, or the score of an arc to or from the contracted cycle C."""
        normalized = re.sub(r"\s*(?:->|→|\\to|\\rightarrow)\s*", ",", name).strip("$ ")
        match = re.fullmatch(
            r"(head|score|s|w|weight)\s*_?\(\s*([^(),]+?)\s*(?:,\s*([^(),]+?)\s*)?\)", normalized, re.IGNORECASE
        )
        if not match:
            return None
        if match[1].casefold() == "head" and not match[3]:
            node = self._find_node(match[2])
            if node < 1:
                raise InputError(
                    f"{self.name}: {name}: '{match[2][:40]}' is not a word. Choices: {', '.join(self.words)}."
                )
            greedy = best_incoming(self.arcs, [node])[node]
            right = self.tree[node]
            wrong = {"that is the best head of the word alone: it is part of a cycle": self.nodes[greedy]}
            return expect_word(
                [name],
                [self.nodes[right], str(right)],
                mistakes=wrong if greedy != right else {},
                meaning="head in the tree",
            )
        return self._expect_contracted(name, match[2], match[3] or "")

    def _expect_contracted(self, name: str, left: str, right: str) -> ExpectedValue | None:
        """Return the score of an arc to or from the contracted cycle, or of any arc."""
        greedy = best_incoming(self.arcs, range(1, len(self.nodes)))
        cycle = find_cycle(greedy)
        head, dependent = self._find_node(left), self._find_node(right)
        if head >= 0 and dependent > 0 and (head, dependent) in self.arcs:
            return expect_numbers([name], self.arcs[head, dependent])
        if not cycle:
            return None
        cycle_score = sum(self.arcs[greedy[node], node] for node in cycle)
        if normalize_name(right) in ("c", "cycle", "vc") and head >= 0:
            gains = [
                (self.arcs[head, node] - self.arcs[greedy[node], node], node)
                for node in cycle
                if (head, node) in self.arcs
            ]
            if not gains:
                return None
            gain, node = max(gains)
            value = gain + cycle_score
            best_arc_score = max(self.arcs[head, node] for _, node in gains)
            wrong = {
                "the score of the arc inside the cycle is not subtracted": best_arc_score,
                "the arc inside the cycle is not subtracted, and the whole cycle added": best_arc_score + cycle_score,
                "the minimum is taken, not the maximum": min(gains)[0] + cycle_score,
                "the minimum is taken, not the maximum, of the differences": min(gains)[0],
            }
            right_value, other = (value, gain) if abs(value) > 1e-9 else (gain, value)
            accepted = make_alternatives(
                right_value, [("without the sum of the cycle" if other == gain else "with the sum of the cycle", other)]
            )
            mistakes = {text: number for text, number in wrong.items() if not math.isclose(number, other)}
            return expect_numbers(
                [name],
                right_value,
                meaning="score of the best arc into the contracted cycle",
                mistakes=keep_distinct(right_value, mistakes),
                scales=accepted,
                formula="s(u→C) = max_v (s(u→v) − s(best head→v)) + sum of the cycle; the sum may be left out",
                work=f"through {self.nodes[node]}: {gain:g} + {cycle_score:g}",
            )
        if normalize_name(left) in ("c", "cycle", "vc") and dependent > 0:
            options = [self.arcs[node, dependent] for node in cycle if (node, dependent) in self.arcs]
            if not options:
                return None
            wrong = {"the arcs are added: take the best": sum(options), "the minimum is taken": min(options)}
            return expect_numbers([name], max(options), mistakes=keep_distinct(max(options), wrong))
        return None


# CKY


@dataclass
class ChartEntry:
    """A nonterminal over a span: how many parses it has, the best one's probability and their sum, and its parts."""

    parses: int = 0
    best: float = 0.0
    probability_sum: float = 0.0  # the inside probability
    lowest: float = math.inf
    first_split: float = 0.0  # best probability at the first possible split alone


def read_rules(value: Any) -> Any:
    """Return rules as texts: from lines or " / ", or a list."""
    if isinstance(value, str):
        value = [rule for rule in re.split(r"\n|;|\s/\s|,(?=\s*[^\s,|]+\s*(?:->|→))", value) if rule.strip()]
    if not isinstance(value, list | tuple) or not all(isinstance(rule, str) for rule in value):
        raise ValueError('grammar: rules are expected, as in grammar="S -> NP VP / NP -> she / VP -> runs [0.5]"')
    if len(value) > MAX_RULES:
        raise ValueError(f"grammar: at most {MAX_RULES} rules are possible")
    return tuple(rule.strip() for rule in value)


class CKYExercise(ValueExercise):
    """A CKY chart computed by hand."""

    kind: ClassVar[str] = "cky"
    names_with_parameters: ClassVar[str] = "cell(0,2) or cell(words), P(NP, 0, 2), inside(NP, 0, 2), parses(NP, 0, 2)"

    grammar: Annotated[tuple[str, ...], BeforeValidator(read_rules)]
    """Rules in Chomsky normal form, as in "S -> NP VP / NP -> she / VP -> runs [0.5] | sleeps [0.5]"."""
    sentence: Annotated[tuple[str, ...], BeforeValidator(lambda value: split_words(value, "sentence", 20))]
    """Words of the sentence."""
    symbol: str = ""
    """Start symbol; by default S, or the left side of the first rule."""
    indexing: Literal["fencepost", "inclusive", "length"] = "fencepost"
    """Cells [i, j]: fencepost (words i+1 to j), inclusive (words i to j, from 1) or length (begin, number of words)."""

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if not self.sentence:
            raise ValueError('sentence: words are expected, as in sentence="she eats fish"')
        _ = self._unary_order  # reports rules that cannot be read
        if not self.rules:
            raise ValueError("grammar: there are no rules")
        return self

    @cached_property
    def rules(self) -> list[tuple[str, tuple[str, ...], float | None]]:
        """The rules: left side, right side and probability."""
        rules = []
        for text in self.grammar:
            left, arrow, right = (
                re.split(r"(->|→|::=|-->)", text, maxsplit=1) if re.search(r"->|→|::=", text) else (text, "", "")
            )
            left_match = re.fullmatch(r"(?:([\d.]+(?:/\d+)?)\s+)?([^\s]+)\s*", left.strip())
            if not arrow or not left_match:
                raise ValueError(f"grammar: '{text[:60]}' is not a rule, as in S -> NP VP")
            for option in right.split("|"):
                probability = float(left_match[1]) if left_match[1] and is_number(left_match[1]) else None
                match = re.search(r"[\[(]\s*(?:p\s*=\s*)?([\d./]+)\s*[\])]\s*$|\s(\d*\.\d+|1\.0|1)\s*$", option)
                if match and is_number(match[1] or match[2]):
                    probability = float(read_table([match[1] or match[2]], "grammar")[0])
                    option = option[: match.start()]
                symbols = tuple(symbol.strip("\"'“”‘’`") for symbol in option.split())
                if not 1 <= len(symbols) <= 2:
                    raise ValueError(
                        f"grammar: '{text[:60]}' is not in Chomsky normal form: two symbols or one word on the right"
                    )
                if probability is not None and not 0 <= probability <= 1:
                    raise ValueError(f"grammar: '{text[:60]}': a probability is from 0 to 1")
                rules.append((left_match[2], symbols, probability))
        if len(rules) > MAX_RULES:
            raise ValueError(f"grammar: at most {MAX_RULES} rules are possible")
        return rules

    @cached_property
    def nonterminals(self) -> set[str]:
        """The symbols that have rules."""
        return {left for left, _, _ in self.rules}

    @property
    def start_symbol(self) -> str:
        """The start symbol."""
        return self.symbol or ("S" if "S" in self.nonterminals else self.rules[0][0])

    @property
    def has_probabilities(self) -> bool:
        """True if the rules have probabilities."""
        return any(probability is not None for _, _, probability in self.rules)

    @cached_property
    def chart(self) -> dict[tuple[int, int], dict[str, ChartEntry]]:
        """The nonterminals over each span of fence posts."""
        chart: dict[tuple[int, int], dict[str, ChartEntry]] = {}
        count = len(self.sentence)
        for width in range(1, count + 1):
            for start in range(count - width + 1):
                chart[start, start + width] = self._fill_cell(chart, start, start + width)
        return chart

    def _fill_cell(self, chart: dict[Any, Any], start: int, end: int) -> dict[str, ChartEntry]:
        """Return the nonterminals over a span from those of shorter ones."""
        cell: dict[str, ChartEntry] = {}

        def add(left: str, parses: int, best: float, probability_sum: float, lowest: float, is_first: bool) -> None:
            entry = cell.setdefault(left, ChartEntry())
            entry.parses += parses
            entry.best = max(entry.best, best)
            entry.probability_sum += probability_sum
            entry.lowest = min(entry.lowest, lowest)
            if is_first:
                entry.first_split = max(entry.first_split, best)

        for left, right, probability in self.rules:
            weight = 1.0 if probability is None else probability
            if len(right) == 1 and end - start == 1 and right[0].casefold() == self.sentence[start].casefold():
                if right[0] not in self.nonterminals:
                    add(left, 1, weight, weight, weight, True)
            elif len(right) == 2:
                for split in range(start + 1, end):
                    first, second = chart[start, split].get(right[0]), chart[split, end].get(right[1])
                    if first and second:
                        add(
                            left,
                            first.parses * second.parses,
                            weight * first.best * second.best,
                            weight * first.probability_sum * second.probability_sum,
                            weight * first.lowest * second.lowest,
                            split == start + 1,
                        )
        for left, right, weight in self._unary_order:
            if right in cell:
                entry = cell[right]
                add(
                    left, entry.parses, weight * entry.best, weight * entry.probability_sum, weight * entry.lowest, True
                )
        return cell

    @cached_property
    def _unary_order(self) -> list[tuple[str, str, float]]:
        """The rules from one nonterminal to another, those of the lowest symbols first."""
        unary = [
            (left, right[0], 1.0 if probability is None else probability)
            for left, right, probability in self.rules
            if len(right) == 1 and right[0] in self.nonterminals
        ]
        ordered: list[tuple[str, str, float]] = []
        pending = list(unary)
        while pending:
            ready = [rule for rule in pending if not any(other[0] == rule[1] for other in pending)]
            if not ready:
                rule = f"{pending[0][0]} -> {pending[0][1]}"
                raise ValueError(f"grammar: the rules of one symbol each, such as {rule}, form a cycle")
            ordered += ready
            pending = [rule for rule in pending if rule not in ready]
        return ordered

    def _name_cell(self, start: int, end: int) -> str:
        """Return the name of a cell in the indexing of the exercise."""
        return {
            "fencepost": f"cell({start},{end})",
            "inclusive": f"cell({start + 1},{end})",
            "length": f"cell({start + 1},{end - start})",
        }[self.indexing]

    def _read_span(self, first: int, second: int) -> tuple[int, int]:
        """Return the span of fence posts of a cell; an InputError says which there are."""
        start, end = {
            "fencepost": (first, second),
            "inclusive": (first - 1, second),
            "length": (first - 1, first - 1 + second),
        }[self.indexing]
        if (start, end) not in self.chart:
            first_cell, last_cell = self._name_cell(0, 1), self._name_cell(0, len(self.sentence))
            raise InputError(
                f"{self.name}: there is no cell ({first}, {second}). Cells are counted as {self.indexing}: "
                f"'{self.sentence[0]}' is {first_cell}, the sentence {last_cell}."
            )
        return start, end

    def main_names(self) -> tuple[str, ...]:
        """Return the probability of the best parse, or the number of parses."""
        return ("P(best)",) if self.has_probabilities else ("parses",)

    def rewrite_line(self, line: str) -> str:
        """Return a line with cells as cell(i,j) and sets as sorted lists."""
        match = re.match(r"([^=]*?)\s*==?(?![>])\s*(.*)", line, re.DOTALL)
        if not match:
            return line
        name, value = match[1].strip().strip("$"), match[2].strip()
        cell = re.fullmatch(
            r"(?:cell|chart|table|t|c|x|v|span)?\s*_?\{?\s*[\[(]?\s*(\d+)\s*[,:\]]\s*\[?\s*(\d+)\s*[\])]?\s*\}?",
            name,
            re.IGNORECASE,
        )
        words = re.fullmatch(r"(?:cell|chart|table|span)\s*[\[(](.*)[\])]", name, re.IGNORECASE)
        if cell or words:
            inner = strip_brackets(value).replace("\\{", "").replace("\\}", "")
            items = [] if inner.strip().casefold() in NOTHING else re.split(r"[\s,/|]+", inner)
            items = sorted({item.strip("\"'{}") for item in items if item.strip("\"'{}")})
            target = f"cell({cell[1]},{cell[2]})" if cell else f"cell({words[1] if words else ''})"
            return f"{target} = [" + ", ".join(f'"{item}"' for item in items) + "]"
        if normalize_name(name) in ("tree", "besttree", "parse", "parsetree", "bestparse"):
            return 'tree = "' + value.replace('"', "") + '"'
        return rewrite_number(line) if normalize_name(name) not in ("accepted", "recognized", "grammatical") else line

    def expected_values(self) -> Sequence[ExpectedValue]:
        """Return the cells, the number of parses and, with probabilities, those of the parses."""
        count = len(self.sentence)
        spans = sorted(self.chart, key=lambda span: (span[1] - span[0], span[0]))
        values = [self._expect_cell(start, end, "") for start, end in spans] if count <= 8 else []
        values += [self._expect_spans(), self._expect_parses(), self._expect_accepted()]
        if self.has_probabilities and self._top:
            values += [self._expect_best("P(best)"), self._expect_probability_sum("P(sentence)")]
        if self._top and self._top.parses <= MAX_TREES:
            values.append(self._expect_tree())
        return values

    @property
    def _top(self) -> ChartEntry | None:
        """The start symbol over the whole sentence."""
        return self.chart[0, len(self.sentence)].get(self.start_symbol)

    def _explain_cell(self, start: int, end: int) -> str:
        """Return the rules that fill a cell."""
        reasons = []
        if end - start == 1:
            for left, right, _ in self.rules:
                if right == (self.sentence[start],):
                    reasons.append(f"{left} → {right[0]}")
        for split in range(start + 1, end):
            for left, right, _ in self.rules:
                if len(right) == 2 and right[0] in self.chart[start, split] and right[1] in self.chart[split, end]:
                    cells = f"{self._name_cell(start, split)} and {self._name_cell(split, end)}"
                    reasons.append(f"{left} → {right[0]} {right[1]} from {cells}")
        return "; ".join(reasons[:6])

    def _expect_cell(self, start: int, end: int, name: str) -> ExpectedValue:
        """Return the nonterminals of a cell."""
        right = sorted(self.chart[start, end])
        wrong: dict[str, list[str]] = {}
        words = " ".join(self.sentence[start:end])
        for text, splits in (
            ("only the first split is tried: try all of them", [start + 1]),
            ("only the last split is tried: try all of them", [end - 1]),
        ):
            if end - start > 2:
                wrong[text] = sorted(
                    left
                    for left in self.nonterminals
                    if any(
                        rule[0] == left
                        and len(rule[1]) == 2
                        and rule[1][0] in self.chart[start, split]
                        and rule[1][1] in self.chart[split, end]
                        for rule in self.rules
                        for split in splits
                    )
                )
        if end - start > 1:
            wrong["the right sides of rules are reversed"] = sorted(
                {
                    left
                    for left, symbols, _ in self.rules
                    if len(symbols) == 2
                    and any(
                        symbols[1] in self.chart[start, split] and symbols[0] in self.chart[split, end]
                        for split in range(start + 1, end)
                    )
                }
            )
            wrong["that is what is below: the parts, not the symbols that they form"] = sorted(
                {
                    symbol
                    for split in range(start + 1, end)
                    for symbol in (*self.chart[start, split], *self.chart[split, end])
                }
            )
        wrong = {text: symbols for text, symbols in wrong.items() if symbols}
        wrong["the cell is not empty: a rule applies"] = []
        return expect_words(
            [name or self._name_cell(start, end)],
            right,
            right,
            f"symbols over '{words}'",
            mistakes={text: items for text, items in wrong.items() if items != right},
            formula="A is in a cell if A → B C, with B in [i, k] and C in [k, j] for some k",
            work=self._explain_cell(start, end),
            up_to=frozenset({"order"}),
        )

    def _expect_spans(self) -> ExpectedValue:
        """Return the number of cells."""
        count = len(self.sentence)
        right = count * (count + 1) // 2
        wrong = {
            "the whole square is counted: only spans with i < j have a cell": float(count * count),
            "the cells of single words are left out": float(count * (count - 1) // 2),
            "the words are counted": float(count),
        }
        return expect_numbers(
            ["spans", "number of spans", "cells", "number of cells"],
            right,
            meaning="cells of the chart",
            mistakes=keep_distinct(right, wrong),
            formula="n(n + 1)/2",
            work=f"{count}·{count + 1}/2",
        )

    def _expect_parses(self) -> ExpectedValue:
        """Return the number of parses."""
        right = self._top.parses if self._top else 0
        everything = sum(entry.parses for entry in self.chart[0, len(self.sentence)].values())
        wrong = {
            "all symbols of the top cell are counted, not the start symbol alone": float(everything),
            "the symbol in the cell is counted once; it can be formed in several ways": 1.0,
            "the sentence has a parse": 0.0,
            "all binary trees are counted, whatever the grammar": float(
                math.comb(2 * len(self.sentence) - 2, len(self.sentence) - 1) // len(self.sentence)
            ),
        }
        return expect_numbers(
            ["parses", "number of parses", "parse trees", "trees", "number of trees"],
            right,
            meaning="parses of the sentence",
            mistakes=keep_distinct(right, wrong if right else {"the sentence has no parse": 1.0}),
            formula="sum over rules and splits of the product of the parts' numbers",
        )

    def _expect_accepted(self) -> ExpectedValue:
        """Return whether the grammar generates the sentence."""
        right, wrong = (("yes", "true", "accepted"), "no") if self._top else (("no", "false", "rejected"), "yes")
        reason = f"{self.start_symbol} is {'' if self._top else 'not '}in the cell of the whole sentence"
        return expect_word(
            ["accepted", "in the language", "recognized", "grammatical"],
            right,
            meaning="yes or no",
            mistakes={reason: wrong},
            work=reason,
        )

    def _trees(self, symbol: str, start: int, end: int, limit: int) -> list[tuple[float, str]]:
        """Return the trees of a symbol over a span with their probabilities."""
        trees: list[tuple[float, str]] = []
        if symbol not in self.chart[start, end]:
            return trees
        for left, right, probability in self.rules:
            if left != symbol or len(trees) >= limit:
                continue
            weight = 1.0 if probability is None else probability
            if len(right) == 2:
                for split in range(start + 1, end):
                    if right[0] not in self.chart[start, split] or right[1] not in self.chart[split, end]:
                        continue
                    for first_weight, first in self._trees(right[0], start, split, limit):
                        for second_weight, second in self._trees(right[1], split, end, limit):
                            trees.append((weight * first_weight * second_weight, f"({symbol} {first} {second})"))
            elif right[0] in self.nonterminals:
                for inner_weight, inner in self._trees(right[0], start, end, limit):
                    trees.append((weight * inner_weight, f"({symbol} {inner})"))
            elif end - start == 1 and right[0].casefold() == self.sentence[start].casefold():
                trees.append((weight, f"({symbol} {self.sentence[start]})"))
        return trees[:limit]

    def _expect_tree(self) -> ExpectedValue:
        """Return the parses as brackets, or the best ones."""
        trees = self._trees(self.start_symbol, 0, len(self.sentence), MAX_TREES)
        best = max(weight for weight, _ in trees)
        right = [tree for weight, tree in trees if weight >= best * (1 - 1e-9)]
        less_probable_trees = sorted((weight, tree) for weight, tree in trees if weight < best * (1 - 1e-9))
        wrong = (
            {"that is another parse, of a lower probability": less_probable_trees[-1][1]} if less_probable_trees else {}
        )
        return expect_word(
            ["tree", "best tree", "parse tree"],
            right,
            meaning="best parse in brackets, as in (S (NP she) (VP runs))",
            mistakes=wrong,
            normalize=normalize_tree,
        )

    def _expect_best(self, name: str, symbol: str = "", start: int = 0, end: int = 0) -> ExpectedValue:
        """Return the probability of the best parse of a symbol over a span."""
        symbol, end = symbol or self.start_symbol, end or len(self.sentence)
        entry = self.chart[start, end].get(symbol, ChartEntry(lowest=0.0))
        trees = self._trees(symbol, start, end, MAX_TREES) if entry.parses <= MAX_TREES else []
        best_tree = max(trees, default=(0.0, ""))[1]
        factors = self._factors(best_tree) if best_tree else []
        lexical = [probability for probability, is_word in factors if is_word]
        wrong: dict[str, float | None] = {
            "that is the sum over all parses: take the best one": entry.probability_sum,
            "that is the parse of the lowest probability": entry.lowest,
            "only the first split is tried: take the best of all": entry.first_split or None,
            "the probabilities of the words are left out": entry.best / math.prod(lexical) if lexical else None,
            "the probabilities of the rules above the words are left out": math.prod(lexical) if lexical else None,
            "the probabilities are added, not multiplied": sum(probability for probability, _ in factors)
            if factors
            else None,
            "the probability of the rule at the top is left out": entry.best / factors[0][0] if factors else None,
        }
        return expect_numbers(
            [
                name,
                *(
                    ("P(tree)", "P(best tree)", "P(best parse)", "probability of the best parse")
                    if name == "P(best)"
                    else ()
                ),
            ],
            entry.best,
            meaning="probability of the best parse",
            mistakes=keep_distinct(entry.best, wrong),
            formula="best(A, i, j) = max over A → B C and k of P(A → B C) · best(B, i, k) · best(C, k, j)",
            work=f"{best_tree}: {format_product([probability for probability, _ in factors], 16)}",
        )

    def _factors(self, tree: str) -> list[tuple[float, bool]]:
        """Return the probabilities of a tree's rules from the top, and whether they are of words."""
        factors: list[tuple[float, bool]] = []
        table = {(left, right): 1.0 if probability is None else probability for left, right, probability in self.rules}
        table |= {
            (left, tuple(map(str.casefold, right))): number
            for (left, right), number in list(table.items())
            if len(right) == 1 and right[0] not in self.nonterminals
        }
        stack: list[list[str]] = []
        for token in re.findall(r"[()]|[^\s()]+", tree):
            if token == "(":
                stack.append([])
                factors.append((1.0, False))
                stack[-1].append(str(len(factors) - 1))
            elif token == ")":
                position, left, *right = stack.pop()
                is_word = len(right) == 1 and (left, tuple(right)) not in table
                key = (left, tuple(map(str.casefold, right))) if is_word else (left, tuple(right))
                factors[int(position)] = (table.get(key, 1.0), len(right) == 1 and right[0] not in self.nonterminals)
                if stack:
                    stack[-1].append(left)
            else:
                stack[-1].append(token)
        return factors

    def _expect_probability_sum(self, name: str, symbol: str = "", start: int = 0, end: int = 0) -> ExpectedValue:
        """Return the sum of the probabilities of the parses of a symbol over a span."""
        symbol, end = symbol or self.start_symbol, end or len(self.sentence)
        entry = self.chart[start, end].get(symbol, ChartEntry(lowest=0.0))
        wrong = {
            "that is the best parse alone: add all parses": entry.best,
            "the average of the parses is taken: add them": entry.probability_sum / max(1, entry.parses),
        }
        return expect_numbers(
            [name, *(("P(w)", "inside", "total probability", "P(W)") if name == "P(sentence)" else ())],
            entry.probability_sum,
            meaning="sum of the probabilities of all parses",
            mistakes=keep_distinct(entry.probability_sum, wrong),
            formula="inside(A, i, j) = Σ over A → B C and k of P(A → B C) · inside(B, i, k) · inside(C, k, j)",
        )

    def find_value(self, name: str) -> ExpectedValue | None:
        """Return a cell by its numbers or words, or the probability of a symbol over a span."""
        match = re.fullmatch(r"\s*([A-Za-zπ]+)\s*_?\s*\((.*)\)\s*", name.strip("$ "))
        if not match:
            return None
        function, inner = match[1].casefold(), re.sub(r"[\[\]()]", ",", match[2])
        parts = [part.strip() for part in inner.split(",") if part.strip()]
        numbers = [int(part[:6]) for part in parts if part.isdigit()]
        if function == "cell":
            if len(numbers) == 2:
                return self._expect_cell(*self._read_span(*numbers), name)
            words = tuple(match[2].casefold().split())
            lowercase_words = tuple(word.casefold() for word in self.sentence)
            starts = (
                [i for i in range(len(lowercase_words)) if lowercase_words[i : i + len(words)] == words]
                if words
                else []
            )
            if not starts:
                raise InputError(f"{self.name}: '{match[2][:60]}' is not part of the sentence.")
            return self._expect_cell(starts[0], starts[0] + len(words), name)
        symbols = [part for part in parts if not part.isdigit()]
        if len(numbers) != 2 or len(symbols) != 1 or symbols[0] not in self.nonterminals:
            return None
        start, end = self._read_span(*numbers)
        if function in ("inside", "beta", "alpha"):
            return self._expect_probability_sum(name, symbols[0], start, end)
        if function in ("p", "best", "pi", "v", "viterbi", "score", "π"):
            return self._expect_best(name, symbols[0], start, end)
        if function in ("parses", "trees", "count"):
            entry = self.chart[start, end].get(symbols[0])
            return expect_numbers([name], entry.parses if entry else 0)
        return None


def normalize_tree(text: str) -> str:
    """Return a tree in brackets for comparison: in lower case, with round brackets and without blanks around them.

    >>> normalize_tree("[S [NP she] [VP runs]]")
    '(s(np she)(vp runs))'
    """
    text = text.casefold().replace("[", "(").replace("]", ")")
    return re.sub(r"\s*([()])\s*", r"\1", " ".join(text.split()))
