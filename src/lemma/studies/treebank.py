"""What `train` and `evaluate` do with trees: a treebank made ready, its validation, and runs judged by it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lemma.data import Lexicon, TreebankData, TreebankSource, prepare_treebank, read_trees
from lemma.errors import InputError, RunError, SpecError, unknown
from lemma.evaluation import ParsingScore, score_parser
from lemma.looking.trees import check_heads
from lemma.models import ParserModel
from lemma.runs import Run
from lemma.spec import ModelSpec, Parser, TreebankSpec
from lemma.studies.attention_trees import score_attention
from lemma.training import Observer, watched_reading

SETTINGS = ("layer", "head", "limit", "seed")
ONE_TREE = "a parser has one tree a sentence; --layer and --head choose among a language model's heads"
WHOLE = "trees are of whole sentences; --context and --stride cut running text into windows, for perplexity"
NO_DRAW = "a parser's trees are drawn from no random weights; seed fixes those a language model is set beside"


@dataclass(frozen=True)
class TreeLesson:
    """What the training of a parser asks for: UAS and LAS on the trees held out, and no samples."""

    dataset: TreebankData

    def evaluate(self, model: ParserModel) -> ParsingScore:
        """Parse what is held out, and compare."""
        return score_parser(model, self.dataset.tokenizer, self.dataset.sentences("validation"))

    def sample(self, model: ParserModel) -> list[str]:
        """A parser writes no text."""
        return []


def prepared_trees(
    data: TreebankSpec, model: ModelSpec, watcher: Observer, lexicon: Lexicon | None = None
) -> TreebankData:
    """Read a treebank for a parser, and say what was passed over."""
    if not isinstance(model, Parser):
        raise SpecError(f"a model of the family {model.family} learns text, not trees. Take the family parser.")
    prepared = prepare_treebank(
        data,
        minimum_count=model.minimum_count,
        buckets=model.buckets,
        lexicon=lexicon,
        progress=watched_reading(watcher),
    )
    for said in prepared.source.skipped:
        watcher.say(f"passed over in {said}")
    return prepared


def evaluate_trees(
    run: Run, treebank: str | None, split: str | None, watcher: Observer, settings: Mapping[str, Any]
) -> ParsingScore:
    """Compare a parser's trees, or those of a language model's attention, with a treebank's or the run's own."""
    _check_settings(run, settings)
    source = (
        own_trees(run, watcher, split) if treebank is None else read_trees(treebank, watched_reading(watcher), split)
    )
    (gold,) = source.splits.values()
    skipped = "; ".join(source.skipped) or None
    protocol = {"treebank": source.about, "data hash": source.hash, "passed over": skipped}
    if isinstance(run.spec, Parser):
        first = gold[: settings.get("limit")]
        return score_parser(run.parser, run.lexicon, first, {"model": run.lexicon.about, **protocol})
    return score_attention(run, gold, protocol, watcher=watcher, **settings)


def _check_settings(run: Run, settings: Mapping[str, Any]) -> None:
    """Refuse, before anything is read, what the run has no use for or does not have."""
    parser = isinstance(run.spec, Parser)
    why = {"context": WHOLE, "stride": WHOLE}
    why |= {"layer": ONE_TREE, "head": ONE_TREE, "seed": NO_DRAW} if parser else {}
    for word in settings:
        if word in why:
            raise SpecError(f"evaluate: {why[word]}. Leave {word} out.")
        if word not in SETTINGS:
            raise SpecError(unknown("evaluate: the word", word, ("limit",) if parser else SETTINGS))
    limit = settings.get("limit")
    if limit is not None and limit < 1:
        raise InputError(f"evaluate: limit = {limit}, but at least one sentence must be read.")
    if not parser:
        check_heads(run.model, settings.get("layer"), settings.get("head"))


def own_trees(run: Run, watcher: Observer, split: str | None) -> TreebankSource:
    """The part of a run's own treebank that it has not learned: test if there is one, else validation."""
    if not isinstance(run.data, TreebankSpec):
        raise SpecError("a language model's trees need a treebank: --treebank ewt, or --treebank FILE.conllu.")
    data = prepared_trees(run.data, run.spec, watcher, run.lexicon)
    if data.hash != run.data_hash:
        raise RunError(
            f"{run.path} was trained on trees with SHA-256 {run.data_hash}, but {run.data.treebank} now has "
            f"{data.hash}: what was held out may have been learned. To judge it all the same, name it with --treebank."
        )
    chosen = split or ("test" if "test" in data.splits else "validation")
    return replace(data.source, splits={chosen: data.sentences(chosen)}, about=f"{data.about} ({chosen})")
