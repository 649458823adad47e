"""`evaluate --treebank` on a language model: the trees of its attention, compared with a treebank's."""

from collections.abc import Mapping
from typing import Any

from lemma.data.treebanks import read_trees
from lemma.errors import SpecError, unknown
from lemma.inspection.trees import check_heads
from lemma.report.progress import Observer, watched_reading
from lemma.runs.load import Run
from lemma.studies.measures import score_attention
from lemma.tasks.base import DataArgs
from lemma.tasks.parsing import WINDOWS, ParsingScore, checked_limit, tree_protocol

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
    trees = read_trees(given.name, watched_reading(observer), split)
    gold = trees.tokens(trees.splits[0]).sentences
    return score_attention(run, gold, tree_protocol(trees), watcher=observer, **settings)
