"""Splits from separate files in every verb: train, resume, evaluate, adapt and study."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

import lemma
from lemma.cli.main import app
from lemma.data.treebanks import Sentence, format_conllu
from lemma.errors import RunError, SpecError
from lemma.runs.folder import RunFolder

SMALL: dict[str, Any] = {"width": 8, "hidden": 8, "steps": 4, "batch": 4, "progress": False}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def text(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes a text of numbered lines and returns its name."""

    def write(name: str, start: int, count: int = 40) -> str:
        lines = [f"line {number} of a text that is long enough\n" for number in range(start, start + count)]
        (tmp_path / name).write_text("".join(lines))
        return name

    return write


def test_language_model_uses_validation_and_test_files(text: Callable[..., str]) -> None:
    kwargs = {"validation": text("v.txt", 100), "test": text("t.txt", 130)}
    result = lemma.train("lstm", text=text("a.txt", 0), **kwargs, out="run", **SMALL)
    output = result.to_dict()
    assert set(output["split_hashes"]) == {"train", "validation", "test"}
    assert output["overlaps"] == ["10 of the 40 lines of the test split are in the validation split too"]
    assert "overlap     10 of the 40 lines" in str(result) and output["split_hashes"]["test"] in str(result)
    assert json.loads(Path("run/summary.json").read_text())["overlaps"] == output["overlaps"]
    test, same = lemma.evaluate("run", progress=False), lemma.evaluate("run", text="t.txt", progress=False)
    assert test.to_dict()["protocol"]["split"] == "test" and test.loss == same.loss
    assert test.to_dict()["protocol"]["overlaps"] == output["overlaps"] and "overlap" in str(test)
    assert "overlaps" not in same.to_dict()["protocol"]
    assert lemma.evaluate("run", split="validation", progress=False).loss == pytest.approx(result.validation_loss)
    other = lemma.evaluate("run", text="a.txt", test="t.txt", progress=False)
    assert other.loss == test.loss


def test_run_without_split_files_omits_their_hashes(text: Callable[..., str]) -> None:
    output = lemma.train("lstm", text=text("a.txt", 0), out="run", **SMALL).to_dict()
    assert "split_hashes" not in output and "overlaps" not in output


@pytest.mark.parametrize("changed", ["a.txt", "v.txt", "t.txt"])
def test_resuming_and_evaluating_detect_changed_split_files(text: Callable[..., str], changed: str) -> None:
    kwargs = {"validation": text("v.txt", 100), "test": text("t.txt", 200)}
    lemma.train("lstm", text=text("a.txt", 0), **kwargs, out="run", **SMALL)
    lemma.resume("run", steps=6, progress=False)
    with Path(changed).open("a") as file:
        file.write("one more line\n")
    with pytest.raises(RunError, match="was trained on the text with hash"):
        lemma.resume("run", steps=8, progress=False)
    with pytest.raises(RunError, match=r"v\.txt.*t\.txt now has"):
        lemma.evaluate("run", progress=False)


def test_command_line_accepts_files_of_every_split(text: Callable[..., str]) -> None:
    words = ["train", "lstm", "--text", text("a.txt", 0), "--validation", text("v.txt", 50), "--validation"]
    words += [text("w.txt", 150), "--test", text("t.txt", 250), "--out", "run"]
    words += ["width=8", "hidden=8", "steps=2", "batch=4"]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    data = RunFolder.open(Path("run")).data
    assert [Path(file).name for file in data.validation] == ["v.txt", "w.txt"]  # pyright: ignore
    checked = CliRunner().invoke(app, ["evaluate", "run", "--json"])
    assert json.loads(checked.stdout)["protocol"]["split"] == "test"
    loose = CliRunner().invoke(app, [*words[:4], "b.txt", *words[4:]])
    assert loose.exit_code != 0 and "each file needs an option of its own" in str(loose.exception or loose.output)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"validation": "v.txt"}, "^validation = v.txt is a split of data that are not given"),
        ({"labels": "a.csv", "test": ["a.csv", "b.csv"]}, "2 files are given, and a split of labels is one file"),
        ({"pairs": "a.csv", "validation": ["a.csv", "b.csv"]}, "a split of pairs is one file"),
    ],
)
def test_invalid_split_files_are_rejected(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        lemma.train("lstm", **given, out="run", **SMALL)


def table(name: str, numbers: range) -> str:
    rows = "".join(f"text {number} is {label},{label}\n" for number in numbers for label in ("good", "bad"))
    Path(name).write_text("text,label\n" + rows)
    return name


def test_classifier_split_files_work_in_every_verb(text: Callable[..., str]) -> None:
    kwargs = {"labels": table("a.csv", range(20)), "validation": table("v.csv", range(5, 9))}
    kwargs["test"] = table("t.csv", range(30, 36))
    result = lemma.train("lstm", **kwargs, out="run", tokenizer="words", **SMALL)
    assert result.overlaps == ("8 of the 8 texts of the validation split are in the train split too",)
    score = lemma.evaluate("run", progress=False)
    assert score.to_dict()["protocol"]["split hash"] == result.split_hashes["test"]
    assert score.to_dict()["protocol"]["overlap"] == result.overlaps[0]
    assert sum(sum(row) for row in score.to_dict()["confusion"]) == 12
    lemma.train("lstm", text=text("a.txt", 0), out="base", tokenizer="words", **SMALL)
    adapted = lemma.adapt("base", **kwargs, out="adapted", method="frozen", steps=3, progress=False)
    assert "12" in str(adapted) and RunFolder.open(Path("adapted")).data.test.endswith("t.csv")  # pyright: ignore
    studied = lemma.study(
        "lstm-gru", **kwargs, out="study", seeds=1, epochs=1, least_steps=2, repetitions=1, tokenizer="words",
        settings={"width": 8, "hidden": 8}, progress=False,
    )  # fmt: skip
    assert "12 for the test" in str(studied) or "12 for the test" in json.dumps(studied.to_dict())


def test_parser_accepts_dev_as_validation() -> None:
    sentences = [Sentence((word, "sleeps"), (2, 0), ("nsubj", "root")) for word in ("he", "she", "it", "one", "who")]
    for name, subset in {"a": sentences[:3], "v": sentences[2:4], "t": sentences[4:]}.items():
        Path(f"{name}.conllu").write_text(format_conllu(subset))
    small = {"width": 8, "hidden": 8, "steps": 2, "progress": False}
    old = lemma.train("parser", treebank="a.conllu", dev="v.conllu", test="t.conllu", out="old", **small)
    new = lemma.train("parser", treebank="a.conllu", validation="v.conllu", test="t.conllu", out="new", **small)
    assert (old.data_hash, old.validation_loss) == (new.data_hash, new.validation_loss)
    assert new.overlaps == ("1 of the 2 sentences of the validation split is in the train split too",)
    assert RunFolder.open(Path("old")).data == RunFolder.open(Path("new")).data
    assert lemma.evaluate("new", progress=False).to_dict()["protocol"]["split hash"] == new.split_hashes["test"]
    with pytest.raises(SpecError, match="given twice"):
        lemma.train("parser", treebank="a.conllu", dev="v.conllu", validation="v.conllu", out="x", **small)


def test_graph_is_tested_on_nodes_of_a_file() -> None:
    for name, nodes in {"n": (1, 2, 33, 34), "v": (3, 4, 31), "t": (5, 6, 7, 30)}.items():
        Path(f"{name}.txt").write_text("".join(f"{node}\n" for node in nodes))
    kwargs = {"labelled": "n.txt", "validation": "v.txt", "test": "t.txt"}
    result = lemma.train("graph", graph="karate", **kwargs, out="run", steps=3, progress=False)
    assert set(result.split_hashes) == {"graph", "train", "validation", "test"}
    protocol = lemma.evaluate("run", progress=False).to_dict()["protocol"]
    assert protocol["split"] == "test" and protocol["split hash"] == result.split_hashes["test"]
    Path("t.txt").write_text("5\n6\n8\n")
    with pytest.raises(RunError, match="was trained on"):
        lemma.evaluate("run", progress=False)


def test_translator_is_tested_on_a_file_of_pairs() -> None:
    for name, numbers in {"a": range(20), "v": range(20, 24), "t": range(2, 7)}.items():
        Path(f"{name}.tsv").write_text("source\ttarget\n" + "".join(f"in {n}\tout {n}\n" for n in numbers))
    small = {
        "width": 8,
        "heads": 2,
        "encoder_depth": 1,
        "decoder_depth": 1,
        "context": 32,
        "steps": 2,
        "batch": 4,
        "progress": False,
    }
    result = lemma.train("encoder-decoder", pairs="a.tsv", validation="v.tsv", test="t.tsv", out="run", **small)
    assert result.overlaps == ("5 of the 5 pairs of the test split are in the train split too",)
    custom = lemma.evaluate("run", progress=False)
    other = lemma.evaluate("run", pairs="v.tsv", test="t.tsv", progress=False)
    assert (
        custom.to_dict()["protocol"]["overlap"] == result.overlaps[0] and "overlap" not in other.to_dict()["protocol"]
    )
    assert custom.to_dict()["sentences"] == other.to_dict()["sentences"] == 5


def test_dual_encoder_is_tested_on_images_of_a_table() -> None:
    Path("shown").mkdir()
    for shade in range(14):
        Image.new("L", (8, 8), 15 * shade).save(f"shown/{shade}.png")
    for name, shades in {"a": range(8), "v": range(8, 11), "t": range(10, 14)}.items():
        Path(f"shown/{name}.csv").write_text("image,caption\n" + "".join(f"{n}.png,grey {n}\n" for n in shades))
    small = {"grid": 2, "patch": 4, "image_width": 8, "image_depth": 1, "image_heads": 2, "shared": 4}
    small |= {"body": "lstm", "body.width": 8, "body.hidden": 8, "steps": 2, "batch": 4, "progress": False}
    kwargs = {"captions": "a.csv", "validation": "v.csv", "test": "t.csv"}
    result = lemma.train("dual-encoder", images="shown", **kwargs, out="run", **small)
    assert result.overlaps == ("1 of the 4 images of the test split is in the validation split too",)
    custom = lemma.evaluate("run", progress=False)
    other = lemma.evaluate("run", images="shown", captions="a.csv", test="t.csv", progress=False)
    assert custom.images == other.images == 4 and custom.scores == other.scores  # pyright: ignore


def test_every_split_file_of_a_tree_model_needs_trees() -> None:
    words = [("he", "up"), ("she", "down"), ("it", "up"), ("one", "down"), ("who", "up"), ("you", "down")]
    trees = [Sentence((word, "sleeps"), (2, 0), ("nsubj", "root"), label=label) for word, label in words]
    for name, subset in {"a": trees[:4], "v": trees[4:], "t": trees[3:]}.items():
        Path(f"{name}.conllu").write_text(format_conllu(subset))
    small = {"width": 8, "steps": 2, "batch": 2, "progress": False}
    kwargs = {"labels": "a.conllu", "validation": "v.conllu"}
    result = lemma.train("tree", **kwargs, test="t.conllu", out="run", **small)
    assert result.overlaps == (
        "1 of the 3 texts of the test split is in the train split too",
        "2 of the 3 texts of the test split are in the validation split too",
    )
    Path("t.csv").write_text("text,label\nhe sleeps,up\n")
    with pytest.raises(SpecError, match=r"--test .*t\.csv: .*a\.conllu holds trees, and so must this file"):
        lemma.train("tree", **kwargs, test="t.csv", out="other", **small)
