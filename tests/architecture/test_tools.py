"""Check the checks of `make check`: the vocabulary and the line budget."""

from pathlib import Path

import pytest

from tools import lines, vocabulary


def test_identifiers_are_split_into_words() -> None:
    assert vocabulary.words_of("KVCache_size") == ["kv", "cache", "size"]
    assert vocabulary.words_of("found_rows") == ["found", "rows"]


def test_vague_names_and_clause_docstrings_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "ROOT", tmp_path)
    path = tmp_path / "module.py"
    path.write_text('def said(place):\n    """What it is."""\n    rows = 1\ndef test_one_thing():\n    """Check."""\n')
    findings, names, docstrings = vocabulary.check_file(path, frozenset({"said", "place", "one"}), frozenset({"What"}))
    assert [(finding.kind, finding.word) for finding in findings] == [
        ("name", "said"),
        ("name", "place"),
        ("docstring", "What"),
    ]
    assert (names, docstrings) == (3, 2)


def test_package_over_its_line_budget_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "text.py").write_text("a = 1\nb = 2\n")
    (tmp_path / "lines.toml").write_text("[lines]\ndata = 2\n")
    monkeypatch.setattr(lines, "SOURCE", tmp_path)
    monkeypatch.setattr(lines, "BUDGET", tmp_path / "lines.toml")
    assert not lines.main()
    (tmp_path / "data" / "text.py").write_text("a = 1\nb = 2\nc = 3\n")
    assert lines.main()
    assert "Over budget: data" in capsys.readouterr().out
