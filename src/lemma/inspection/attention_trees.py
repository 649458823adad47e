"""Evaluation of a language model's attention on treebanks: its spanning trees and its heads, compared with chance."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from lemma.data.treebanks import Sentence, read_trees
from lemma.errors import InputError, SpecError, describe_unknown
from lemma.inspection.relations import relation_findings
from lemma.inspection.trees import (
    WordAttention,
    align,
    attention_tree,
    check_heads,
    measure_word_attention,
    most_attended,
    shuffle_attention,
)
from lemma.models.build import build
from lemma.report.progress import Observer, reading_progress
from lemma.runs.load import Run
from lemma.tasks.parsing import ParsingScore, read_limit, score_trees, tree_protocol
from lemma.tasks.registry import WINDOWS, DataArgs

DECODING_NOTE = (
    "maximum spanning tree of A + Aᵀ between words, hung from the word attended to most on average; no labels"
)
CAUSAL_NOTE = "causal: a word sees only those before it, so that a head further on can be found from itself alone"


SETTINGS = ("layer", "head", "limit", "seed")


def evaluate_attention(
    run: Run, data_args: DataArgs, split: str | None, settings: Mapping[str, Any], observer: Observer
) -> ParsingScore:
    """Score the trees of one attention head, or of the mean of all, and for each relation the head that finds it best.

    Next to them: chains, the trees of shuffled attention, and a model of the same spec with random weights.
    """
    for name in settings:
        if name in ("context", "stride"):
            raise SpecError(f"evaluate: {WINDOWS}. Leave {name} out.")
        if name not in SETTINGS:
            raise SpecError(describe_unknown("evaluate: the setting", name, SETTINGS))
    limit, seed = read_limit(settings), settings.get("seed", 1)
    layer, head = settings.get("layer"), settings.get("head")
    model, max_tokens = run.model, run.model.receptive_field
    check_heads(model, layer, head)
    split_file = data_args.settings.get("test") or data_args.settings.get("validation")  # then all that is read
    trees = read_trees(split_file or data_args.name, reading_progress(observer), split)
    all_gold = trees.item(trees.split_names[0]).sentences[:limit]
    lengths = [len(align(sentence.words, run.tokenizer).ids) for sentence in all_gold]
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
    predicted: dict[str, list[Sentence]] = {}
    for name, sentences in attention.items():
        predicted[name] = [
            Sentence(sentence.words, attention_tree(words.select(layer, head)), ("_",) * len(sentence.words))
            for sentence, words in zip(gold, sentences, strict=True)
        ]
    attended = {name: [most_attended(words.weights) for words in sentences] for name, sentences in attention.items()}
    protocol = {"decoded": DECODING_NOTE, "attention": CAUSAL_NOTE, **tree_protocol(trees), "left out": too_long}
    score = score_trees(gold, predicted.pop("trained"), protocol)
    baselines = {f"{name} attention": score_trees(gold, sentences).uas for name, sentences in predicted.items()}
    head_names = attention["trained"][0].names
    findings = relation_findings(head_names, gold, attended.pop("trained"), attended)
    return replace(score, baselines={**score.baselines, **baselines}, findings=tuple(findings))
