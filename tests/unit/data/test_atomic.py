"""Files and folders are there whole or not at all, whoever is killed when."""

import errno
import json
import os
import signal
import time
from pathlib import Path

import pytest

from lemma.data.files import check_once, discard, locked, machine, read_sealed, replacing, seal, sweep, write_atomically
from lemma.errors import RunError, StorageError

DEAD = 1 << 22  # no process has so high a number


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


def test_a_process_killed_while_it_removes_a_folder_leaves_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").touch()
    child = os.fork()
    if child == 0:
        os.rmdir = os.unlink = lambda *given, **named: os.kill(os.getpid(), signal.SIGKILL)
        discard(tmp_path / "old")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert [name for name in names(tmp_path) if not name.startswith(".")] == [] != names(tmp_path)
    sweep(tmp_path)
    assert names(tmp_path) == []
    discard(tmp_path / "old")  # which is gone


def test_what_a_living_process_is_writing_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / f".a.txt.{machine()}-{os.getppid()}.partial").write_text("half")
    (tmp_path / f".a.txt.0123456789ab-{DEAD}.partial").write_text(
        "of another container, where that number may be alive"
    )
    (tmp_path / ".b.notes.partial").write_text("of a person")
    sweep(tmp_path)
    assert len(names(tmp_path)) == 3
    (tmp_path / f".a.txt.{machine()}-{DEAD}.partial").write_text("of a process that is gone")
    sweep(tmp_path)
    assert len(names(tmp_path)) == 3


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
    assert events == [f".a.txt.{machine()}-{os.getpid()}.partial", "rename", tmp_path.name]


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    for name, leads_to in (("folder", tmp_path / "real" / "run"), ("a.txt", tmp_path / "real" / "a.txt")):
        (tmp_path / name).symlink_to(leads_to)
    for content in ("old", "new"):
        write_atomically(tmp_path / "a.txt", content)
        with replacing(tmp_path / "folder") as temporary:
            temporary.mkdir()
            (temporary / content).touch()
    assert (tmp_path / "a.txt").is_symlink() and (tmp_path / "real" / "a.txt").read_text() == "new"
    assert (tmp_path / "folder").is_symlink() and names(tmp_path / "real" / "run") == ["new"]


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, r"5 bytes of it were written, [\d,]+ bytes are free\)\. Make room"),
        (errno.EROFS, "Choose a place that you may write to"),
        (errno.EMFILE, "ulimit -n"),
    ],
)
def test_a_disk_that_refuses_is_told_with_the_file_and_the_next_step(tmp_path: Path, number: int, said: str) -> None:
    write_atomically(tmp_path / "a.txt", "old")
    with (
        pytest.raises(StorageError, match=rf"a\.txt cannot be written: .*{said}"),
        replacing(tmp_path / "a.txt") as new,
    ):
        new.write_text("12345")
        raise OSError(number, "…")
    assert (tmp_path / "a.txt").read_text() == "old" and names(tmp_path) == ["a.txt"]


def test_a_change_of_any_value_breaks_the_seal(tmp_path: Path) -> None:
    path, values = tmp_path / "sealed.json", {"a": [1, 2.5, None], "b": {3: "ü"}}
    path.write_text(json.dumps(seal(values)))
    assert read_sealed(path) == {"a": [1, 2.5, None], "b": {"3": "ü"}}
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(RunError, match=r"sealed\.json is damaged"):
            read_sealed(path)


def test_a_file_is_read_again_only_after_a_change(tmp_path: Path) -> None:
    path, read = tmp_path / "large", []

    def measure() -> str:
        read.append(1)
        return path.read_text()

    path.write_text("good")
    os.utime(path, (0, 0))
    assert check_once(path, "good", measure) and check_once(path, "good", measure)
    assert len(read) == 2  # changed within the last second: a change right after would not be seen
    time.sleep(1.1)
    assert all(check_once(path, "good", measure) for _ in range(3)) and len(read) == 3
    path.write_text("evil")
    os.utime(path, (0, 0))  # the same size and time, but not the time of the change itself
    assert not check_once(path, "good", measure)


def test_two_processes_never_hold_the_same_lock(tmp_path: Path) -> None:
    with locked(tmp_path / "a", wait=0) as first, locked(tmp_path / "a", wait=0.05) as second:
        assert first and not second
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with locked(tmp_path / "a", wait=0), locked(tmp_path / "b", wait=0.05) as second:
        assert not second
    assert names(tmp_path) == ["b"]
