"""Language modelling: text, its batches, the causal loss, and perplexity with its protocol."""

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from lemma.data.batches import ContiguousStreams, RandomWindows
from lemma.data.corpora import CORPORA
from lemma.data.splits import Splits
from lemma.data.store import TokenArray, prepare_text, read_tokens
from lemma.errors import DataError, InputError, PackageError, SpecError
from lemma.generation.sampling import Sampling
from lemma.generation.text import generate_text
from lemma.kernels import support
from lemma.kernels.output_loss import MIN_CLASSES, output_loss
from lemma.layers.attention import Attention
from lemma.layers.penalties import RowMeans, row_statistics
from lemma.layers.recording import record_attention
from lemma.layers.state import State
from lemma.models.base import LanguageModel, evaluating, tokens_per_batch
from lemma.models.decoder import DecoderModel
from lemma.report.progress import Observer, reading_progress
from lemma.report.statistics import NamedValues
from lemma.report.text import label_line
from lemma.runs.load import Run
from lemma.spec.data import DataSpec
from lemma.spec.models import PLUGIN_FAMILIES, Decoder, Encoder, ModelSpec, NewFamily
from lemma.spec.recipe import PLUGIN_OBJECTIVES, ObjectiveChoice, Recipe
from lemma.tasks.base import (
    Batches,
    DataArgs,
    LossTerms,
    Score,
    Task,
    TaskLoss,
    Worker,
    check_unchanged,
    choose_split,
    report_skipped,
)

SAMPLES, SAMPLE_TOKENS = 3, 60


class TextTask(Task):
    """What is learned from plain text."""

    option, example, learns = "text", "shakespeare", "text"
    data_spec = DataSpec
    names, several = CORPORA, True

    def load(
        self,
        data: DataSpec,
        model: Any,
        recipe: Recipe,
        observer: Observer,
        vocabulary: Any = None,
        labels: tuple[str, ...] = (),
    ) -> Splits[TokenArray]:
        """Tokenise the text; the tokenizer is learned from it unless one is given."""
        return report_skipped(prepare_text(data, tokenizer=vocabulary, progress=reading_progress(observer)), observer)

    def steps_per_epoch(self, model: Any, examples: Any, recipe: Recipe) -> float:
        """Return how many steps predict as many tokens as the text has."""
        return max(1.0, len(examples) / (recipe.batch * training_length(model, recipe)))


class LanguageTask(TextTask):
    """A language model predicts each next token of a text."""

    name, answers = "language", "prompt"
    evaluation_settings = ("context", "stride")

    def batches(
        self, model: LanguageModel, examples: Int[np.ndarray, " length"], recipe: Recipe, worker: Worker
    ) -> "TextBatches":
        """Contiguous streams for a model that carries its state from batch to batch, else windows at random places.

        On a GPU the whole text lies in its memory if it takes less than a quarter of what is free, and batches are cut
        there; otherwise a thread cuts the next batch into pinned memory while the GPU works.
        """
        length = training_length(model.spec, recipe)
        order = (ContiguousStreams if model.stateful else RandomWindows)(
            len(examples), length, recipe.batch, recipe.seed
        )
        kind = TextBatches
        if worker.device.type != "cpu":
            free, _ = torch.cuda.mem_get_info(worker.device)
            kind = ResidentBatches if len(examples) * 4 < free / FREE_MEMORY_DIVISOR else PrefetchingBatches
        return kind(examples, order, length, recipe, worker)

    def loss(self, model: LanguageModel, recipe: Recipe, batches: Any = None) -> "LanguageLoss":
        """The loss that the recipe asks for; attention can only be shaped where there is some."""
        spec, tokens = model.spec, torch.zeros(1, 2, dtype=torch.long, device=next(model.parameters()).device)
        if isinstance(spec, NewFamily):  # what is wrong with it is said before it is trained
            with PLUGIN_FAMILIES.attribute_errors(spec.family, spec.model), evaluating(model), torch.no_grad():
                logits, state = model(tokens)
            if logits.shape != (1, 2, spec.vocabulary) or not isinstance(state, State):
                raise PackageError(
                    f"the family '{spec.family}' gives logits of the shape {tuple(logits.shape)} and a "
                    f"{type(state).__name__} for one row of two tokens, where (1, 2, {spec.vocabulary}) and a "
                    "lemma.layers.state.State are expected. lemma.testing says more."
                )
        objective = objective_function(recipe.objective)
        if not (recipe.entropy_penalty or recipe.distance_penalty):
            return LanguageLoss(model, objective)
        with evaluating(model), torch.no_grad(), record_attention() as records:
            model(tokens)
        layers = min(len(records), getattr(spec, "depth", 1))  # that attend
        if not layers:
            word = "entropy_penalty" if recipe.entropy_penalty else "distance_penalty"
            raise SpecError(
                f"recipe.{word} = {getattr(recipe, word)} shapes attention, and a model of the family "
                f"{spec.family} has none. Leave it out, or train a decoder."
            )
        if recipe.distance_penalty and layers < 2:
            deeper = "Try depth=2" if hasattr(spec, "depth") else "Leave it out, or train a decoder"
            raise SpecError(
                f"recipe.distance_penalty = {recipe.distance_penalty} leaves the last layer out, and this model "
                f"has only one. {deeper}."
            )
        length, most = recipe.sequence_length, model.receptive_field
        if length and most and length > most and isinstance(spec, Decoder) and not spec.positions.extrapolates:
            raise SpecError(
                f"recipe.sequence_length = {length} is longer than decoder.context = {most}: attention is penalized "
                "within the context only. Leave sequence_length out, or raise the context."
            )
        loss = PenalizedLoss(model, recipe, objective)
        if recipe.compile is True and not loss.compilable:
            raise SpecError(
                "recipe.compile = true: here the penalties record attention while it runs, and compiled code cannot be "
                "recorded. Leave compile out. (On a GPU with Triton a fused kernel needs no recording, without dropout "
                "and for heads of width 16 to 128.)"
            )
        return loss

    def validate(self, model: LanguageModel, data: Splits[TokenArray], recipe: Recipe) -> "PerplexityScore":
        """Perplexity by a full pass over the validation text."""
        return split_perplexity(model, data, "validation")

    def evaluate(
        self, run: Run, given: DataArgs, split: str | None, settings: Mapping[str, Any], observer: Observer
    ) -> "PerplexityScore":
        """Perplexity on other text, or on the run's own test or validation text."""
        data, part = load_evaluation_text(run, given, split, observer)
        return split_perplexity(run.model, data, part, **settings)

    def samples(self, model: LanguageModel, data: Splits[TokenArray]) -> list[str]:
        """A few texts written without a prompt."""
        settings = Sampling(tokens=SAMPLE_TOKENS)
        return [written.text for written in generate_text(model, data.tokenizer, [""] * SAMPLES, settings)]


def load_training_text(run: Run, observer: Observer) -> Splits[TokenArray]:
    """The text that a run was trained on, with its validation split."""
    assert isinstance(run.data, DataSpec)
    data = prepare_text(run.data, tokenizer=run.tokenizer, progress=reading_progress(observer))
    return check_unchanged(run, data, ", ".join(run.data.text), "text")


def load_evaluation_text(
    run: Run, args: DataArgs, split: str | None, observer: Observer
) -> tuple[Splits[TokenArray], str]:
    """Other text, or the run's own, and which split of it."""
    if args.name is not None and args.settings:  # with splits of its own
        other = DataSpec(text=tuple(args.name), **args.settings)
        data = report_skipped(
            prepare_text(other, tokenizer=run.tokenizer, progress=reading_progress(observer)), observer
        )
        return data, choose_split(data, split)
    if args.name is not None:
        data = read_tokens(args.name, run.tokenizer, progress=reading_progress(observer))
        return data, data.split_names[0]
    data = load_training_text(run, observer)
    return data, choose_split(data, split)


# Batches


SEQUENCE_LENGTH = 64
FREE_MEMORY_DIVISOR = 4  # the text may take this part of the GPU's free memory
CHUNK = 1 << 24  # tokens moved to the GPU at once


def training_length(spec: ModelSpec, recipe: Recipe) -> int:
    """The tokens of a training sequence: the recipe's `sequence_length`, or a Transformer's context, or 64."""
    if isinstance(spec, NewFamily):
        return recipe.sequence_length or spec.longest or SEQUENCE_LENGTH
    return recipe.sequence_length or (spec.context if isinstance(spec, Decoder | Encoder) else SEQUENCE_LENGTH)


class TextBatches(Batches):
    """The batches of a run on a CPU, cut from the memory-mapped text as needed."""

    def __init__(
        self, tokens: Int[np.ndarray, " length"], order: Any, length: int, recipe: Recipe, worker: Worker
    ) -> None:
        """Cut batches from `tokens` at the places of an order, `RandomWindows` or `Streams`."""
        super().__init__(recipe, worker, length, recipe.batch * length)
        self.tokens, self.order, self.window_offsets = tokens, order, np.arange(length + 1)

    def batch(self, step: int) -> tuple[Int[Tensor, "rows length"], Int[Tensor, "rows length"]]:
        """Return what the model reads at a step, and the next token after each."""
        joined = self.token_windows(step)
        return joined[:, :-1], joined[:, 1:]

    def resets_state(self, step: int) -> bool:
        """Whether a carried state is dropped before this step, since the streams begin again."""
        return isinstance(self.order, RandomWindows) or self.order.starts_epoch(step)

    def token_windows(self, step: int) -> Int[Tensor, "rows length+1"]:
        """Return the inputs and the last target in one."""
        places = self.order.offsets(step)[self.rows, None] + self.window_offsets
        return torch.from_numpy(self.tokens[places].astype(np.int64))


class ResidentBatches(TextBatches):
    """The batches of a run whose whole text lies in the GPU's memory."""

    def __init__(self, tokens: Int[np.ndarray, " length"], order: Any, length: int, recipe: Recipe, worker: Worker):
        super().__init__(tokens, order, length, recipe, worker)
        self.device_tokens = torch.empty(len(tokens), dtype=torch.int32, device=worker.device)
        for start in range(0, len(tokens), CHUNK):  # piece by piece, so that the host's memory stays flat
            piece = torch.from_numpy(tokens[start : start + CHUNK].astype(np.int32))
            self.device_tokens[start : start + len(piece)] = piece.to(worker.device)
        self.steps = torch.from_numpy(self.window_offsets).to(worker.device)

    def token_windows(self, step: int) -> Int[Tensor, "rows length+1"]:
        """Cut a batch on the GPU; only the offsets go there."""
        offsets = torch.from_numpy(self.order.offsets(step)[self.rows].astype(np.int64))
        here = offsets.pin_memory().to(self.worker.device, non_blocking=True)
        return self.device_tokens[here[:, None] + self.steps].long()


class PrefetchingBatches(TextBatches):
    """The batches of a run whose text is too large for the GPU: a thread is always one batch ahead."""

    def __init__(self, tokens: Int[np.ndarray, " length"], order: Any, length: int, recipe: Recipe, worker: Worker):
        super().__init__(tokens, order, length, recipe, worker)
        self.executor = ThreadPoolExecutor(1, "batches")
        self.pending: dict[int, Future[Tensor]] = {}

    def token_windows(self, step: int) -> Int[Tensor, "rows length+1"]:
        """Take the batch that is ready, and have the next one cut."""
        ready = self.pending.pop(step, None) or self.executor.submit(self._pinned, step)
        self.pending = {step + 1: self.executor.submit(self._pinned, step + 1)}
        return ready.result().to(self.worker.device, non_blocking=True)

    def _pinned(self, step: int) -> Tensor:
        return super().token_windows(step).pin_memory()

    def close(self) -> None:
        """End the thread."""
        self.executor.shutdown(cancel_futures=True)


# Loss


LossFunction = Callable[[Float[Tensor, "batch time vocabulary"], Int[Tensor, "batch time"]], Float[Tensor, ""]]


def causal_loss(
    logits: Float[Tensor, "batch time vocabulary"], targets: Int[Tensor, "batch time"], reduction: str = "mean"
) -> Float[Tensor, "..."]:
    """Return −log p(target), averaged over all tokens, or summed with reduction="sum"."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)


def objective_function(objective: ObjectiveChoice) -> LossFunction:
    """The function of logits and targets that is minimised; another package's is tried on a few numbers first.

    >>> loss_of(ChosenObjective(kind="causal")) is causal
    True
    """
    found = objective.resolve()
    if found is None:
        return causal_loss
    loss: LossFunction = partial(PLUGIN_OBJECTIVES.load_part(objective.kind, found.loss), **found.settings())
    logits = torch.zeros(2, 3, 5, requires_grad=True)
    with PLUGIN_OBJECTIVES.attribute_errors(found.kind, found.loss):
        got = loss(logits, torch.zeros(2, 3, dtype=torch.long))
    if not isinstance(got, Tensor) or got.dim() or not got.requires_grad or not got.isfinite():
        raise PackageError(
            f"the objective '{found.kind}': {found.loss} must give one finite number with a gradient, the mean "
            f"over all targets; of six targets it gives {got!r}."
        )
    return loss


class LanguageLoss(TaskLoss):
    """A language model and what it minimises: the causal loss, or another package's objective."""

    def __init__(self, model: LanguageModel, objective: LossFunction = causal_loss) -> None:
        super().__init__()
        self.model, self.objective = model, objective
        if objective is not causal_loss:
            self.terms = (*self.terms, "objective")
        self.chance = (model.spec.vocabulary, "tokens", "V")
        self.layers = list(model.layers) if isinstance(model, DecoderModel) else ()
        # the operator of a GPU that never holds all logits pays for large vocabularies only
        self.max_fused_length = 0
        """The longest sequence that it takes; 0 if it is not used."""
        if isinstance(model, DecoderModel) and model.logit_cap is None and objective is causal_loss:
            output = model.output
            plain = type(output) is nn.Linear and output.bias is None and len(output.weight) >= MIN_CLASSES
            there = support.COST_RECORDER or (output.weight.is_cuda and support.is_available(output.weight.device))
            self.max_fused_length = model.spec.context if plain and there else 0

    def forward(
        self, inputs: Int[Tensor, "rows length"], targets: Int[Tensor, "rows length"], state: State | None
    ) -> LossTerms:
        """Return the objective, to be minimised, the mean loss, and the state where training carries it on."""
        weight = self.model.get_parameter("output.weight") if inputs.shape[1] <= self.max_fused_length else None
        if weight is not None and (lower := support.autocast_dtype(weight)) != weight.dtype:
            loss = output_loss(self.model.vectors(inputs).flatten(0, 1).to(lower), weight, targets.flatten())
            return loss, (loss,), None
        logits, state = self.model(inputs, state)
        objective, terms = self.compute_terms(logits, targets)
        return objective, terms, state if self.model.stateful else None

    def compute_terms(
        self, logits: Float[Tensor, "rows length vocabulary"], targets: Int[Tensor, "rows length"]
    ) -> tuple[Float[Tensor, ""], tuple[Float[Tensor, ""], ...]]:
        """What is minimised, and what is reported."""
        if self.objective is causal_loss:
            loss = causal_loss(logits, targets)
            return loss, (loss,)
        objective = self.objective(logits, targets)
        return objective, (causal_loss(logits.detach(), targets), objective)


class PenalizedLoss(LanguageLoss):
    """With penalties on attention: L = L_LM + entropy_penalty · L_focus + distance_penalty · L_near.

    On a GPU the kernel of `kernels/row_statistics.py` gives entropy and distance of every row along with attention itself, and is
    compiled with the model. Elsewhere attention is recorded, and penalized in blocks of rows.
    """

    def __init__(self, model: LanguageModel, recipe: Recipe, objective: LossFunction = causal_loss) -> None:
        super().__init__(model, objective)
        self.terms, self.recipe, self.layers = (*self.terms, "entropy", "distance"), recipe, ()
        self.depth: int = getattr(model.spec, "depth", 1)
        attention = [part for part in model.modules() if isinstance(part, Attention)]
        fused = len(attention) == self.depth and all(part.supports_row_statistics() for part in attention)
        self.fused_layers = attention if fused and support.is_available(next(model.parameters()).device) else []
        self.compilable = bool(self.fused_layers)  # compiled code cannot be recorded

    def forward(
        self, inputs: Int[Tensor, "rows length"], targets: Int[Tensor, "rows length"], state: State | None
    ) -> LossTerms:
        """Return the loss with its penalties; the loss alone and both penalties are reported."""
        if self.fused_layers:
            collected: list[tuple[Tensor, Tensor]] = []
            for attention in self.fused_layers:
                attention.row_statistics = collected
            logits, state = self.model(inputs, state)
            for attention in self.fused_layers:
                attention.row_statistics = None
            entropy = torch.stack([rows.mean() for rows, _ in collected]).mean()
            near = [rows.clamp(max=self.recipe.distance_max).mean() for _, rows in collected[:-1]]
            rows = RowMeans(entropy, torch.stack(near).mean() if near else torch.zeros_like(entropy))
        else:
            with record_attention() as records:
                logits, state = self.model(inputs, state)
            rows = row_statistics(records, self.recipe.distance_max, self.depth)
        objective, terms = self.compute_terms(logits, targets)
        entropy, distance = self.recipe.entropy_penalty, self.recipe.distance_penalty
        total = objective + entropy * rows.entropy + distance * rows.distance
        reported = (*terms, rows.entropy, rows.distance)
        return total.to(objective.dtype), reported, state if self.model.stateful else None


# Perplexity
#
# Windows and streams are the same cut: row k reads `length` tokens from token k·`scored` on and scores the last
# `scored` of them; the first row scores all of its own. Windows are short and many, streams long and few.


WARM_UP_TOKENS = 128  # tokens a recurrent model reads before it scores; what it remembers of older ones is faint
MAX_STREAMS = 32  # more rows a step gain little on two cores
NOT_SCORED = -100  # the target that cross-entropy passes over


@dataclass(frozen=True)
class ReadingPlan:
    """A cut of a text's `places`, the tokens that have a next one.

    >>> tokens = np.arange(6)
    >>> windows = TextCut(places=5, length=3, scored=2, carried=False)
    >>> windows.cut(tokens, range(windows.rows), range(3))
    (array([[0, 1, 2],
           [2, 3, 4]]), array([[   1,    2,    3],
           [-100,    4,    5]]))
    """

    num_targets: int
    length: int
    stride_scored: int
    carries_state: bool
    """Whether the rows are streams, whose state carries all that counts, or windows."""
    context: int | None = None
    stride: int | None = None

    @property
    def num_rows(self) -> int:
        """How many rows cover all places."""
        return 1 + max(0, -(-(self.num_targets - self.length) // self.stride_scored))

    @property
    def warm_up(self) -> int:
        """Tokens each row but the first reads without scoring."""
        return self.length - self.stride_scored if self.num_rows > 1 else 0

    def slice_rows(self, tokens: np.ndarray, rows: range, columns: range) -> tuple[np.ndarray, np.ndarray]:
        """Return some columns of some rows and their targets, `NOT_SCORED` where nothing is scored."""
        starts = np.arange(rows.start, rows.stop)[:, None] * self.stride_scored
        within = np.arange(columns.start, columns.stop)
        places = starts + within
        inputs, targets = (
            tokens[np.minimum(index, self.num_targets)].astype(np.int64) for index in (places, places + 1)
        )
        targets[(places >= self.num_targets) | ((starts > 0) & (within < self.warm_up))] = NOT_SCORED
        return inputs, targets

    def batches(self, positions: int) -> Iterator[tuple[range, list[range]]]:
        """Go through the rows, some at a time, each time with the spans of columns to read one after the other.

        About `positions` tokens are read at once. Streams all run side by side, since the next span needs the
        state of the one before.
        """

        def parts(whole: int, most: int) -> list[range]:
            return [range(start, min(start + most, whole)) for start in range(0, whole, most)]

        together = self.num_rows if self.carries_state else max(1, positions // self.length)
        spans = parts(self.length, max(1, positions // together))
        return ((rows, spans) for rows in parts(self.num_rows, together))


def plan_reading(
    model: LanguageModel, num_targets: int, context: int | None, stride: int | None, streams: int | None
) -> ReadingPlan:
    """Choose how to read a text: streams where a carried state gives each token its full context, else windows.

    What is not given is the model's reach, and the stride that it can afford. A Transformer that sees everything gets
    the context it was trained for, and half of it as its stride, since it reads a window again at each step. Window
    models see all that counts at stride 1.
    """
    reach, decoder = model.receptive_field, model.spec if isinstance(model.spec, Decoder) else None
    if context is None:
        context = min(decoder.context, reach or decoder.context) if decoder else reach
    if context is None:
        if stride is not None:
            raise InputError(f"stride = {stride} needs a context: this model's memory has no bound. Give context too.")
    else:
        if context < 1 or (reach and context > reach):
            bounds = f"between 1 and {reach}, the tokens the model sees" if reach else "at least 1"
            raise InputError(f"context = {context} is not {bounds}.")
        if stride is None:
            stride = 1 if context == reach and not decoder else max(1, context // 2)
        if not 1 <= stride <= context:
            raise InputError(f"stride = {stride} is not between 1 and the context {context}.")
    if context == reach and stride in (None, 1):
        warm_up = WARM_UP_TOKENS if reach is None else reach
        if streams is None:
            streams = 1 if reach else min(MAX_STREAMS, num_targets // (8 * WARM_UP_TOKENS))
        elif streams < 1:
            raise InputError(f"streams = {streams} is less than 1; 1 reads the text in one pass.")
        length = scored = num_targets
        if streams > 1 and num_targets > warm_up:
            scored = -(-(num_targets - warm_up) // streams)
            length = warm_up + scored
        return ReadingPlan(num_targets, length, scored, True, context, stride)
    if streams is not None:
        raise InputError(f"streams = {streams} needs a carried state, not windows of {context} tokens; leave it out.")
    length = min(context or num_targets, num_targets)
    return ReadingPlan(num_targets, length, min(stride or length, length), False, context, stride)


@dataclass(frozen=True)
class TextSource:
    """Where the tokens came from; the caller knows."""

    tokenizer: str | None = None
    data_hash: str | None = None
    split: str | None = None
    unknown_characters: int = 0
    """Characters of the text that the tokenizer could not express."""
    overlaps: tuple[str, ...] = ()
    """What the split shares with others, where it was given as a file of its own."""


@dataclass(frozen=True)
class Protocol:
    """All that has to be known to repeat a measurement, or to compare two."""

    tokenizer: str | None
    data_hash: str | None
    split: str | None
    context: int | None
    """The most tokens a token is predicted from; None if all before it."""
    stride: int | None
    """Tokens scored a window: 1 if each has the full context; None where the context has no bound."""
    streams: int | None
    """Parts of the text, read side by side, each with a state carried through; None where windows are read."""
    warm_up: int
    """Tokens that each stream or window but the first reads before it scores one."""
    precision: str
    left_out: tuple[str, ...]
    overlaps: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        plain = {**asdict(self), "left_out": list(self.left_out), "overlaps": list(self.overlaps)}
        return plain if self.overlaps else {name: value for name, value in plain.items() if name != "overlaps"}

    def __str__(self) -> str:
        if self.streams is None:
            return f"in windows of {self.context} tokens, stride {self.stride}"
        if self.streams == 1:
            return "in one pass"
        return f"in {self.streams} streams, each warmed up on {self.warm_up} tokens"


@dataclass(frozen=True)
class PerplexityScore(Score):
    """The mean loss of every token but the first, in nats, and the protocol it belongs to."""

    title = "Perplexity"

    loss: float
    tokens: int
    bytes: int | None
    protocol: Protocol

    @property
    def bits_per_byte(self) -> float | None:
        """The bits of all predicted tokens over the bytes of the whole text; None if its bytes are not known.

        The first token is not predicted, so its bits are missing above while its bytes count below.
        """
        return self.loss * self.tokens / (math.log(2) * self.bytes) if self.bytes else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that are good JSON: None for what is infinite or NaN."""
        figures = {"perplexity": self.perplexity, "loss": self.loss, "bits_per_byte": self.bits_per_byte}
        finite = {name: value if value is None or math.isfinite(value) else None for name, value in figures.items()}
        return {**finite, "tokens": self.tokens, "protocol": self.protocol.to_dict()}

    def __str__(self) -> str:
        return "\n".join(label_line(name, value, 14) for name, value in self._lines())

    def _lines(self) -> NamedValues:
        bits, protocol = self.bits_per_byte, self.protocol
        lines = [
            ("perplexity", f"{self.perplexity:,.4f}"),
            ("loss", f"{self.loss:.4f} nats/token"),
            ("bits per byte", None if bits is None else f"{bits:.4f}"),
            ("tokens", f"{self.tokens:,}"),
            ("tokenizer", protocol.tokenizer),
            ("split", protocol.split),
            ("data hash", protocol.data_hash),
            ("read", str(protocol)),
            *(("left out", sentence) for sentence in protocol.left_out),
            *(("overlap", sentence) for sentence in protocol.overlaps),
        ]
        return [(name, value) for name, value in lines if value is not None]


def perplexity(
    model: LanguageModel,
    tokens: Int[np.ndarray, " time"] | Int[Tensor, " time"],
    *,
    bytes: int | None = None,
    context: int | None = None,
    stride: int | None = None,
    streams: int | None = None,
    batch: int | None = None,
    precision: Literal["float32", "bfloat16"] = "float32",
    source: TextSource | None = None,
) -> PerplexityScore:
    """Measure how well a model predicts a text: exp(−1/n Σ log p(token | tokens before it)).

    Each window reads up to `context` tokens (the model's reach if unset) and scores its last `stride`; the first
    window scores all of its own. Half the context is usual for a Transformer; stride 1 gives every token its full
    context. Window models always have that, at no cost. A recurrent model without a given context carries its
    state: through `streams` spans side by side, each but the first warmed up on the tokens before it, or through
    the whole text with streams=1. `bytes` is the size of the whole text in UTF-8; `batch` the number of tokens read
    at once, which moves speed and memory only; bfloat16 runs under autocast, float32 with the weights as they are.
    """
    text = tokens.cpu().numpy() if isinstance(tokens, Tensor) else tokens
    if text.ndim != 1 or len(text) < 2:
        raise DataError(f"perplexity needs a row of at least 2 tokens, got shape {text.shape}. Give a longer text.")
    vocabulary, lowest, highest = model.spec.vocabulary, int(text.min()), int(text.max())
    if lowest < 0 or highest >= vocabulary:
        wrong = lowest if lowest < 0 else highest
        raise InputError(
            f"token {wrong} is outside the model's vocabulary of {vocabulary}. Use the tokenizer it was trained with."
        )
    cut = plan_reading(model, len(text) - 1, context, stride, streams)
    device = next(model.parameters()).device
    if torch.is_autocast_enabled(device.type):  # validations during training in bfloat16
        precision = "bfloat16"
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
    total = torch.zeros((), dtype=torch.float64, device=device)
    with evaluating(model), torch.no_grad(), autocast:
        for rows, spans in cut.batches(batch or tokens_per_batch(device, vocabulary)):
            state = None
            for columns in spans:
                inputs, targets = (torch.from_numpy(part).to(device) for part in cut.slice_rows(text, rows, columns))
                logits, state = model(inputs, state)
                skipped = max(0, cut.warm_up - columns.start) if rows.start else 0
                logits, targets = logits[:, skipped:], targets[:, skipped:]
                exact = logits.float() if logits.dtype == torch.bfloat16 else logits
                total += causal_loss(exact, targets, reduction="none").sum(dtype=torch.float64)
    known = source or TextSource()
    left_out = ["the first token, which has nothing before it (its bytes count in bits per byte)"]
    if known.unknown_characters:
        left_out.append(f"{known.unknown_characters:,} characters that are not in the tokenizer's alphabet")
    if cut.num_rows > 1 and not cut.carries_state:
        sees = f"past the first, a token sees {cut.warm_up + 1} to {cut.length} tokens"
        left_out.append(f"what lies further back than its window: {sees}")
    elif cut.num_rows > 1 and cut.context is None:
        left_out.append(f"what lies further back than the {cut.warm_up} tokens that warm each stream but the first up")
    protocol = Protocol(
        tokenizer=known.tokenizer,
        data_hash=known.data_hash,
        split=known.split,
        context=cut.context,
        stride=cut.stride,
        streams=cut.num_rows if cut.carries_state else None,
        warm_up=cut.warm_up,
        precision=precision,
        left_out=tuple(left_out),
        overlaps=known.overlaps,
    )
    return PerplexityScore(total.item() / cut.num_targets, cut.num_targets, bytes, protocol)


def split_perplexity(
    model: LanguageModel,
    dataset: Splits[TokenArray],
    split: str,
    *,
    context: int | None = None,
    stride: int | None = None,
) -> PerplexityScore:
    """Measure a model on one split of a dataset by a full pass."""
    tokens = dataset.item(split)
    source = TextSource(dataset.tokenizer.description, dataset.hash, split, tokens.dropped_characters, dataset.overlaps)
    return perplexity(model, tokens, bytes=tokens.bytes, context=context, stride=stride, source=source)
