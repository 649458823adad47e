"""`lemma look RUN` from the command line, on a run trained for two steps."""

import json
from pathlib import Path

import pytest

from lemma.cli.main import main
from small_runs import small_data, small_text, train_small


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("look")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEMMA_HOME", str(folder / "home"))
        (folder / "home").mkdir()
        train_small(folder / "run", "decoder", small_data(folder), steps=2)
    return folder / "run"


def run_look(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as leaving:
        main(["look", *words])
    done = capsys.readouterr()
    return int(leaving.value.code or 0), done.out, done.err


def test_command_shows_heads_and_writes_a_page(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run_look(capsys, str(run), "--text", small_text()[:9], "--out", str(tmp_path / "heads.html"))
    assert status == 0 and "4 heads on 9 tokens" in out and "heads.html" in err
    assert (tmp_path / "heads.html").read_text().startswith("<!DOCTYPE html>")


def test_json_contains_only_the_requested_heads(run: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "text.txt").write_text(small_text()[:40])
    status, out, _ = run_look(
        capsys, str(run), "--file", str(tmp_path / "text.txt"), "--layer", "1", "--head", "0", "--json"
    )
    values = json.loads(out)
    assert status == 0 and [(head["layer"], head["head"]) for head in values["heads"]] == [(1, 0)]
    assert len(values["tokens"]) == 12 and "first 12" in values["notes"][0]
    assert all(abs(sum(row) - 1) < 1e-5 for row in values["heads"][0]["weights"])


@pytest.mark.parametrize(
    ("words", "guess"), [(["atention", "e1"], " Did you mean 'attention'?"), (["nothere"], ""), (["a/b", "--json"], "")]
)
def test_unknown_first_argument_is_explained(capsys, words: list[str], guess: str) -> None:
    status, out, err = run_look(capsys, *words)
    names = "Choices: attention, bpe, cross, graph, lstm, parse; or give the folder of a run."
    assert status == 2 and not out
    assert " ".join(err.split()) == f"lemma: '{words[0]}' is no command and no run folder.{guess} {names}"


def test_help_of_look_needs_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run_look(capsys, "RUN", "--help")
    assert status == 0 and "--layer" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--text or --file"),
        (["--text", "a", "--file", "b"], "--text or --file"),
        (["--text", ""], "no tokens"),
        (["--file", "nowhere.txt"], "nowhere.txt"),
        (["--text", "ab", "--layer", "7"], "layers 0 to 1"),
        (["--text", "ab", "--out", "heads.docx"], "unknown ending of the name"),
        (["--text", "ab", "--out", "nowhere/heads.html"], "no folder"),
        (["--text", "€"], "U+20AC"),
    ],
)
def test_invalid_arguments_exit_with_2(run: Path, capsys, words: list[str], message: str) -> None:
    status, out, err = run_look(capsys, str(run), *words)
    assert status == 2 and message in err and not out
