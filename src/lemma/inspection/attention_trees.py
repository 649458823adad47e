"""Evaluation of a language model's attention on treebanks: its spanning trees and its heads, compared with chance."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64

from lemma.data.treebanks import Sentence, read_trees
from lemma.errors import InputError, SpecError, describe_unknown
from lemma.inspection.trees import (
    WordAttention,
    attention_tree,
    check_heads,
    encode_words,
    measure_word_attention,
    most_attended,
    shuffle_attention,
)
from lemma.models.build import build
from lemma.report.progress import Observer, reading_progress
from lemma.runs.load import Run
from lemma.tasks.parsing import Direction, ParsingScore, RelationFinding, read_limit, score_trees, tree_protocol
from lemma.tasks.registry import WINDOWS, DataArgs

DECODING_NOTE = (
    "maximum spanning tree of A + Aᵀ between words, hung from the word attended to most on average; no labels"
)
CAUSAL_NOTE = "causal: a word sees only those before it, so that a head further on can be found from itself alone"


SETTINGS = ("layer", "head", "limit", "seed")


def evaluate_attention(
    run: Run, data_args: DataArgs, split: str | None, settings: Mapping[str, Any], observer: Observer
) -> ParsingScore:
    """Score the dependency trees that a run's attention gives for a treebank; find the best head for each relation.

    The baselines are chains, trees of shuffled attention, and a model of the same spec with random weights. `settings`
    are `layer` and `head` (by default the mean of all), `limit`, a number of sentences, and `seed`.
    """
    for name in settings:
        if name in ("context", "stride"):
            raise SpecError(f"evaluate: {WINDOWS}. Leave {name} out.")
        if name not in SETTINGS:
            raise SpecError(describe_unknown("evaluate: setting", name, SETTINGS))
    limit, seed = read_limit(settings), settings.get("seed", 1)
    layer, head = settings.get("layer"), settings.get("head")
    model, max_tokens = run.model, run.model.receptive_field
    check_heads(model, layer, head)
    split_file = data_args.settings.get("test") or data_args.settings.get("validation")  # then all that is read
    trees = read_trees(split_file or data_args.name, reading_progress(observer), split)
    all_gold = trees.item(trees.split_names[0]).sentences[:limit]
    lengths = [len(encode_words(sentence.words, run.tokenizer)) for sentence in all_gold]
    gold = [
        sentence
        for sentence, length in zip(all_gold, lengths, strict=True)
        if length and (max_tokens is None or length <= max_tokens)
    ]
    if not gold:
        raise InputError(f"no sentence fits into the model's context of {max_tokens} tokens; {len(all_gold):,} read.")
    too_long = None
    if skipped := len(all_gold) - len(gold):
        too_long = f"{skipped:,} of {len(all_gold):,} sentences, longer than the context of {max_tokens} tokens"
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(seed)
        untrained = build(model.spec).to(next(model.parameters()).device).eval()
    attention: dict[str, list[WordAttention]] = {}
    for name, reader in (("trained", model), ("untrained", untrained)):
        weights = "random" if name == "untrained" else name
        observer.start(f"reading with {weights} weights", len(gold), "sentences" if len(gold) != 1 else "sentence")
        attention[name] = []
        for number, sentence in enumerate(gold, start=1):
            attention[name].append(measure_word_attention(reader, run.tokenizer, sentence.words))
            observer.advance(number)
        observer.finish()
    attention["shuffled"] = [
        replace(trained, weights=shuffle_attention(trained.weights, seed + index))
        for index, trained in enumerate(attention["trained"])
    ]
    predicted = {
        name: [
            Sentence(sentence.words, attention_tree(words.select(layer, head)), ("_",) * len(sentence.words))
            for sentence, words in zip(gold, sentences, strict=True)
        ]
        for name, sentences in attention.items()
    }
    attended = {name: [most_attended(words.weights) for words in sentences] for name, sentences in attention.items()}
    protocol = {"decoded": DECODING_NOTE, "attention": CAUSAL_NOTE, **tree_protocol(trees), "left out": too_long}
    score = score_trees(gold, predicted.pop("trained"), protocol)
    baselines = {f"{name} attention": score_trees(gold, sentences).uas for name, sentences in predicted.items()}
    head_names = attention["trained"][0].names
    findings = relation_findings(head_names, gold, attended.pop("trained"), attended)
    return replace(score, baselines={**score.baselines, **baselines}, findings=tuple(findings))


# Which head finds which relation (Clark et al. 2019): for each head and relation, over all arcs between two words, how
# often the dependent attends most to its head word, and how often the head word attends most to that dependent; next to
# the best fixed offset, "the word k positions further".

NO_HEAD = "none"
MostAttended = Sequence[Int64[np.ndarray, "heads words"]]
"""For each sentence, the word (counted from 1; 0 for none) that each head attends to most from each word."""
Accuracies = dict[tuple[str, Direction], np.ndarray]
"""For each relation and direction, the accuracy of each head in per cent."""


def relation_findings(
    names: Sequence[str],
    gold: Sequence[Sentence],
    most_attended: MostAttended,
    baselines_attended: Mapping[str, MostAttended] | None = None,
) -> list[RelationFinding]:
    """Find the most accurate head for each relation and direction; the most frequent relations come first.

    `names` are those of the heads, `gold` has the correct trees; `most_attended` holds for each sentence the word that
    each head attends to most from each word, and `baselines_attended` the same of each baseline.
    """
    accuracies, counts = head_accuracies(most_attended, gold)
    baselines = {name: head_accuracies(other, gold)[0] for name, other in (baselines_attended or {}).items()}
    offsets = best_offsets(gold)
    findings = []
    for key in sorted(accuracies, key=lambda key: (-counts[key[0]], key)):
        best = int(accuracies[key].argmax())
        head = names[best] if accuracies[key][best] > 0 else NO_HEAD
        best_baselines = {name: float(table[key].max()) for name, table in baselines.items()}
        accuracy = float(accuracies[key][best])
        findings.append(RelationFinding(*key, counts[key[0]], head, accuracy, *offsets[key], **best_baselines))
    return findings


def head_accuracies(most_attended: MostAttended, gold: Sequence[Sentence]) -> tuple[Accuracies, Counter[str]]:
    """Return each head's accuracy in per cent by relation and direction, and the number of arcs of each relation.

    It is the percentage of arcs of `gold` of which the word attended to most from one end is the other end.
    """
    hits: dict[tuple[str, Direction], np.ndarray] = defaultdict(lambda: np.zeros(most_attended[0].shape[0]))
    counts: Counter[str] = Counter()
    for sentence, attended in zip(gold, most_attended, strict=True):
        for head_word, dependent, relation in sentence.arcs():
            if not head_word:
                continue
            counts[relation] += 1
            hits[relation, "to the head word"] += attended[:, dependent - 1] == head_word
            hits[relation, "to the dependent"] += attended[:, head_word - 1] == dependent
    return {key: 100 * count / counts[key[0]] for key, count in hits.items()}, counts


def best_offsets(gold: Sequence[Sentence]) -> dict[tuple[str, Direction], tuple[int, float]]:
    """Return by relation and direction the most frequent signed distance in words, and its frequency in per cent.

    It is that of the baseline in which every word attends at a fixed distance.
    """
    offset_counts: dict[str, Counter[int]] = defaultdict(Counter)
    for sentence in gold:
        for head_word, dependent, relation in sentence.arcs():
            if head_word:
                offset_counts[relation][head_word - dependent] += 1
    best: dict[tuple[str, Direction], tuple[int, float]] = {}
    for relation, counts in offset_counts.items():
        offset, count = min(counts.items(), key=lambda item: (-item[1], abs(item[0]), item[0]))
        percent = 100 * count / counts.total()
        best[relation, "to the head word"] = (offset, percent)
        best[relation, "to the dependent"] = (-offset, percent)
    return best
