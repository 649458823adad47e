"""Translation: pairs of texts, the loss of the target given the source, BLEU and chrF."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json import loads
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional

from lemma.data.corpora import PAIR_CORPORA
from lemma.data.pairs import TokenPairs, prepare_pairs
from lemma.data.splits import Splits
from lemma.errors import InputError, SpecError
from lemma.generation.beam import Beam, translate_texts
from lemma.optional import import_optional
from lemma.models.base import batch_by_length, measuring, tokens_per_batch
from lemma.models.encoder_decoder import EncoderDecoderModel
from lemma.report.progress import Observer, reading_progress
from lemma.report.statistics import Estimate, NamedValues, format_named_values, protocol_values
from lemma.runs.load import Run
from lemma.spec.data import PairsSpec
from lemma.spec.models import EncoderDecoder
from lemma.spec.recipe import Recipe
from lemma.tasks.base import (
    IGNORE_INDEX,
    DataArgs,
    ExampleBatches,
    Headline,
    Score,
    SmoothedLoss,
    Task,
    Worker,
    check_unchanged,
    choose_split,
    data_protocol,
    report_skipped,
)

NUM_SAMPLES = 3
"""Sources translated as samples."""
TRANSLATION_BATCH = 512
"""Sources translated before progress is shown."""


class TranslationTask(Task):
    """An encoder–decoder writes the target of a source."""

    name, option, example, learns = "translation", "pairs", "tatoeba-es", "pairs of texts"
    data_spec = PairsSpec
    names, settings = PAIR_CORPORA, ("source_column", "target_column")
    answers = "translation"
    evaluation_settings = ("beam", "length_penalty", "limit")
    no_penalties = "an encoder-decoder learns to translate"

    def load(
        self,
        data: PairsSpec,
        model: EncoderDecoder,
        recipe: Recipe,
        observer: Observer,
        vocabulary: Any = None,
        labels: tuple[str, ...] = (),
    ) -> Splits[TokenPairs]:
        """Read the pairs; those that are too long for the model are skipped."""
        progress = reading_progress(observer)
        pairs = prepare_pairs(data, length=model.context, tokenizer=vocabulary, progress=progress)
        return report_skipped(pairs, observer)

    def batches(self, model: Any, examples: TokenPairs, recipe: Recipe, worker: Worker) -> "PairBatches":
        """Pairs of similar length together."""
        return PairBatches(examples, recipe, worker)

    def loss(self, model: EncoderDecoderModel, recipe: Recipe, batches: Any = None) -> SmoothedLoss:
        """The cross-entropy of each target token, given the source and the target tokens before it."""

        def predict(model: Any, sources: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            fed, wanted = teacher_forcing(targets)
            return model(sources, fed), wanted

        return SmoothedLoss(model, recipe.label_smoothing, predict)

    def validate(self, model: EncoderDecoderModel, data: Splits[TokenPairs], recipe: Recipe) -> "PairsScore":
        """The loss of the validation targets."""
        return score_pairs(model, data.item("validation"))

    def evaluate(
        self, run: Run, given: DataArgs, split: str | None, settings: Mapping[str, Any], observer: Observer
    ) -> "TranslationScore":
        """Translate the test sources of a run, or those of another file, and compare with their targets."""
        assert isinstance(run.spec, EncoderDecoder)
        if given.name is not None:
            own = {"held_out": run.data.held_out} if isinstance(run.data, PairsSpec) else {}  # unless pretrained
            data = prepare_pairs(
                PairsSpec(pairs=given.name, **own, **given.settings),
                length=run.spec.context,
                tokenizer=run.tokenizer,
                evaluation=True,
                progress=reading_progress(observer),
            )
        else:
            assert isinstance(run.data, PairsSpec)
            data = self.load(run.data, run.spec, run.recipe, observer, run.tokenizer)
            check_unchanged(run, data, run.data.pairs, "pairs")
        part = choose_split(data, split)
        beam = Beam(**{name: value for name, value in settings.items() if name != "limit"})
        limit = settings.get("limit")
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise SpecError(f"evaluate: limit = {limit!r}, but at least one sentence must be translated.")
        references = dict(list(data.item(part).references().items())[:limit])
        written: list[str] = []
        observer.start("translating", len(references), "sentences")
        for start in range(0, len(references), TRANSLATION_BATCH):
            some = list(references)[start : start + TRANSLATION_BATCH]
            model = run.require(EncoderDecoderModel, "a translator")
            written += [one.text for one in translate_texts(model, run.tokenizer, some, beam)]
            observer.advance(len(written))
        observer.finish()
        decoded = f"beam {beam.beam}, length penalty {beam.length_penalty:g}"
        return score_translations(written, list(references.values()), {**data_protocol(data, part), "decoded": decoded})

    def samples(self, model: EncoderDecoderModel, data: Splits[TokenPairs]) -> list[str]:
        """The first few validation sources, translated."""
        sources = [pair.source for pair in data.item("validation").pairs[:NUM_SAMPLES]]
        return [f"{one.source} → {one.text}" for one in translate_texts(model, data.tokenizer, sources, Beam())]


class PairBatches(ExampleBatches):
    """Batches of sources and targets."""

    def predicted_targets(self, targets: Any) -> Any:
        """All tokens of a target but its first, `<start>`."""
        return targets[:, 1:]


def teacher_forcing(targets: Int[Tensor, "batch time"]) -> tuple[Int[Tensor, "batch fed"], Int[Tensor, "batch fed"]]:
    """Cut whole targets, <start> … <end>, into what is fed and what comes after it.

    >>> import torch
    >>> [part.tolist() for part in teacher_forcing(torch.tensor([[7, 1, 2, 8], [7, 3, 8, -1]]))]
    [[[7, 1, 2], [7, 3, 8]], [[1, 2, 8], [3, 8, -1]]]
    """
    return targets[:, :-1], targets[:, 1:]


@dataclass(frozen=True)
class TranslationScore(Score):
    """BLEU and chrF from 0 to 100, each with sacrebleu's interval and its signature, which says how it was measured."""

    title = "Translations"

    sentences: int
    bleu: Estimate
    chrf: Estimate
    signatures: Mapping[str, str]
    protocol: Mapping[str, Any]
    short_signatures: Mapping[str, str]
    """The same signatures in sacrebleu's short form."""
    loss: float | None = None

    @property
    def figures(self) -> dict[str, float]:
        """The figures by name."""
        return {"bleu": self.bleu.value, "chrf": self.chrf.value}

    @property
    def headline(self) -> Headline:
        """BLEU."""
        return Headline("BLEU", self.bleu.value, self.bleu.interval)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        intervals = {"bleu": self.bleu.interval, "chrf": self.chrf.interval}
        return {
            **self.figures,
            "intervals": {name: bounds for name, bounds in intervals.items() if bounds},
            "sentences": self.sentences,
            "signatures": dict(self.signatures),
            "protocol": dict(self.protocol),
        }

    def __str__(self) -> str:
        return format_named_values(self._lines(self.short_signatures))

    def _lines(self, signatures: Mapping[str, str] | None = None) -> NamedValues:
        signatures = signatures or self.signatures
        return [
            ("BLEU", self.bleu.format_interval()),
            ("", signatures["bleu"]),
            ("chrF", self.chrf.format_interval()),
            ("", signatures["chrf"]),
            ("sentences", f"{self.sentences:,}"),
            *protocol_values(self.protocol),
        ]


@dataclass(frozen=True)
class PairsScore(Score):
    """The mean loss of the right target tokens, each predicted from the source and the right tokens before it."""

    title = "Loss of translations"

    loss: float
    tokens: int
    protocol: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that are good JSON: None for what is infinite or NaN."""
        loss = self.loss if math.isfinite(self.loss) else None
        protocol = {"protocol": dict(self.protocol)} if self.protocol else {}
        return {"perplexity": loss and self.perplexity, "loss": loss, "tokens": self.tokens, **protocol}

    def __str__(self) -> str:
        return format_named_values(self._lines())

    def _lines(self) -> NamedValues:
        lines = [("perplexity", f"{self.perplexity:,.4f}"), ("loss", f"{self.loss:.4f} nats/token")]
        return [*lines, ("tokens", f"{self.tokens:,}"), *protocol_values(self.protocol)]


BOOTSTRAP_SAMPLES = 1000
BOOTSTRAP_SENTENCES = 4_000_000
"""Sentences drawn in all samples together: sacrebleu holds what it knows of each in memory at once."""


def score_translations(
    hypotheses: Sequence[str],
    references: Sequence[str | Sequence[str]],
    protocol: Mapping[str, Any] | None = None,
    *,
    samples: int = BOOTSTRAP_SAMPLES,
) -> TranslationScore:
    """Compare translations with one or several right ones each."""
    several = [(one,) if isinstance(one, str) else tuple(one) for one in references]
    if not hypotheses:
        raise InputError("no translations to score. Give pairs to translate.")
    if len(hypotheses) != len(several):
        raise InputError(f"{len(hypotheses)} translations cannot be compared with the targets of {len(several)}.")
    if bare := [place for place, some in enumerate(several, start=1) if not some]:
        raise InputError(f"translation {bare[0]} has nothing to be compared with. Give each at least one target.")
    metrics = import_optional("sacrebleu.metrics", "sacrebleu", "scoring translations")
    streams = [[one[place] if place < len(one) else None for one in several] for place in range(max(map(len, several)))]
    draws = 0 if samples < 2 else max(2, min(samples, BOOTSTRAP_SENTENCES // len(hypotheses)))
    kinds = {"bleu": metrics.BLEU(force=True), "chrf": metrics.CHRF()}  # force: no warning of spaces before full stops
    scored = {name: _compute_metric(metric, hypotheses, streams, draws) for name, metric in kinds.items()}
    return TranslationScore(
        sentences=len(hypotheses),
        bleu=scored["bleu"][0],
        chrf=scored["chrf"][0],
        signatures={name: signature.format() for name, (_, signature) in scored.items()},
        protocol=dict(protocol or {}),
        short_signatures={name: signature.format(short=True) for name, (_, signature) in scored.items()},
    )


def _compute_metric(
    metric: Any, hypotheses: Sequence[str], streams: Sequence[Any], samples: int
) -> tuple[Estimate, Any]:
    try:
        score = metric.corpus_score(list(hypotheses), streams, n_bootstrap=max(1, samples))
    except TypeError:  # sacrebleu cannot average samples without a match, a float 0.0, with others, NumPy's float32
        compute = metric._compute_score_from_stats

        def in_floats(statistics: Any) -> Any:
            sample = compute(statistics)
            sample.score = float(sample.score)
            return sample

        metric._compute_score_from_stats = in_floats
        score = metric.corpus_score(list(hypotheses), streams, n_bootstrap=max(1, samples))
    signature = metric.get_signature()
    if not samples:
        return Estimate(score.score), signature
    told = loads(score.format(width=6, signature=signature.format(), is_json=True))
    mean, half = told.get("confidence_mean", 0.0), told.get("confidence_var", 0.0)
    return Estimate(score.score, bounds=(mean - half, mean + half)), signature


def score_pairs(model: nn.Module, pairs: TokenPairs, protocol: Mapping[str, Any] | None = None) -> PairsScore:
    """Measure how well a model predicts the right targets of pairs."""
    return PairsScore(*mean_pair_loss(model, pairs), dict(protocol or {}))


def mean_pair_loss(model: nn.Module, pairs: TokenPairs) -> tuple[float, int]:
    """The mean of −log p over all target tokens, `<end>` too, in nats, and how many they are."""
    if not len(pairs):
        raise InputError("no pairs to measure: there are none, or all are longer than the model reads.")
    count = 0
    with measuring(model) as device:
        total = torch.zeros((), dtype=torch.float64, device=device)
        vocabulary = getattr(getattr(model, "spec", None), "vocabulary", 1)
        for group in batch_by_length(pairs.lengths, tokens_per_batch(device, vocabulary)):
            sources, targets = (torch.from_numpy(part).to(device) for part in pairs.batch(group))
            logits = model(sources, targets[:, :-1])
            wanted = targets[:, 1:].flatten()
            flat = logits.float().flatten(0, 1)
            losses = functional.cross_entropy(flat, wanted, ignore_index=IGNORE_INDEX, reduction="none")
            total += losses.sum(dtype=torch.float64)
            count += int((wanted != IGNORE_INDEX).sum())
    return total.item() / count, count
