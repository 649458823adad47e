"""Attachment scores and head accuracies against counting by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lemma
from lemma.data.treebanks import Sentence, format_conllu
from lemma.errors import DataError, InputError
from lemma.inspection.attention_trees import best_offsets, head_accuracies, relation_findings
from lemma.tasks.parsing import score_trees
from treebanks import B1, tiny


def test_correct_trees_score_100() -> None:
    score = score_trees(tiny(), tiny())
    assert score.uas == score.las == score.uas_without_punctuation == 100
    assert all(relation.recall == relation.precision == 100 for relation in score.relations)
    assert score.words == sum(len(s.words) for s in tiny()) and score.sentences == 16


def test_wrong_heads_and_wrong_labels_are_counted_separately() -> None:
    guess = replace(B1, heads=(2, 0, 4, 5, 2, 7, 2), relations=("nsubj", "root", "det", "det", "dobj", "case", "nmod"))
    score = score_trees([B1], [guess])
    assert score.uas == pytest.approx(100 * 5 / 7) and score.las == pytest.approx(100 * 4 / 7)
    by = {relation.relation: relation for relation in score.relations}
    assert (by["nmod"].count, by["nmod"].guessed, by["nmod"].correct) == (2, 1, 0)
    assert (by["det"].count, by["det"].guessed, by["det"].correct) == (1, 2, 0)
    assert score.to_dict()["las"] == score.las and "UAS" in str(score) and "<table" in score._repr_html_()


def test_punctuation_free_scores_exclude_punctuation() -> None:
    gold = Sentence(("go", "!"), (0, 1), ("root", "punct"), ("VERB", "PUNCT"))
    score = score_trees([gold], [replace(gold, heads=(2, 0))])
    assert (score.uas, score.uas_without_punctuation) == (0, 0)
    score = score_trees([gold], [replace(gold, relations=("root", "dep"))])
    assert (score.las, score.las_without_punctuation) == (50, 100)


def test_chain_baselines_attach_to_adjacent_words() -> None:
    score = score_trees([B1], [B1])
    assert score.baselines["on the word before"] == 0  # no word's head is the one before it
    assert score.baselines["on the word after"] == pytest.approx(100 * 3 / 7)  # I, morning, through
    chain = Sentence(("a", "b", "c"), (0, 1, 2), ("root", "x", "x"))
    assert score_trees([chain], [chain]).baselines["on the word before"] == 100


def test_unlabelled_trees_have_undirected_score_but_no_las() -> None:
    guess = Sentence(B1.words, (0, 1, 5, 5, 2, 7, 5), ("_",) * 7)
    score = score_trees([B1], [guess])
    assert score.las is None and score.uas == pytest.approx(100 * 5 / 7) and score.uuas == 100
    assert score.to_dict()["las"] is None


def test_attachment_scores_without_arcs_are_undefined() -> None:
    item = Sentence(("go",), (0,), ("root",), ("VERB",))
    score = score_trees([item], [replace(item, relations=("_",))])
    assert score.uuas is None and score.to_dict()["uuas"] is None and "UUAS                 –" in str(score)
    assert "1 in 1 sentence\n" in str(score) and "2 sentences" in str(score_trees([item, item], [item, item]))
    score = score_trees([item], [replace(item, relations=("dep",))])
    rows = {row["relation"]: row for row in score.to_dict()["relations"]}
    assert (rows["dep"]["recall"], rows["dep"]["precision"]) == (None, 0)
    assert (rows["root"]["recall"], rows["root"]["precision"]) == (0, None)
    assert "uuas" not in score.to_dict() and str(score).splitlines()[-1].split() == ["dep", "0", "–", "0.0"]
    mark = Sentence(("!",), (0,), ("root",), ("PUNCT",))
    score = score_trees([mark], [mark])
    assert score.to_dict()["without_punctuation"] == {"uas": None, "las": None} and "(– without" in str(score)


def test_no_best_head_is_named_without_hits() -> None:
    blind = [np.zeros((2, 7), dtype=int)]
    result = relation_findings(["layer 0 head 0", "layer 0 head 1"], [B1], blind)
    assert {(finding.head, finding.accuracy) for finding in result} == {("none", 0.0)}


def test_mismatched_trees_are_rejected() -> None:
    with pytest.raises(InputError, match="no trees"):
        score_trees([], [])
    with pytest.raises(InputError, match="2 predicted"):
        score_trees([B1], [B1, B1])
    with pytest.raises(InputError, match="sentence 1 has 7 words"):
        score_trees([B1], [tiny()[1]])


def test_head_accuracies_are_counted_in_both_directions() -> None:
    head_words = np.array(B1.heads)  # a head that always attends to the head word
    always_five = np.full(7, 5)
    from_prefer = np.where(np.arange(7) == 1, 5, 0)  # only `prefer` attends, and to its object
    guesses = [np.stack([head_words, always_five, from_prefer])]
    table, counts = head_accuracies(guesses, [B1])
    assert counts == {"nsubj": 1, "det": 1, "nmod": 2, "dobj": 1, "case": 1}
    assert all(table[relation, "to the head word"][0] == 100 for relation in counts)
    assert table["nmod", "to the head word"][1] == 100 and table["nsubj", "to the head word"][1] == 0
    assert table["dobj", "to the dependent"].tolist() == [0, 100, 100]
    assert table["dobj", "to the head word"].tolist() == [100, 0, 0]


def test_the_best_offset_is_the_most_frequent_distance() -> None:
    offsets = best_offsets([B1])
    assert offsets["nsubj", "to the head word"] == (1, 100.0) and offsets["nsubj", "to the dependent"] == (-1, 100.0)
    assert offsets["nmod", "to the head word"] == (1, 50.0)  # morning → flight, Denver → flight


def test_findings_compare_the_best_head_with_baselines() -> None:
    right, wrong = np.array(B1.heads), np.zeros(7, dtype=int)
    guesses = [np.stack([wrong, right])]
    result = relation_findings(
        ["a", "b"], [B1], guesses, {"untrained": [np.stack([wrong, wrong])], "shuffled": guesses}
    )
    dobj = next(f for f in result if (f.relation, f.direction) == ("dobj", "to the head word"))
    assert (dobj.head, dobj.accuracy, dobj.untrained, dobj.shuffled) == ("b", 100.0, 0.0, 100.0)
    assert (dobj.offset, dobj.offset_accuracy) == (-3, 100.0) and "dobj" in str(dobj)


def test_unknown_validation_relations_are_rejected_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "home"))
    remaining = [replace(tree, relations=tuple(f"x-{relation}" for relation in tree.relations)) for tree in tiny()]
    files = {name: tmp_path / f"{name}.conllu" for name in ("train", "validation", "mixed")}
    for path, trees in zip(files.values(), (tiny(), remaining, [*remaining, B1]), strict=True):
        path.write_text(format_conllu(trees), encoding="utf-8")
    settings: dict[str, Any] = {"treebank": files["train"], "steps": 2, "batch": 4, "warm_up": 1, "device": "cpu"}
    settings |= {"width": 8, "word_dropout": 0.0, "progress": False}
    with pytest.raises(DataError, match=r"no relation of the validation trees \(x-case, x-det.*learns \(case, det"):
        lemma.train("parser", validation=files["validation"], out=tmp_path / "a", **settings)
    assert not (tmp_path / "a").exists()
    result = lemma.train("parser", validation=files["mixed"], out=tmp_path / "b", **settings)
    assert result.validation_loss is not None
    score = lemma.evaluate(tmp_path / "b", treebank=files["validation"], progress=False)
    assert score.to_dict()["loss"] is None, "a trained parser may be evaluated on any trees"
