"""Translation: pairs of texts, the loss of the target given the source, BLEU and chrF."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from json import loads
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional

from lemma.data.batches import batch_by_length
from lemma.data.pairs import TokenPairs, prepare_pairs
from lemma.data.splits import Splits
from lemma.errors import InputError, SpecError
from lemma.generation.beam import Beam, translate_texts
from lemma.models.base import measuring, tokens_per_batch
from lemma.models.encoder_decoder import EncoderDecoderModel
from lemma.optional import import_optional
from lemma.report.progress import Observer
from lemma.report.statistics import Estimate, NamedValues, format_named_values, protocol_values
from lemma.runs.load import Run
from lemma.spec.data import PairsSpec
from lemma.spec.recipe import Recipe
from lemma.tasks.base import (
    IGNORE_INDEX,
    ExampleBatches,
    Headline,
    LoadContext,
    Score,
    SmoothedLoss,
    Task,
    Worker,
    data_protocol,
)
from lemma.tasks.registry import TRANSLATION

NUM_SAMPLES = 3  # sources translated as samples
TRANSLATION_BATCH = 512  # sources translated between two updates of the progress
BOOTSTRAP_SAMPLES = 1000
BOOTSTRAP_SENTENCES = 4_000_000  # in all samples together: sacrebleu keeps the statistics of each in memory


class TranslationTask(Task):
    """Translation of texts by an encoder–decoder."""

    info = TRANSLATION

    def _read(self, data: PairsSpec, context: LoadContext) -> Splits[TokenPairs]:
        """Return the splits of token pairs; pairs too long for the model are skipped."""
        return prepare_pairs(
            data,
            length=context.model.context,
            tokenizer=context.vocabulary,
            evaluation=context.is_evaluation,
            progress=context.progress,
        )

    def batches(self, model: Any, examples: TokenPairs, recipe: Recipe, worker: Worker) -> ExampleBatches:
        """Return batches of token pairs of similar length."""
        return ExampleBatches(examples, recipe, worker, lambda targets: targets[:, 1:])  # all but the first, <start>

    def loss(self, model: EncoderDecoderModel, recipe: Recipe, batches: Any = None) -> SmoothedLoss:
        """Return the model with the cross-entropy of each target token, given the source and earlier target tokens."""

        def predict(model: Any, sources: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            inputs, labels = teacher_forcing(targets)
            return model(sources, inputs), labels

        return SmoothedLoss(model, recipe.label_smoothing, predict)

    def validate(self, model: EncoderDecoderModel, data: Splits[TokenPairs], recipe: Recipe) -> "PairsScore":
        """Return the mean loss of the validation targets."""
        return score_pairs(model, data.item("validation"))

    def score(
        self, run: Run, data: Splits[TokenPairs], split: str, settings: Mapping[str, Any], observer: Observer
    ) -> "TranslationScore":
        """Return BLEU and chrF of a split's translated sources; `settings` are fields of `Beam`, and `limit`."""
        beam = Beam(**{name: value for name, value in settings.items() if name != "limit"})
        limit = settings.get("limit")
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise SpecError(f"evaluate: limit = {limit!r}, but at least one sentence must be translated.")
        references = dict(list(data.item(split).references().items())[:limit])
        model = run.require(EncoderDecoderModel, "a translator")
        translations: list[str] = []
        observer.start("translating", len(references), "sentences")
        for start in range(0, len(references), TRANSLATION_BATCH):
            sources = list(references)[start : start + TRANSLATION_BATCH]
            translations += [result.text for result in translate_texts(model, run.tokenizer, sources, beam)]
            observer.advance(len(translations))
        observer.finish()
        decoding = f"beam {beam.beam}, length penalty {beam.length_penalty:g}"
        protocol = {**data_protocol(data, split), "decoded": decoding}
        return score_translations(translations, list(references.values()), protocol)

    def samples(self, model: EncoderDecoderModel, data: Splits[TokenPairs]) -> list[str]:
        """Return the translations of the first validation sources."""
        sources = [pair.source for pair in data.item("validation").pairs[:NUM_SAMPLES]]
        translations = translate_texts(model, data.tokenizer, sources, Beam())
        return [f"{translation.source} → {translation.text}" for translation in translations]


def teacher_forcing(
    targets: Int[Tensor, "batch time"],
) -> tuple[Int[Tensor, "batch inputs"], Int[Tensor, "batch inputs"]]:
    """Return the decoder's input (targets without their last token) and the tokens it predicts (without <start>).

    >>> import torch
    >>> [tokens.tolist() for tokens in teacher_forcing(torch.tensor([[7, 1, 2, 8], [7, 3, 8, -1]]))]
    [[[7, 1, 2], [7, 3, 8]], [[1, 2, 8], [3, 8, -1]]]
    """
    return targets[:, :-1], targets[:, 1:]


@dataclass(frozen=True)
class TranslationScore(Score):
    """BLEU and chrF from 0 to 100, with sacrebleu's intervals and signatures, which say how they were measured."""

    title = "Translations"

    sentences: int
    bleu: Estimate
    chrf: Estimate
    signatures: Mapping[str, str]
    protocol: Mapping[str, Any]
    short_signatures: Mapping[str, str]
    loss: float | None = None

    @property
    def figures(self) -> dict[str, float]:
        """BLEU and chrF by name, from 0 to 100."""
        return {"bleu": self.bleu.value, "chrf": self.chrf.value}

    @property
    def headline(self) -> Headline:
        """BLEU with its interval."""
        return Headline("BLEU", self.bleu.value, self.bleu.interval)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values: BLEU, chrF, their intervals and signatures, protocol."""
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
        """Return (name, value) pairs for the summary; `signatures` of sacrebleu are by default the long ones."""
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
    """Mean loss of the target tokens, each predicted from the source and the target tokens before it."""

    title = "Loss of translations"

    json_names = ("perplexity", "loss", "tokens")

    loss: float
    tokens: int

    def _lines(self) -> NamedValues:
        """Return (name, value) pairs for the summary: perplexity, loss, number of tokens."""
        lines = [("perplexity", f"{self.perplexity:,.4f}"), ("loss", f"{self.loss:.4f} nats/token")]
        return [*lines, ("tokens", f"{self.tokens:,}")]


def score_translations(
    hypotheses: Sequence[str],
    references: Sequence[str | Sequence[str]],
    protocol: Mapping[str, Any] | None = None,
    *,
    samples: int = BOOTSTRAP_SAMPLES,
) -> TranslationScore:
    """Return BLEU and chrF of translations (`hypotheses`) against one or several references each."""
    all_references = [(item,) if isinstance(item, str) else tuple(item) for item in references]
    if not hypotheses:
        raise InputError("no translations to score. Give pairs to translate.")
    if len(hypotheses) != len(all_references):
        raise InputError(f"{len(hypotheses)} translations cannot be compared with {len(all_references)} references.")
    if empty := [number for number, targets in enumerate(all_references, start=1) if not targets]:
        raise InputError(f"translation {empty[0]} has nothing to be compared with. Give each at least one target.")
    metrics = import_optional("sacrebleu.metrics", "sacrebleu", "scoring translations")
    streams = [list(column) for column in zip_longest(*all_references)]  # the first references of all, the second, …
    draws = 0 if samples < 2 else max(2, min(samples, BOOTSTRAP_SENTENCES // len(hypotheses)))
    kinds = {"bleu": metrics.BLEU(force=True), "chrf": metrics.CHRF()}  # force: no warning of spaces before full stops
    results = {name: _compute_metric(metric, hypotheses, streams, draws) for name, metric in kinds.items()}
    return TranslationScore(
        sentences=len(hypotheses),
        bleu=results["bleu"][0],
        chrf=results["chrf"][0],
        signatures={name: signature.format() for name, (_, signature) in results.items()},
        protocol=dict(protocol or {}),
        short_signatures={name: signature.format(short=True) for name, (_, signature) in results.items()},
    )


def _compute_metric(
    metric: Any, hypotheses: Sequence[str], streams: Sequence[Any], samples: int
) -> tuple[Estimate, Any]:
    """Return a sacrebleu metric's value with its bootstrap interval, and its signature; `streams`: the references."""
    try:
        score = metric.corpus_score(list(hypotheses), streams, n_bootstrap=max(1, samples))
    except TypeError:  # sacrebleu cannot average samples without a match, a float 0.0, with others, NumPy's float32
        compute = metric._compute_score_from_stats

        def compute_as_float(statistics: Any) -> Any:
            sample = compute(statistics)
            sample.score = float(sample.score)
            return sample

        metric._compute_score_from_stats = compute_as_float
        score = metric.corpus_score(list(hypotheses), streams, n_bootstrap=max(1, samples))
    signature = metric.get_signature()
    if not samples:
        return Estimate(score.score), signature
    values = loads(score.format(width=6, signature=signature.format(), is_json=True))
    mean, half_width = values.get("confidence_mean", 0.0), values.get("confidence_var", 0.0)
    return Estimate(score.score, bounds=(mean - half_width, mean + half_width)), signature


def score_pairs(model: nn.Module, pairs: TokenPairs) -> PairsScore:
    """Return the mean loss of the target tokens of pairs, `<end>` included, given source and earlier target tokens."""
    if not len(pairs):
        raise InputError("no pairs to measure: there are none, or all are longer than the model reads.")
    count = 0
    with measuring(model) as device:
        total = torch.zeros((), dtype=torch.float64, device=device)
        vocabulary = getattr(getattr(model, "spec", None), "vocabulary", 1)
        for group in batch_by_length(pairs.lengths, tokens_per_batch(device, vocabulary)):
            sources, targets = (torch.from_numpy(array).to(device) for array in pairs.batch(group))
            logits = model(sources, targets[:, :-1])
            labels = targets[:, 1:].flatten()
            flat_logits = logits.float().flatten(0, 1)
            losses = functional.cross_entropy(flat_logits, labels, ignore_index=IGNORE_INDEX, reduction="none")
            total += losses.sum(dtype=torch.float64)
            count += int((labels != IGNORE_INDEX).sum())
    return PairsScore(total.item() / count, count)
