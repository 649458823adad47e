"""Third-party programs against a real server: lm_eval's HTTP model, and schemathesis over the OpenAPI document."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from lemma.data.tokenizers import train_tokenizer
from lemma.models.build import build
from lemma.runs.checkpoint import named_weights
from lemma.runs.folder import RunFolder
from lemma.runs.load import load
from lemma.spec.data import BytePairs
from lemma.spec.models import Decoder
from lemma.spec.recipe import Recipe
from served_runs import TEXT, running

WORDS = ["the", "cat", "sat", "on", "mat", "and", "dog", "log", "a"]
TASK = """task: choice
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
  cache_dir: {cache}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: choices
doc_to_target: answer
target_delimiter: ""
metric_list:
  - metric: acc
  - metric: acc_norm
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a byte-pair run with non-uniform predictions and its tokenizer for transformers."""
    folder = tmp_path_factory.mktemp("evaluated")
    tokenizer = train_tokenizer(BytePairs(vocabulary=290), [" ".join(WORDS) + "\n"] * 3)
    spec = Decoder(width=16, depth=1, heads=2, context=64).with_data_sizes({"vocabulary": tokenizer.vocabulary})
    torch.manual_seed(3)
    model = build(spec, 0.0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    run = RunFolder(folder / "decoder", spec, Recipe(device="cpu"), TEXT, "0").create(tokenizer)
    run.finish(named_weights(model, include_frozen=True), {})
    (folder / "words").mkdir()
    shutil.copy(folder / "decoder" / "tokenizer.json", folder / "words")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"}
    (folder / "words" / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_lm_eval_over_http_matches_in_process_results(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, os.environ.get(name, "1"))
    lm_eval = pytest.importorskip("lm_eval", reason="needs lm_eval")
    pytest.importorskip("tenacity", reason="lm_eval's HTTP model needs it")
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from lm_eval.tasks import TaskManager

    from lemma.tasks.harness import HarnessModel, evaluate_tasks

    chance = random.Random(5)
    texts = [" ".join(chance.choice(WORDS) for _ in range(1 + number % 7)) for number in range(30)]
    rows = [
        {"question": texts[number], "choices": [" cat", f" {texts[-number]}", " a log"], "answer": number % 3}
        for number in range(12)
    ]
    data, task = folder / "choice.jsonl", folder / "choice.yaml"
    data.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    task.write_text(TASK.format(data=data, cache=folder / "cache"), encoding="utf-8")

    def asked(kind: str, *arguments: Any) -> list[Any]:
        return [Instance(kind, {}, settings, number) for number, settings in enumerate(arguments)]

    ours = HarnessModel(run := load(folder / "decoder"))
    with running(folder / "decoder") as address:
        words = {"base_url": f"{address}/v1/completions", "tokenizer": str(folder / "words"), "max_length": 65}
        reference = LocalCompletionsAPI(model="decoder", tokenizer_backend="huggingface", batch_size=5, **words)
        pairs = asked("loglikelihood", *[(text, f" {other}") for text, other in zip(texts, texts[7:], strict=False)])
        for current, present in zip(ours.loglikelihood(pairs), reference.loglikelihood(pairs), strict=True):
            assert present == (pytest.approx(current[0], abs=1e-4), current[1])
        full = asked("loglikelihood_rolling", *[(text,) for text in texts[:8]])
        rolled = reference.loglikelihood_rolling(full, disable_tqdm=True)
        assert rolled == pytest.approx(ours.loglikelihood_rolling(full), abs=1e-4)
        until = asked("generate_until", *[(text, {"until": ["at", "e t"], "max_gen_toks": 12}) for text in texts[:8]])
        assert reference.generate_until(until, disable_tqdm=True) == ours.generate_until(until)
        manager = TaskManager(include_defaults=False)
        tasks = list(manager.load(str(task))["tasks"].values())
        measure: Any = lm_eval.simple_evaluate
        result = measure(model=reference, tasks=tasks, task_manager=manager, log_samples=False)["results"]["choice"]
    figures = evaluate_tasks(run, [task]).results["choice"]
    assert {name: result[name] for name in figures} == figures and 0 < figures["acc,none"] < 1


def test_schemathesis_finds_no_server_error(folder: Path) -> None:
    schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis")
    from hypothesis import HealthCheck, Phase, given, settings

    with running(folder / "decoder", tokens=4) as address:
        api = schemathesis.openapi.from_url(f"{address}/openapi.json")
        request = 0
        for operation in (get_all_operation.ok() for get_all_operation in api.get_all_operations()):
            if operation.path == "/count":  # takes seconds for any fields
                continue

            @given(case=operation.as_strategy())
            @settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
            def check(case: Any) -> None:
                nonlocal request
                request += 1
                assert case.call(base_url=address, timeout=20).status_code < 500

            check()
    assert request > 30
