"""Atomic writes of files and folders under kills and concurrency; the data home."""

import errno
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from faults import forked
from lemma import files
from lemma.errors import DataError, RunError, StorageError
from lemma.files import (
    atomic_new_folder,
    atomic_replace,
    data_home,
    file_hash,
    file_lock,
    home_folder,
    machine_id,
    matches_checksum,
    read_checked_json,
    remove_atomically,
    remove_stale_temp_files,
    restore_moved_folder,
    write_atomically,
    write_checked_json,
)

NOBODY = 65534  # the unprivileged user
DEAD = 1 << 22  # no process has an id this high


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def killed_while_writing(path: Path) -> None:
    """Fork a process that is killed with SIGKILL in the middle of writing a folder."""
    child = os.fork()
    if child == 0:
        with atomic_replace(path) as temporary:
            temporary.mkdir()
            (temporary / "half").write_text("…")
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_writing_a_file_leaves_no_temporary_files(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.txt", "old")
    write_atomically(tmp_path / "a.txt", b"new")
    assert (tmp_path / "a.txt").read_text() == "new" and names(tmp_path) == ["a.txt"]


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.txt", "old")
    with pytest.raises(ZeroDivisionError), atomic_replace(tmp_path / "a.txt") as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert (tmp_path / "a.txt").read_text() == "old" and names(tmp_path) == ["a.txt"]


def test_non_empty_folder_is_replaced(tmp_path: Path) -> None:
    for content in ("old", "new"):
        with atomic_replace(tmp_path / "folder") as temporary:
            temporary.mkdir()
            (temporary / content).write_text(content)
    assert names(tmp_path / "folder") == ["new"] and names(tmp_path) == ["folder"]


def test_failed_replacement_keeps_the_old_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").touch()
    with pytest.raises(FileNotFoundError), atomic_replace(tmp_path / "folder"):
        pass  # no file was completed that could be renamed
    assert names(tmp_path / "folder") == ["old"] and names(tmp_path) == ["folder"]


def write_folder(path: Path, content: str) -> None:
    with atomic_replace(path) as temporary:
        temporary.mkdir()
        for name in ("a", "b"):
            (temporary / name).write_text(content)


def content_of(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.fixture(params=[True, False], ids=["names are exchanged", "names cannot be exchanged"])
def _exchange(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(files, "_renameat2", lambda: None)


@pytest.mark.usefixtures("_exchange")
@pytest.mark.parametrize(
    "look", [restore_moved_folder, lambda path: remove_stale_temp_files(path.parent)], ids=["reader", "writer"]
)
def test_killed_writer_leaves_the_old_or_the_new_folder(tmp_path: Path, look) -> None:
    old, new = dict.fromkeys("ab", "old"), dict.fromkeys("ab", "new")
    seen: list[dict[str, str]] = []
    for moment in range(1, 100):
        path = tmp_path / str(moment) / "run"
        path.parent.mkdir()
        write_folder(path, "old")
        status = forked(partial(write_folder, path, "new"), kill_at=moment)
        look(path)
        seen.append(content_of(path))
        write_folder(path, "newer")
        assert content_of(path) == dict.fromkeys("ab", "newer") and names(path.parent) == ["run"]
        if status == 0:
            break
    assert all(content in (old, new) for content in seen) and old in seen and len(seen) > 6


def test_moved_folder_is_retained_until_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aside = tmp_path / f".run.3.{machine_id()}-{DEAD}.aside"
    aside.mkdir()
    (aside / "weights").touch()
    with monkeypatch.context() as invalid:
        invalid.setattr(Path, "rename", lambda *pair: (_ for _ in ()).throw(OSError(errno.EIO, "…")))
        write_atomically(tmp_path / "other.txt", "")
        assert names(aside) == ["weights"]
    remove_stale_temp_files(tmp_path)
    assert names(tmp_path) == ["other.txt", "run"]


@pytest.mark.skipif(files._renameat2() is None, reason="the system cannot exchange names")
def test_folder_exists_at_every_moment_of_its_replacement(tmp_path: Path) -> None:
    moment = 0
    for moment in range(1, 100):
        write_folder(tmp_path / "run", "old")
        status = forked(partial(write_folder, tmp_path / "run", "new"), kill_at=moment)
        assert (tmp_path / "run" / "b").exists()  # it was not restored
        if status == 0:
            break
    assert moment > 6


@pytest.mark.usefixtures("_exchange")
def test_concurrent_writers_of_a_folder_leave_one_complete_copy(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: write_folder(tmp_path / "run", str(number % 3)), range(60)))
    assert content_of(tmp_path / "run") in [dict.fromkeys("ab", str(number)) for number in range(3)]
    assert names(tmp_path) == ["run"]


def test_threads_can_write_the_same_path(tmp_path: Path) -> None:
    contents = [str(number) * 10_000 for number in range(4)]

    def write(number: int) -> None:
        write_atomically(tmp_path / "a.txt", contents[number % 4])
        assert (tmp_path / "a.txt").read_text() in contents
        with atomic_new_folder(tmp_path / f"folder-{number // 4}") as temporary:
            (temporary / "b").touch()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(80)))
    assert names(tmp_path) == ["a.txt", *sorted(f"folder-{number}" for number in range(20))]


def test_failed_rename_restores_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_renameat2", lambda: None)
    write_folder(tmp_path / "run", "old")
    rename, calls = Path.replace, []

    def fail_second(*pair: Path) -> Path:
        calls.append(pair)
        if len(calls) > 1:
            raise OSError(errno.EIO, "…")
        return rename(*pair)

    monkeypatch.setattr(Path, "replace", fail_second)
    with pytest.raises(StorageError):
        write_folder(tmp_path / "run", "new")
    assert content_of(tmp_path / "run") == dict.fromkeys("ab", "old") and names(tmp_path) == ["run"]


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.usefixtures("_exchange")
@pytest.mark.parametrize("protected", ["folder", "folder inside", "sticky parent"])
def test_folder_of_another_user_is_not_moved(tmp_path: Path, protected: str) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    write_folder(shared / "run", "old")
    for parent in tmp_path.parents:
        if parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o111)
    tmp_path.chmod(0o755)
    shared.chmod(0o1777 if protected == "sticky parent" else 0o777)
    (shared / "run").chmod(0o755 if protected == "folder" else 0o777)
    if protected == "folder inside":
        (shared / "run" / "checkpoints").mkdir()
        (shared / "run" / "checkpoints" / "step").touch()
    before = sorted(path.relative_to(shared) for path in shared.rglob("*"))
    reader, writer = os.pipe()

    def as_nobody() -> None:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        try:
            write_folder(shared / "run", "new")
        except StorageError as error:
            os.write(writer, str(error).encode())
            raise

    assert forked(as_nobody) == 2
    os.close(writer)
    with os.fdopen(reader) as message:
        assert re.search(r"run cannot be replaced: you may not remove .*Nothing was changed", message.read())
    assert sorted(path.relative_to(shared) for path in shared.rglob("*")) == before


def test_non_utf8_names_and_symlink_loops_are_handled(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.json")
    write_checked_json(path, {"path": str(path)})
    assert read_checked_json(path) == {"path": str(path)} and len(names(tmp_path)) == 1
    assert matches_checksum(path, file_hash(path), lambda: file_hash(path))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(OSError, match="loop"):
        matches_checksum(tmp_path / "loop", "", lambda: "")


def test_files_of_a_killed_process_are_removed_by_the_next_writer(tmp_path: Path) -> None:
    killed_while_writing(tmp_path / "step-1")
    assert len(names(tmp_path)) == 1 and not (tmp_path / "step-1").exists()
    write_atomically(tmp_path / "other.txt", "")
    assert names(tmp_path) == ["other.txt"]


def test_interrupted_removal_is_finished_by_the_next_writer(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").touch()
    child = os.fork()
    if child == 0:
        os.rmdir = os.unlink = lambda *given, **named: os.kill(os.getpid(), signal.SIGKILL)
        remove_atomically(tmp_path / "old")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert [name for name in names(tmp_path) if not name.startswith(".")] == [] != names(tmp_path)
    remove_stale_temp_files(tmp_path)
    assert names(tmp_path) == []
    remove_atomically(tmp_path / "old")  # the temporary folder is gone


def test_temporary_files_of_running_processes_are_retained(tmp_path: Path) -> None:
    (tmp_path / f".a.txt.0.{machine_id()}-{os.getppid()}.partial").write_text("half")
    (tmp_path / f".a.txt.0.0123456789ab-{DEAD}.partial").write_text(
        "of another container, where that number may be alive"
    )
    (tmp_path / ".b.notes.partial").write_text("of a person")
    remove_stale_temp_files(tmp_path)
    assert len(names(tmp_path)) == 3
    (tmp_path / f".a.txt.0.{machine_id()}-{DEAD}.partial").write_text("of a process that is gone")
    remove_stale_temp_files(tmp_path)
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
    assert re.fullmatch(rf"\.a\.txt\.\d+\.{machine_id()}-{os.getpid()}\.partial", events[0])
    assert events[1:] == ["rename", tmp_path.name]


def test_symlink_target_is_replaced_not_the_symlink(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    for name, leads_to in (("folder", tmp_path / "real" / "run"), ("a.txt", tmp_path / "real" / "a.txt")):
        (tmp_path / name).symlink_to(leads_to)
    for content in ("old", "new"):
        write_atomically(tmp_path / "a.txt", content)
        with atomic_replace(tmp_path / "folder") as temporary:
            temporary.mkdir()
            (temporary / content).touch()
    assert (tmp_path / "a.txt").is_symlink() and (tmp_path / "real" / "a.txt").read_text() == "new"
    assert (tmp_path / "folder").is_symlink() and names(tmp_path / "real" / "run") == ["new"]


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, r"5 bytes of it were written, [\d,]+ bytes are free\)\. Make room"),
        (errno.EROFS, "Choose a place that you may write to"),
        (errno.EMFILE, "ulimit -n"),
    ],
)
def test_storage_error_names_the_file_and_the_next_step(tmp_path: Path, number: int, message: str) -> None:
    write_atomically(tmp_path / "a.txt", "old")
    with (
        pytest.raises(StorageError, match=rf"a\.txt cannot be written: .*{message}"),
        atomic_replace(tmp_path / "a.txt") as new,
    ):
        new.write_text("12345")
        raise OSError(number, "…")
    assert (tmp_path / "a.txt").read_text() == "old" and names(tmp_path) == ["a.txt"]


def test_changed_value_fails_the_checksum(tmp_path: Path) -> None:
    path, values = tmp_path / "sealed.json", {"a": [1, 2.5, None], "b": {3: "ü"}}
    write_checked_json(path, values)
    assert read_checked_json(path) == {"a": [1, 2.5, None], "b": {"3": "ü"}}
    content = path.read_bytes()
    for index in range(len(content)):
        path.write_bytes(content[:index] + bytes([content[index] ^ 1]) + content[index + 1 :])
        with pytest.raises(RunError, match=r"sealed\.json is damaged"):
            read_checked_json(path)


def test_checksum_is_recomputed_only_after_a_change(tmp_path: Path) -> None:
    path, read = tmp_path / "large", []

    def measure() -> str:
        read.append(1)
        return path.read_text()

    path.write_text("good")
    os.utime(path, (0, 0))
    assert matches_checksum(path, "good", measure) and matches_checksum(path, "good", measure)
    assert len(read) == 2  # changed within the last second: a change right after would not be seen
    time.sleep(1.1)
    assert all(matches_checksum(path, "good", measure) for _ in range(3)) and len(read) == 3
    path.write_text("evil")
    os.utime(path, (0, 0))  # the same size and time, but not the time of the change itself
    assert not matches_checksum(path, "good", measure)


def test_two_processes_never_hold_the_same_lock(tmp_path: Path) -> None:
    with file_lock(tmp_path / "a", timeout=0) as first, file_lock(tmp_path / "a", timeout=0.05) as second:
        assert first and not second
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with file_lock(tmp_path / "a", timeout=0), file_lock(tmp_path / "b", timeout=0.05) as second:
        assert not second
    assert names(tmp_path) == ["b"]


def test_moved_folder_is_restored_only_over_an_empty_one(tmp_path: Path) -> None:
    for content in ("", "theirs"):
        folder = tmp_path / (content or "empty")
        folder.mkdir()
        aside = folder / f".run.0.{machine_id()}-999999999.aside"
        for name in (aside.name, f".run.0.{machine_id()}-999999999.partial", "run"):
            (folder / name).mkdir()
        (aside / "old").write_text("whole")
        if content:
            (folder / "run" / content).touch()
        remove_stale_temp_files(folder)
        remove_stale_temp_files(folder)
        assert (folder / "run" / (content or "old")).exists()
        assert aside.exists() == bool(content), "never removed before the new folder was in place"


def test_moved_folder_is_removed_after_the_replacement(tmp_path: Path) -> None:
    aside = tmp_path / f".run.0.{machine_id()}-999999999.aside"
    aside.mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "new").touch()
    remove_stale_temp_files(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_data_home_is_lemma_home_then_xdg_cache_then_user_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEMMA_HOME", "/chosen")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert data_home() == Path("/chosen")
    monkeypatch.delenv("LEMMA_HOME")
    assert data_home() == Path("/cache/lemma")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/somebody")
    assert data_home() == Path("/somebody/.cache/lemma")


def test_uncreatable_data_home_gets_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match="Set LEMMA_HOME"):
        home_folder("stores")
