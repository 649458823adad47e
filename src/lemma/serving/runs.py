"""Served runs: each with its name, its model, its thread and its requests."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lemma.counting.count import count
from lemma.counting.subject import resolve_subject
from lemma.errors import InputError, RunError, describe_unknown
from lemma.generation.beam import Beam, TranslatedText, translate_texts
from lemma.generation.engine import BatchEngine
from lemma.generation.sampling import Sampling
from lemma.generation.sequences import TextRequest
from lemma.inspection.heads import look_at_run
from lemma.inspection.page import render_page
from lemma.models.dual_encoder import DualEncoderModel
from lemma.models.encoder_decoder import EncoderDecoderModel
from lemma.models.transformer import EncoderModel
from lemma.random_state import unchanged_random_state
from lemma.retrieval.embedding import embed_inputs
from lemma.runs.load import Run
from lemma.serving.metrics import ServerMetrics
from lemma.serving.requests import ApiError, Limits
from lemma.serving.threads import ModelThread, WorkerThreads
from lemma.spec.models import Decoder
from lemma.tasks.classification import Classification, classify_texts
from lemma.tasks.registry import task_info

if TYPE_CHECKING:
    from lemma.serving.jobs import EmbeddingJob, GenerationJob

NUM_PREPARE_THREADS = 4  # requests of a run that are read at once, of each kind: prompts, and chat templates
WEIGHT_FILES = {".gguf", ".bin"}  # files that are models by themselves
MAX_WAITING_TOKENS = 2**21  # of the prompts of all requests of a run
Precision = Literal["auto", "float32", "bfloat16"]
RunSource = Path | str | Run


class ServedRun:
    """A run behind the server, with the calls into the other packages that serving it needs.

    Attributes:
        answer_kind: What it makes of a text: `prompt` (continues it), `translation`, `class` or `vectors`.
        generates_text: True if it continues prompts; otherwise it answers texts.
        page_verbs: Tabs of the web page that it can fill.
        context: The most tokens of a prompt that it was trained to read at once; None without a bound.
        jobs: Requests that wait or are being answered.
        average_seconds: Running mean of how long a request takes.
    """

    def __init__(self, name: str, run: Run, precision: Precision, limits: Limits, metrics: ServerMetrics) -> None:
        self.name, self.run, self.limits, self.metrics = name, run, limits, metrics
        self.precision: Precision = precision
        if isinstance(run.module, EncoderModel | DualEncoderModel):
            self.answer_kind = "vectors"
        else:  # `run.model` refuses a run of another kind, and names its use
            self.answer_kind = task_info(run.spec).answers or str(run.model)
        self.generates_text = self.answer_kind == "prompt"
        self.context = run.spec.context if isinstance(run.spec, Decoder) else None
        can_show = {
            "generate": self.answer_kind != "vectors",
            "look": self._has_attention(),
            "count": True,
            "evaluate": run.summary is not None,
        }
        self.page_verbs = [verb for verb, can in can_show.items() if can]
        self.had_folder = Path(run.path).exists()  # a pretrained model may have a name only
        self.jobs: set[GenerationJob | EmbeddingJob] = set()
        self.average_seconds = 1.0
        self.thread = thread = ModelThread(name, self._make_engine if self.generates_text else None, self.jobs)
        self.prepare_threads = WorkerThreads(NUM_PREPARE_THREADS, f"lemma {name} requests")
        self.chat_threads = WorkerThreads(NUM_PREPARE_THREADS, f"lemma {name} chats")  # a template may be slow
        metrics.gauge("lemma_requests", lambda: len(self.jobs), model=name)
        if self.generates_text:
            metrics.gauge("lemma_texts", lambda: thread.engine.num_running if thread.engine else 0, model=name)

    def _make_engine(self) -> BatchEngine:
        """Return a new decoding engine for the run's model."""
        dtype = Sampling(precision=self.precision).dtype(next(self.run.module.parameters()).device)
        return BatchEngine(self.run.merge_lora().model, self.run.tokenizer, self.limits.batch, dtype=dtype)

    def make_request(self, prompt: Sequence[int], settings: Mapping[str, Any], **options: Any) -> TextRequest:
        """Return an engine request; unset options are the model's defaults, then those of OpenAI's API."""
        names = Sampling.__dataclass_fields__
        defaults = {name: value for name, value in self.run.tokenizer.sampling.items() if name in names}
        return TextRequest(tuple(prompt), Sampling(**{"temperature": 1.0, **defaults, **settings}), **options)

    def answer(self, texts: Sequence[str], max_tokens: int) -> list[Classification] | list[TranslatedText]:
        """Return the class of each text, or its translation of at most `max_tokens` tokens."""
        if self.answer_kind == "class":
            return classify_texts(self.run, texts)
        model = self.run.merge_lora().require(EncoderDecoderModel, "a translator, which answers a source")
        return translate_texts(model, self.run.tokenizer, texts, Beam(tokens=max_tokens))

    def embed(self, inputs: Sequence[str | list[int]]) -> tuple[list[list[float]], int]:
        """Return the embedding of each text or list of token ids, and their total number of tokens."""
        return embed_inputs(self.run, inputs)

    def look(self, text: str) -> Callable[[], str]:
        """Run the model on a text; return a function that renders the HTML page of its attention heads."""
        return partial(render_page, look_at_run(self.run, text))

    @unchanged_random_state()
    def count_page(self) -> str:
        """Return an HTML page with the formulas of the model's sizes."""
        return count(resolve_subject(self.run.path))._repr_html_()

    def _has_attention(self) -> bool:
        """Return whether the run has attention heads to show, tried on one token."""
        try:
            return bool(look_at_run(self.run, self.run.tokenizer.token_strings([0])[0]))
        except InputError:
            return False

    def to_dict(self) -> dict[str, Any]:
        """Return the run's entry in the list of models of OpenAI's API, with fields of Lemma at the end."""
        try:
            created = int((Path(self.run.path) / "spec.toml").stat().st_mtime)
        except OSError:
            created = 0  # unknown for a pretrained model
        return {
            "id": self.name,
            "object": "model",
            "created": created,
            "owned_by": "lemma",
            "family": self.run.spec.family,
            "context": self.context,
            "answers": self.answer_kind,
            "shows": self.page_verbs,
        }

    def admit(self, job: "GenerationJob | EmbeddingJob") -> None:
        """Add a request to `jobs`; if too many are under way, raise an `ApiError` with the seconds to wait."""
        if len(self.jobs) >= self.limits.batch + self.limits.waiting:
            raise self._busy_error(len(self.jobs))
        self.jobs.add(job)

    def check_waiting_tokens(self, job: "GenerationJob | EmbeddingJob") -> None:
        """Raise an `ApiError` for a request if it and all others under way have too many prompt tokens together."""
        others = [other.prompt_tokens for other in self.jobs if other is not job]
        if others and sum(others) + job.prompt_tokens > MAX_WAITING_TOKENS:
            raise self._busy_error(len(others))

    def _busy_error(self, requests: int) -> ApiError:
        """Return the error (status 429) for a run with `requests` requests, with the estimated seconds to wait."""
        seconds = min(60, max(1, math.ceil(self.average_seconds * requests / self.limits.batch)))
        message = f"{self.name} has {requests} requests already. Try again in {seconds} s."
        return ApiError(429, message, code="busy", headers={"retry-after": str(seconds)})

    def error_if_gone(self, error: Exception) -> Exception:
        """Return the error itself, or one (status 410) that the run's folder has vanished, if that may be its cause."""
        if not isinstance(error, InputError | OSError) or not self.had_folder or Path(self.run.path).exists():
            return error
        message = f"{self.name}: its folder {self.run.path} has vanished since the server began."
        return ApiError(410, message, "model", "gone")


def load_runs(
    sources: Sequence[RunSource],
    load: Callable[[RunSource], Run],
    precision: Precision,
    limits: Limits,
    metrics: ServerMetrics,
) -> dict[str, ServedRun]:
    """Return the runs that `load` loads, by the names of their folders; others than runs are skipped with a warning."""
    if not sources:
        raise RunError("serve: at least one run is expected, as in: lemma serve runs/a")
    runs: dict[str, Run] = {}
    skipped: list[InputError] = []
    for source in sources:
        try:
            run = load(source)
        except InputError as error:  # as in: lemma serve runs/*, where reports lie next to the runs
            if not isinstance(source, str | Path) or not Path(source).is_file() or Path(source).suffix in WEIGHT_FILES:
                raise
            skipped.append(error)
            continue
        name = Path(run.path).resolve().name
        if name in runs:
            raise RunError(
                f"{runs[name].path} and {run.path} are both named {name}, but requests identify runs by the "
                "names of their folders. Rename one of them."
            )
        runs[name] = run
    if not runs:
        raise skipped[0]
    for error in skipped:
        warnings.warn(f"Skipped a file that is not a run: {error}", stacklevel=2)
    return {name: ServedRun(name, run, precision, limits, metrics) for name, run in runs.items()}


def find_run(served: dict[str, ServedRun], name: str | None) -> ServedRun:
    """Return the run called `name`, or the only run if that is None; raise an `ApiError` if there is no such run."""
    if name is None:
        if len(served) > 1:
            raise ApiError(400, f"model is missing: which of {', '.join(served)}?", "model")
        return next(iter(served.values()))
    if name not in served:
        raise ApiError(404, describe_unknown("model", name, served), "model", "model_not_found")
    return served[name]
