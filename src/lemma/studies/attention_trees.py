"""What a language model's attention knows of trees: its spanning trees and its heads, compared with chance."""

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
from lemma.tasks.base import DataArgs
from lemma.tasks.parsing import (
    WINDOWS,
    ParsingScore,
    read_limit,
    score_trees,
    tree_protocol,
)

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
    for word in settings:
        if word in ("context", "stride"):
            raise SpecError(f"evaluate: {WINDOWS}. Leave {word} out.")
        if word not in SETTINGS:
            raise SpecError(describe_unknown("evaluate: the setting", word, SETTINGS))
    limit, seed = read_limit(settings), settings.get("seed", 1)
    layer, head = settings.get("layer"), settings.get("head")
    model, most = run.model, run.model.receptive_field
    check_heads(model, layer, head)
    own = data_args.settings.get("test") or data_args.settings.get(
        "validation"
    )  # a split that is given is all that is read
    trees = read_trees(own or data_args.name, reading_progress(observer), split)
    gold = trees.item(trees.split_names[0]).sentences[:limit]
    sizes = [len(align(sentence.words, run.tokenizer).ids) for sentence in gold]
    chosen = [one for one, size in zip(gold, sizes, strict=True) if size and (most is None or size <= most)]
    if not chosen:
        raise InputError(f"no sentence fits into the model's context of {most} tokens; {len(gold):,} read.")
    left = len(gold) - len(chosen)
    too_long = f"{left:,} of {len(gold):,} sentences, longer than the context of {most} tokens" if left else None
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(seed)
        untrained = build(model.spec).to(next(model.parameters()).device).eval()
    attention: dict[str, list[WordAttention]] = {}
    for name, reader in (("trained", model), ("untrained", untrained)):
        weights = "random" if name == "untrained" else name
        observer.start(f"reading with {weights} weights", len(chosen), "sentences" if len(chosen) != 1 else "sentence")
        attention[name] = []
        for number, sentence in enumerate(chosen, start=1):
            attention[name].append(measure_word_attention(reader, run.tokenizer, sentence.words))
            observer.advance(number)
        observer.finish()
    attention["shuffled"] = [
        replace(one, weights=shuffle_attention(one.weights, seed + place))
        for place, one in enumerate(attention["trained"])
    ]
    found = {
        name: [
            Sentence(sentence.words, attention_tree(one.select(layer, head)), ("_",) * len(sentence.words))
            for sentence, one in zip(chosen, some, strict=True)
        ]
        for name, some in attention.items()
    }
    guesses = {name: [most_attended(one.weights) for one in some] for name, some in attention.items()}
    how = {"decoded": DECODING_NOTE, "attention": CAUSAL_NOTE, **tree_protocol(trees), "left out": too_long}
    score = score_trees(chosen, found.pop("trained"), how)
    uas = {f"{name} attention": score_trees(chosen, some).uas for name, some in found.items()}
    names = attention["trained"][0].names
    findings = relation_findings(names, chosen, guesses.pop("trained"), guesses)
    return replace(score, baselines={**score.baselines, **uas}, findings=tuple(findings))
