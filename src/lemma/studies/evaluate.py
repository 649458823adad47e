"""A run judged by what it was made for: text, trees, pairs or labels, its own held-out part or others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any

from lemma.data.labels import read_labels
from lemma.data.pairs import read_pairs
from lemma.data.splits import Splits
from lemma.data.store import TokenArray, prepare, read_tokens
from lemma.errors import RunError, SpecError, unknown
from lemma.generation.beam import Beam, translate_texts
from lemma.runs.load import Run
from lemma.spec.data import DataSpec, LabelsSpec, PairsSpec
from lemma.spec.models import (
    Classifier,
    CrossAttention,
    DualEncoder,
    Encoder,
    EncoderDecoder,
    Graph,
    Parser,
    Transformer,
    longest,
)
from lemma.studies.data_args import Asked, rooted
from lemma.studies.parse_texts import drawer_for
from lemma.studies.task_data import (
    base_of_reranker,
    classified,
    evaluate_trees,
    judge_graph,
    judged_images,
    learned_images,
    lesson_for_data,
    reranked,
    retrieved,
    told,
)
from lemma.tasks.classification import ClassificationScore
from lemma.tasks.image_text import RetrievalScore
from lemma.tasks.language import Score, perplexity_of_split
from lemma.tasks.masked import MaskedScore, score_masked
from lemma.tasks.parsing import ParsingScore
from lemma.tasks.reranking import RerankingScore
from lemma.tasks.translation import TranslationScore, score_translations
from lemma.training.progress import Observer, watched_reading

AnyScore = Score | ParsingScore | MaskedScore | TranslationScore | ClassificationScore | RetrievalScore | RerankingScore
AT_ONCE = 512
"""Sources translated before progress is shown."""
TRANSLATING = ("beam", "length_penalty", "limit")
JUDGED_BY = {
    "parser": "treebank",
    "encoder-decoder": "pairs",
    "classifier": "labels",
    "dual-encoder": "images",
    "cross-attention": "images",
    "graph": "graph",
}
"""What runs are judged by that are not judged by text."""


def judge_run(run: Run, asked: Asked, split: str | None, settings: Mapping[str, Any], watcher: Observer) -> AnyScore:
    """Measure a run; `settings` are those that its kind of score takes."""
    refuse_other_judge(run, asked, split)
    windows = {name: settings[name] for name in ("context", "stride") if name in settings}
    if asked.kind == "treebank" or isinstance(run.spec, Parser):
        return evaluate_trees(run, asked.trees()[0], split, watcher, settings)
    if isinstance(run.spec, EncoderDecoder):
        return judge_translator(run, asked, split, settings, watcher)
    refuse_settings({name: value for name, value in settings.items() if name not in windows}, (), run)
    if isinstance(run.spec, Classifier):
        refuse_settings(windows, (), run)
        return judge_classifier(run, asked, split, watcher)
    if isinstance(run.spec, DualEncoder | CrossAttention):
        refuse_settings(windows, (), run)
        return judge_images(run, asked, split, watcher)
    if isinstance(run.spec, Graph):
        refuse_settings(windows, (), run)
        return judge_graph(run, asked, split, watcher)
    dataset, part = _text(run, asked, split, watcher)
    if isinstance(run.spec, Encoder):
        refuse_settings(windows, (), run)
        return score_masked(run.encoder, dataset.tokens(part), run.recipe.mask_rate, protocol=_protocol(dataset, part))
    return perplexity_of_split(run.model, dataset, part, **windows)


def refuse_other_judge(run: Run, asked: Asked, split: str | None) -> None:
    """Refuse data that a run of this kind cannot be judged by."""
    wanted = JUDGED_BY.get(run.spec.family, "text")
    trees_of_heads = asked.kind == "treebank" and wanted == "text" and not isinstance(run.spec, Encoder)
    if asked.kind not in (None, wanted) and isinstance(run.spec, Graph):
        raise SpecError(
            "evaluate: a graph model is judged on the nodes held out of the graph that it learned, not by "
            f"{asked.kind}. Leave --{asked.kind} out: lemma evaluate {quote(str(run.path))}"
        )
    if asked.kind not in (None, wanted) and not trees_of_heads:
        first = ""
        if asked.kind == "labels" and not isinstance(run.spec, Parser | EncoderDecoder):
            first = f" To make a classifier of it: lemma adapt {run.path} --labels {asked.labels} --out RUN"
        raise SpecError(
            f"evaluate: a run of the family {run.spec.family} is judged by {wanted}, not by {asked.kind}.{first}"
        )
    if asked.kind in ("text", "pairs", "labels") and split is not None:
        raise SpecError(f"evaluate: give other {asked.kind} or a split of the run's own, not both.")


def refuse_settings(settings: Mapping[str, Any], known: tuple[str, ...], run: Run) -> None:
    """Refuse what this kind of measurement has no use for."""
    for word in settings:
        if word not in known and not known:
            raise SpecError(f"evaluate: {word} has no effect on a run of the family {run.spec.family}. Leave it out.")
        if word not in known:
            raise SpecError(unknown(f"evaluate {run.spec.family}: the word", word, known))


def judge_classifier(run: Run, asked: Asked, split: str | None, watcher: Observer) -> ClassificationScore:
    """Classify the test texts of a run, or those of another file, and compare with their labels."""
    assert isinstance(run.spec, Classifier) and isinstance(run.data, LabelsSpec)
    if asked.labels is not None:
        found = read_labels(
            rooted(asked.labels, ()),
            length=longest(run.spec.body),
            special_tokens=isinstance(run.spec.body, Transformer),
            tokenizer=run.tokenizer,
            labels=run.labels,
            text=asked.text_column,
            label=asked.label_column,
            held_out=run.data.held_out,
            trees=drawer_for(run.spec.body, str(asked.labels), asked.parser or run.data.parser, watcher, run.path),
            progress=watched_reading(watcher),
        )
        dataset = told(found, watcher)
    else:
        lesson = lesson_for_data(run.data, run.spec, run.recipe, watcher, run.tokenizer, run.labels)
        drawn = f" with the trees of {run.data.parser}" if run.data.parser else ""
        dataset = _unchanged(run, lesson.dataset, f"{run.data.labels}{drawn}", "labels")
    assert isinstance(dataset, Splits)
    part = chosen_split(dataset, split)
    return classified(run.classifier, dataset, part, _protocol(dataset, part))


def judge_images(run: Run, asked: Asked, split: str | None, watcher: Observer) -> RetrievalScore | RerankingScore:
    """Find captions by pictures and pictures by captions: the run's own test part, or other pictures."""
    spec = run.dual_encoder.spec
    dataset = told(judged_images(run, spec, asked, split, watcher), watcher)
    if asked.images is None:
        dataset = _unchanged(run, dataset, getattr(run.data, "images", ""), "images")
    part = chosen_split(dataset, None if asked.images else split)
    protocol = _protocol(dataset, part)
    if isinstance(run.spec, CrossAttention):
        return reranked(run.reranker, dataset.tokens(part), base=base_of_reranker(run), protocol=protocol)
    learned = learned_images(run, spec, watcher)
    return retrieved(run.dual_encoder, dataset.tokens(part), run.recipe.batch, learned=learned, protocol=protocol)


def judge_translator(
    run: Run, asked: Asked, split: str | None, settings: Mapping[str, Any], watcher: Observer
) -> TranslationScore:
    """Translate the test sources of a run, or those of another file, and compare with their targets."""
    assert isinstance(run.spec, EncoderDecoder) and isinstance(run.data, PairsSpec)
    refuse_settings(settings, TRANSLATING, run)
    if asked.pairs is not None:
        dataset = read_pairs(
            rooted(asked.pairs, ()),
            length=run.spec.context,
            tokenizer=run.tokenizer,
            source=asked.source_column,
            target=asked.target_column,
            held_out=run.data.held_out,
            progress=watched_reading(watcher),
        )
    else:
        lesson = lesson_for_data(run.data, run.spec, run.recipe, watcher, run.tokenizer)
        dataset = _unchanged(run, lesson.dataset, run.data.pairs, "pairs")
    assert isinstance(dataset, Splits)
    part = chosen_split(dataset, split)
    beam = Beam(**{name: value for name, value in settings.items() if name != "limit"})
    limit = settings.get("limit")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise SpecError(f"evaluate: limit = {limit!r}, but at least one sentence must be translated.")
    references = dict(list(dataset.tokens(part).references().items())[:limit])
    written = translate_all(run, list(references), beam, watcher)
    protocol = {**_protocol(dataset, part), "decoded": f"beam {beam.beam}, length penalty {beam.length_penalty:g}"}
    return score_translations(written, list(references.values()), protocol)


def translate_all(run: Run, sources: Sequence[str], beam: Beam, watcher: Observer) -> list[str]:
    """Translate many sources, some at a time so that it can be watched."""
    written: list[str] = []
    watcher.begin("translating", len(sources), "sentences")
    for start in range(0, len(sources), AT_ONCE):
        part = sources[start : start + AT_ONCE]
        written += [one.text for one in translate_texts(run.translator, run.tokenizer, part, beam)]
        watcher.advance(len(written))
    watcher.end()
    return written


def _text(run: Run, asked: Asked, split: str | None, watcher: Observer) -> tuple[Splits[TokenArray], str]:
    """Other text, or the run's own, and which part of it."""
    if asked.text is not None:
        dataset = read_tokens(asked.texts(), run.tokenizer, progress=watched_reading(watcher))
        return dataset, dataset.splits[0]
    dataset = own_text(run, watcher)
    return dataset, chosen_split(dataset, split)


def own_text(run: Run, watcher: Observer) -> Splits[TokenArray]:
    """The text that a run learned, with what it held out."""
    assert isinstance(run.data, DataSpec)
    dataset = prepare(run.data, tokenizer=run.tokenizer, progress=watched_reading(watcher))
    return _unchanged(run, dataset, ", ".join(run.data.text), "text")


def _unchanged(run: Run, dataset: Any, name: str, option: str) -> Any:
    if dataset.hash != run.data_hash:
        raise RunError(
            f"{run.path} was trained on {option} with SHA-256 {run.data_hash}, but {name} now has {dataset.hash}: "
            f"the held-out part may have been learned. To judge it all the same, name it with --{option}."
        )
    return dataset


def chosen_split(dataset: Splits[Any], asked: str | None) -> str:
    """The part that is asked for; the test part if there is one, else validation, else the only one."""
    if asked is None:
        return next((part for part in ("test", "validation") if part in dataset.splits), dataset.splits[0])
    if asked not in dataset.splits:
        raise SpecError(unknown("split", asked, dataset.splits))
    return asked


def _protocol(dataset: Splits[Any], split: str) -> dict[str, Any]:
    return {
        "tokenizer": dataset.tokenizer.about,
        "data": dataset.about,
        "split": split,
        "data hash": dataset.hash,
    }


# The one figure that a score is told by where methods are compared.


NONE = "–"


@dataclass(frozen=True)
class Figure:
    """A figure with its interval, if it has one, and whether more of it is better."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    more_is_better: bool = True
    guessed: float | None = None
    """What always naming the commonest class gives."""

    @property
    def guess(self) -> str:
        """What guessing gives, as a person reads it."""
        return NONE if self.guessed is None else f"{self.guessed:.3f}"

    @property
    def guesses(self) -> bool:
        """Whether it cannot be told from guessing."""
        return self.guessed is not None and (self.value if self.low is None else self.low) <= self.guessed

    @property
    def goodness(self) -> float:
        """The figure, turned so that more is better."""
        return self.value if self.more_is_better else -self.value

    @property
    def shown(self) -> str:
        """The figure as a person reads it."""
        return f"{self.value:.3f}" if self.value <= 1 else f"{self.value:,.2f}"

    @property
    def interval(self) -> str:
        """Its interval, or a dash."""
        if self.low is None or self.high is None:
            return NONE
        places = 3 if self.value <= 1 else 1
        return f"{self.low:.{places}f}–{self.high:.{places}f}"

    def reaches(self, best: "Figure") -> bool:
        """Whether it may be as good as another: the intervals overlap, or without any it is within two per cent."""
        if self.low is None or self.high is None or best.low is None or best.high is None:
            return self.goodness >= best.goodness - 0.02 * abs(best.value)
        return self.high >= best.low if self.more_is_better else self.low <= best.high


def figure_of(score: AnyScore) -> Figure:
    """Accuracy of classes, BLEU of translations, perplexity of all else."""
    match score:
        case ClassificationScore():
            accuracy, (_, commonest) = score.accuracy, score.majority
            return Figure("accuracy", accuracy.value, accuracy.low, accuracy.high, guessed=commonest)
        case TranslationScore():
            return Figure("BLEU", score.bleu.value, score.bleu.low, score.bleu.high)
    return Figure("perplexity", float(score.perplexity), more_is_better=False)  # pyright: ignore[reportAttributeAccessIssue]
