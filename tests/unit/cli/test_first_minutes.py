"""First steps of a new user: typing errors, unreadable files, interruptions."""

import codecs
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import lemma
from lemma.cli.common import announce_if_slow
from lemma.cli.main import app, choose_spin_count, main
from lemma.errors import InputError, SpecError
from lemma.report.curves import Curve, Plot
from lemma.report.progress import make_observer
from lemma.spec.studies import read_study
from lemma.training.loop import TrainingResult

BOOK = "the cat sat on the mat and the dog sat on the log\n" * 300
SMALL = ["batch=8", "sequence_length=16", "hidden=16", "width=8", "V=300"]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Return the exit status, stdout and stderr of a command, each as one line."""
    with pytest.raises(SystemExit) as left:
        main(list(words))
    out, err = capsys.readouterr()
    return int(left.value.code or 0), " ".join(out.split()), " ".join(err.split())


def test_help_is_a_command_and_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "help") == run(capsys, "--help")
    assert run(capsys, "help", "train") == run(capsys, "train", "--help")


def test_help_lists_verbs_in_documented_order() -> None:
    output = CliRunner().invoke(app, ["--help"]).output.partition("Commands:")[2]
    names = [line.split()[0] for line in output.splitlines() if line.startswith("  ") and line[2:3].isalpha()]
    verbs = ["count", "check", "train", "evaluate", "generate", "look", "adapt", "export"]
    verbs += ["search", "study", "serve", "data", "verify"]
    assert names[: len(verbs)] == verbs


def test_completion_lists_verbs_without_reading_runs() -> None:
    for typed, expected in (
        ("lemma tr", "train"),
        ("lemma look att", "attention"),
        ("lemma look runs/none --te", "--text"),
    ):
        request = {"_LEMMA_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
        command = [sys.executable, "-c", "from lemma.cli.main import main; main([])"]
        done = subprocess.run(command, env={**os.environ, **request}, capture_output=True, text=True, timeout=60)
        assert done.stdout.split() == [expected], done.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty"),
        (b"\x80\x00\x01\xff" * 100, "there are zero bytes: this is not a text file"),
        (codecs.BOM_UTF16_LE + BOOK.encode("utf-16-le"), "iconv -f utf-16 -t utf-8"),
        ("Café, “quoted”".encode("cp1252"), "iconv -f windows-1252 -t utf-8"),
    ],
)
def test_unreadable_text_files_get_conversion_advice(
    content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_bytes(content)
    status, _, err = run(capsys, "train", "lstm", "--text", "mine.txt", "--out", "runs/a")
    assert status == 2 and said in err and not Path("runs").exists()


def test_unsupported_precision_leaves_no_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("could not create a primitive descriptor for the LSTM. And so on")

    monkeypatch.setattr(torch.nn.LSTM, "forward", refuse)
    (tmp_path / "book.txt").write_text(BOOK)
    sizes = dict(word.split("=") for word in SMALL)
    words = {**{name: int(value) for name, value in sizes.items()}, "precision": "bfloat16", "device": "cpu"}
    with pytest.raises(SpecError, match=r"precision = 'bfloat16'.*Use precision=float32"):
        lemma.train("lstm", text=tmp_path / "book.txt", out=tmp_path / "run", steps=2, **words)
    assert not (tmp_path / "run").exists()


def test_ctrl_c_exits_with_130_and_prints_the_resume_command(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(BOOK)
    words = ["train", "lstm", "--text", "book.txt", "--out", "runs/a", "steps=1000000", *SMALL, "evaluate_every=999999"]
    training = subprocess.Popen(
        [sys.executable, "-m", "lemma", *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert training.stderr
    until = time.monotonic() + 60
    while time.monotonic() < until and "training" not in training.stderr.readline():
        pass
    time.sleep(2)
    training.send_signal(signal.SIGINT)
    out, _ = training.communicate(timeout=60)
    assert training.returncode == 130 and "interrupted" in out
    assert out.rstrip().splitlines()[-1] == "To resume: lemma train --resume runs/a"


@pytest.mark.parametrize(
    "name",
    ["a" * 300, "a/" * 3000, "a\0b", "a\ud800", "x/" + "é" * 200 + ".gguf"],
    ids=["long", "deep", "with a NUL", "with half a pair", "long in bytes"],
)
def test_impossible_file_names_are_input_errors(name: str, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(BOOK)
    for verb in (
        lambda: lemma.count(name),
        lambda: lemma.check.parameters(name, "d"),
        lambda: lemma.check.sheet(name, name),
        lambda: lemma.load(name),
        lambda: lemma.verify(name),
        lambda: lemma.study(name, out=tmp_path / "study"),
        lambda: lemma.train(name, text=tmp_path / "book.txt", out=tmp_path / "run"),
        lambda: lemma.train("lstm", text=name, out=tmp_path / "run"),
        lambda: lemma.train("lstm", text=tmp_path / "book.txt", out=name, steps=1),
    ):
        with pytest.raises(InputError) as caught:
            verb()
        assert len(str(caught.value)) < 10_000


@pytest.mark.parametrize("name", ["families", "lstm-gru", "graph"])
def test_seed_count_expands_to_that_many_seeds(name: str) -> None:
    assert read_study(name, {"seeds": 3}).seeds == (1, 2, 3)
    assert read_study(name, {"seeds": [7]}).seeds == (7,)
    for wrong, output in (
        (0, "at least one seed"),
        ([2, 2], "none twice"),
        ([], "at least one seed"),
        ("many", "seeds"),
    ):
        with pytest.raises(SpecError, match=output):
            read_study(name, {"seeds": wrong})


@pytest.fixture(scope="module")
def book_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("book")
    (folder / "book.txt").write_text(BOOK)
    sizes = {name: int(value) for name, value in (word.split("=") for word in SMALL)}
    lemma.train("lstm", text=folder / "book.txt", out=folder / "run", steps=2, evaluate_every=2, **sizes)
    return folder / "run"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lr=0.1"], "the setting 'lr' is called learning_rate here. Type learning_rate=0.1"),
        (["d_model=8"], "called width here. Type width=8"),
        (["n_layer=2"], "called depth here. Type depth=2"),
        (["block_size=8"], "called sequence_length here"),
        (["learning_rat=1"], "Did you mean 'learning_rate'?"),
        (["zzz=1"], "unknown setting 'zzz'. Choices:"),
    ],
)
def test_setting_names_of_other_libraries_are_translated(words: list[str], said: str, capsys) -> None:
    status, _, err = run(capsys, "train", "lstm", "--text", "none.txt", "--out", "runs/a", *words)
    assert status == 2 and said in err


@pytest.mark.parametrize(
    ("name", "meant"),
    [("transformer", "decoder"), ("gpt", "decoder"), ("BERT", "encoder"), ("lstn", "lstm"), ("xyz", "")],
)
def test_unknown_model_names_suggest_the_nearest_preset(name: str, meant: str, capsys) -> None:
    status, _, err = run(capsys, "train", name, "--text", "none.txt", "--out", "runs/a")
    assert status == 2 and (f"Did you mean '{meant}'?" in err if meant else "Did you mean" not in err)


def test_module_instance_is_counted_by_number() -> None:
    from torch import nn

    with pytest.warns(UserWarning, match=r"counted by number\. For formulas, give what builds it"):
        account = lemma.count(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    assert int(account.parameters.number) == 3 * 4 + 4 + 4 * 2 + 2 == int(account.parameters.formula)


def test_random_seed_is_reported_unless_set(book_run: Path, capsys) -> None:
    settings = {"tokens": 30, "temperature": 1.0}
    item, other = (lemma.generate(book_run, "the", **settings) for _ in range(2))
    assert item.seed != other.seed and item.text != other.text and f"seed: {item.seed}" in str(item)
    again = lemma.generate(book_run, "the", seed=item.seed, **settings)
    assert again.text == item.text and again.seed is None
    assert lemma.generate(book_run, "the", tokens=3, temperature=0).seed is None
    with suppress(SystemExit):
        main(["generate", str(book_run), "--prompt", "the", "--tokens", "5", "--ignore-eos", "--json"])
    out = capsys.readouterr().out
    assert len(json.loads(out)["tokens"]) == 5
    assert any(line.strip().startswith('"tokens": [') and line.rstrip().endswith("],") for line in out.splitlines())


def test_generated_text_never_starts_inside_a_character() -> None:
    from lemma.data.tokenizers import train_tokenizer
    from lemma.generation.sequences import Detokenizer
    from lemma.spec.data import BytePairs

    tokenizer = train_tokenizer(BytePairs(vocabulary=258), ["abc"])
    half, tail = tokenizer.encode("é").tolist()
    spelling = Detokenizer(tokenizer, [tokenizer.eos or 0])
    pieces = [spelling.add(token) for token in (tail, *tokenizer.encode("aé").tolist(), half, *tokenizer.encode("b"))]
    assert "".join(pieces) == "aé\N{REPLACEMENT CHARACTER}b"  # an incomplete character inside the text is shown


def test_notebook_progress_updates_one_display(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[str] = []

    class Display:
        HTML = staticmethod(str)

        @staticmethod
        def display(what: str, display_id: bool) -> "Display":
            rendered.append(f"new {what}")
            return Display()

        def update(self, what: str) -> None:
            rendered.append(what)

    kernel = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "IPython.display", Display)
    watcher = make_observer()
    watcher.start("training", 10, "steps")
    watcher.report({"step": 5, "loss": 1.5})
    watcher.advance(10)
    watcher.finish()
    assert [line.startswith("new") for line in rendered] == [True, False, False]
    assert "training: 10 of 10 steps · loss 1.500" in rendered[-1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"temperature": "hot"}, r"temperature = 'hot' \(str\) is not a number"),
        ({"tokens": 2.5}, r"tokens = 2.5 \(float\) is not a whole number"),
        ({"top_k": "few"}, "top_k = 'few'"),
        ({"top_p": "most"}, "top_p = 'most'"),
        ({"seed": "x"}, "seed = 'x'"),
        ({"tokens": True}, r"tokens = True \(bool\)"),
        ({"prompt": 5}, r"prompt = 5 \(int\) is not a text"),
    ],
)
def test_settings_of_the_wrong_type_are_named(settings: dict, said: str, book_run: Path) -> None:
    with pytest.raises(SpecError, match=said):
        lemma.generate(book_run, **{"prompt": "the", "tokens": 3, **settings})


def test_language_model_json_includes_perplexity(book_run: Path) -> None:
    saved = json.loads((book_run / "summary.json").read_text())
    assert saved["perplexity"] > 1 and saved["best_perplexity"] > 1


@pytest.mark.parametrize("family", ["parser", "classifier", "graph", "dual-encoder", "lstm"])
def test_tree_and_classifier_json_omits_perplexity(family: str, book_run: Path) -> None:
    summary = json.loads((book_run / "summary.json").read_text())
    done = TrainingResult.from_dict({**summary, "family": family})
    base = done.to_dict()
    assert ("perplexity" in base, "best_perplexity" in base) == (family == "lstm", family == "lstm")
    assert TrainingResult.from_dict(base).best_loss == done.best_loss, "it can still be read"


def test_unordered_plot_points_are_not_connected() -> None:
    pytest.importorskip("altair")
    curves = (Curve("a", (0.0, 1.0, 2.0), (3.0, 1.0, 2.0), dots=True),)
    merged, separate = (Plot("", "", curves, joined=merged).svg() for merged in (True, False))
    assert merged.count("mark-line") and not separate.count("mark-line")
    assert merged.count("mark-symbol") and separate.count("mark-symbol")


def test_wait_messages_appear_only_on_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    output: list[str] = []
    monkeypatch.setattr("lemma.cli.common.ANNOUNCE_AFTER", 0.01)
    monkeypatch.setattr("lemma.cli.common.print_message", lambda message, to_stderr: output.append(message))
    for terminal in (False, True):
        monkeypatch.setattr("sys.stderr.isatty", lambda terminal=terminal: terminal, raising=False)
        with announce_if_slow("counting"):
            time.sleep(0.2)
        assert output == ["counting"] * terminal


def test_openmp_threads_yield_on_shared_cores() -> None:
    idle, busy = "0.1 0.2 0.3 1/200 42", f"9.0 9.0 9.0 {(os.cpu_count() or 1) + 1}/200 42"
    assert [choose_spin_count(load) for load in (idle, busy, "", "what is this")] == [10_000, 1_000, 10_000, 10_000]
    code = """
import os
before = dict(os.environ)
import lemma, lemma.cli.main, lemma.api
print(dict(os.environ) == before)
try:
    lemma.cli.main.main(["--version"])
finally:
    print(os.environ.get("GOMP_SPINCOUNT"))
"""
    clean = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    printed = [
        subprocess.run(
            [sys.executable, "-c", code], env={**clean, **setting}, capture_output=True, text=True
        ).stdout.split()
        for setting in ({}, {"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "PASSIVE"})
    ]
    assert {unchanged for unchanged, *_ in printed} == {"True"}, "import leaves the environment alone"
    assert printed[0][-1] in ("1000", "10000") and [words[-1] for words in printed[1:]] == ["7", "None"]
