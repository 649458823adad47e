"""Runs judged by lm-evaluation-harness: a run as a model of `lm_eval`, and its scores on task files.

    python -m lemma.tasks.harness run --model lemma --model_args run=runs/a --tasks task.yaml

is `lm_eval` with this model registered.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lemma.data.batches import batch_by_length
from lemma.errors import InputError
from lemma.generation.detokenizer import start_token
from lemma.generation.sampling import Sampling
from lemma.generation.text import generate_text
from lemma.models.base import measuring, tokens_per_batch
from lemma.report.result import Block, Result, Table, Text
from lemma.runs.load import Run, load
from lemma.spec.models import Decoder

try:
    import lm_eval
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import normalize_gen_kwargs
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ImportError as error:
    raise InputError(f"the harness needs lm_eval ({error}): pip install 'lemma-lm[harness]'") from None

DEFAULT_TOKENS = 256  # tokens to generate where a task does not say; lm_eval's own
PROMPT_BATCH = 64
SAMPLING_NAMES = {
    **{name: name for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")},
    "no_repeat_ngram_size": "no_repeat_ngram",
}
"""What a task's `generation_kwargs` are called in `Sampling`."""


class HarnessModel(TemplateLM):
    """A run as `lm_eval` sees a model; on equal weights its answers are those of lm_eval's own `hf`.

    A text is read as `hf` reads it: a decoder never more than its context at once, cut on the left; recurrent and
    window models, whose state has no end, as a whole. `batch_size` has no effect on results and is not needed.
    """

    def __init__(self, run: str | Path | Run, device: str | None = None, **batch_sizes: Any) -> None:
        super().__init__()
        if others := set(batch_sizes) - {"batch_size", "max_batch_size"}:
            raise InputError(f"model_args: {', '.join(sorted(others))} is unknown; expected run=FOLDER and device=cpu.")
        device = device or "cuda"
        device = "cpu" if device.startswith("cuda") and not torch.cuda.is_available() else device
        self.run = load(run, device) if isinstance(run, str | Path) else run
        self.model, self.words = self.run.merge_lora().model, self.run.tokenizer
        self.max_length = self.run.spec.context if isinstance(self.run.spec, Decoder) else None

    @property
    def eot_token_id(self) -> int:
        """The token before the first one of a text."""
        return int([*self.words.encode(""), start_token(self.words)][0])

    @property
    def tokenizer_name(self) -> str:
        """What lm_eval knows cached requests by."""
        return self.words.hash

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """The ids of a text, with the special tokens that the model was trained with unless they are not wanted."""
        ids = self.words.encode(string)
        return (self.words.encode_batch([string])[0] if add_special_tokens is False else ids).tolist()

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """The log-probability of each continuation after its context, and whether greedy decoding would give it."""
        found: dict[int, tuple[float, bool]] = {}
        inputs: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)  # what is read, and for which requests
        for number, (_, context, continuation) in enumerate(requests):
            if self.max_length and len(continuation) > self.max_length:
                raise InputError(
                    f"a continuation has {len(continuation)} tokens, more than the context of {self.max_length}: "
                    "the model cannot read it. Shorten the answers of the task."
                )
            if continuation:
                whole = [*context, *continuation]
                inputs[tuple(whole[-self.max_length - 1 : -1] if self.max_length else whole[:-1])].append(number)
            else:
                found[number] = (0.0, True)
        rows = list(inputs)
        with measuring(self.model) as device:
            room = tokens_per_batch(device, self.model.spec.vocabulary)
            for group in batch_by_length(np.array([len(row) for row in rows], dtype=np.int64), room):
                taken = [rows[place] for place in group]
                for row, (scores, greedy, last) in zip(taken, self._read(taken, device, room), strict=True):
                    for number in inputs[row]:
                        *inner, final = requests[number][2]
                        places = slice(len(row) - 1 - len(inner), len(row) - 1)
                        total = torch.cat([scores[places], last[final, None]]).sum()
                        is_greedy = bool(greedy[places].all()) and int(last.argmax()) == final
                        found[number] = (float(total), is_greedy)
        return [found[number] for number in range(len(requests))]

    def _read(
        self, rows: Sequence[tuple[int, ...]], device: torch.device, room: int
    ) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
        """Read rows as one batch, each padded on the right, in pieces whose logits fit in memory.

        Of each row: the log-probability of each of its tokens but the first, whether that was the most likely one, and
        the log-probabilities after the last.
        """
        tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long, device=device)
        for place, row in enumerate(rows):
            tokens[place, : len(row)] = torch.tensor(row, device=device)
        following = tokens.roll(-1, dims=1)
        size, state = max(1, room // len(rows)), None
        scores: list[Tensor] = []
        greedy: list[Tensor] = []
        lasts: dict[int, Tensor] = {}
        for begin in range(0, tokens.shape[1], size):
            piece = slice(begin, begin + size)
            logits, state = self.model(tokens[:, piece], state)
            logs = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
            scores.append(logs.gather(-1, following[:, piece, None]).squeeze(-1))
            greedy.append(logs.argmax(-1) == following[:, piece])
            for place, row in enumerate(rows):
                if begin < len(row) <= begin + size:
                    lasts[place] = logs[place, len(row) - 1 - begin].clone()
        read = zip(torch.cat(scores, dim=1), torch.cat(greedy, dim=1), strict=True)
        return [(score, best, lasts[place]) for place, (score, best) in enumerate(read)]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of each whole text, in windows of the context as lm_eval cuts them."""
        windows: list[tuple[None, list[int], list[int]]] = []
        owners: list[int] = []
        for number, request in enumerate(requests):
            ids = self.tok_encode(request.args[0])
            longest = self.max_length or max(1, len(ids))
            for pair in get_rolling_token_windows(ids, self.prefix_token_id, longest, context_len=1):
                windows.append((None, *make_disjoint_window(pair)))
                owners.append(number)
        totals = [0.0] * len(requests)
        for owner, (score, _) in zip(owners, self._loglikelihood_tokens(windows), strict=True):
            totals[owner] += score
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Continue each context until one of its stop strings; greedily, unless the task says otherwise."""
        most = self.max_length
        default = DEFAULT_TOKENS if most is None or most > DEFAULT_TOKENS else max(1, most // 2)
        groups: defaultdict[str, list[int]] = defaultdict(list)
        for number, request in enumerate(requests):
            groups[repr(sorted(request.args[1].items()))].append(number)
        found: dict[int, str] = {}
        for numbers in groups.values():
            given: dict[str, Any] = {**normalize_gen_kwargs(requests[numbers[0]].args[1], default)}
            tokens, until, _ = given.pop("max_gen_toks"), given.pop("until"), given.pop("do_sample")
            if unknown := sorted(set(given) - set(SAMPLING_NAMES)):
                raise InputError(
                    f"generation_kwargs: {', '.join(unknown)} is unknown; expected until, max_gen_toks, do_sample, "
                    f"{', '.join(SAMPLING_NAMES)}."
                )
            if most is not None and tokens >= most:
                raise InputError(
                    f"max_gen_toks = {tokens} leaves no room for a prompt in the context of {most}. "
                    "Set a smaller one under generation_kwargs in the task."
                )
            settings = {SAMPLING_NAMES[name]: value for name, value in given.items() if value is not None}
            ends = [text for text in until if text]
            sampling = Sampling(**{"tokens": tokens, "stop": ends, "temperature": 0.0, **settings})
            numbers.sort(key=lambda number: len(requests[number].args[0]))
            for begin in range(0, len(numbers), PROMPT_BATCH):
                batch = numbers[begin : begin + PROMPT_BATCH]
                prompts = [requests[number].args[0] for number in batch]
                longest = None if most is None else most - tokens
                written = generate_text(self.model, self.words, prompts, sampling, max_prompt_tokens=longest)
                found |= {number: result.text for number, result in zip(batch, written, strict=True)}
        return [found[number] for number in range(len(requests))]


register_model("lemma")(HarnessModel)


@dataclass(frozen=True)
class HarnessScore(Result):
    """What lm_eval measured of a run."""

    run: str
    results: dict[str, dict[str, Any]]
    """Metrics by task, as lm_eval names them: "acc,none" is a metric and the filter of the answers."""
    examples: dict[str, int]
    """How many examples each task has been measured on."""
    shots: dict[str, int]
    """How many examples with answers come before each."""
    version: str
    """lm_eval's."""

    @property
    def title(self) -> str:
        """What it is."""
        return f"{self.run} judged by lm_eval {self.version}"

    def blocks(self) -> Iterable[Block]:
        """One row per task and metric, with its standard error."""
        rows: list[tuple[str, ...]] = []
        for task, metrics in self.results.items():
            for name, value in metrics.items():
                metric, _, kept = name.partition(",")
                if not kept or metric.endswith("_stderr"):
                    continue
                error = metrics.get(f"{metric}_stderr,{kept}")
                shown = f"± {error:.4f}" if isinstance(error, float) else ""
                named = metric if kept == "none" else f"{metric} ({kept})"
                cell = f"{value:.4f}" if isinstance(value, float) else str(value)
                rows.append((task, named, cell, shown, str(self.examples[task]), str(self.shots[task])))
        yield Table(("task", "metric", "value", "", "examples", "shots"), rows, left=(0, 1))
        yield Text(f"measured by lm_eval {self.version}", "note")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        plain = {"results": self.results, "examples": self.examples, "shots": self.shots}
        return {"run": self.run, **plain, "lm_eval": self.version}


def evaluate_tasks(run: Run, tasks: Sequence[str | Path], limit: int | None = None) -> HarnessScore:
    """Measure a run on task files of lm_eval, each example once; `limit` takes the first ones of each task.

    The files are YAML, in which `!function` names Python code that lm_eval imports: name only files that you trust.
    """
    manager, loaded = TaskManager(include_defaults=False), []
    for path in map(Path, tasks):
        if path.suffix not in (".yaml", ".yml") or not path.is_file():
            raise InputError(
                f"{path}: not a YAML file of a task. Tasks that lm_eval brings are for its own command: "
                f"python -m lemma.tasks.harness run --model lemma --model_args run={run.path} --tasks {path}"
            )
        try:
            loaded += manager.load(str(path))["tasks"].values()
        except Exception as error:  # of lm_eval, of datasets, or of the task's own code
            raise InputError(f"{path}: lm_eval cannot load this task ({type(error).__name__}: {error}).") from error
    measure: Any = lm_eval.simple_evaluate
    found = measure(model=HarnessModel(run), tasks=loaded, task_manager=manager, limit=limit, log_samples=False)
    results = {
        task: {name: value for name, value in metrics.items() if "," in name}
        for task, metrics in found["results"].items()
    }
    examples = {task: found["n-samples"][task]["effective"] for task in results}
    shots = {task: found["n-shot"].get(task, 0) for task in results}
    return HarnessScore(str(run.path), results, examples, shots, lm_eval.__version__)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
