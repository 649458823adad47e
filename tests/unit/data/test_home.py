from pathlib import Path

import pytest

from lemma.errors import DataError
from lemma.files import data_home, home_folder


def test_the_home_is_lemma_home_then_the_cache_folder_then_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEMMA_HOME", "/chosen")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert data_home() == Path("/chosen")
    monkeypatch.delenv("LEMMA_HOME")
    assert data_home() == Path("/cache/lemma")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/somebody")
    assert data_home() == Path("/somebody/.cache/lemma")


def test_a_home_that_cannot_be_made_is_an_error_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match="Set LEMMA_HOME"):
        home_folder("stores")
