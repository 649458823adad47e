"""The index on disk: incremental updates, and recovery from interruption and damage."""

import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from image_runs import draw_shape
from lemma.data.images import decode_image
from lemma.errors import RunError
from lemma.retrieval import index as indexing
from lemma.retrieval.embedding import Embedder
from lemma.retrieval.index import HEADER_FILE, Index, OpenedIndex, open_images, update_index
from lemma.runs.folder import write_lock
from lemma.runs.load import load
from search_runs import image_folder, untrained_run


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    return Embedder(load(untrained_run(tmp_path_factory.mktemp("runs") / "run")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return image_folder(tmp_path / "pictures")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Record the names of the decoded images."""
    seen: list[str] = []
    real = indexing.read_entries

    def record_reads(images, entries, side):
        seen.extend(entry.name for entry in entries)
        return real(images, entries, side)

    monkeypatch.setattr(indexing, "read_entries", record_reads)
    yield seen


def update(embedder: Embedder, folder: Path, index_folder: Path | None = None) -> OpenedIndex:
    return update_index(index_folder or folder.parent / "index", embedder, open_images(folder))


def check_complete(index: Index, embedder: Embedder, folder: Path) -> None:
    """Check that every readable image is indexed once, with its vector when embedded alone."""
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))
    invalid = {entry.name for entry in index.unreadable}
    assert sorted(entry.name for entry in index.entries) == [name for name in files if name not in invalid]
    for entry, vector in zip(index.entries, index.vectors, strict=True):
        single = embedder.image_vectors(decode_image(folder / entry.name, embedder.image_side)[None])[0]
        np.testing.assert_allclose(vector, single, atol=1e-5)
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)


def test_every_image_has_a_normalized_memory_mapped_vector(embedder: Embedder, folder: Path) -> None:
    done = update(embedder, folder)
    assert (done.counts.new, done.counts.removed, len(done.index)) == (12, 0, 12)
    assert isinstance(done.index.vectors, np.memmap) and done.index.vectors.dtype == np.float32
    check_complete(done.index, embedder, folder)


def test_second_update_reads_and_writes_nothing(embedder: Embedder, folder: Path, reads: list) -> None:
    index_folder = update(embedder, folder).index.folder
    before = {file.name: file.stat().st_mtime_ns for file in index_folder.iterdir()}
    reads.clear()
    assert update(embedder, folder).counts.new == 0 and reads == []
    assert {file.name: file.stat().st_mtime_ns for file in index_folder.iterdir()} == before


def test_update_reads_only_changed_images_and_drops_removed(embedder: Embedder, folder: Path, reads: list) -> None:
    update(embedder, folder)
    reads.clear()
    draw_shape("red", "circle", side=31).save(folder / "new.png")
    draw_shape("blue", "square", side=33).save(folder / "01-green-square.png")
    (folder / "02-blue-triangle.png").unlink()
    done = update(embedder, folder)
    assert sorted(reads) == ["01-green-square.png", "new.png"]
    assert (done.counts.new, done.counts.removed, len(done.index)) == (2, 2, 12)
    check_complete(done.index, embedder, folder)


def test_renamed_and_touched_images_are_not_read_again(embedder: Embedder, folder: Path, reads: list) -> None:
    update(embedder, folder)
    reads.clear()
    (folder / "00-red-circle.png").rename(folder / "inner" / "moved.png")
    os.utime(folder / "03-yellow-circle.png", ns=(1, 1))
    done = update(embedder, folder)
    assert reads == [] and (done.counts.new, done.counts.removed) == (0, 0)
    check_complete(done.index, embedder, folder)


def test_unreadable_images_are_listed_and_retried_after_changes(embedder: Embedder, folder: Path, reads: list) -> None:
    (folder / "bad.png").write_bytes(b"no image")
    (folder / "empty.png").touch()
    done = update(embedder, folder)
    assert {entry.name: entry.error for entry in done.index.unreadable} == {
        "bad.png": "not an image of a known format",
        "empty.png": "the file is empty",
    }
    reads.clear()
    update(embedder, folder)
    assert reads == []
    draw_shape("red", "square").save(folder / "bad.png")
    done = update(embedder, folder)
    assert reads == ["bad.png"] and [entry.name for entry in done.index.unreadable] == ["empty.png"]
    check_complete(done.index, embedder, folder)


def test_index_of_another_run_is_rebuilt(embedder: Embedder, folder: Path, tmp_path: Path) -> None:
    update(embedder, folder)
    other = Embedder(load(untrained_run(tmp_path / "other", seed=2)))
    done = update(other, folder)
    assert done.counts.new == 12 and "another run's" in done.note
    check_complete(done.index, other, folder)


@pytest.mark.parametrize("damage", ["vectors", "entries", "head", "missing"])
def test_damaged_index_fails_on_read_and_is_rebuilt_on_update(embedder: Embedder, folder: Path, damage: str) -> None:
    index = update(embedder, folder).index
    index_folder = index.folder
    if damage == "vectors":
        os.truncate(index_folder / index.header.vectors, 100)
    elif damage == "entries":
        (index_folder / index.header.entries).write_bytes(b"\xff{")
    elif damage == "missing":
        (index_folder / index.header.vectors).unlink()
    else:
        (index_folder / HEADER_FILE).write_text(json.dumps({"format": 1, "rows": "many"}))
    with pytest.raises(RunError, match="damaged"):
        Index.open(index_folder)
    done = update(embedder, folder)
    assert "made again" in done.note
    check_complete(done.index, embedder, folder)


def update_until_killed(folder: Path, run: Path, blow: str, count: int) -> None:
    """Update an index in blocks of three, and be killed just before the given step of indexing."""
    indexing.BLOCK = 3
    steps = 0

    def kill_update_at(real):
        def step(*args):
            nonlocal steps
            steps += 1
            if steps == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args)

        return step

    if blow == "sync":
        indexing._sync = kill_update_at(indexing._sync)
    else:
        setattr(indexing.IndexHeader, "write", kill_update_at(indexing.IndexHeader.write))  # noqa: B010  (types forbid it, rightly)
    update(Embedder(load(run)), folder)


@pytest.mark.parametrize(("blow", "count"), [("sync", 3), ("sync", 4), ("head", 3), ("head", 1), ("sync", 1)])
def test_killed_update_leaves_complete_blocks_and_resumes(
    embedder: Embedder, folder: Path, blow: str, count: int, reads: list
) -> None:
    process = multiprocessing.get_context("fork").Process(
        target=update_until_killed, args=(folder, embedder.run.path, blow, count)
    )
    process.start()
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    index_folder = folder.parent / "index"
    saved = len(Index.open(index_folder)) if (index_folder / HEADER_FILE).exists() else 0
    assert saved == (3 if (blow, count) in {("sync", 3), ("sync", 4), ("head", 3)} else 0)
    done = update(embedder, folder)
    assert len(reads) == 12 - saved
    check_complete(done.index, embedder, folder)


def test_killed_removal_leaves_the_old_or_new_index(embedder: Embedder, folder: Path) -> None:
    update(embedder, folder)
    (folder / "02-blue-triangle.png").unlink()
    for blow, count in (("sync", 1), ("sync", 2), ("head", 1)):
        process = multiprocessing.get_context("fork").Process(
            target=update_until_killed, args=(folder, embedder.run.path, blow, count)
        )
        process.start()
        process.join(30)
        assert process.exitcode == -signal.SIGKILL
        assert len(Index.open(folder.parent / "index")) == 12
    done = update(embedder, folder)
    assert len(done.index) == 11
    assert len(list(done.index.folder.glob("*-*"))) == 2  # leftovers of killed processes are removed
    check_complete(done.index, embedder, folder)


def test_open_reader_is_unaffected_by_updates(embedder: Embedder, folder: Path) -> None:
    index = update(embedder, folder).index
    before = np.array(index.vectors)
    (folder / "00-red-circle.png").unlink()
    draw_shape("red", "circle", side=40).save(folder / "later.png")
    update(embedder, folder)
    np.testing.assert_array_equal(index.vectors, before)


def test_concurrent_writer_is_refused(embedder: Embedder, folder: Path) -> None:
    index_folder = update(embedder, folder).index.folder
    with (
        write_lock(index_folder),
        pytest.raises(RunError, match=r"another process\. Wait for it; or search it as"),
    ):
        update(embedder, folder)


def test_index_folder_with_foreign_files_is_refused(embedder: Embedder, folder: Path) -> None:
    with pytest.raises(RunError, match="not empty and not an index"):
        update(embedder, folder, index_folder=folder)
    (folder.parent / "file").touch()
    with pytest.raises(RunError, match="is a file"):
        update(embedder, folder, index_folder=folder.parent / "file")


def test_embedder_hash_depends_only_on_the_image_tower(embedder: Embedder, tmp_path: Path) -> None:
    same = Embedder(load(untrained_run(tmp_path / "same")))
    assert same.hash == embedder.hash
    same.towers.text_projection.weight.data += 1
    assert Embedder(same.run).hash == embedder.hash
    same.towers.image_projection.weight.data[0, 0] += 1e-6
    assert Embedder(same.run).hash != embedder.hash


def test_moved_image_folder_reuses_its_vectors(embedder: Embedder, folder: Path, reads: list) -> None:
    before = update(embedder, folder).index.header
    reads.clear()
    moved = folder.rename(folder.parent / "moved")
    after = update(embedder, moved).index.header
    assert (before.images, after.images) == (str(folder), str(moved)) and not reads
    assert after == replace(before, images=str(moved))
