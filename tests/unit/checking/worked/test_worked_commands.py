"""`lemma look attention|bpe|cross` on the command line."""

import json
from pathlib import Path

import pytest

from lemma.cli.main import main


def look(*words: str) -> int:
    """Run a command in this process and return its exit status."""
    with pytest.raises(SystemExit) as exit_info:
        main(["look", *words])
    return int(exit_info.value.code or 0)


def test_attention_prints_the_numbers_of_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert look("attention", "e1") == 0
    printed = capsys.readouterr().out
    assert all(figure in printed for figure in ("0.219", "0.080", "0.119", "0.096"))


def test_attention_takes_options_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--passes", "1", "--scaled", "--mask", "causal", "--word", "Ajax", "--json"]
    assert look("attention", "e1", *words) == 0
    output = json.loads(capsys.readouterr().out)
    (item,) = output["sentences"][0]["passes"]
    assert item["divisor"] == pytest.approx(3**0.5)
    assert item["weights"][0][1:] == [0] * 8
    assert list(item["contributions"]) == ["Ajax"]


@pytest.mark.parametrize("more", [[], ["--merges", "1"]])
def test_counts_of_one_use_the_singular(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert look("bpe", "aa", "--min", "1", "--no-end-of-word", "--library", *more) == 0
    printed = capsys.readouterr().out
    assert "1 word, 1 different" in printed and "the same 1 merge." in printed and "takes 1 symbol, at" in printed


@pytest.mark.parametrize("words", [["attention", "--list"], ["attention"]])
def test_commands_list_their_examples(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert look(*words) == 0
    assert "lemma look attention e1 --out mine.toml" in capsys.readouterr().out


def test_saved_copy_of_an_example_can_be_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy, page = str(tmp_path / "mine.toml"), str(tmp_path / "e8.html")
    assert look("cross", "e8", "--out", copy) == 0
    assert look("cross", copy, "--out", page) == 0
    assert page in capsys.readouterr().out
    assert "<svg" in Path(page).read_text(encoding="utf-8")
    assert look("cross", "e8", "--full") == 0
    assert "1.3314" in capsys.readouterr().out


def test_bpe_traces_a_string_and_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert look("bpe", "abbc abb abc abb", "--library") == 0
    assert "makes the same 4 merges" in capsys.readouterr().out
    (tmp_path / "a.txt").write_text("to be or not to be\n" * 9, encoding="utf-8")
    words = ["--text", str(tmp_path / "a.txt"), "--merges", "3", "--no-end-of-word", "--show", "2", "--json"]
    assert look("bpe", *words) == 0
    output = json.loads(capsys.readouterr().out)
    assert [len(step["counts"]) for step in output["steps"]] == [2, 2, 2]
    assert output["end_of_word"] == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["attention", "e3"], "Did you mean 'e1'"),
        (["attention", "none.toml"], "no such file"),
        (["attention", "e1", "--out", "a.png"], "unknown ending of the name '.png'"),
        (["attention", "e1", "--word", "thy"], "Did you mean 'they'"),
        (["attention", "e1", "--passes", "0"], "passes = 0"),
        (["cross", "e1"], "lemma look attention e1"),
        (["bpe"], "give either"),
        (["bpe", "a", "--no-end-of-word", "--end-of-word", "</w>"], "--end-of-word '</w>' exclude each other"),
        (["bpe", "a", "--min", "0"], "min = 0"),
    ],
)
def test_bad_input_exits_with_2(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert look(*words) == 2
    assert message in capsys.readouterr().err
