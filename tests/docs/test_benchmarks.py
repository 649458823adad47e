"""Benchmark tables state date, machine and command."""

import re
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.__main__ import ALL, SEPARATE_PROGRAMS, main
from benchmarks.compare import Comparison
from lemma.studies.timing import Quartiles

PAGE = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
SAID = re.compile(
    r"^\*\d{4}-\d{2}-\d{2}, .*(?:cores|H200|not recorded).*`(?:make bench|python -m benchmarks[\w. ]*)`", re.MULTILINE
)


def without_provenance(page: str) -> list[str]:
    parts = page.split("\n## ")[1:]
    return [part.splitlines()[0] for part in parts if "\n|" in part and not SAID.search(part)]


def test_benchmark_tables_name_date_machine_and_command() -> None:
    assert without_provenance(PAGE) == []


def test_undated_benchmark_table_is_detected() -> None:
    assert without_provenance("# B\n\n## Speed\n\n| a |\n|---|\n| 5 ms |\n") == ["Speed"]


def test_benchmark_page_commands_name_existing_benchmarks() -> None:
    commands = re.findall(r"python -m benchmarks(\.\w+)?((?: [a-z]\S*)*)`", PAGE)
    assert len(commands) > 10
    existing = {"": {*ALL, *SEPARATE_PROGRAMS}, ".gpu": {"penalties", "decoding", "training", "shakespeare"}}
    for module, names in commands:
        assert set(names.split()) <= existing.get(module, set()), (module, names)
        assert not module or module[1:] in SEPARATE_PROGRAMS


def test_unknown_benchmark_exits_with_2_before_measuring(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setitem(SEPARATE_PROGRAMS, "graph", lambda: pytest.fail("it was measured"))
    for run in (lambda: main(["graph", "grpah"]), lambda: gpu.main(("decodng",))):
        with pytest.raises(SystemExit) as ended:
            run()
        assert ended.value.code == 2 and "Names: " in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0 and "decoder-bfloat16" in capsys.readouterr().out


def test_missed_benchmark_target_exits_with_1(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    ratios = {"a peer": Quartiles(1.2, 1.0, 1.3)}
    for target, output in (({"a peer": 1.5}, "TARGET MISSED"), ({"a peer": 1.2}, "target met"), ({}, "")):
        result = Comparison("work", "tokens/s", {"Lemma": 12.0, "a peer": 10.0}, ratios, target)
        assert [word for word in ("TARGET MISSED", "target met") if word in str(result)] == ([output] if output else [])
        assert "1.20 (quartiles 1.00 to 1.30" in str(result)
        monkeypatch.setitem(ALL, "decoder", lambda result=result: result)
        assert main(["decoder"]) == (output == "TARGET MISSED")
