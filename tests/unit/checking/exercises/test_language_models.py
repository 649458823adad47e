"""n-gram models, sequence models, parsing and decoding against independent implementations, and their limits."""

import itertools
import math
import random
import time
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import lemma
from lemma.checking.exercises.decoding import DecodingExercise
from lemma.checking.exercises.ngram import NGramExercise
from lemma.checking.exercises.parsing import (
    CKYExercise,
    DependencyExercise,
    SpanningTreeExercise,
    is_tree,
    list_oracles,
)
from lemma.checking.exercises.registry import read_exercise
from lemma.checking.exercises.sequence import SequenceExercise
from lemma.cli.main import main as run_command
from lemma.errors import InputError, LemmaError, SpecError

CORPUS = ["a b a c", "b a", "c c b a b", "a a c b"]


def number(exercise: Any, name: str) -> float:
    """Return a value of an exercise by its name."""
    values = {name: value for value in exercise.expected_values() for name in (value.name, *value.aliases)}
    value = values.get(name) or exercise.find_value(name)
    return float(value.values)


# n-grams


def padded_bigrams(corpus: list[str]) -> list[tuple[str, str]]:
    """Return the bigrams of sentences with a begin and an end symbol."""
    sentences = [["<s>", *sentence.split(), "</s>"] for sentence in corpus]
    return [pair for words in sentences for pair in pairwise(words)]


class ReferenceKneserNey:
    """Interpolated Kneser–Ney for bigrams, written from the formula of Chen and Goodman."""

    def __init__(self, corpus: list[str], discount: float) -> None:
        self.counts = Counter(padded_bigrams(corpus))
        self.discount = discount
        self.before: dict[str, set[str]] = defaultdict(set)
        self.after: dict[str, set[str]] = defaultdict(set)
        for left, right in self.counts:
            self.before[right].add(left)
            self.after[left].add(right)

    def score(self, word: str, context: str) -> float:
        total = sum(count for (left, _), count in self.counts.items() if left == context)
        weight = self.discount * len(self.after[context]) / total
        continuation = len(self.before[word]) / len(self.counts)
        return max(self.counts[context, word] - self.discount, 0) / total + weight * continuation


def test_kneser_ney_equals_a_reference_and_sums_to_one() -> None:
    exercise = NGramExercise(corpus=tuple(CORPUS), smoothing="kneser-ney", discount=0.6)
    reference = ReferenceKneserNey(CORPUS, 0.6)
    for context in ("<s>", "a", "b", "c"):
        scores = [number(exercise, f"P_KN({word} | {context})") for word in ("a", "b", "c", "</s>")]
        assert scores == pytest.approx([reference.score(word, context) for word in ("a", "b", "c", "</s>")])
        assert sum(scores) == pytest.approx(1)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"smoothing": "add-k", "k": 0.3},
        {"smoothing": "interpolation", "lambdas": (0.6, 0.4)},
        {"smoothing": "katz", "discount": 0.5},
        {"smoothing": "kneser-ney", "order": 3},
        {"smoothing": "interpolation", "lambdas": (0.5, 0.3, 0.2), "order": 3},
        {"smoothing": "add-k", "order": 3},
    ],
)
def test_probabilities_after_a_context_sum_to_one(fields: dict[str, Any]) -> None:
    exercise = NGramExercise(corpus=tuple(CORPUS), **fields)
    contexts = ("<s> <s>", "<s> a", "b a", "c b") if fields.get("order") == 3 else ("<s>", "b", "c")
    for context in contexts:
        total = sum(number(exercise, f"P({word} | {context})") for word in ("a", "b", "c", "</s>"))
        assert total == pytest.approx(1), context


def test_bigrams_are_relative_frequencies_and_perplexity_is_that_of_the_tokens() -> None:
    exercise = NGramExercise(corpus=tuple(CORPUS), test=("b a", "a c b"))
    pairs = Counter(padded_bigrams(CORPUS))
    contexts = Counter(left for left, _ in padded_bigrams(CORPUS))
    logs = [math.log(pairs[pair] / contexts[pair[0]]) for pair in padded_bigrams(["b a", "a c b"])]
    assert number(exercise, "P(test)") == pytest.approx(math.exp(sum(logs)))
    assert number(exercise, "PP") == pytest.approx(math.exp(-sum(logs) / len(logs)))
    assert number(exercise, "H") == pytest.approx(-sum(logs) / len(logs) / math.log(2))
    assert number(exercise, "P(a | b)") == pairs["b", "a"] / contexts["b"]


def test_good_turing_moves_the_mass_of_hapaxes_to_unseen_words() -> None:
    exercise = NGramExercise(corpus=("a a a b b c d e",), order=1, smoothing="good-turing")
    assert number(exercise, "P(unseen)") == 3 / 8
    assert number(exercise, "c*(c)") == pytest.approx(2 * 1 / 3)
    with pytest.raises(LemmaError, match="not defined"):
        number(exercise, "c*(a)")


def test_explicit_symbols_and_lists_of_words_are_read() -> None:
    plain = NGramExercise(corpus=("I am Sam", "Sam I am"))
    for corpus in (
        "<s> I am Sam </s> <s> Sam I am </s>",
        "I am Sam / Sam I am",
        "I am Sam\nSam I am",
        [["I", "am", "Sam"], "Sam I am"],
    ):
        exercise = read_exercise({"kind": "n-gram", "corpus": corpus})
        assert isinstance(exercise, NGramExercise)
        assert exercise.sentences == plain.sentences


# Sequence models


def draw_chain(generator: np.random.Generator, states: int, steps: int) -> tuple[dict[str, Any], np.ndarray]:
    """Return the fields of a random HMM and the joint probability of each path, by enumeration."""
    names, words = [f"s{i}" for i in range(states)], ["u", "v", "w"]
    start = generator.dirichlet(np.ones(states))
    transition = generator.dirichlet(np.ones(states), size=states)
    emission = generator.dirichlet(np.ones(3), size=states)
    observed = [int(index) for index in generator.integers(0, 3, steps)]
    fields = {
        "states": names,
        "words": words,
        "start": start.tolist(),
        "transition": transition.tolist(),
        "emission": emission.tolist(),
        "observations": [words[index] for index in observed],
    }
    joint = np.zeros((states,) * steps)
    for path in itertools.product(range(states), repeat=steps):
        value = start[path[0]] * emission[path[0], observed[0]]
        for step in range(1, steps):
            value *= transition[path[step - 1], path[step]] * emission[path[step], observed[step]]
        joint[path] = value
    return fields, joint


@pytest.mark.parametrize("seed", range(8))
def test_viterbi_and_forward_backward_equal_the_enumeration_of_paths(seed: int) -> None:
    generator = np.random.default_rng(seed)
    fields, joint = draw_chain(generator, states=2 + seed % 2, steps=1 + seed % 4)
    exercise = read_exercise({"kind": "sequence", **fields})
    assert isinstance(exercise, SequenceExercise)
    assert number(exercise, "P(O)") == pytest.approx(joint.sum())
    assert number(exercise, "P(path)") == pytest.approx(joint.max())
    best = np.unravel_index(joint.argmax(), joint.shape)
    values = {value.name: value for value in exercise.expected_values()}
    assert [word[0] for word in values["path"].values] == [f"s{int(state)}" for state in best]
    for step in range(joint.ndim):
        others = tuple(axis for axis in range(joint.ndim) if axis != step)
        assert values["gamma"].values[step] == pytest.approx(joint.sum(axis=others) / joint.sum())


def test_partition_function_of_a_crf_equals_the_sum_over_paths() -> None:
    generator = np.random.default_rng(3)
    unary, transition = generator.normal(size=(4, 3)), generator.normal(size=(3, 3))
    exercise = read_exercise(
        {
            "kind": "sequence",
            "model": "crf",
            "states": "A B C",
            "unary": unary.tolist(),
            "transition": transition.tolist(),
        }
    )
    scores = [
        sum(unary[step, state] for step, state in enumerate(path))
        + sum(transition[left, right] for left, right in itertools.pairwise(path))
        for path in itertools.product(range(3), repeat=4)
    ]
    assert number(exercise, "log Z") == pytest.approx(math.log(sum(map(math.exp, scores))))
    assert number(exercise, "score") == pytest.approx(max(scores))


def test_paths_that_tie_are_all_accepted() -> None:
    fields = {"start": "A 0.5, B 0.5", "transition": "A: A 0.5 B 0.5; B: A 0.5 B 0.5", "emission": "A: x=1; B: x=1"}
    for path in ("A A", "A B", "B A", "B B"):
        assert lemma.check.exercise("sequence", {**fields, "observations": "x x"}, f"path = {path}")


# Parsing


def enumerate_trees(count: int) -> list[list[int]]:
    """Return the heads of all trees over some words."""
    return [
        [-1, *heads]
        for heads in itertools.product(range(count + 1), repeat=count)
        if is_tree([-1, *heads]) and all(head != word for word, head in enumerate(heads, 1))
    ]


@pytest.mark.parametrize("system", ["arc-standard", "arc-eager", "arc-hybrid"])
def test_oracles_derive_every_projective_tree_and_are_all_there_are(system: Any) -> None:
    words = "a b c"
    for heads in enumerate_trees(3):
        exercise = DependencyExercise(sentence=words, heads=" ".join(map(str, heads[1:])), system=system)  # pyright: ignore[reportArgumentType]
        oracles = list(list_oracles(heads, system))
        if exercise.crossing:
            continue
        assert oracles, heads
        derived = set()
        for transitions in oracles:
            arcs = exercise._follow(transitions)[-1].arcs
            assert arcs == {(head, word) for word, head in enumerate(heads) if word}
            derived.add(transitions)
        length = 6
        if system != "arc-eager":
            assert derived == set(enumerate_derivations(exercise, heads, length))


def enumerate_derivations(exercise: DependencyExercise, heads: list[int], length: int) -> list[tuple[str, ...]]:
    """Return all sequences of transitions of a length that end with the arcs of a tree."""
    target = {(head, word) for word, head in enumerate(heads) if word}
    sequences = []
    for transitions in itertools.product(("SHIFT", "LEFT-ARC", "RIGHT-ARC"), repeat=length):
        try:
            last = exercise._follow(transitions)[-1]
        except ValueError:
            continue
        if last.arcs == target and last.is_final(exercise.system):
            sequences.append(transitions)
    return sequences


def test_every_order_of_arcs_is_accepted() -> None:
    fields = {"sentence": "a b c", "heads": "2 0 2"}
    for transitions in ("S S L S R R", "S S S R L R"):
        assert lemma.check.exercise("parsing", fields, f"transitions = {transitions}")
    assert lemma.check.exercise("parsing", fields, "stack3 = ROOT b", "buffer3 = c")
    assert lemma.check.exercise("parsing", fields, "stack3 = ROOT a b c", "buffer3 = []")
    assert not lemma.check.exercise("parsing", fields, "stack3 = ROOT b", "buffer3 = []")  # of different orders


@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_spanning_trees_equal_the_best_of_all_trees(seed: int, single_root: bool) -> None:
    generator = random.Random(seed)
    count = 2 + seed % 3
    scores = [[generator.randint(0, 30) for _ in range(count)] for _ in range(count + 1)]
    exercise = SpanningTreeExercise(scores=scores, sentence=["a", "b", "c", "d"][:count], single_root=single_root)  # pyright: ignore[reportArgumentType]
    trees = [tree for tree in enumerate_trees(count) if not single_root or tree.count(0) == 1]
    totals = [sum(scores[head][word - 1] for word, head in enumerate(tree) if word) for tree in trees]
    assert number(exercise, "total") == max(totals)


def count_parses(
    grammar: list[tuple[str, tuple[str, ...], float]], symbol: str, words: tuple[str, ...]
) -> tuple[int, float, float]:
    """Return the number of parses, the best probability and the sum, by recursion over splits."""
    parses, best, total = 0, 0.0, 0.0
    for left, right, weight in grammar:
        if left != symbol:
            continue
        if len(words) == 1 and right == words:
            parses, best, total = parses + 1, max(best, weight), total + weight
        if len(right) == 2:
            for split in range(1, len(words)):
                first = count_parses(grammar, right[0], words[:split])
                second = count_parses(grammar, right[1], words[split:])
                parses += first[0] * second[0]
                best = max(best, weight * first[1] * second[1])
                total += weight * first[2] * second[2]
    return parses, best, total


def test_cky_equals_the_recursion_over_splits() -> None:
    rules = ["S -> S S [0.4] | S A [0.2] | a [0.3] | b [0.1]", "A -> A S [0.5] | b [0.5]"]
    sentence = "a b a b b"
    exercise = CKYExercise(grammar=tuple(rules), sentence=sentence)  # pyright: ignore[reportArgumentType]
    grammar = [(left, right, weight or 0.0) for left, right, weight in exercise.rules]
    parses, best, total = count_parses(grammar, "S", tuple(sentence.split()))
    assert number(exercise, "parses") == parses
    assert number(exercise, "P(best)") == pytest.approx(best)
    assert number(exercise, "P(sentence)") == pytest.approx(total)


# Decoding


def test_softmax_with_temperature_equals_torch() -> None:
    logits = [1.5, -0.25, 3.0, 0.0]
    exercise = DecodingExercise(logits=logits, temperature=0.7)
    expected = torch.softmax(torch.tensor(logits, dtype=torch.float64) / 0.7, dim=0).numpy()
    assert exercise.distribution == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(6))
def test_top_p_is_the_smallest_set_that_reaches_the_mass(seed: int) -> None:
    probabilities = np.random.default_rng(seed).dirichlet(np.ones(6))
    exercise = DecodingExercise(probabilities=probabilities.tolist(), top_p=0.8)
    kept = exercise.keep(exercise.distribution)
    smallest = min(
        (
            chosen
            for size in range(1, 7)
            for chosen in itertools.combinations(range(6), size)
            if probabilities[list(chosen)].sum() >= 0.8
        ),
        key=lambda chosen: (len(chosen), -probabilities[list(chosen)].sum()),
    )
    assert sorted(kept) == sorted(smallest)


@pytest.mark.parametrize("seed", range(5))
def test_a_wide_beam_finds_the_best_of_all_sequences(seed: int) -> None:
    generator = np.random.default_rng(seed)
    tokens = ["a", "b", "c"]
    tree = {
        prefix: dict(zip(tokens, map(float, generator.dirichlet(np.ones(3))), strict=True))
        for prefix in ("<s>", *tokens)
    }
    exercise = DecodingExercise(tree=tree, beam=27, steps=3)
    totals = {}
    for sequence in itertools.product(tokens, repeat=3):
        contexts = ("<s>", *sequence)
        totals[sequence] = math.prod(tree[left][right] for left, right in zip(contexts, sequence, strict=False))
    best = exercise.search(27)[-1][0]
    assert best.tokens == max(totals, key=lambda sequence: totals[sequence])
    assert math.exp(best.log_probability) == pytest.approx(max(totals.values()))
    greedy: tuple[str, ...] = ()
    for _ in range(3):
        row = tree[greedy[-1] if greedy else "<s>"]
        greedy = (*greedy, max(row, key=lambda token: row[token]))
    assert exercise.search(1)[-1][0].tokens == greedy


def test_tokens_that_tie_at_the_border_may_be_chosen_either_way() -> None:
    fields = {"probabilities": "a 0.4, b 0.2, c 0.2, d 0.2", "top_k": 2}
    for kept in ("a, b", "a, c", "d, a"):
        assert lemma.check.exercise("decoding", fields, f"kept = {kept}")
    assert not lemma.check.exercise("decoding", fields, "kept = b, c")


# All


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("n-gram", {}, "give a corpus"),
        ("n-gram", {"corpus": "a", "smoothing": "magic"}, "smoothing"),
        ("n-gram", {"corpus": "a", "smoothing": "interpolation", "lambdas": "0.5 0.2"}, "sum to 1"),
        ("n-gram", {"corpus": "a b " * 10**5}, "shorter"),
        ("n-gram", {"corpus": "a", "order": 10**9}, "at most 5"),
        ("sequence", {}, "give start"),
        (
            "sequence",
            {"start": "H 0.5", "emission": "H: a 1", "transition": "H: H 1", "observations": "b"},
            "no emission",
        ),
        ("sequence", {"start": "H 0.5", "emission": "H: a 1", "transition": "H: H 1"}, "observations are missing"),
        ("sequence", {"start": "H x", "emission": "H: a 1"}, "start"),
        ("sequence", {"tagged": "the dog"}, "of the form"),
        ("parsing", {"sentence": "a b", "heads": "2"}, "2 heads are expected"),
        ("parsing", {"sentence": "a b", "heads": "2 1"}, "cycle"),
        ("parsing", {"sentence": "a b", "heads": "0 7"}, "number from 0 to 2"),
        ("parsing", {"sentence": "a b", "given": "LA"}, "two items"),
        ("spanning-tree", {"scores": "1 2 3; 3 4 5"}, "rows are expected|numbers are expected|1 numbers"),
        ("spanning-tree", {"scores": {"a": {"b": 1}}}, "no arc leads to"),
        ("cky", {"grammar": "S -> A B C", "sentence": "a"}, "Chomsky"),
        ("cky", {"grammar": "S A", "sentence": "a"}, "is not a rule"),
        ("cky", {"grammar": "S -> A / A -> S", "sentence": "a"}, "cycle"),
        ("decoding", {}, "give probabilities"),
        ("decoding", {"probabilities": "a 0.5, b 0.1"}, "sum to 1"),
        ("decoding", {"logits": "a 1, b x"}, "logits"),
        ("decoding", {"tree": "a: b 1"}, "first token"),
    ],
)
def test_wrong_statements_are_explained(kind: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        lemma.check.exercise(kind, fields, "x = 1")


STATEMENTS: list[tuple[str, dict[str, Any]]] = [
    ("n-gram", {"corpus": "I am Sam / Sam I am", "smoothing": "kneser-ney", "test": "I am"}),
    ("n-gram", {"corpus": "日本 は 日本 / è é", "test": "日本"}),
    (
        "sequence",
        {
            "start": "H 0.8, C 0.2",
            "transition": "0.7 0.3; 0.4 0.6",
            "emission": "H: a 0.5 b 0.5; C: a 1",
            "observations": "a b a",
        },
    ),
    ("parsing", {"sentence": "the dog saw the cat", "heads": "2 3 0 5 3"}),
    ("spanning-tree", {"scores": "ROOT: a 9, b 10; a: b 20; b: a 30"}),
    ("cky", {"grammar": "S -> S S | a", "sentence": "a " * 20}),
    ("decoding", {"tree": "<s>: a 0.5, b 0.5; a: a 0.5, b 0.5; b: a 0.5, b 0.5", "steps": 12, "beam": 50}),
    ("decoding", {"probabilities": [0.005] * 200, "top_k": 100}),
]
ANSWERS = [
    "P(am | I) = 10^9^9^9",
    "P(" + "a " * 3000 + ") = 1",
    "P = " + "(" * 4000,
    "P = " + "9" * 4900,
    "path = " + "H " * 2000,
    "v[999999999999, H] = 1",
    "stack999999999 = a",
    "transitions = " + "S" * 4000,
    "cell(1,999999999) = S",
    "best = " + "a" * 4000,
    "q = " + "[" * 50,
    "P(🙂 | ‮) = 0.5",
    "heads = ",
    "H = 1e999",
    "log P(log(log(log(x)))) = 1",
    "tree = " + "(S " * 1500,
    "kept = " + ", ".join(["1"] * 1000),
    "score(" + "a" * 100 + ") = 1",
]


@pytest.mark.parametrize(("kind", "fields"), STATEMENTS, ids=range(len(STATEMENTS)))
def test_any_answer_is_checked_in_time(kind: str, fields: dict[str, Any]) -> None:
    exercise = read_exercise({"kind": kind, **fields})
    for answer in ANSWERS:
        begin = time.process_time()
        try:
            assert not exercise.check([answer])
        except LemmaError as error:
            assert len(str(error)) < 2500
        assert time.process_time() - begin < 2, answer


def test_answers_that_begin_with_a_minus_sign_are_no_options(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, code in ((["calculation", "value=log(0.7)", "-0.36"], 0), (["n-gram", "--nmaes"], 2)):
        with pytest.raises(SystemExit) as error:
            run_command(["check", *arguments])
        assert error.value.code == code
    assert "--names" in capsys.readouterr().err


def test_a_number_without_a_name_is_not_guessed() -> None:
    with pytest.raises(InputError, match="no name"):
        lemma.check.exercise("n-gram", {"corpus": "a b / a c"}, "1/2")
    with pytest.raises(InputError, match="several values"):
        lemma.check.exercise("sequence", {"tagged": ["a/X b/Y"], "observations": "a b"}, "0.0286")


def test_a_field_that_is_an_answer_too_is_told_by_the_other_fields() -> None:
    given = "given=SHIFT SHIFT LEFT-ARC SHIFT RIGHT-ARC RIGHT-ARC"
    assert lemma.check.exercise("parsing", "sentence=She ate fish", given, "heads = 2 0 2")


def test_choices_of_a_field_are_listed() -> None:
    described = lemma.check.describe_exercise("metric")
    assert "bleu, rouge" in " ".join(described.split())
    assert "Undefined" not in lemma.check.describe_exercise("calculation")
