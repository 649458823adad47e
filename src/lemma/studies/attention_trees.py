"""What a language model's attention knows of trees: its spanning trees and its heads, compared with chance."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from lemma.data.conllu import Sentence
from lemma.data.treebanks import read_trees
from lemma.errors import InputError, SpecError, unknown
from lemma.inspection.trees import (
    WordAttention,
    align,
    attention_tree,
    check_heads,
    most_attended,
    shuffled,
    word_attention,
)
from lemma.models.base import LanguageModel
from lemma.models.build import build
from lemma.report.progress import Observer, Silent, watched_reading
from lemma.runs.load import Run
from lemma.tasks.base import DataArgs
from lemma.tasks.parsing import (
    WINDOWS,
    ParsingScore,
    checked_limit,
    relation_findings,
    score_trees,
    tree_protocol,
    with_baselines,
)

HOW = "maximum spanning tree of A + Aᵀ between words, hung from the word attended to most on average; no labels"
CAUSAL = "causal: a word sees only those before it, so that a head further on can be found from itself alone"


def score_attention(
    run: Run,
    gold: Sequence[Sentence],
    protocol: Mapping[str, Any] | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    limit: int | None = None,
    seed: int = 1,
    watcher: Observer | None = None,
) -> ParsingScore:
    """Score the trees of one head, or of the mean of all, and for each relation the head that finds it best.

    Next to them: chains, the trees of shuffled attention, and a model of the same spec with random weights.
    """
    chosen, left = _readable(run, gold[:limit])
    untrained = _untrained(run, seed)
    trained, random = (
        _attention(model, run, chosen, watcher or Silent(), f"reading with {what} weights")
        for model, what in ((run.model, "trained"), (untrained, "random"))
    )
    dealt = [shuffled(one.weights, seed + place) for place, one in enumerate(trained)]
    how = {"decoded": HOW, "attention": CAUSAL, **(protocol or {}), **left}
    score = score_trees(chosen, _trees(chosen, trained, layer, head), how)
    mixed = [replace(one, weights=weights) for one, weights in zip(trained, dealt, strict=True)]
    baselines = {"untrained": random, "shuffled": mixed}
    uas = {
        f"{name} attention": score_trees(chosen, _trees(chosen, t, layer, head)).uas for name, t in baselines.items()
    }
    guesses = {name: [most_attended(one.weights) for one in t] for name, t in baselines.items()}
    found = relation_findings(trained[0].names, chosen, [most_attended(one.weights) for one in trained], guesses)
    return replace(with_baselines(score, uas), findings=tuple(found))


def _readable(run: Run, gold: Sequence[Sentence]) -> tuple[list[Sentence], dict[str, Any]]:
    """The sentences that the model can read at once, and how many it cannot."""
    most = run.model.receptive_field
    sizes = [len(align(sentence.words, run.tokenizer).ids) for sentence in gold]
    chosen = [s for s, size in zip(gold, sizes, strict=True) if size and (most is None or size <= most)]
    if not chosen:
        raise InputError(f"no sentence fits into the model's context of {most} tokens; {len(gold):,} read.")
    left = len(gold) - len(chosen)
    said = f"{left:,} of {len(gold):,} sentences, longer than the context of {most} tokens" if left else None
    return chosen, {"left out": said}


def _untrained(run: Run, seed: int) -> LanguageModel:
    device = next(run.model.parameters()).device
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return build(run.model.spec).to(device).eval()


def _attention(
    model: LanguageModel, run: Run, gold: Sequence[Sentence], watcher: Observer, what: str
) -> list[WordAttention]:
    found = []
    watcher.begin(what, len(gold), "sentences" if len(gold) != 1 else "sentence")
    for number, sentence in enumerate(gold, start=1):
        found.append(word_attention(model, run.tokenizer, sentence.words))
        watcher.advance(number)
    watcher.end()
    return found


def _trees(
    gold: Sequence[Sentence], attention: Sequence[WordAttention], layer: int | None, head: int | None
) -> list[Sentence]:
    return [
        Sentence(sentence.words, attention_tree(one.chosen(layer, head)), ("_",) * len(sentence.words))
        for sentence, one in zip(gold, attention, strict=True)
    ]


SETTINGS = ("layer", "head", "limit", "seed")


def evaluate_attention(
    run: Run, given: DataArgs, split: str | None, settings: Mapping[str, Any], observer: Observer
) -> ParsingScore:
    """Compare the trees of a language model's attention with those of a treebank."""
    for word in settings:
        if word in ("context", "stride"):
            raise SpecError(f"evaluate: {WINDOWS}. Leave {word} out.")
        if word not in SETTINGS:
            raise SpecError(unknown("evaluate: the setting", word, SETTINGS))
    checked_limit(settings)
    check_heads(run.model, settings.get("layer"), settings.get("head"))
    own = given.settings.get("test") or given.settings.get("validation")  # a split that is given is all that is read
    trees = read_trees(own or given.name, watched_reading(observer), split)
    gold = trees.tokens(trees.splits[0]).sentences
    return score_attention(run, gold, tree_protocol(trees), watcher=observer, **settings)
