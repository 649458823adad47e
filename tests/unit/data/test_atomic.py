"""Files and folders are there whole or not at all, whoever is killed when."""

import os
import signal
from pathlib import Path

import pytest

from lemma.data.files import replacing, sweep, write_atomically


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def killed_while_writing(path: Path) -> None:
    """Fork a process that is killed with SIGKILL in the middle of writing a folder."""
    child = os.fork()
    if child == 0:
        with replacing(path) as temporary:
            temporary.mkdir()
            (temporary / "half").write_text("…")
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_a_file_is_replaced_and_nothing_else_stays(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.txt", "old")
    write_atomically(tmp_path / "a.txt", b"new")
    assert (tmp_path / "a.txt").read_text() == "new" and names(tmp_path) == ["a.txt"]


def test_a_failure_leaves_the_old_file_and_no_temporary(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.txt", "old")
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "a.txt") as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert (tmp_path / "a.txt").read_text() == "old" and names(tmp_path) == ["a.txt"]


def test_a_folder_takes_the_place_of_one_that_holds_something(tmp_path: Path) -> None:
    for content in ("old", "new"):
        with replacing(tmp_path / "folder") as temporary:
            temporary.mkdir()
            (temporary / content).write_text(content)
    assert names(tmp_path / "folder") == ["new"] and names(tmp_path) == ["folder"]


def test_a_folder_that_cannot_be_put_in_place_leaves_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").touch()
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "folder"):
        pass  # nothing was written that could be renamed
    assert names(tmp_path / "folder") == ["old"] and names(tmp_path) == ["folder"]


def test_what_a_killed_process_left_is_swept_by_the_next_writer(tmp_path: Path) -> None:
    killed_while_writing(tmp_path / "step-1")
    assert len(names(tmp_path)) == 1 and not (tmp_path / "step-1").exists()
    write_atomically(tmp_path / "other.txt", "")
    assert names(tmp_path) == ["other.txt"]


def test_what_a_living_process_is_writing_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / f".a.txt.{os.getppid()}.partial").write_text("half")
    (tmp_path / ".b.notes.partial").write_text("of a person")
    sweep(tmp_path)
    assert len(names(tmp_path)) == 2


def test_content_is_synced_before_it_is_renamed_and_the_folder_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    sync, replace = os.fsync, Path.replace
    monkeypatch.setattr(
        os, "fsync", lambda handle: (events.append(Path(f"/proc/self/fd/{handle}").readlink().name), sync(handle))
    )
    monkeypatch.setattr(Path, "replace", lambda *pair: (events.append("rename"), replace(*pair)))
    write_atomically(tmp_path / "a.txt", "content")
    assert events == [f".a.txt.{os.getpid()}.partial", "rename", tmp_path.name]
