"""Language modelling: text, its batches, the causal loss, and perplexity with its protocol."""

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from lemma.data.batches import ContiguousStreams, RandomWindows
from lemma.data.splits import Splits
from lemma.data.store import TokenArray, prepare_text, read_tokens
from lemma.errors import DataError, InputError, PackageError, SpecError
from lemma.generation.engine import generate_text
from lemma.generation.sampling import Sampling
from lemma.kernels import support
from lemma.kernels.output_loss import MIN_CLASSES, output_loss
from lemma.layers.attention import Attention
from lemma.layers.penalties import RowMeans, row_statistics
from lemma.layers.recording import record_attention
from lemma.layers.state import State
from lemma.models.base import LanguageModel, evaluating, tokens_per_batch
from lemma.models.decoder import DecoderModel
from lemma.report.progress import Observer
from lemma.report.statistics import NamedValues
from lemma.report.text import label_line
from lemma.runs.load import Run
from lemma.spec.data import DataSpec
from lemma.spec.models import PLUGIN_FAMILIES, Decoder, Encoder, ModelSpec, NewFamily
from lemma.spec.recipe import PLUGIN_OBJECTIVES, ObjectiveChoice, Recipe
from lemma.tasks.base import Batches, LoadContext, LossTerms, Score, Task, TaskLoss, Worker
from lemma.tasks.registry import LANGUAGE, DataArgs

SAMPLES, SAMPLE_TOKENS = 3, 60


class TextTask(Task):
    """Base of the tasks that train on plain text."""

    def _read(self, data: DataSpec, context: LoadContext) -> Splits[TokenArray]:
        """Return the splits of a text as arrays of token ids."""
        return prepare_text(data, tokenizer=context.vocabulary, progress=context.progress)

    def _load_other(self, run: Run, args: DataArgs, split: str | None, observer: Observer) -> Splits[TokenArray]:
        """Return the text in `args` as token ids; it has several splits only if `args` name files for them."""
        context = LoadContext.of_run(run, observer, run.path, split)
        if args.settings:
            return self.load(DataSpec(text=tuple(args.name), **args.settings), context)
        return read_tokens(args.name, run.tokenizer, progress=context.progress)

    def _data_name(self, data: DataSpec) -> str:
        """Return the names of the text's corpora or files in a data spec, for messages."""
        return ", ".join(data.text)

    def steps_per_epoch(self, model: Any, examples: Any, recipe: Recipe) -> float:
        """Return how many training steps predict as many tokens as the training text `examples` has."""
        return max(1.0, len(examples) / (recipe.batch * training_length(model, recipe)))


class LanguageTask(TextTask):
    """Prediction of each next token of a text by a language model."""

    info = LANGUAGE

    def batches(
        self, model: LanguageModel, examples: Int[np.ndarray, " length"], recipe: Recipe, worker: Worker
    ) -> "TextBatches":
        """Return contiguous streams for a model that carries its state from batch to batch, else random windows.

        On a GPU the text is kept in GPU memory if it takes less than a quarter of what is free; otherwise a thread
        copies the next batch into pinned memory while the GPU works.
        """
        length = training_length(model.spec, recipe)
        order_class = ContiguousStreams if model.stateful else RandomWindows
        order = order_class(len(examples), length, recipe.batch, recipe.seed)
        batches_class = TextBatches
        if worker.device.type != "cpu":
            free, _ = torch.cuda.mem_get_info(worker.device)
            batches_class = ResidentBatches if len(examples) * 4 < free / FREE_MEMORY_DIVISOR else PrefetchingBatches
        return batches_class(examples, order, length, recipe, worker)

    def loss(self, model: LanguageModel, recipe: Recipe, batches: Any = None) -> "LanguageLoss":
        """Return the model with the recipe's objective, and with its attention penalties if it has any."""
        if isinstance(model.spec, NewFamily):
            _check_plugin_model(model)
        objective = objective_function(recipe.objective)
        if not (recipe.entropy_penalty or recipe.distance_penalty):
            return LanguageLoss(model, objective)
        _check_penalized_model(model, recipe)
        loss = PenalizedLoss(model, recipe, objective)
        if recipe.compile is True and not loss.compilable:
            raise SpecError(
                "recipe.compile = true: here the penalties record attention while it runs, and compiled code cannot be "
                "recorded. Leave compile out. (On a GPU with Triton a fused kernel needs no recording, without dropout "
                "and for heads of width 16 to 128.)"
            )
        return loss

    def validate(self, model: LanguageModel, data: Splits[TokenArray], recipe: Recipe) -> "PerplexityScore":
        """Return the perplexity of the validation split."""
        return split_perplexity(model, data, "validation")

    def score(
        self, run: Run, data: Splits[TokenArray], split: str, settings: Mapping[str, Any], observer: Observer
    ) -> "PerplexityScore":
        """Return the perplexity of a split; `settings` are the context and stride of `split_perplexity`."""
        return split_perplexity(run.model, data, split, **settings)

    def samples(self, model: LanguageModel, data: Splits[TokenArray]) -> list[str]:
        """Return a few texts that the model generates without a prompt."""
        sampling = Sampling(tokens=SAMPLE_TOKENS)
        return [generation.text for generation in generate_text(model, data.tokenizer, [""] * SAMPLES, sampling)]


def _read_two_tokens(model: LanguageModel) -> tuple[Tensor, Any]:
    """Return a model's output (logits, state) on a row of two tokens, without gradients or dropout."""
    with evaluating(model), torch.no_grad():
        return model(torch.zeros(1, 2, dtype=torch.long, device=next(model.parameters()).device))


def _check_plugin_model(model: LanguageModel) -> None:
    """Raise PackageError if a plugin's model returns logits of a wrong shape, or no `State`, tried on two tokens."""
    spec = model.spec
    assert isinstance(spec, NewFamily)
    with PLUGIN_FAMILIES.attribute_errors(spec.family, spec.model):
        logits, state = _read_two_tokens(model)
    if logits.shape != (1, 2, spec.vocabulary) or not isinstance(state, State):
        raise PackageError(
            f"the family '{spec.family}' gives logits of the shape {tuple(logits.shape)} and a "
            f"{type(state).__name__} for one row of two tokens, where (1, 2, {spec.vocabulary}) and a "
            "lemma.layers.state.State are expected. lemma.testing says more."
        )


def _check_penalized_model(model: LanguageModel, recipe: Recipe) -> None:
    """Raise SpecError if the attention of a model cannot be penalized as the recipe asks."""
    spec = model.spec
    with record_attention() as records:
        _read_two_tokens(model)
    attention_layers = min(len(records), getattr(spec, "depth", 1))
    if not attention_layers:
        setting = "entropy_penalty" if recipe.entropy_penalty else "distance_penalty"
        raise SpecError(
            f"recipe.{setting} = {getattr(recipe, setting)} shapes attention, and a model of the family "
            f"{spec.family} has none. Leave it out, or train a decoder."
        )
    if recipe.distance_penalty and attention_layers < 2:
        advice = "Try depth=2" if hasattr(spec, "depth") else "Leave it out, or train a decoder"
        raise SpecError(
            f"recipe.distance_penalty = {recipe.distance_penalty} leaves the last layer out, and this model "
            f"has only one. {advice}."
        )
    length, context = recipe.sequence_length, model.receptive_field
    if length and context and length > context and isinstance(spec, Decoder) and not spec.positions.extrapolates:
        raise SpecError(
            f"recipe.sequence_length = {length} is longer than decoder.context = {context}: attention is penalized "
            "within the context only. Leave sequence_length out, or raise the context."
        )


# Batches

SEQUENCE_LENGTH = 64  # tokens of a training sequence by default
FREE_MEMORY_DIVISOR = 4  # the text may take a quarter of the free GPU memory
CHUNK = 1 << 24  # tokens copied to the GPU at once


def training_length(spec: ModelSpec, recipe: Recipe) -> int:
    """Return the number of tokens of a training sequence: the recipe's, else a Transformer's context, else 64."""
    if isinstance(spec, NewFamily):
        return recipe.sequence_length or spec.longest or SEQUENCE_LENGTH
    return recipe.sequence_length or (spec.context if isinstance(spec, Decoder | Encoder) else SEQUENCE_LENGTH)


class TextBatches(Batches):
    """Batches on a CPU, read from the memory-mapped text at the offsets of `RandomWindows` or `ContiguousStreams`."""

    def __init__(
        self, tokens: Int[np.ndarray, " length"], order: Any, length: int, recipe: Recipe, worker: Worker
    ) -> None:
        super().__init__(recipe, worker, length, recipe.batch * length)
        self.tokens, self.order, self.window_offsets = tokens, order, np.arange(length + 1)

    def batch(self, step: int) -> tuple[Int[Tensor, "rows length"], Int[Tensor, "rows length"]]:
        """Return (inputs, targets) of a training step; each target is the token after its input."""
        windows = self.token_windows(step)
        return windows[:, :-1], windows[:, 1:]

    def resets_state(self, step: int) -> bool:
        """Return whether the recurrent state is set to zero: windows are unrelated, or the streams start again."""
        return isinstance(self.order, RandomWindows) or self.order.starts_epoch(step)

    def token_windows(self, step: int) -> Int[Tensor, "rows length+1"]:
        """Return this process's rows of a step, one token longer than its inputs: the last one is a target only."""
        positions = self.order.offsets(step)[self.rows, None] + self.window_offsets
        return torch.from_numpy(self.tokens[positions].astype(np.int64))


class ResidentBatches(TextBatches):
    """Batches of a text that is in GPU memory; only the offsets are copied at each step."""

    def __init__(self, tokens: Int[np.ndarray, " length"], order: Any, length: int, recipe: Recipe, worker: Worker):
        super().__init__(tokens, order, length, recipe, worker)
        self.device_tokens = torch.empty(len(tokens), dtype=torch.int32, device=worker.device)
        for start in range(0, len(tokens), CHUNK):  # in chunks, to bound the memory of the host
            chunk = torch.from_numpy(tokens[start : start + CHUNK].astype(np.int32))
            self.device_tokens[start : start + len(chunk)] = chunk.to(worker.device)
        self.device_offsets = torch.from_numpy(self.window_offsets).to(worker.device)

    def token_windows(self, step: int) -> Int[Tensor, "rows length+1"]:
        """Return this process's rows of a step, indexed in GPU memory."""
        offsets = torch.from_numpy(self.order.offsets(step)[self.rows].astype(np.int64))
        starts = offsets.pin_memory().to(self.worker.device, non_blocking=True)
        return self.device_tokens[starts[:, None] + self.device_offsets].long()


class PrefetchingBatches(TextBatches):
    """Batches of a text that is too large for GPU memory; a thread prepares the next batch."""

    def __init__(self, tokens: Int[np.ndarray, " length"], order: Any, length: int, recipe: Recipe, worker: Worker):
        super().__init__(tokens, order, length, recipe, worker)
        self.executor = ThreadPoolExecutor(1, "batches")
        self.pending: dict[int, Future[Tensor]] = {}

    def token_windows(self, step: int) -> Int[Tensor, "rows length+1"]:
        """Return this process's rows of a step, prepared during the last one, and start on those of the next."""
        current = self.pending.pop(step, None) or self.executor.submit(self._pin_windows, step)
        self.pending = {step + 1: self.executor.submit(self._pin_windows, step + 1)}
        return current.result().to(self.worker.device, non_blocking=True)

    def _pin_windows(self, step: int) -> Tensor:
        """Return the token windows of a step in pinned memory, from which a GPU copies asynchronously."""
        return super().token_windows(step).pin_memory()

    def close(self) -> None:
        """Stop the thread that prepares batches."""
        self.executor.shutdown(cancel_futures=True)


# Loss

LossFunction = Callable[[Float[Tensor, "batch time vocabulary"], Int[Tensor, "batch time"]], Float[Tensor, ""]]


def causal_loss(
    logits: Float[Tensor, "batch time vocabulary"], targets: Int[Tensor, "batch time"], reduction: str = "mean"
) -> Float[Tensor, "..."]:
    """Return the cross-entropy of each next token in nats, averaged unless `reduction` is another of torch's."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)


def objective_function(objective: ObjectiveChoice) -> LossFunction:
    """Return the loss function (logits, targets) → loss of an objective; a plugin's is tried on a few numbers first.

    >>> objective_function(ObjectiveChoice(kind="causal")) is causal_loss
    True
    """
    plugin = objective.resolve()
    if plugin is None:
        return causal_loss
    loss: LossFunction = partial(PLUGIN_OBJECTIVES.load_part(objective.kind, plugin.loss), **plugin.settings())
    logits = torch.zeros(2, 3, 5, requires_grad=True)
    with PLUGIN_OBJECTIVES.attribute_errors(plugin.kind, plugin.loss):
        value = loss(logits, torch.zeros(2, 3, dtype=torch.long))
    if not isinstance(value, Tensor) or value.dim() or not value.requires_grad or not value.isfinite():
        raise PackageError(
            f"the objective '{plugin.kind}': {plugin.loss} must give one finite number with a gradient, the mean "
            f"over all targets; of six targets it gives {value!r}."
        )
    return loss


class LanguageLoss(TaskLoss):
    """A language model with its objective: the causal loss, or an objective of another package.

    For large vocabularies on a GPU, `output_loss` computes the loss without all logits in memory. It reads sequences of
    up to `max_fused_length` tokens; 0 where it is not used.
    """

    def __init__(self, model: LanguageModel, objective: LossFunction = causal_loss) -> None:
        super().__init__()
        self.model, self.objective = model, objective
        if objective is not causal_loss:
            self.terms = (*self.terms, "objective")
        self.chance = (model.spec.vocabulary, "tokens", "V")
        self.layers = list(model.layers) if isinstance(model, DecoderModel) else ()
        self.max_fused_length = 0
        if isinstance(model, DecoderModel) and model.logit_cap is None and objective is causal_loss:
            output = model.output
            is_supported = type(output) is nn.Linear and output.bias is None and len(output.weight) >= MIN_CLASSES
            has_kernel = support.COST_RECORDER or (output.weight.is_cuda and support.is_available(output.weight.device))
            self.max_fused_length = model.spec.context if is_supported and has_kernel else 0

    def forward(
        self, inputs: Int[Tensor, "rows length"], targets: Int[Tensor, "rows length"], state: State | None
    ) -> LossTerms:
        """Return the loss of a batch as `LossTerms`; the state is that of a recurrent model after the batch."""
        weight = self.model.get_parameter("output.weight") if inputs.shape[1] <= self.max_fused_length else None
        if weight is not None and (dtype := support.autocast_dtype(weight)) != weight.dtype:
            loss = output_loss(self.model.vectors(inputs).flatten(0, 1).to(dtype), weight, targets.flatten())
            return loss, (loss,), None
        logits, state = self.model(inputs, state)
        objective, terms = self.compute_terms(logits, targets)
        return objective, terms, state if self.model.stateful else None

    def compute_terms(
        self, logits: Float[Tensor, "rows length vocabulary"], targets: Int[Tensor, "rows length"]
    ) -> tuple[Float[Tensor, ""], tuple[Float[Tensor, ""], ...]]:
        """Return the objective to minimise, and the terms to log: the causal loss, and a plugin's objective."""
        if self.objective is causal_loss:
            loss = causal_loss(logits, targets)
            return loss, (loss,)
        objective = self.objective(logits, targets)
        return objective, (causal_loss(logits.detach(), targets), objective)


class PenalizedLoss(LanguageLoss):
    """A language model with penalties on attention: L = L_LM + entropy_penalty · L_focus + distance_penalty · L_near.

    On a GPU `kernels/row_statistics.py` gives entropy and distance of every row along with attention, and is
    compiled with the model. Elsewhere attention is recorded, and penalized in blocks of rows.
    """

    def __init__(self, model: LanguageModel, recipe: Recipe, objective: LossFunction = causal_loss) -> None:
        super().__init__(model, objective)
        self.terms, self.recipe, self.layers = (*self.terms, "entropy", "distance"), recipe, ()
        self.depth: int = getattr(model.spec, "depth", 1)
        attention = [module for module in model.modules() if isinstance(module, Attention)]
        is_fused = len(attention) == self.depth and all(layer.supports_row_statistics() for layer in attention)
        self.fused_layers = attention if is_fused and support.is_available(next(model.parameters()).device) else []
        self.compilable = bool(self.fused_layers)  # compiled code cannot be recorded

    def forward(
        self, inputs: Int[Tensor, "rows length"], targets: Int[Tensor, "rows length"], state: State | None
    ) -> LossTerms:
        """Return the penalized loss of a batch as `LossTerms`; entropy and distance are logged, too."""
        if self.fused_layers:
            collected: list[tuple[Tensor, Tensor]] = []
            for attention in self.fused_layers:
                attention.row_statistics = collected
            logits, state = self.model(inputs, state)
            for attention in self.fused_layers:
                attention.row_statistics = None
            entropy = torch.stack([rows.mean() for rows, _ in collected]).mean()
            distances = [rows.clamp(max=self.recipe.distance_max).mean() for _, rows in collected[:-1]]
            distance = torch.stack(distances).mean() if distances else torch.zeros_like(entropy)
            means = RowMeans(entropy, distance)
        else:
            with record_attention() as records:
                logits, state = self.model(inputs, state)
            means = row_statistics(records, self.recipe.distance_max, self.depth)
        objective, terms = self.compute_terms(logits, targets)
        recipe = self.recipe
        total = objective + recipe.entropy_penalty * means.entropy + recipe.distance_penalty * means.distance
        reported = (*terms, means.entropy, means.distance)
        return total.to(objective.dtype), reported, state if self.model.stateful else None


# Perplexity

WARM_UP_TOKENS = 128  # tokens a recurrent model reads before it scores; older ones hardly change its state
MAX_STREAMS = 32  # more rows per step gain little on two cores
NOT_SCORED = -100  # the target that cross-entropy ignores


@dataclass(frozen=True)
class ReadingPlan:
    """Plan of reading a text for scoring: in many short windows, or in a few long streams with a carried state.

    Row k reads `length` tokens from token k·`scored` on and scores the last `scored` of them; the first row scores all.

    >>> windows = ReadingPlan(num_targets=5, length=3, scored=2, carries_state=False)
    >>> windows.slice_rows(np.arange(6), range(windows.num_rows), range(3))
    (array([[0, 1, 2],
           [2, 3, 4]]), array([[   1,    2,    3],
           [-100,    4,    5]]))
    """

    num_targets: int  # tokens of the text that have a next one
    length: int  # tokens of a row
    scored: int  # tokens scored per row
    carries_state: bool  # whether rows are streams, not windows
    context: int | None = None  # most tokens a token is predicted from; None if all before it
    stride: int | None = None  # tokens scored per window, as asked for

    @property
    def num_rows(self) -> int:
        """Number of rows (windows or streams) into which the text is cut."""
        return 1 + max(0, -(-(self.num_targets - self.length) // self.scored))

    @property
    def warm_up(self) -> int:
        """Number of tokens at the start of each row but the first that are read but not scored."""
        return self.length - self.scored if self.num_rows > 1 else 0

    def slice_rows(self, tokens: np.ndarray, rows: range, columns: range) -> tuple[np.ndarray, np.ndarray]:
        """Return (tokens, targets) of a range of rows and columns; targets that are not scored are `NOT_SCORED`."""
        starts = np.arange(rows.start, rows.stop)[:, None] * self.scored
        offsets = np.arange(columns.start, columns.stop)
        positions = starts + offsets
        inputs = tokens[np.minimum(positions, self.num_targets)].astype(np.int64)
        targets = tokens[np.minimum(positions + 1, self.num_targets)].astype(np.int64)
        targets[(positions >= self.num_targets) | ((starts > 0) & (offsets < self.warm_up))] = NOT_SCORED
        return inputs, targets

    def batches(self, batch_tokens: int) -> Iterator[tuple[range, list[range]]]:
        """Yield the rows to read together, and their ranges of columns in turn, of about `batch_tokens` tokens each.

        All streams are in one group, since a span needs the state of the one before.
        """

        def split(total: int, size: int) -> list[range]:
            return [range(start, min(start + size, total)) for start in range(0, total, size)]

        group_size = self.num_rows if self.carries_state else max(1, batch_tokens // self.length)
        spans = split(self.length, max(1, batch_tokens // group_size))
        return ((rows, spans) for rows in split(self.num_rows, group_size))


def plan_reading(
    model: LanguageModel, num_targets: int, context: int | None, stride: int | None, streams: int | None
) -> ReadingPlan:
    """Return how a model reads a text: in streams if a carried state gives tokens their full context, else in windows.

    By default the context is the model's receptive field, or for a Transformer the context it was trained with. The
    stride is half of a Transformer's context, since each window is read again, and 1 for window models.
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
class Protocol:
    """Conditions of a perplexity measurement: all that is needed to repeat it."""

    tokenizer: str | None = None
    data_hash: str | None = None
    split: str | None = None
    context: int | None = None  # most tokens a token is predicted from; None if all before it
    stride: int | None = None  # tokens scored per window, 1 for full contexts; None if the context has no bound
    streams: int | None = None  # parts of the text read side by side with a carried state; None where windows are read
    warm_up: int = 0  # tokens that each stream or window but the first reads before it scores one
    precision: str = "float32"
    left_out: tuple[str, ...] = ()  # sentences on what is not measured
    overlaps: tuple[str, ...] = ()  # sentences on what the split shares with others

    def to_dict(self) -> dict[str, Any]:
        """Return the conditions by name; overlaps only if there are some."""
        return {name: value for name, value in asdict(self).items() if value or name != "overlaps"}

    def __str__(self) -> str:
        if self.streams is None:
            return f"in windows of {self.context} tokens, stride {self.stride}"
        if self.streams == 1:
            return "in one pass"
        return f"in {self.streams} streams, each warmed up on {self.warm_up} tokens"


@dataclass(frozen=True)
class PerplexityScore(Score):
    """Mean loss of every token of a text but the first, in nats, with its protocol."""

    title = "Perplexity"
    json_names = ("perplexity", "loss", "bits_per_byte", "tokens", "protocol")

    loss: float
    tokens: int
    bytes: int | None
    protocol: Protocol

    @property
    def bits_per_byte(self) -> float | None:
        """Bits of all predicted tokens divided by the bytes of the text; None if its bytes are not known.

        The first token is not predicted: its bits are missing from the numerator while its bytes count below.
        """
        return self.loss * self.tokens / (math.log(2) * self.bytes) if self.bytes else None

    def __str__(self) -> str:
        return "\n".join(label_line(name, value, 14) for name, value in self._lines())

    def _lines(self) -> NamedValues:
        """Return (name, value) pairs for the summary: perplexity, loss, bits per byte, protocol."""
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
    source: Protocol | None = None,
) -> PerplexityScore:
    """Measure how well a model predicts a text: exp(−1/n Σ log p(token | tokens before it)).

    Each window reads up to `context` tokens (the model's reach if unset) and scores its last `stride`; the first window
    scores all of its own. Half the context is usual for a Transformer; stride 1 gives every token its full context.
    Window models always have that, at no cost. A recurrent model without a context carries its state.

    Args:
        bytes: Size of the whole text in UTF-8.
        streams: Spans that a carried state reads side by side, each but the first warmed up on the tokens before it.
        batch: Tokens read at once, which affects speed and memory only.
        source: Where the tokens come from and what is missing of them, to be completed.
    """
    text = tokens.cpu().numpy() if isinstance(tokens, Tensor) else tokens
    if text.ndim != 1 or len(text) < 2:
        raise DataError(f"perplexity needs a row of at least 2 tokens, got shape {text.shape}. Give a longer text.")
    vocabulary, lowest, highest = model.spec.vocabulary, int(text.min()), int(text.max())
    if lowest < 0 or highest >= vocabulary:
        token = lowest if lowest < 0 else highest
        raise InputError(
            f"token {token} is outside the model's vocabulary of {vocabulary}. Use the tokenizer it was trained with."
        )
    plan = plan_reading(model, len(text) - 1, context, stride, streams)
    device = next(model.parameters()).device
    total = _sum_losses(model, text, plan, batch or tokens_per_batch(device, vocabulary))
    source = source or Protocol()
    left_out = ["the first token, which has nothing before it (its bytes count in bits per byte)", *source.left_out]
    if plan.num_rows > 1 and not plan.carries_state:
        sees = f"past the first, a token sees {plan.warm_up + 1} to {plan.length} tokens"
        left_out.append(f"what lies further back than its window: {sees}")
    elif plan.num_rows > 1 and plan.context is None:
        left_out.append(f"what lies further back than the {plan.warm_up} tokens that warm each stream but the first up")
    protocol = replace(
        source,
        context=plan.context,
        stride=plan.stride,
        streams=plan.num_rows if plan.carries_state else None,
        warm_up=plan.warm_up,
        precision="bfloat16" if torch.is_autocast_enabled(device.type) else "float32",  # as validations in training
        left_out=tuple(left_out),
    )
    return PerplexityScore(total / plan.num_targets, plan.num_targets, bytes, protocol)


def _sum_losses(model: LanguageModel, text: Int[np.ndarray, " time"], plan: ReadingPlan, batch_tokens: int) -> float:
    """Return the sum of −log p over all tokens that the plan scores, in nats; `batch_tokens` are read at once."""
    device = next(model.parameters()).device
    total = torch.zeros((), dtype=torch.float64, device=device)
    with evaluating(model), torch.no_grad():
        for rows, spans in plan.batches(batch_tokens):
            state = None
            for columns in spans:
                arrays = plan.slice_rows(text, rows, columns)
                inputs, targets = (torch.from_numpy(array).to(device) for array in arrays)
                logits, state = model(inputs, state)
                skipped = max(0, plan.warm_up - columns.start) if rows.start else 0
                logits, targets = logits[:, skipped:], targets[:, skipped:]
                exact = logits.float() if logits.dtype == torch.bfloat16 else logits
                total += causal_loss(exact, targets, reduction="none").sum(dtype=torch.float64)
    return total.item()


def split_perplexity(
    model: LanguageModel,
    dataset: Splits[TokenArray],
    split: str,
    *,
    context: int | None = None,
    stride: int | None = None,
) -> PerplexityScore:
    """Return the perplexity of one split of a data set, by a full pass over it."""
    tokens = dataset.item(split)
    dropped = tokens.dropped_characters
    left_out = (f"{dropped:,} characters that are not in the tokenizer's alphabet",) if dropped else ()
    origin = Protocol(dataset.tokenizer.description, dataset.hash, split, left_out=left_out, overlaps=dataset.overlaps)
    return perplexity(model, tokens, bytes=tokens.bytes, context=context, stride=stride, source=origin)
