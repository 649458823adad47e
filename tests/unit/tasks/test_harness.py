"""Evaluation by lm_eval against its `hf` model on the same weights and against full-sequence scoring."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
pytest.importorskip("lm_eval", reason="needs lm_eval")

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager
from typer.testing import CliRunner

import lemma
from lemma.cli.main import app
from lemma.data.tokenizers import train_tokenizer
from lemma.errors import InputError, RunError, SpecError
from lemma.generation.sequences import strip_partial_character
from lemma.models.build import build
from lemma.runs.checkpoint import named_weights
from lemma.runs.folder import RunFolder
from lemma.runs.load import Run, load
from lemma.spec.data import BytePairs, Characters, DataSpec
from lemma.spec.models import Decoder, FeedForward, Lstm, ModelSpec
from lemma.spec.recipe import Recipe
from lemma.tasks.harness import HarnessModel
from served_runs import untrained

LINES = ["the cat sat on the mat and the dog sat on the log\n", "a dog and a cat, a log and a mat\n"] * 3
WORDS = ["the", "cat", "sat", "on", "mat", "and", "dog", "log", "a"]
SPECS: dict[str, tuple[ModelSpec, Any]] = {
    "decoder": (Decoder(width=16, depth=2, heads=2, context=32), BytePairs(vocabulary=290)),
    "rotary": (Decoder(width=16, depth=1, heads=2, context=32, positions="rotary"), BytePairs(vocabulary=290)),
    "lstm": (Lstm(width=8, hidden=12), Characters()),
    "window": (FeedForward(width=6, hidden=9, context=4), Characters()),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("harness")


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, Run]:
    """Return untrained runs with non-uniform predictions."""
    built = {}
    for name, (spec, words) in SPECS.items():
        tokenizer = train_tokenizer(words, LINES)
        sized = spec.with_data_sizes({"vocabulary": tokenizer.vocabulary})
        torch.manual_seed(3)
        model = build(sized, 0.0)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
        run = RunFolder(folder / name, sized, Recipe(device="cpu"), DataSpec(text=("x",)), "0").create(tokenizer)
        run.finish(named_weights(model, include_frozen=True), {"steps": 1})
        built[name] = load(folder / name)
    return built


@pytest.fixture(scope="module")
def tasks(folder: Path, runs: dict[str, Run]) -> dict[str, Path]:
    """Return one task file of each kind, with small data."""
    chance = random.Random(5)

    def text(count: int) -> str:
        return " ".join(chance.choice(WORDS) for _ in range(count))

    def write(name: str, settings: str, rows: list[dict[str, Any]]) -> Path:
        data, path = folder / f"{name}.jsonl", folder / f"{name}.yaml"
        data.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        files = f"dataset_kwargs:\n  data_files:\n    test: {data}\n  cache_dir: {folder / 'cache'}\n"
        head = f"task: {name}\ndataset_path: json\n{files}test_split: test\n"
        path.write_text(head + settings, encoding="utf-8")
        return path

    choices = [
        {"question": text(3 + number), "choices": [" cat", " " + text(2), " " + text(4)], "answer": number % 3}
        for number in range(12)
    ]
    settings = """output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: choices
doc_to_target: answer
target_delimiter: ""
metric_list:
  - metric: acc
  - metric: acc_norm
"""
    texts = [{"text": text(count)} for count in (1, 20, 45, 80)]
    rolling = """output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - metric: word_perplexity
  - metric: byte_perplexity
  - metric: bits_per_byte
"""
    questions = [text(2 + 3 * number) for number in range(8)]
    until = {"until": ["at", "e t"], "max_gen_toks": 12}
    output = exported(runs["decoder"]).generate_until(
        requests("generate_until", *[(question, until) for question in questions])
    )
    answers = [answer if number % 3 else "og" for number, answer in enumerate(output)]
    request = [{"question": question, "answer": answer} for question, answer in zip(questions, answers, strict=True)]
    generating = """output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs:
  until: ["at", "e t"]
  max_gen_toks: 12
metric_list:
  - metric: exact_match
"""
    return {
        "choice": write("choice", settings, choices),
        "rolling": write("rolling", rolling, texts),
        "generate": write("generate", generating, request),
    }


def requests(kind: str, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, settings, number) for number, settings in enumerate(arguments)]


def pairs() -> list[tuple[str, str]]:
    """Return contexts and continuations: long, empty and with shared contexts."""
    chance = random.Random(9)
    texts = [" ".join(chance.choice(WORDS) for _ in range(count)) for count in (1, 3, 6, 12, 30, 40)]
    ends = [" cat", " mat and the dog", "a", " log, a"]
    return [(text, end) for text in texts for end in ends] + [("", "the cat"), ("", "a"), ("a cat ", "and")]


def score_uncached(run: Run, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """Score one pair by one pass over its full text, in float64."""
    longest = run.spec.context if isinstance(run.spec, Decoder) else 10**9  # pyright: ignore
    full = (context + continuation)[-longest - 1 :]
    with torch.no_grad():
        logits, _ = run.model(torch.tensor([full[:-1]]))
    logs, count = logits[0].double().log_softmax(-1)[-len(continuation) :], len(continuation)
    total = sum(logs[index, token].item() for index, token in enumerate(continuation))
    return total, logs.argmax(-1).tolist() == full[-count:]


@pytest.mark.parametrize("name", SPECS)
def test_harness_loglikelihoods_match_single_pair_scores(name: str, runs: dict[str, Run]) -> None:
    run, settings = runs[name], pairs()
    result = HarnessModel(run).loglikelihood(requests("loglikelihood", *settings))
    encode = run.tokenizer.encode
    start = run.tokenizer.eos if run.tokenizer.eos is not None else int(encode("\n")[0])
    for (context, continuation), (total, greedy) in zip(settings, result, strict=True):
        if context.endswith(" "):
            context, continuation = context[:-1], " " + continuation
        full, before = encode(context + continuation).tolist(), encode(context).tolist()
        expected = score_uncached(run, before or [start], full[len(before) :])
        assert total == pytest.approx(expected[0], abs=1e-4) and greedy == expected[1]


def test_greedy_continuation_is_marked_greedy(runs: dict[str, Run]) -> None:
    run = runs["lstm"]
    text = lemma.generate(run, "the cat", tokens=6, temperature=0.0).text
    (_, greedy), (_, other) = HarnessModel(run).loglikelihood(
        requests("loglikelihood", ("the cat", text), ("the cat", text[:-1] + ("a" if text[-1] != "a" else "c")))
    )
    assert greedy and not other


@pytest.mark.parametrize("name", SPECS)
def test_rolling_loglikelihood_uses_lm_eval_windows(name: str, runs: dict[str, Run]) -> None:
    run = runs[name]
    texts = ["the cat sat", "", " ".join(WORDS * 12)]
    result = HarnessModel(run).loglikelihood_rolling(requests("loglikelihood_rolling", *[(text,) for text in texts]))
    start = run.tokenizer.eos if run.tokenizer.eos is not None else int(run.tokenizer.encode("\n")[0])
    for text, total in zip(texts, result, strict=True):
        ids = run.tokenizer.encode(text).tolist()
        longest = 32 if isinstance(run.spec, Decoder) else max(1, len(ids))
        expected, done = 0.0, 0
        while done < len(ids):  # each window predicts as many new tokens as fit, the last one with a full context
            end = min(len(ids), done + longest)
            before = ([start, *ids])[: done + 1] if done == 0 else ids[max(0, end - longest - 1) : done]
            expected += score_uncached(run, before, ids[done:end])[0]
            done = end
        assert total == pytest.approx(expected, abs=1e-3)


def test_harness_scores_do_not_depend_on_chunking(runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    settings, lm = requests("loglikelihood", *pairs()), HarnessModel(runs["lstm"])
    full = lm.loglikelihood(settings)
    monkeypatch.setattr("lemma.tasks.harness.tokens_per_batch", lambda device, logits: 7)
    assert [score for score, _ in lm.loglikelihood(settings)] == pytest.approx([score for score, _ in full], abs=1e-5)


def exported(run: Run) -> Any:
    """Return lm_eval's `HFLM` on the exported run."""
    pytest.importorskip("transformers")
    from lm_eval.models.huggingface import HFLM

    out = run.path.with_name(f"{run.path.name}-huggingface")
    if not out.exists():
        lemma.export(run.path, to="huggingface", out=out)
    return HFLM(pretrained=str(out), batch_size=4, device="cpu", backend="causal")


def test_harness_answers_match_lm_eval_hf_model(runs: dict[str, Run]) -> None:
    ours, reference = HarnessModel(runs["decoder"]), exported(runs["decoder"])
    options = requests("loglikelihood", *pairs())
    for (item, greedy), (other, reference_greedy) in zip(
        ours.loglikelihood(options), reference.loglikelihood(options), strict=True
    ):
        assert item == pytest.approx(other, abs=1e-4) and greedy == reference_greedy
    texts = requests("loglikelihood_rolling", ("the cat",), (" ".join(WORDS * 9),), ("a",))
    assert ours.loglikelihood_rolling(texts) == pytest.approx(reference.loglikelihood_rolling(texts), abs=1e-3)
    kinds: list[dict[str, Any]] = [
        {"until": ["\n", " c"], "max_gen_toks": 9},
        {"until": "at", "max_gen_toks": 20},
        {"until": [], "max_gen_toks": 5, "repetition_penalty": 1.5},
        {"until": ["e"], "max_gen_toks": 16, "no_repeat_ngram_size": 2},
    ]
    for settings in kinds:
        prompts = [(text, settings) for text, _ in pairs() if text]
        request = requests("generate_until", *prompts)
        # Lemma's texts never begin with a partial character
        expected = [
            strip_partial_character(runs["decoder"].tokenizer, text) for text in reference.generate_until(request)
        ]
        assert ours.generate_until(request) == expected


@pytest.mark.parametrize("kind", ["choice", "rolling", "generate"])
def test_harness_task_scores_match_lm_eval_on_the_export(
    kind: str, runs: dict[str, Run], tasks: dict[str, Path]
) -> None:
    score: Any = lemma.evaluate(runs["decoder"], harness=tasks[kind])
    manager = TaskManager(include_defaults=False)
    reference: Any = simple_evaluate(model=exported(runs["decoder"]), tasks=[str(tasks[kind])], task_manager=manager)
    expected = {name: value for name, value in reference["results"][kind].items() if "," in name}
    assert set(score.results[kind]) == set(expected) and len(expected) >= 2
    for name, value in expected.items():
        exact = kind != "rolling"
        result = score.results[kind][name]
        assert result == value if exact or isinstance(value, str) else result == pytest.approx(value, rel=1e-5)
    if kind == "generate":
        assert 0.5 < score.results[kind]["exact_match,none"] < 1
    assert score.examples[kind] == {"choice": 12, "rolling": 4, "generate": 8}[kind]


def test_every_family_runs_every_kind_of_harness_task(runs: dict[str, Run], tasks: dict[str, Path]) -> None:
    for name in ("lstm", "window", "rotary"):
        score: Any = lemma.evaluate(runs[name], harness=list(tasks.values()), limit=3)
        assert list(score.results) == ["choice", "rolling", "generate"] and score.examples["choice"] == 3
        assert 0 <= score.results["choice"]["acc,none"] <= 1
        assert "word_perplexity" in str(score) and "measured by lm_eval" in str(score)
        assert json.loads(json.dumps(score.to_dict()))["results"]["rolling"]["bits_per_byte,none"] > 0


def test_harness_command_prints_one_json_object(runs: dict[str, Run], tasks: dict[str, Path]) -> None:
    words = ["evaluate", str(runs["lstm"].path), "--harness", str(tasks["choice"]), "--limit", "5", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    score: Any = lemma.evaluate(runs["lstm"], harness=tasks["choice"], limit=5)
    assert json.loads(done.stdout) == score.to_dict() and score.examples == {"choice": 5}


# `python -m lemma.tasks.harness` without reading lm_eval's 13,000 task files, which is slow
HARNESS = """
import runpy
import lm_eval.tasks
class OnlyOurs(lm_eval.tasks.TaskManager):
    def __init__(self, *given, **settings):
        super().__init__(*given, **{**settings, "include_defaults": False})
lm_eval.tasks.TaskManager = OnlyOurs
runpy.run_module("lemma.tasks.harness", run_name="__main__", alter_sys=True)
"""


def test_lm_eval_command_loads_the_lemma_model(folder: Path, runs: dict[str, Run], tasks: dict[str, Path]) -> None:
    words = ["run", "--model", "lemma", "--model_args", "run=lstm", "--tasks", str(tasks["choice"])]
    command = [sys.executable, "-c", HARNESS, *words, "--output_path", "out"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    (path,) = (folder / "out").rglob("results_*.json")
    score: Any = lemma.evaluate(runs["lstm"], harness=tasks["choice"])
    assert json.loads(path.read_text())["results"]["choice"]["acc,none"] == score.results["choice"]["acc,none"]
    assert "acc_norm" in done.stdout


def test_harness_task_may_import_adjacent_code(folder: Path, runs: dict[str, Run], tasks: dict[str, Path]) -> None:
    (folder / "ours.py").write_text("def question(doc):\n    return 'the ' + doc['question']\n", encoding="utf-8")
    changed = tasks["choice"].read_text().replace('"{{question}}"', "!function ours.question")
    (folder / "coded.yaml").write_text(changed.replace("task: choice", "task: coded"), encoding="utf-8")
    score: Any = lemma.evaluate(runs["lstm"], harness=folder / "coded.yaml")
    assert list(score.results) == ["coded"]


def test_unsupported_harness_requests_are_rejected_with_the_reason(
    folder: Path, runs: dict[str, Run], tasks: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="hellaswag: not a YAML file of a task"):
        lemma.evaluate(runs["lstm"], harness="hellaswag")
    (folder / "bad.yaml").write_text("task: bad\ndataset_path: json\ndataset_kwargs: {data_files: none.jsonl}\n")
    with pytest.raises(InputError, match=r"bad.yaml: lm_eval cannot load this task"):
        lemma.evaluate(runs["lstm"], harness=folder / "bad.yaml")
    with pytest.raises(SpecError, match="evaluate: text, split: not with harness"):
        lemma.evaluate(runs["lstm"], text="x.txt", split="test", harness=tasks["choice"])
    with pytest.raises(RunError, match="a translator"):
        lemma.evaluate(untrained(folder, "spanish"), harness=tasks["choice"])
    lm = HarnessModel(runs["decoder"])
    with pytest.raises(InputError, match=r"a continuation has .* tokens, more than the context of 32"):
        lm.loglikelihood(requests("loglikelihood", ("a", " zebra" * 40)))
    with pytest.raises(InputError, match="unknown argument num_beams"):
        lm.generate_until(requests("generate_until", ("a", {"until": ["b"], "num_beams": 4})))
    with pytest.raises(InputError, match="max_gen_toks = 32 leaves no room"):
        lm.generate_until(requests("generate_until", ("a", {"until": ["b"], "max_gen_toks": 32})))
    with pytest.raises(InputError, match="model_args: unknown argument pretrained"):
        HarnessModel(runs["lstm"], pretrained="gpt2")
    monkeypatch.setattr("lemma.api.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs lm_eval, not installed here: pip install 'lemma-lm\[harness\]'"):
        lemma.evaluate(runs["lstm"], harness=tasks["choice"])
