"""Output, exit status and files of the command line."""

import contextlib
import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lemma.cli.main import app
from lemma.errors import RunError, SpecError
from pages.running import Done, run_in_process, run_in_subprocess

TEXT = "the cat sat on the mat and the dog sat on the log\n" * 200


def lemma(*words: str, folder: Path, apart: bool = False) -> Done:
    """Run a command in a folder, in this process or (`apart`) in a new one, which takes seconds."""
    with contextlib.chdir(folder):
        return (run_in_subprocess if apart else run_in_process)(["lemma", *words])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small book and a trained run in it."""
    folder = tmp_path_factory.mktemp("person")
    (folder / "book.txt").write_text(TEXT, encoding="utf-8")
    words = ["steps=30", "batch=8", "sequence_length=16", "hidden=32", "width=16", "V=300"]
    done = lemma("train", "lstm", "--text", "book.txt", "--out", "runs/a", *words, folder=folder, apart=True)
    assert done.status == 0, done.stderr
    assert "parameters" in done.stdout
    assert "sample" in done.stdout
    return folder


def test_training_writes_the_files_of_a_run(folder: Path) -> None:
    names = {path.name for path in (folder / "runs/a").iterdir()}
    assert {"spec.toml", "recipe.toml", "tokenizer.json", "metrics.jsonl", "model.safetensors", "checkpoints"} <= names


def test_evaluate_prints_one_json_object(folder: Path) -> None:
    done = lemma("evaluate", "runs/a", "--json", folder=folder)
    result = json.loads(done.stdout)
    assert set(result) == {"perplexity", "loss", "bits_per_byte", "tokens", "protocol"}
    assert len(result["protocol"]["data_hash"]) == 64
    assert result["protocol"]["tokenizer"].startswith("byte-pairs")
    assert result["perplexity"] == pytest.approx(2.718281828459045 ** result["loss"])


def test_evaluating_other_text_reports_its_checksum(folder: Path) -> None:
    (folder / "other.txt").write_text("the dog sat\n" * 50, encoding="utf-8")
    result = json.loads(lemma("evaluate", "runs/a", "--text", "other.txt", "--json", folder=folder).stdout)
    expected = hashlib.sha256((folder / "other.txt").read_bytes()).hexdigest()
    assert result["protocol"]["data_hash"] == expected


def test_seeded_generation_is_reproducible_across_processes(folder: Path) -> None:
    words = ["generate", "runs/a", "--prompt", "The", "--tokens", "20", "--seed", "7"]
    first_result, again = (lemma(*words, folder=folder, apart=separate).stdout for separate in (True, False))
    assert first_result.startswith("The")
    assert first_result == again
    assert first_result != lemma(*words[:-1], "8", folder=folder).stdout


def test_greedy_generation_reports_its_loop(folder: Path) -> None:
    words = ["generate", "runs/a", "--prompt", "the", "--tokens", "400", "--temperature", "0", "--json"]
    result = json.loads(lemma(*words, folder=folder).stdout)
    assert set(result) == {"prompt", "text", "tokens", "loop", "stopped", "tokens_per_second", "logprobs", "seed"}
    loop, tokens = result["loop"], result["tokens"]
    if loop is not None:
        assert tokens[loop["onset"] : -loop["period"]] == tokens[loop["onset"] + loop["period"] :]


def test_resuming_a_finished_run_changes_nothing(folder: Path) -> None:
    before = (folder / "runs/a/model.safetensors").read_bytes()
    done = lemma("train", "--resume", "runs/a", folder=folder)
    assert done.status == 0, done.stderr
    assert (folder / "runs/a/model.safetensors").read_bytes() == before


WRONG = {
    "a wrong preset": (["train", "lsmt", "--text", "book.txt", "--out", "runs/x"], "Did you mean 'lstm'"),
    "a wrong key": (["train", "lstm", "--text", "book.txt", "--out", "runs/x", "hiden=3"], "Did you mean 'hidden'"),
    "a wrong value": (["train", "lstm", "--text", "book.txt", "--out", "runs/x", "hidden=many"], "hidden = 'many'"),
    "a missing file": (["train", "lstm", "--text", "bok.txt", "--out", "runs/x"], "bok.txt"),
    "an empty file": (["train", "lstm", "--text", "empty.txt", "--out", "runs/x"], "empty.txt"),
    "a directory": (["train", "lstm", "--text", "runs", "--out", "runs/x"], "folder"),
    "undecodable bytes": (["train", "lstm", "--text", "bytes.txt", "--out", "runs/x"], "byte 6"),
    "too short a text": (["train", "lstm", "--text", "short.txt", "--out", "runs/x"], "token"),
    "no text": (["train", "lstm", "--out", "runs/x"], "--text is missing"),
    "no place to go": (["train", "lstm", "--text", "book.txt"], "--out is missing"),
    "no model": (["train", "--text", "book.txt", "--out", "runs/x"], "MODEL is missing"),
    "a run that is there": (["train", "lstm", "--text", "book.txt", "--out", "runs/a"], "--resume"),
    "no run": (["evaluate", "runs/none"], "runs/none"),
    "a folder that is not a run": (["generate", "runs"], "runs"),
    "a wrong split": (["evaluate", "runs/a", "--split", "tset"], "split"),
    "a negative temperature": (["generate", "runs/a", "--temperature", "-1"], "temperature"),
    "a wrong option": (["generate", "runs/a", "--tempreture", "1"], "temperature"),
    "a wrong study": (["study", "familes", "--out", "s"], "Did you mean 'families'"),
    "an odd batch": (
        ["train", "lstm", "--text", "book.txt", "--out", "runs/x", "batch=7", "accumulate=2"],
        "accumulate",
    ),
}


BESIDE_RESUME = ["--limit=3", "--overwrite", "--label-column=a", "--text-column=a", "--source-column=a", "--settings"]
BESIDE_RESUME += [
    "--target-column=a",
    "--text=a",
    "--treebank=a",
    "--validation=a",
    "--test=a",
    "--pairs=a",
    "--labels=a",
    "--out=a",
]
BESIDE_SOURCE = ["--temperature=0.8", "--top-k=2", "--top-p=0.5", "--seed=1", "--samples=1", "--stop-at-loop"]
BESIDE_SOURCE += ["--ignore-eos", "--no-ignore-eos", "--prompt=a"]


def refusal(words: list[str]) -> str:
    """Return the error of a command run in this process, which is faster than a process per command."""
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, SpecError), result.output
    return str(result.exception)


@pytest.mark.parametrize("option", BESIDE_RESUME)
def test_resume_rejects_other_options(option: str) -> None:
    message = refusal(["train", "--resume", "runs/a", option])
    assert "takes only KEY=VALUE settings" in message and f"Leave out {option.partition('=')[0]}." in message


@pytest.mark.parametrize("option", BESIDE_SOURCE)
def test_source_rejects_options_for_prompts(option: str) -> None:
    name = option.partition("=")[0].replace("--no-", "--")
    assert f"{name}: for text after a prompt" in refusal(["generate", "runs/a", "--source", "Go.", option])


@pytest.mark.parametrize("option", ["--beam=2", "--length-penalty=1"])
def test_prompt_rejects_options_for_sources(option: str) -> None:
    assert f"{option.partition('=')[0]}: for translations" in refusal(["generate", "runs/a", option])


def test_training_a_tree_on_text_suggests_labels_and_parser() -> None:
    message = refusal(["train", "tree", "--text", "book.txt", "--out", "runs/x"])
    assert "lemma train tree --labels tweets --parser runs/parser --out runs/a" in message


def test_help_of_generate_states_the_actual_defaults(folder: Path) -> None:
    words = ["generate", str(folder / "runs/a"), "--prompt", "the", "--json"]
    settings = ["--tokens=200", "--temperature=0.8", "--seed=1", "--samples=1", "--no-stop-at-loop", "--no-ignore-eos"]
    base, spelt = (json.loads(CliRunner().invoke(app, [*words, *more]).stdout) for more in (["--seed=1"], settings))
    assert base["tokens"] == spelt["tokens"]
    help = " ".join(CliRunner().invoke(app, ["generate", "--help"], env={"COLUMNS": "400"}).stdout.split())
    assert all(f"Default: {value}" in help for value in ("200", "0.8", "1", "no"))


@pytest.mark.parametrize("case", WRONG)
def test_invalid_input_exits_with_2_and_writes_nothing(case: str, folder: Path) -> None:
    (folder / "empty.txt").write_bytes(b"")
    (folder / "bytes.txt").write_bytes(b"hello \xff\xfe world\n" * 100)
    (folder / "short.txt").write_text("a b c\n", encoding="utf-8")
    words, message = WRONG[case]
    done = lemma(*words, folder=folder, apart=case == "a wrong key")
    assert done.status == 2, done.stderr + done.stdout
    assert message in " ".join(done.stderr.split()), done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout
    assert not (folder / "runs/x").exists()


def test_debug_option_shows_the_traceback(folder: Path) -> None:
    with pytest.raises(RunError, match="runs/none"):
        lemma("evaluate", "runs/none", "--debug", folder=folder)
