"""A run that is served: its name, what it answers, and its one worker, so that it does one thing at a time."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from lemma.errors import RunError, unknown
from lemma.web.refusal import Refusal
from lemma.web.verbs import Run, Verbs

MOST_WAITING = 32
Result = TypeVar("Result")


@dataclass(frozen=True)
class Served:
    """A run behind the server."""

    name: str
    run: Run
    verbs: Verbs
    answers: str
    attends: bool
    worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "lemma"))
    """One thread: what is asked while it works waits in order."""
    waiting: set[Future[Any]] = field(default_factory=set)

    @property
    def writes(self) -> bool:
        """Whether it writes on after a prompt; else it answers a source."""
        return self.answers == "prompt"

    @property
    def shows(self) -> list[str]:
        """The verbs that it can show on the page."""
        has = {"generate": True, "look": self.attends, "count": True, "evaluate": self.run.summary is not None}
        return [verb for verb, there in has.items() if there]

    def to_dict(self) -> dict[str, Any]:
        """As OpenAI's clients list a model; what is Lemma's own stands behind."""
        created = int((Path(self.run.path) / "spec.toml").stat().st_mtime)
        plain = {"id": self.name, "object": "model", "created": created, "owned_by": "lemma"}
        return {**plain, "family": self.run.spec.family, "answers": self.answers, "shows": self.shows}

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        """Have something done when its turn comes."""
        if len(self.waiting) >= MOST_WAITING:
            raise Refusal(429, f"{self.name} has {MOST_WAITING} requests waiting. Try again later.", code="busy")
        future = self.worker.submit(work)
        self.waiting.add(future)
        future.add_done_callback(self.waiting.discard)
        return future

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """How many tokens each text has."""
        return [len(self.run.tokenizer.encode_known(text)[0]) for text in texts]


def serve_each(runs: Sequence[Any], verbs: Verbs) -> dict[str, Served]:
    """Load runs and name them by their folders."""
    if not runs:
        raise RunError("serve: at least one run is expected, as in: lemma serve runs/a")
    served: dict[str, Served] = {}
    for given in runs:
        run = verbs.load(given)
        name = Path(run.path).resolve().name
        if name in served:
            raise RunError(
                f"{served[name].run.path} and {run.path} are both named {name}, and requests tell runs apart by their "
                "folder's name. Rename one of the folders."
            )
        served[name] = Served(name, run, verbs, verbs.answers(run), verbs.attends(run))
    return served


def find(served: dict[str, Served], name: str | None) -> Served:
    """The run that a request means; it may be left out where there is but one."""
    if name is None:
        if len(served) > 1:
            raise Refusal(400, f"model is missing: which of {', '.join(served)}?", "model")
        return next(iter(served.values()))
    if name not in served:
        raise Refusal(404, unknown("model", name, served), "model", "model_not_found")
    return served[name]
