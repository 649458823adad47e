"""Problem C3: LSTM and GRU as sentiment classifiers: about the same accuracy, GRU cheaper."""

from typing import Any

import pytest

from labelled_tables import random_texts, write_table
from lemma import api
from lemma.report import result as report
from lemma.spec.studies import STUDIES, read_study
from lemma.studies.result import StudyResult

WORDS = {"width": 12, "hidden": 16, "steps": 40, "batch": 16, "learning_rate": 0.02, "device": "cpu"}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    folder = tmp_path_factory.mktemp("c3")
    table = write_table(folder / "texts.csv", random_texts(200))
    changes: dict[str, Any] = {f"settings.{word}": value for word, value in WORDS.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEMMA_HOME", str(folder / "home"))
        patch.setattr(report, "can_draw", lambda: False)  # drawing takes longer than these studies
        result: Any = api.study(
            "lstm-gru",
            out=folder / "out",
            progress=False,
            labels=str(table),
            tokenizer="words",
            repetitions=5,
            **changes,
        )
    return result


def test_c3_study_trains_both_models_on_sentiment_with_seeds() -> None:
    spec: Any = read_study("lstm-gru")
    assert spec == STUDIES["lstm-gru"]
    assert [model.model for model in spec.models] == ["lstm", "gru"]
    assert (spec.labels, len(spec.seeds)) == ("tweets", 3)


def test_c3_both_models_learn_the_task(result: StudyResult) -> None:
    for row in result.table.records:
        assert row["seeds"] == 3, row["notes"]
        assert min(row[name] for name in ("accuracy", "precision", "recall", "f1")) > 0.9


def test_c3_gru_has_three_quarters_of_lstm_layer_parameters(result: StudyResult) -> None:
    lstm, gru = result.table.records
    d, D = WORDS["width"], WORDS["hidden"]
    biases = lstm["layers"] - 4 * D * (d + D)
    assert biases in (4 * D, 8 * D), "one bias a gate, or PyTorch's two"
    assert gru["layers"] * 4 == lstm["layers"] * 3
    assert lstm["parameters"] - lstm["layers"] == gru["parameters"] - gru["layers"], "embedding and head are the same"


def test_c3_claim_is_judged_for_each_cost_measure(result: StudyResult) -> None:
    [claim] = result.to_dict()["claims"]
    assert claim["cheaper"]["parameters"] == claim["cheaper"]["parameters of the layers"] == "held"
    assert claim["costs"]["parameters of the layers"]["ratio"] == 0.75
    assert set(claim["cheaper"]) == {"parameters", "parameters of the layers", "training time", "inference time"}
    assert result.conclusion[0].startswith("The claim “about the same accuracy, gru cheaper than lstm” ")


def test_c3_cost_is_measured_over_equal_steps(result: StudyResult) -> None:
    assert {run.measures.steps for run in result.runs if run.measures} == {40}
    assert all(row["seconds"] > 0 and row["texts_per_second"] > 0 for row in result.table.records)
