"""Arguments checked before any work: epochs, warm-up, objects that are not runs or models."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import lemma
from lemma.cli.main import app
from lemma.errors import LemmaError, SpecError
from lemma.runs.folder import RunFolder

SMALL: dict[str, Any] = {"width": 8, "hidden": 8, "batch": 4, "sequence_length": 8, "tokenizer": "characters"}
RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    lines = [f"line {number} of a text that is long enough\n" for number in range(40)]
    (tmp_path / "a.txt").write_text("".join(lines))
    rows = [f"{'good' if number % 2 else 'bad'} film {number},{number % 2}" for number in range(40)]
    (tmp_path / "labels.csv").write_text("\n".join(["text,label", *rows]))
    return tmp_path / "a.txt"


def test_epochs_are_converted_to_steps_over_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[int] = []

    def note(session: Any) -> bool:
        seen.append(len(session.batches.tokens))
        return True

    lemma.train("lstm", text="a.txt", epochs=3, out="run", on_step=note, **SMALL)
    steps = -(-3 * seen[0] // (4 * 8))
    assert RunFolder.open(Path("run")).recipe.steps == steps
    assert f"epochs = 3: {steps:,} steps" in capsys.readouterr().err


def test_epochs_are_converted_to_steps_over_examples() -> None:
    settings = {"width": 8, "hidden": 8, "batch": 8, "tokenizer": "words", "held_out": 0.2}
    lemma.train("lstm", labels="labels.csv", epochs=2, out="run", **settings)
    assert RunFolder.open(Path("run")).recipe.steps == 2 * 24 // 8  # a fifth each is used for validation and test
    lemma.adapt("run", labels="labels.csv", epochs=3, method="full", batch=4, out="adapted", progress=False)
    assert RunFolder.open(Path("adapted")).recipe.steps == 3 * 32 // 4  # a tenth each is used for validation and test


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"epochs": 2, "steps": 10}, "steps and epochs are both given"),
        ({"epochs": 0}, "above 0"),
        ({"epochs": "many"}, "a number above 0 is expected"),
        ({"epochs": True}, "a number above 0 is expected"),
    ],
)
def test_invalid_epochs_are_rejected(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        lemma.train("lstm", text="a.txt", out="run", progress=False, **{**SMALL, **settings})


def test_train_command_accepts_epochs() -> None:
    words = [f"{name}={value}" for name, value in SMALL.items()]
    done = RUNNER.invoke(app, ["train", "lstm", "--text", "a.txt", "--out", "run", *words, "epochs=1"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("settings", "warm_up"), [({}, 1), ({"warm_up": 5}, 5), ({"warm_up": 50}, 1), ({"warm_up": 12}, 12)]
)
def test_warm_up_is_shortened_for_few_steps(
    settings: dict[str, Any], warm_up: int, capsys: pytest.CaptureFixture[str]
) -> None:
    lemma.train("rnn", text="a.txt", steps=12, out="run", **SMALL, **settings)
    assert RunFolder.open(Path("run")).recipe.warm_up == warm_up
    shortened = warm_up < settings.get("warm_up", 50)
    assert ("The warm-up takes 1 of 12 steps, not 50" in capsys.readouterr().err) == shortened


VERBS: dict[str, Callable[[Any], Any]] = {
    "train": lambda model: lemma.train(model, text="a.txt", out="run"),
    "evaluate": lambda model: lemma.evaluate(model),
    "generate": lambda model: lemma.generate(model, prompt="a"),
    "look": lambda model: lemma.look(model, text="a"),
    "look.parse": lambda model: lemma.look.parse(model, text="a"),
    "look.corpus": lambda model: lemma.look.corpus(model, "a.txt"),
    "adapt": lambda model: lemma.adapt(model, text="a.txt", out="run"),
    "adapt.compare": lambda model: lemma.adapt.compare(model, text="a.txt", out="run"),
    "export": lambda model: lemma.export(model, to="gguf", out="run"),
    "resume": lambda model: lemma.resume(model),
    "search": lambda model: lemma.search(model, images="a", query="b"),
    "load": lambda model: lemma.load(model),
    "study": lambda model: lemma.study(model, out="run"),
    "verify": lambda model: lemma.verify(model),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("model", [nn.Linear(2, 2), torch.zeros(2), 3, {"a": 1}])
def test_verbs_reject_objects_that_are_not_runs_or_models(verb: str, model: Any) -> None:
    with pytest.raises(LemmaError, match=rf"a {re.escape(type(model).__name__)} is not a (run|model|study)"):
        VERBS[verb](model)


def test_invalid_epochs_are_rejected_before_reading_data(tmp_path: Path) -> None:
    for epochs in ("abc", 0, float("nan"), [1], True):
        with pytest.raises(SpecError, match=r"epochs = .*a number above 0 is expected"):
            lemma.train("lstm", text=tmp_path / "missing.txt", out=tmp_path / "run", epochs=epochs)


def test_server_rejects_non_runs_and_non_string_keys(tmp_path: Path) -> None:
    from lemma.api import application
    from lemma.serving.requests import Limits, check_api_key

    for wrong in (nn.Linear(2, 2), None, 5):
        with pytest.raises(LemmaError, match="is not a run"):
            application(wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(LemmaError, match="api_key"):
        check_api_key(5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(LemmaError, match="tokens = 'a': a number is expected"):
        Limits(tokens="a")  # pyright: ignore[reportArgumentType]


def test_adapting_shortens_an_overlong_warm_up(tmp_path: Path, text: Path) -> None:
    lemma.train("lstm", text=text, out=tmp_path / "base", steps=2, progress=False, **SMALL)
    lemma.adapt(
        tmp_path / "base",
        text=text,
        out=tmp_path / "run",
        steps=5,
        warm_up=50,
        batch=4,
        sequence_length=8,
        progress=False,
    )
    assert RunFolder.open(tmp_path / "run").recipe.warm_up < 5
