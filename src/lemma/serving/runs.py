"""Served runs: each with its name, its thread and its requests."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lemma.errors import InputError, RunError, describe_unknown
from lemma.serving.metrics import ServerMetrics
from lemma.serving.models import Precision, Run, ServedModel
from lemma.serving.requests import ApiError, Limits
from lemma.serving.threads import ModelThread, WorkerThreads
from lemma.spec.models import Decoder

if TYPE_CHECKING:
    from lemma.serving.jobs import EmbeddingJob, GenerationJob

NUM_PREPARE_THREADS = 4  # requests of a run that are read at once, of each kind: prompts, and chat templates
WEIGHT_FILES = {".gguf", ".bin"}  # files that are models by themselves
MAX_WAITING_TOKENS = 2**21  # of the prompts of all requests of a run
RunSource = Path | str | Run


@dataclass(eq=False)
class ServedRun:
    """A run behind the server: its model, its threads and its requests.

    Attributes:
        jobs: requests that wait or are being answered.
        average_seconds: running mean of how long a request takes.
    """

    name: str
    model: ServedModel
    limits: Limits
    metrics: ServerMetrics
    jobs: "set[GenerationJob | EmbeddingJob]" = field(default_factory=set)
    average_seconds: float = 1.0

    def __post_init__(self) -> None:
        self.run, self.answer_kind = self.model.run, self.model.answer_kind
        self.had_folder = Path(self.run.path).exists()  # a pretrained model may have a name only
        make_engine = partial(self.model.make_engine, self.limits.batch) if self.generates_text else None
        self.thread = thread = ModelThread(self.name, make_engine, self.jobs)
        self.prepare_threads = WorkerThreads(NUM_PREPARE_THREADS, f"lemma {self.name} requests")
        self.chat_threads = WorkerThreads(NUM_PREPARE_THREADS, f"lemma {self.name} chats")  # a template may be slow
        self.metrics.gauge("lemma_requests", lambda: len(self.jobs), model=self.name)
        if self.generates_text:
            self.metrics.gauge(
                "lemma_texts", lambda: thread.engine.num_running if thread.engine else 0, model=self.name
            )

    @property
    def generates_text(self) -> bool:
        """True if it continues prompts; otherwise it answers texts."""
        return self.answer_kind == "prompt"

    @property
    def context(self) -> int | None:
        """The most tokens of a prompt that it was trained to read at once; None without a bound."""
        return self.run.spec.context if isinstance(self.run.spec, Decoder) else None

    @property
    def page_verbs(self) -> list[str]:
        """The tabs of the page that it fills."""
        can_show = {
            "generate": self.answer_kind != "vectors",
            "look": self.model.has_attention,
            "count": True,
            "evaluate": self.run.summary is not None,
        }
        return [verb for verb, can in can_show.items() if can]

    def to_dict(self) -> dict[str, Any]:
        """Return the model as OpenAI's clients list it, with Lemma's fields at the end."""
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
        """Accept a request; if there are too many, refuse it with the time after which to try again."""
        if len(self.jobs) >= self.limits.batch + self.limits.waiting:
            raise self._busy_error(len(self.jobs))
        self.jobs.add(job)

    def check_waiting_tokens(self, job: "GenerationJob | EmbeddingJob") -> None:
        """Refuse an admitted request if all prompts together have too many tokens."""
        others = [other.prompt_tokens for other in self.jobs if other is not job]
        if others and sum(others) + job.prompt_tokens > MAX_WAITING_TOKENS:
            raise self._busy_error(len(others))

    def _busy_error(self, requests: int) -> ApiError:
        seconds = min(60, max(1, math.ceil(self.average_seconds * requests / self.limits.batch)))
        message = f"{self.name} has {requests} requests already. Try again in {seconds} s."
        return ApiError(429, message, code="busy", headers={"retry-after": str(seconds)})

    def error_if_gone(self, error: Exception) -> Exception:
        """Return the error itself, or that the run's folder has vanished if that may be its cause."""
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
    """Load runs and name them by their folders; skip files that are not runs with a warning."""
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
    return {name: ServedRun(name, ServedModel(run, precision), limits, metrics) for name, run in runs.items()}


def find_run(served: dict[str, ServedRun], name: str | None) -> ServedRun:
    """Return the run that a request names; the name may be left out if there is only one."""
    if name is None:
        if len(served) > 1:
            raise ApiError(400, f"model is missing: which of {', '.join(served)}?", "model")
        return next(iter(served.values()))
    if name not in served:
        raise ApiError(404, describe_unknown("model", name, served), "model", "model_not_found")
    return served[name]
