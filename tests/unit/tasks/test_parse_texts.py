"""Classification along predicted trees, equal in training, evaluation and generation."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lemma
from labelled_tables import random_texts, write_table
from lemma.data import treebanks
from lemma.data.labels import ParsedWords
from lemma.data.treebanks import Sentence, format_conllu, split_sentences
from lemma.errors import RunError, SpecError
from lemma.inspection.trees import parse_text
from lemma.report.progress import SilentObserver
from lemma.runs.folder import RunFolder
from lemma.runs.load import load
from lemma.tasks import parse_texts
from lemma.tasks.parse_texts import cached_trees, parse_batches, parser_trees
from treebanks import tiny

PARSER: dict[str, Any] = {"steps": 6, "batch": 4, "width": 8, "buckets": 100, "device": "cpu"}
TREE: dict[str, Any] = {"steps": 30, "batch": 16, "width": 8, "minimum_count": 1, "device": "cpu", "progress": False}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with a parser, a table of texts and a classifier trained on their parsed trees."""
    folder = tmp_path_factory.mktemp("trees")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEMMA_HOME", str(folder / "home"))
        (folder / "bank.conllu").write_text(format_conllu(tiny()))
        words = {**PARSER, "encoder": {"kind": "bilstm", "hidden": 8, "depth": 1}}
        lemma.train("parser", treebank=folder / "bank.conllu", out=folder / "parser", progress=False, **words)
        table = write_table(folder / "texts.csv", random_texts(120))
        lemma.train("tree", labels=table, parser=folder / "parser", out=folder / "run", **TREE)
        yield folder


def test_parsed_texts_have_the_trees_of_look_parse(home: Path) -> None:
    text = "I prefer the morning flight . They take a bus !\nyou want it"
    samples = list(parse_batches(home / "parser", [text, "it"], SilentObserver()))
    lines = "\n".join(" ".join(words) for words in split_sentences(text))
    heads = [parsed.sentence.heads for parsed in parse_text(load(home / "parser"), lines).sentences]
    starts = np.cumsum([0, *map(len, heads)])
    expected = [
        start + head - 1 if head else -1 for start, custom in zip(starts, heads, strict=False) for head in custom
    ]
    assert list(samples[0].heads) == expected
    assert samples[1] == ParsedWords(("it",), (-1,))


def test_text_is_split_into_sentences_and_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    assert split_sentences('He said "No!" Then he left.\n\nYes') == [
        ["He", "said", '"', "No", "!", '"'],
        ["Then", "he", "left", "."],
        ["Yes"],
    ]
    monkeypatch.setattr(treebanks, "MAX_WORDS", 5)
    monkeypatch.setattr(treebanks, "MAX_SENTENCE", 3)
    assert split_sentences("a b c d e f g") == [["a", "b", "c"], ["d", "e"]]


def test_run_stores_the_absolute_path_of_its_parser(home: Path) -> None:
    data = RunFolder.open(home / "run").data
    assert data.parser == str((home / "parser").resolve())
    assert lemma.evaluate(home / "run", progress=False).accuracy.value > 0.6


def test_evaluating_other_labels_uses_the_same_parser(home: Path) -> None:
    other = write_table(home / "other.csv", random_texts(40, seed=5))
    score = lemma.evaluate(home / "run", labels=other, progress=False)
    assert score.texts == 40 and score.accuracy.value > 0.6


def test_single_text_gets_the_class_of_its_evaluation(home: Path) -> None:
    rows = random_texts(40, seed=5)
    other = write_table(home / "again.csv", rows)
    labelled = lemma.generate(home / "run", source=[text for text, _ in rows])
    right = [item.label == label for item, (_, label) in zip(labelled, rows, strict=True)]
    assert np.mean(right) == pytest.approx(lemma.evaluate(home / "run", labels=other, progress=False).accuracy.value)


def test_repeated_training_reuses_cached_trees(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> None:
        raise AssertionError("parsed again")

    monkeypatch.setattr(parse_texts, "predict_trees", refuse)
    lemma.train("tree", labels=home / "texts.csv", parser=home / "parser", out=home / "again", **{**TREE, "steps": 1})
    assert RunFolder.open(home / "again").data_hash == RunFolder.open(home / "run").data_hash


def test_parsed_trees_are_cached_by_text_and_parser(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse_texts, "MIN_CACHED_TEXTS", 0)
    monkeypatch.setenv("LEMMA_HOME", str(home / "other-home"))
    calls: list[list[str]] = []

    def draw(texts: Any) -> list[ParsedWords]:
        calls.append(list(texts))
        return [ParsedWords(tuple(text.split()), tuple(range(-1, len(text.split()) - 1))) for text in texts]

    texts = ["a b", "", "c d é", "a b"]
    first = cached_trees(texts, "p", draw)
    assert cached_trees(texts[::-1], "p", draw) == first[::-1] and calls == [["a b", "", "c d é"]]
    cached_trees(["e", "a b"], "p", draw)
    cached_trees(["a b"], "q", draw)
    assert calls[1:] == [["e"], ["a b"]]
    assert cached_trees(["e", *texts], "p", draw)[1:] == first and len(calls) == 3
    monkeypatch.setattr(parse_texts, "SAVE_INTERVAL", 1)
    with pytest.raises(ZeroDivisionError):
        cached_trees(
            ["f", "g"], "p", lambda texts: (ParsedWords((text,), (-1,)) for text in texts if text == "f" or 1 / 0)
        )
    cached_trees(["f", "g"], "p", draw)
    assert calls.pop() == ["g"]
    for path in (home / "other-home" / "trees").iterdir():
        path.write_bytes(path.read_bytes()[:40])
    assert cached_trees(texts, "p", draw) == first and len(calls) == 4


def test_gold_trees_need_no_parser_and_affect_the_class(home: Path) -> None:
    """Both classes have the same words; only the head of the negation differs."""
    heads = {"good": (0, 1, 2, 1), "bad": (0, 1, 1, 1)}
    words = [("good", "bad", "not", f"n{index}") for index in range(100)]
    labels = ["good" if index % 2 else "bad" for index in range(len(words))]
    sentences = [
        Sentence(item, heads[label], ("dep",) * 4, label=label) for item, label in zip(words, labels, strict=True)
    ]
    path = home / "gold.conllu"
    path.write_text(format_conllu(sentences))
    right = {}
    for depth in (0, 1):
        settings = {**TREE, "steps": 60, "learning_rate": 0.02, "warm_up": 50, "dropout": 0.0, "minimum_count": 2}
        lemma.train("tree", labels=path, out=home / f"gold-{depth}", depth=depth, **settings)
        right[depth] = lemma.evaluate(home / f"gold-{depth}", progress=False).accuracy.value
    assert right == {0: 0.5, 1: 1.0}
    assert lemma.evaluate(home / "run", labels=_relabelled(home, sentences), progress=False).texts == len(sentences)
    with pytest.raises(RunError, match=r"no parser.*lemma evaluate .*FILE.conllu"):
        lemma.generate(home / "gold-1", source="a text")
    with pytest.raises(SpecError, match=r"lemma evaluate \S*gold-1 --labels \S*texts.csv --parser runs/parser\n"):
        lemma.evaluate(home / "gold-1", labels=home / "texts.csv", progress=False)
    with pytest.raises(SpecError, match="holds trees already"):
        lemma.train("tree", labels=path, parser=home / "parser", out=home / "x", **TREE)


def _relabelled(home: Path, sentences: list[Sentence]) -> Path:
    names = {"good": "positive", "bad": "negative"}
    path = home / "relabelled.conllu"
    path.write_text(format_conllu(Sentence(s.words, s.heads, s.relations, label=names[s.label]) for s in sentences))
    return path


def test_changed_parser_is_detected(home: Path) -> None:
    before = parser_trees(home / "parser", SilentObserver()).hash
    words = {**PARSER, "steps": 2, "encoder": {"kind": "bilstm", "hidden": 8, "depth": 1}}
    (home / "parser").rename(home / "kept")
    try:
        lemma.train("parser", treebank=home / "bank.conllu", out=home / "parser", progress=False, **words)
        assert parser_trees(home / "parser", SilentObserver()).hash != before
        with pytest.raises(RunError, match=r"trained on labels.*with the trees of .*parser"):
            lemma.evaluate(home / "run", progress=False)
    finally:
        (home / "parser").rename(home / "changed")
        (home / "kept").rename(home / "parser")


@pytest.mark.parametrize(
    ("model", "words", "message"),
    [
        ("tree", {}, r"lemma train parser --treebank ewt[\s\S]*--parser runs/parser"),
        ("tree", {"parser": "run"}, "not a parser. To train one: lemma train parser"),
        ("tree", {"parser": "parser", "tokenizer": "characters"}, "tokenizer=words"),
        ("tree", {"parser": "nosuch"}, "no such folder; .*To train one: lemma train parser --treebank"),
        ("gru", {"parser": "parser"}, "only a tree body reads trees"),
    ],
)
def test_invalid_parser_settings_are_rejected_before_writing(
    home: Path, model: str, words: dict[str, Any], message: str
) -> None:
    options = {word: home / value if word == "parser" else value for word, value in words.items()}
    settings: dict[str, Any] = {"steps": 1, "device": "cpu", "progress": False}
    with pytest.raises(SpecError, match=message):
        lemma.train(model, labels=home / "texts.csv", out=home / "refused", **settings, **options)
    assert not (home / "refused").exists()


def test_tree_counts_match_parameters_and_flops(home: Path) -> None:
    run = load(home / "run")
    account = lemma.count(home / "run", quantities=["parameters"])
    assert account.parameters.total == sum(weight.numel() for weight in run.module.parameters())
    d, depth, time = 8, 2, 64
    assert lemma.count("tree", quantities=["flops"], d=d).flops.total == 2 * depth * d * time * (d + time)
