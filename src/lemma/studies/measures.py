"""What is measured of a trained language model: its score, samples, loss against position, and what its heads do."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from lemma.data.splits import Splits
from lemma.data.store import TokenArray
from lemma.data.tokenizers import Tokenizer
from lemma.errors import RunError, TrainingError
from lemma.generation.engine import generate_text
from lemma.generation.sampling import Sampling
from lemma.generation.sequences import Generation
from lemma.layers.recording import AttentionRecord, record_attention
from lemma.models.base import LanguageModel, evaluating
from lemma.models.build import build_uninitialized
from lemma.runs.load import Run
from lemma.spec.models import Decoder
from lemma.spec.studies import GridStudy
from lemma.studies.cells import StudyRow
from lemma.studies.experiment import RunPlan, validation_rows
from lemma.tasks.language import PerplexityScore, TextSource, perplexity, training_length

SPLIT = "validation"
TEMPERATURE = 0.6
# Tokens that a validation during training reads: enough for a curve, the best step or the choice of a learning rate,
# each of which compares scores of the same tokens.
VALIDATION_TOKENS = 16_384


class CurvePoint(NamedTuple):
    """Validation: how many tokens had been read, in how many seconds, and the loss."""

    tokens: int
    seconds: float
    loss: float


@dataclass(frozen=True)
class SampleLoop:
    """The loop that a greedy generation falls into.

    Attributes:
        onset, period: in generated tokens.
        state: which state repeats or does not.
        begin, end: where the first round starts and ends in the text.
    """

    onset: int
    period: int
    proved: bool
    state: str
    begin: int
    end: int


@dataclass(frozen=True)
class TextSample:
    """A text generated after a prompt; at temperature 0 with the loop it ends in, if it does."""

    prompt: str
    text: str
    loop: SampleLoop | None = None


@dataclass(frozen=True)
class LanguageMeasures:
    """Measures of a trained language model, and what it is.

    Attributes:
        trial_speed: tokens/s in the trial from which a budget of seconds was turned into steps.
        more: what the study's `measures` ask for, by their names, as plain values.
    """

    model: Mapping[str, Any]
    recipe: Mapping[str, Any]
    parameters: int
    tokens: int
    seconds: float
    tokens_per_second: float
    loss: float
    perplexity: float
    bits_per_byte: float | None
    protocol: Mapping[str, Any]
    curve: tuple[CurvePoint, ...]
    sample: TextSample
    greedy: TextSample
    trial_speed: float | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "curve": [list(point) for point in self.curve]}


Row = StudyRow[LanguageMeasures]


class Scorer:
    """Scores a model on the validation text, and remembers the scores.

    While a model is trained, at most `max_tokens` of the text are read. A finished run is scored on all of them, unless
    it is judged by those alone, as a trial is: `full_pass` is then False.
    """

    def __init__(self, dataset: Splits[TokenArray], max_tokens: int | None = None, full_pass: bool = True) -> None:
        is_shorter = max_tokens and max_tokens < len(dataset.item(SPLIT))
        self.dataset, self.full_pass = dataset, full_pass
        self.max_tokens = max_tokens if is_shorter else None
        self.scores_by_loss: dict[float, PerplexityScore] = {}

    def __call__(self, model: LanguageModel) -> PerplexityScore:
        """Score a model during training."""
        score = self._score(model, self.max_tokens)
        self.scores_by_loss[score.loss] = score
        return score

    def score_run(self, run: Run) -> PerplexityScore:
        """Return the score of a finished run: the one that training ended with, if known, or that of a new pass."""
        if self.max_tokens and self.full_pass:
            return self._score(run.model, None)
        summary = run.summary or {}
        final_loss = summary["best_loss"] if run.recipe.keep == "best" else summary["validation_loss"]
        return self.scores_by_loss.get(final_loss) or self(run.model)

    def _score(self, model: LanguageModel, max_tokens: int | None) -> PerplexityScore:
        tokens = self.dataset.item(SPLIT)
        source = TextSource(self.dataset.tokenizer.description, self.dataset.hash, SPLIT)
        return perplexity(model, tokens[:max_tokens], bytes=None if max_tokens else tokens.bytes, source=source)


def measure_run(run: Run, plan: RunPlan, study: GridStudy, scorer: Scorer) -> LanguageMeasures:
    """Measure all that the report shows of a finished run."""
    score = scorer.score_run(run)
    if not math.isfinite(score.perplexity):
        raise TrainingError(f"{plan.path}: the validation loss is {score.loss}, so that there is no perplexity.")
    summary: Mapping[str, Any] = run.summary or {}
    length, tokens = training_length(plan.model, plan.recipe), scorer.dataset.item(SPLIT)
    return LanguageMeasures(
        model=plan.model.to_dict(),
        recipe=plan.recipe.to_dict(),
        **{name: summary[name] for name in ("parameters", "tokens", "seconds", "tokens_per_second")},
        **{name: getattr(score, name) for name in ("loss", "perplexity", "bits_per_byte")},
        protocol=score.protocol.to_dict(),
        curve=tuple(CurvePoint(row["tokens"], row["seconds"], row["validation_loss"]) for row in validation_rows(run)),
        sample=generate_sample(run.model, run.tokenizer, study, TEMPERATURE),
        greedy=generate_sample(run.model, run.tokenizer, study, 0.0),
        trial_speed=plan.trial_speed,
        more={name: MEASURES[name](run, tokens, length, study.beyond) for name in study.measures},
    )


def generate_sample(model: LanguageModel, tokenizer: Tokenizer, study: GridStudy, temperature: float) -> TextSample:
    """Make a model continue the study's prompt; an `<eos>` does not end it, since loops may lead through it."""
    settings = Sampling(tokens=study.sample_tokens, temperature=temperature, stop_at_eos=False)
    [generation] = generate_text(model, tokenizer, [study.prompt], settings)
    return TextSample(generation.prompt, generation.text, locate_loop(generation, tokenizer))


def locate_loop(generation: Generation, tokenizer: Tokenizer) -> SampleLoop | None:
    """Find where in the text the first round of a loop starts and ends.

    A token may be a part of a character, or bring a space with it only after another: so the text of the first tokens
    is compared with the text of them all, up to the first character that differs.
    """
    loop = generation.loop
    if loop is None:
        return None
    last_prompt_token = tokenizer.encode(generation.prompt).tolist()[-1:]
    prefix = len(tokenizer.decode(last_prompt_token))

    def text_length(count: int) -> int:
        text = tokenizer.decode([*last_prompt_token, *generation.tokens[:count]])[prefix:]
        pairs = enumerate(zip(generation.text, text, strict=False))
        return next((index for index, (a, b) in pairs if a != b), min(len(generation.text), len(text)))

    ends = text_length(loop.onset), text_length(loop.onset + loop.period)
    return SampleLoop(loop.onset, loop.period, loop.proved, loop.state, *ends)


# Windows of the validation text, all of one length.


BATCH_TOKENS = 8192


def sample_windows(tokens: np.ndarray, length: int, max_windows: int) -> Int[Tensor, "windows length"]:
    """Return up to `max_windows` windows that do not overlap, spread evenly over the text.

    >>> sample_windows(np.arange(10), 3, 2).tolist()
    [[0, 1, 2], [6, 7, 8]]
    """
    count = len(tokens) // length
    indices = np.unique(np.linspace(0, count - 1, min(count, max_windows)).round().astype(int))
    windows = [np.asarray(tokens[index * length : (index + 1) * length], dtype=np.int64) for index in indices]
    return torch.from_numpy(np.stack(windows))


def split_batches(windows: Int[Tensor, "windows length"]) -> tuple[Int[Tensor, "batch length"], ...]:
    """Split windows into batches of at most `BATCH_TOKENS`, but one window at least."""
    return windows.split(max(1, BATCH_TOKENS // windows.shape[1]))


# Attention: how widely and how far each head looks.


ATTENTION_WINDOWS = 32


def measure_attention(run: Run, tokens: np.ndarray, length: int, beyond: int) -> dict[str, Any]:
    """Measure the mean entropy (nats) and mean distance (tokens) of every head, over all rows of its attention.

    Read in windows of the trained `length`. A model without attention has no layers here.
    """
    device = next(run.model.parameters()).device
    windows = sample_windows(tokens, min(length, len(tokens)), ATTENTION_WINDOWS)
    sums: dict[str, Float[Tensor, "two heads"]] = {}
    with torch.inference_mode(), evaluating(run.model):
        for batch in split_batches(windows):
            with record_attention(run.model) as records:
                run.model(batch.to(device))
            for index, record in enumerate(records):
                key = f"{index}: {record.name}"
                sums[key] = sums.get(key, torch.zeros(())) + len(batch) * entropy_and_distance(record)
    layers = []
    for key, total in sums.items():
        entropy, distance = (total / len(windows)).tolist()
        layers.append({"name": key.partition(": ")[2], "entropy": entropy, "distance": distance})
    return {"pieces": len(windows), "layers": layers}


def entropy_and_distance(record: AttentionRecord) -> Float[Tensor, "two heads"]:
    """Return the mean entropy −Σ α ln α and mean distance Σ α |t₁ − t₂| of each head, over the rows of one call."""
    weights = record.weights().double()
    entropy = torch.special.entr(weights).sum(-1)
    distance = (weights * record.distances().abs()).sum(-1)
    is_token = record.unmasked_rows()
    rows = (weights.sum(-1) > 0) & (True if is_token is None else is_token)
    count = rows.sum((0, 2)).clamp(min=1)
    return torch.stack([(values * rows).sum((0, 2)) / count for values in (entropy, distance)]).cpu()


# Positions: the loss against position, up to several times the length a model was trained at.


POSITION_WINDOWS = 256
BINS_PER_LENGTH = 16  # points of the curve for each trained length


def measure_positions(run: Run, tokens: np.ndarray, length: int, beyond: int) -> dict[str, Any]:
    """Measure the mean loss at each position of windows of the validation text, `beyond` times the trained `length`.

    Position p has p tokens before it in the window; all of them are seen, whatever the trained length. Neighbouring
    positions are put together, sixteen groups for each trained length.
    """
    asked = min(beyond * length, len(tokens) - 1)
    if asked < 1:
        raise RunError(f"measures.positions: the validation text has {len(tokens)} tokens; at least 2 are needed.")
    windows = sample_windows(tokens, asked + 1, POSITION_WINDOWS)
    model, readable = extend_context(run.model, asked)
    losses = losses_by_position(model, windows[:, : readable + 1])
    starts = list(range(0, readable, max(1, length // BINS_PER_LENGTH)))
    bins = list(zip(starts, [*starts[1:], readable], strict=True))
    return {
        "trained": length,
        "beyond": beyond,
        "readable": readable,
        "asked": asked,
        "pieces": len(windows),
        "positions": [(start + 1 + end) / 2 for start, end in bins],
        "losses": [float(losses[start:end].mean()) for start, end in bins],
    }


def extend_context(model: LanguageModel, length: int) -> tuple[LanguageModel, int]:
    """Return the same weights with a context of at least `length`, and how much of it the model can read.

    A Transformer without learned position vectors is rebuilt longer; learned vectors end where the context does.
    """
    spec = model.spec
    if not isinstance(spec, Decoder) or spec.context >= length:
        return model, length
    if spec.positions.tabled:
        return model, spec.context
    device = next(model.parameters()).device
    longer = build_uninitialized(spec.replace(context=length)).to(device)
    longer.load_state_dict(model.state_dict())
    assert isinstance(longer, LanguageModel)
    return longer, length


def losses_by_position(model: LanguageModel, windows: Int[Tensor, "windows length"]) -> Float[Tensor, " positions"]:
    """Return the mean loss of the second, third, … token of the windows, each read from its beginning."""
    device = next(model.parameters()).device
    sums = torch.zeros(windows.shape[1] - 1, dtype=torch.float64)
    with torch.inference_mode(), evaluating(model):
        for batch in split_batches(windows):
            tokens = batch.to(device)
            logits = model(tokens[:, :-1])[0]
            losses = functional.cross_entropy(logits.transpose(1, 2).float(), tokens[:, 1:], reduction="none")
            sums += losses.double().sum(0).cpu()
    return sums / len(windows)


MEASURES: dict[str, Callable[[Run, Any, int, int], dict[str, Any]]] = {
    "positions": measure_positions,
    "attention": measure_attention,
    "steps": lambda run, tokens, length, beyond: {},  # the loss is enough
}
"""What a study's `measures` ask for, by their names."""
