"""`lemma search` on the command line."""

import json
from pathlib import Path

import pytest

from lemma.cli.main import main
from search_runs import image_folder, untrained_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("search")
    untrained_run(path / "run")
    image_folder(path / "pictures", 5)
    return path


def search(*words: object) -> int:
    """Run the command in this process and return its exit status."""
    with pytest.raises(SystemExit) as left:
        main(["search", *map(str, words)])
    return int(left.value.code or 0)


def test_search_retrieves_images_and_writes_a_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        folder / "run",
        "--images",
        folder / "pictures",
        "--index",
        folder / "index",
        "--query",
        "a red",
        "-k",
        "2",
    ]
    assert search(*words, "--out", folder / "found.html") == 0
    printed = capsys.readouterr()
    assert "5 indexed, 5 new" in printed.out and "   2  " in printed.out and "   3  " not in printed.out
    assert "Written to" in printed.err and (folder / "found.html").stat().st_size > 1000
    assert search(*words, "--json", "--query", "blue") == 0
    output = json.loads(capsys.readouterr().out)
    assert [answer["query"] for answer in output["answers"]] == ["a red", "blue"] and output["new"] == 0


def test_search_ranks_texts_for_an_image(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "texts.csv").write_text("id,what\n1,a red\n2,a blue\n")
    image = folder / "pictures" / "00-red-circle.png"
    words = [folder / "run", "--image", image, "--texts", folder / "texts.csv", "--text-column", "what"]
    assert search(*words) == 0
    assert "texts: 2 read\nof: " in capsys.readouterr().out


def test_worked_search_prints_the_figures_of_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert search("--matrices", "e7") == 0
    printed = capsys.readouterr().out
    assert all(figure in printed for figure in ("1.5844", "−1.5003", "0.0789", "sentence 3"))
    assert search("--matrices", "e7", "--json", "--word", "image 2") == 0
    assert json.loads(capsys.readouterr().out)["of_images"][1]["by_product"] == ["sentence 2"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "RUN is missing"),
        (["nowhere", "--images", "emoji", "--query", "a"], "there is no such folder"),
        (["--matrices", "e7", "--query", "a"], "leave out --query"),
        (["nowhere", "--matrices", "e7"], "leave out RUN"),
        (["--matrices", "e7", "-k", "3", "--exact", "--text-column", "a"], "leave out --text-column, -k, --exact"),
        (["nowhere", "--word", "a", "--full", "--decimals", "4"], "--word, --full, --decimals: only what is worked"),
        (["--matrices", "e77"], "Did you mean 'e7'"),
        (["--matrices", "e7", "--word", "image 9"], "unknown focus 'image 9'"),
    ],
)
def test_search_errors_print_one_line_and_exit_with_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert search(*words) == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("name", "said"), [("found.pdf", "unknown ending of the name '.pdf'"), ("none/found.csv", "there is no folder")]
)
def test_unwritable_output_is_reported_before_indexing(
    folder: Path, name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [folder / "run", "--images", folder / "pictures", "--index", folder / "later", "--query", "a red"]
    assert search(*words, "--out", folder / name) == 2
    assert said in " ".join(capsys.readouterr().err.split()) and not (folder / "later").exists()
