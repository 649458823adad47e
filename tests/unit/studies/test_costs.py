"""Studies without training: formulas compared with the module, files, settings."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lemma import api
from lemma.counting.count import count
from lemma.counting.subject import Subject
from lemma.errors import SpecError
from lemma.models.base import count_parameters
from lemma.spec.base import to_toml
from lemma.spec.studies import STUDIES, read_study
from lemma.studies import costs
from lemma.studies.costs import bare_attention, explicit_attention, layer_factory
from lemma.studies.result import StudyResult
from lemma.studies.timing import time_in_turns

TINY: dict[str, dict[str, Any]] = {
    "heads": {"d": 8, "h": [1, 2, 4], "T": [4, 6], "B": 2, "repetitions": 2},
    "length": {"d": 8, "T": [2, 4, 8], "h": 2, "B": 2, "repetitions": 2},
}


pytestmark = pytest.mark.usefixtures("account_cache")


@pytest.fixture(scope="module", autouse=True)
def _count_once(account_cache: None) -> Iterator[None]:
    """Count each layer once for all studies, since the formulas of factories are not cached on disk."""
    accounts: dict[str, Any] = {}

    def count_once(subject: Subject, quantities: list[str]) -> Any:
        key = f"{subject.name} {subject.sizes(with_inputs=True)} {subject.probe_sizes} {quantities}"
        if key not in accounts:
            accounts[key] = count(subject, quantities)
        return accounts[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(costs, "count", count_once)
        yield


@pytest.fixture(scope="module")
def results(account_cache: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, StudyResult]:
    result: dict[str, Any] = {}
    for name, words in TINY.items():
        result[name] = api.study(name, out=tmp_path_factory.mktemp(name), progress=False, device="cpu", **words)
    return result


@pytest.mark.parametrize("name", TINY)
def test_cost_study_writes_all_study_files(name: str, results: dict[str, StudyResult]) -> None:
    result = results[name]
    names = {path.name for path in result.out.iterdir()}
    assert names == {"manifest.json", "study.toml", "table.md", "table.csv", "results.json", "report.html"}
    saved = json.loads((result.out / "results.json").read_text())
    assert saved == json.loads(json.dumps(result.to_dict()))
    page = result.report.read_text()
    assert page.count("<svg") == 2
    assert "http" not in page.replace("http://www.w3.org/", "")
    rows = list(csv.DictReader((result.out / "table.csv").read_text().splitlines()))
    assert len(rows) == len(result.rows)
    assert float(rows[0]["forward_median"]) > 0
    assert all(sentence in " ".join(str(result).split()) for sentence in result.conclusion)
    assert read_study(result.out / "study.toml") == result.spec, "the study survives its own file"


def test_d3_parameters_and_flops_do_not_depend_on_heads(results: dict[str, StudyResult]) -> None:
    result = results["heads"]
    assert result.formulas["parameters"] == "3·d²"
    for row in result.rows:
        T = row.settings["T"]
        assert row.counts["parameters"] == 3 * 8**2
        assert row.counts["flops"] == 2 * (6 * T * 8**2 + 4 * T**2 * 8)
        assert row.counts["exponentials"] == row.settings["h"] * 2 * T**2
        assert row.settings["h"] > 1 or row.forward_ratio.median == 1
    assert sum("the claim holds" in sentence for sentence in result.conclusion) == 2


def test_explicit_attention_matches_the_module() -> None:
    part, stream = bare_attention(12, 3), torch.randn(2, 5, 12)
    torch.testing.assert_close(explicit_attention(part, stream), part(stream)[0])


def test_c4_counts_serial_steps_and_parameters(results: dict[str, StudyResult]) -> None:
    rows = results["length"].rows
    assert {row.settings["layer"]: row.counts["steps in a row"] for row in rows if row.settings["T"] == 8} == {
        "rnn": 8,
        "lstm": 8,
        "gru": 8,
        "attention": 1,
    }
    for row in rows:
        assert row.counts["parameters"] == count_parameters(layer_factory(row.settings["layer"], 2)(8))
    lstm = next(row for row in rows if row.settings == {"T": 4, "layer": "lstm"})
    assert lstm.counts["flops"] == 2 * 2 * 4 * 4 * 8 * (8 + 8)  # multiply–add, batch, steps, gates, d, input + hidden


def test_c4_layers_are_torch_nn_modules() -> None:
    layer = layer_factory("lstm", 1)(6)
    assert isinstance(layer, nn.LSTM)
    assert layer.hidden_size == 6


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("heads", {"width": 10, "heads": [4]}, "does not divide"),
        ("heads", {"haeds": 4}, "Did you mean 'heads'"),
        ("length", {"models": "lstn"}, "'rnn', 'lstm', 'gru' or 'attention'"),
        ("length", {"lengths": []}, "at least 1"),
        ("heads", {"lengths": [100_000_000]}, "less than or equal to 1048576"),
        ("length", {"repetitions": 10**9}, "at most 10,000"),
        ("length", {"seed": 2**64}, "at most"),
    ],
)
def test_invalid_settings_are_explained(name: str, words: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as mistake:
        read_study(name, words)
    assert message in str(mistake.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("heads", {"lengths": [2**20]}),
        ("length", {"lengths": [2**20], "batch": 2**20}),
        ("heads", {"width": 2**20}),
    ],
)
def test_sizes_beyond_memory_are_refused_before_building(name: str, words: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"would need about [\d,.]+ GiB; cpu has"):
        api.study(name, out=tmp_path / "out", progress=False, device="cpu", **words)
    assert not (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize(("name", "words"), [("heads", {"h": 2}), ("length", {"T": 4})])
def test_single_size_has_no_plot_and_report_notes_it(
    name: str, words: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {**TINY[name], **words, "repetitions": 1}
    result: Any = api.study(name, out=tmp_path / "out", progress=False, device="cpu", **sizes)
    assert "No plot: one " in str(result)
    assert "No plot: one " in result.report.read_text()


def test_formulas_are_printed_without_code_operators(results: dict[str, StudyResult]) -> None:
    for result in results.values():
        assert not any("*" in formula for formula in result.formulas.values())
        assert not any("*" in sentence for sentence in result.conclusion)


@pytest.mark.parametrize("name", TINY)
def test_failed_and_interrupted_timings_keep_finished_rows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    races: list[Any] = [
        time_in_turns,
        time_in_turns,
        MemoryError("no room"),
        time_in_turns,
        time_in_turns,
        KeyboardInterrupt(),
    ]

    def failing(*args: Any) -> Any:
        matches = races.pop(0)
        if isinstance(matches, BaseException):
            raise matches
        return matches(*args)

    monkeypatch.setattr(costs, "time_in_turns", failing)
    words = {**TINY[name], "device": "cpu", "repetitions": 1}
    result: Any = api.study(name, out=tmp_path / "out", progress=False, **words)
    assert [bool(run.measures) for run in result.runs] == [True, False, True, False][: len(result.runs)]
    assert result.interrupted == (name == "heads"), "the other one has three races"
    assert "failed: MemoryError: no room" in str(result) and "MemoryError: no room" in result.report.read_text()
    races.append(KeyboardInterrupt())
    del races[:-1]
    nothing: Any = api.study(name, out=tmp_path / "none", progress=False, **words)
    assert nothing.interrupted and not nothing.rows and "No race finished" in str(nothing)


def test_unknown_study_suggests_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="Did you mean 'heads'"):
        api.study("headz", out=tmp_path / "out", progress=False)


@pytest.mark.parametrize("name", TINY)
def test_study_file_accepts_a_number_for_a_list(name: str, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(f'kind = "{name}"\nlengths = 32\n')
    spec: Any = read_study(tmp_path / "own.toml", {"repetitions": 3})
    assert (spec.name, spec.lengths, spec.repetitions) == ("own", (32,), 3)
    assert to_toml(STUDIES[name].to_dict())
