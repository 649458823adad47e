"""Evaluation of runs by lm-evaluation-harness: a run as a model of `lm_eval`, and its scores on task files.

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
from lemma.generation.engine import generate_text
from lemma.generation.sampling import Sampling
from lemma.generation.sequences import start_token
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

DEFAULT_TOKENS = 256  # tokens to generate by default, as in lm_eval
PROMPT_BATCH = 64
SAMPLING_NAMES = {
    **{name: name for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")},
    "no_repeat_ngram_size": "no_repeat_ngram",
}
"""Names in `Sampling` of a task's `generation_kwargs`."""


class HarnessModel(TemplateLM):
    """Adapter of a run to the model interface of `lm_eval`; with equal weights its answers are those of lm_eval's `hf`.

    A text is read as `hf` reads it: a decoder reads at most its context, cut on the left; recurrent and window models
    read all of it. `batch_size` has no effect on results and is not needed.
    """

    def __init__(self, run: str | Path | Run, device: str | None = None, **batch_sizes: Any) -> None:
        super().__init__()
        if others := set(batch_sizes) - {"batch_size", "max_batch_size"}:
            raise InputError(
                f"model_args: unknown argument {', '.join(sorted(others))}; expected run=FOLDER and device=cpu."
            )
        device = device or "cuda"
        device = "cpu" if device.startswith("cuda") and not torch.cuda.is_available() else device
        self.run = load(run, device) if isinstance(run, str | Path) else run
        self.model, self.run_tokenizer = self.run.merge_lora().model, self.run.tokenizer
        self.max_length = self.run.spec.context if isinstance(self.run.spec, Decoder) else None

    @property
    def eot_token_id(self) -> int:
        """Id of the token that precedes the first token of a text."""
        return int([*self.run_tokenizer.encode(""), start_token(self.run_tokenizer)][0])

    @property
    def tokenizer_name(self) -> str:
        """Name that tells tokenizers apart in lm_eval's cache of requests."""
        return self.run_tokenizer.hash

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Return the token ids of a text, with the special tokens of training unless they are switched off."""
        ids = self.run_tokenizer.encode(string)
        return (self.run_tokenizer.encode_batch([string])[0] if add_special_tokens is False else ids).tolist()

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Return (log-probability, is greedy) of the continuation in each request (_, context, continuation)."""
        answers: dict[int, tuple[float, bool]] = {}
        inputs: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)  # requests by the tokens that are read
        for number, (_, context, continuation) in enumerate(requests):
            if self.max_length and len(continuation) > self.max_length:
                raise InputError(
                    f"a continuation has {len(continuation)} tokens, more than the context of {self.max_length}: "
                    "the model cannot read it. Shorten the answers of the task."
                )
            if continuation:
                tokens = [*context, *continuation]
                inputs[tuple(tokens[-self.max_length - 1 : -1] if self.max_length else tokens[:-1])].append(number)
            else:
                answers[number] = (0.0, True)
        rows = list(inputs)
        with measuring(self.model) as device:
            batch_tokens = tokens_per_batch(device, self.model.spec.vocabulary)
            for group in batch_by_length(np.array([len(row) for row in rows], dtype=np.int64), batch_tokens):
                batch = [rows[index] for index in group]
                for row, (log_probs, greedy, last) in zip(
                    batch, self._read_rows(batch, device, batch_tokens), strict=True
                ):
                    for number in inputs[row]:
                        *inner, final = requests[number][2]
                        positions = slice(len(row) - 1 - len(inner), len(row) - 1)
                        total = torch.cat([log_probs[positions], last[final, None]]).sum()
                        is_greedy = bool(greedy[positions].all()) and int(last.argmax()) == final
                        answers[number] = (float(total), is_greedy)
        return [answers[number] for number in range(len(requests))]

    def _read_rows(
        self, rows: Sequence[tuple[int, ...]], device: torch.device, batch_tokens: int
    ) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
        """Yield log-probabilities of token rows, read as one batch padded on the right.

        Returns:
            For each row: the log-probability of each token but the first, whether it is the most likely one, and all
            log-probabilities after the last token.
        """
        tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long, device=device)
        for index, row in enumerate(rows):
            tokens[index, : len(row)] = torch.tensor(row, device=device)
        targets = tokens.roll(-1, dims=1)
        size, state = max(1, batch_tokens // len(rows)), None
        target_log_probs: list[Tensor] = []
        is_greedy: list[Tensor] = []
        last: dict[int, Tensor] = {}
        for start in range(0, tokens.shape[1], size):
            chunk = slice(start, start + size)
            logits, state = self.model(tokens[:, chunk], state)
            log_probs = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
            target_log_probs.append(log_probs.gather(-1, targets[:, chunk, None]).squeeze(-1))
            is_greedy.append(log_probs.argmax(-1) == targets[:, chunk])
            for index, row in enumerate(rows):
                if start < len(row) <= start + size:
                    last[index] = log_probs[index, len(row) - 1 - start].clone()
        by_row = zip(torch.cat(target_log_probs, dim=1), torch.cat(is_greedy, dim=1), strict=True)
        return [(scores, greedy, last[index]) for index, (scores, greedy) in enumerate(by_row)]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the total log-probability of each request's text, read in windows as lm_eval cuts them."""
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
        """Return the text generated after each context, up to a stop string; greedy unless the task says otherwise."""
        context = self.max_length
        default = DEFAULT_TOKENS if context is None or context > DEFAULT_TOKENS else max(1, context // 2)
        groups: defaultdict[str, list[int]] = defaultdict(list)
        for number, request in enumerate(requests):
            groups[repr(sorted(request.args[1].items()))].append(number)
        answers: dict[int, str] = {}
        for numbers in groups.values():
            options: dict[str, Any] = {**normalize_gen_kwargs(requests[numbers[0]].args[1], default)}
            tokens, until, _ = options.pop("max_gen_toks"), options.pop("until"), options.pop("do_sample")
            if unknown := sorted(set(options) - set(SAMPLING_NAMES)):
                raise InputError(
                    f"generation_kwargs: unknown argument {', '.join(unknown)}; expected until, max_gen_toks, "
                    f"do_sample, {', '.join(SAMPLING_NAMES)}."
                )
            if context is not None and tokens >= context:
                raise InputError(
                    f"max_gen_toks = {tokens} leaves no room for a prompt in the context of {context}. "
                    "Set a smaller one under generation_kwargs in the task."
                )
            settings = {SAMPLING_NAMES[name]: value for name, value in options.items() if value is not None}
            stop = [text for text in until if text]
            sampling = Sampling(**{"tokens": tokens, "stop": stop, "temperature": 0.0, **settings})
            numbers.sort(key=lambda number: len(requests[number].args[0]))
            for start in range(0, len(numbers), PROMPT_BATCH):
                batch = numbers[start : start + PROMPT_BATCH]
                prompts = [requests[number].args[0] for number in batch]
                longest = None if context is None else context - tokens
                generations = generate_text(
                    self.model, self.run_tokenizer, prompts, sampling, max_prompt_tokens=longest
                )
                answers |= {number: result.text for number, result in zip(batch, generations, strict=True)}
        return [answers[number] for number in range(len(requests))]


register_model("lemma")(HarnessModel)


@dataclass(frozen=True)
class HarnessScore(Result):
    """Scores of a run by lm_eval."""

    run: str
    results: dict[str, dict[str, Any]]  # metrics by task; "acc,none" is a metric and the filter of the answers
    examples: dict[str, int]  # number of evaluated examples by task
    shots: dict[str, int]  # number of solved examples before each one, by task
    version: str  # version of lm_eval

    @property
    def title(self) -> str:
        """Title of the report: the run and the version of lm_eval."""
        return f"{self.run} judged by lm_eval {self.version}"

    def blocks(self) -> Iterable[Block]:
        """Yield the table of metrics by task, and the version of lm_eval."""
        rows: list[tuple[str, ...]] = []
        for task, metrics in self.results.items():
            for name, value in metrics.items():
                metric, _, answer_filter = name.partition(",")
                if not answer_filter or metric.endswith("_stderr"):
                    continue
                error = metrics.get(f"{metric}_stderr,{answer_filter}")
                error_text = f"± {error:.4f}" if isinstance(error, float) else ""
                metric_text = metric if answer_filter == "none" else f"{metric} ({answer_filter})"
                value_text = f"{value:.4f}" if isinstance(value, float) else str(value)
                rows.append(
                    (task, metric_text, value_text, error_text, str(self.examples[task]), str(self.shots[task]))
                )
        yield Table(("task", "metric", "value", "", "examples", "shots"), rows, left=(0, 1))
        yield Text(f"measured by lm_eval {self.version}", "note")

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values: metrics, numbers of examples and of shots by task."""
        values = {"results": self.results, "examples": self.examples, "shots": self.shots}
        return {"run": self.run, **values, "lm_eval": self.version}


def evaluate_tasks(run: Run, tasks: Sequence[str | Path], limit: int | None = None) -> HarnessScore:
    """Return a run's scores by lm_eval on `tasks`, files in its format; `limit` is the number of examples of each task.

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
    measured = measure(model=HarnessModel(run), tasks=loaded, task_manager=manager, limit=limit, log_samples=False)
    results = {
        task: {name: value for name, value in metrics.items() if "," in name}
        for task, metrics in measured["results"].items()
    }
    examples = {task: measured["n-samples"][task]["effective"] for task in results}
    shots = {task: measured["n-shot"].get(task, 0) for task in results}
    return HarnessScore(str(run.path), results, examples, shots, lm_eval.__version__)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
