"""`lemma search` as a person meets it."""

import json
from pathlib import Path

import pytest

from lemma.cli.main import main
from search_runs import image_folder, untrained_run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    index = tmp_path_factory.mktemp("search")
    untrained_run(index / "run")
    image_folder(index / "pictures", 5)
    return index


def search(*words: object) -> int:
    """Run the command in this process and return its exit status."""
    with pytest.raises(SystemExit) as left:
        main(["search", *map(str, words)])
    return int(left.value.code or 0)


def test_images_are_found_and_counted_and_a_page_is_written(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [place / "run", "--images", place / "pictures", "--index", place / "index", "--query", "a red", "-k", "2"]
    assert search(*words, "--out", place / "found.html") == 0
    printed = capsys.readouterr()
    assert "5 indexed, 5 new" in printed.out and "   2  " in printed.out and "   3  " not in printed.out
    assert "Written to" in printed.err and (place / "found.html").stat().st_size > 1000
    assert search(*words, "--json", "--query", "blue") == 0
    output = json.loads(capsys.readouterr().out)
    assert [answer["query"] for answer in output["answers"]] == ["a red", "blue"] and output["new"] == 0


def test_texts_are_ranked_for_an_image(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "texts.csv").write_text("id,what\n1,a red\n2,a blue\n")
    image = place / "pictures" / "00-red-circle.png"
    words = [place / "run", "--image", image, "--texts", place / "texts.csv", "--text-column", "what"]
    assert search(*words) == 0
    assert "texts: 2 read\nof: " in capsys.readouterr().out


def test_a_search_by_hand_prints_the_figures_of_the_example(capsys: pytest.CaptureFixture[str]) -> None:
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
def test_what_is_wrong_is_said_in_a_line_with_status_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert search(*words) == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("name", "said"), [("found.pdf", "unknown ending of the name '.pdf'"), ("none/found.csv", "there is no folder")]
)
def test_a_file_that_cannot_be_written_is_told_before_anything_is_indexed(
    place: Path, name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [place / "run", "--images", place / "pictures", "--index", place / "later", "--query", "a red"]
    assert search(*words, "--out", place / name) == 2
    assert said in " ".join(capsys.readouterr().err.split()) and not (place / "later").exists()
