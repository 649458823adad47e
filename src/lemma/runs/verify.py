"""Comparison of files with their checksums: of a run, of a study and its runs, of the caches."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from lemma.data.store import HEADER_FILE as STORE
from lemma.data.store import TOKENS_FILE, TokenStore
from lemma.errors import LemmaError, MemoryLimitError, RunError
from lemma.files import PARTIAL_SUFFIX, read_checked_json, read_json, unreadable_error, verify_file
from lemma.hub.pretrained import CHECKSUMS, change_since_opened, verify_pretrained_file
from lemma.report.result import Block, Result, Table, Text, to_plain
from lemma.runs.checkpoint import MANIFEST, list_checkpoints, read_checkpoint, read_checksums, read_weights
from lemma.runs.folder import (
    ADAPTATION,
    METRICS,
    RUN_FILES,
    SPEC,
    SUMMARY,
    WEIGHTS,
    Metrics,
    PretrainedRun,
    RunFolder,
    check_utf8_path,
    find_changed_files,
    is_run,
    read_manifest,
)
from lemma.runs.load import check_base_hash
from lemma.spec.base import exists

STUDY_FILE = "study.toml"
MEASUREMENT_FILES = ("speed.json", "inference.json", "speeds/*.json", "trials/*.json", "runs/*.json")
"""Files of a study with its measurements."""
State = Literal["good", "damaged", "no checksum", "left over"]


@dataclass(frozen=True)
class CheckedFile:
    """Result of comparing a file with its checksum."""

    path: str
    bytes: int
    state: State
    why: str = ""


@dataclass(frozen=True)
class Verification(Result):
    """The files of a folder compared with their checksums."""

    title = "Files compared with their checksums"
    json_names = ("path", "right", "files")

    path: Path
    files: tuple[CheckedFile, ...]

    @property
    def right(self) -> bool:
        """True if no file is damaged."""
        return all(file.state != "damaged" for file in self.files)

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per file: path, bytes, state and, if it is damaged, the reason."""
        return [to_plain(file) for file in self.files]

    def blocks(self) -> Iterator[Block]:
        """Yield a table of the files, the reasons for damage, and the number of damaged files."""
        rows = [(file.path, f"{file.bytes:,}", file.state) for file in self.files]
        yield Table(("file", "bytes", ""), rows, left=(0, 2), breakable=(0,))
        for file in self.files:
            if file.why:
                yield Text(file.why, "bad" if file.state == "damaged" else "note", blank_before=True)
        count = sum(file.state == "damaged" for file in self.files)
        yield Text(f"{self.path}: " + (f"{count} damaged." if count else "nothing is damaged."), blank_before=True)


def verify_folder(path: Path) -> Verification:
    """Compare the files of a run, a study, an export, or all runs below a folder with their checksums."""
    check_utf8_path(path)
    if is_run(path):
        return make_verification(path, _check_run(path))
    if exists(path / CHECKSUMS):  # of peft
        return make_verification(path, _check_export(path, ()))
    if not exists(path) or not path.is_dir():
        raise RunError(f"{path}: there is no such folder. Give a run, a study's folder or an index.")
    try:
        next(path.iterdir(), None)
    except OSError as error:
        raise unreadable_error(path, error) from None
    runs = sorted(spec.parent for spec in path.rglob(SPEC))
    folders = {file.parent for name in (STUDY_FILE, MANIFEST) for file in path.rglob(name)}
    studies = sorted(folder for folder in folders if not any(folder.is_relative_to(run) for run in runs))
    if not runs and not studies:
        raise RunError(f"{path} holds no run, no study and no index, and so has no checksums.")
    study_files = (file for study in studies for file in _check_study(study, runs))
    return make_verification(path, chain(study_files, (file for run in runs for file in _check_run(run))))


def verify_home(home: Path) -> Verification:
    """Compare the cached files in the data home with their checksums; damaged ones are replaced at their next use."""
    checks: list[Iterable[CheckedFile]] = []
    patterns = (f"stores/*/{STORE}", "tokenizers/*.json", "counts/*.json")
    for path in sorted(path for pattern in patterns for path in home.glob(pattern)):
        if b'"sha256"' not in path.read_bytes():  # of an earlier version of Lemma, and not used any more
            checks.append([_checked_file(path, "no checksum")])
        elif path.name == STORE:
            checks.append(check_files([path, path.with_name(TOKENS_FILE)], partial(TokenStore, path.parent)))
        else:
            checks.append(check_files([path], partial(read_checked_json, path)))
    return make_verification(home, chain.from_iterable(checks))


def make_verification(root: Path, files: Iterable[CheckedFile]) -> Verification:
    """Return the verification of `root` from its checked files; paths in it become relative to it."""

    def shorten(path: Path) -> str:
        if path == root:  # a model may be a single file
            return path.name
        return str(path.relative_to(root) if path.is_relative_to(root) else path)

    return Verification(root, tuple(replace(file, path=shorten(Path(file.path))) for file in files))


def _check_study(study: Path, runs: Sequence[Path]) -> Iterator[CheckedFile]:
    """Yield the check of each file of a study except its runs: those in its manifest, and measurements.

    Results of the runs are files next to their folders, `runs`.
    """
    has_manifest = (study / MANIFEST).exists()  # it is written last, and not by version 0.1
    if has_manifest:
        yield from check_files([study / MANIFEST], lambda: read_checksums(study))
        with suppress(RunError):
            for name, expected in read_checksums(study).items():
                yield from check_files([study / name], partial(verify_file, study / name, expected, MANIFEST))
    run_results = [run.with_name(f"{run.name}.json") for run in runs if run.is_relative_to(study)]
    measurements = {path for pattern in MEASUREMENT_FILES for path in study.glob(pattern)}
    for path in sorted({*filter(exists, run_results), *measurements}):
        if has_manifest or b'"sha256"' in path.read_bytes():
            yield from check_files([path], partial(read_checked_json, path))
        else:
            yield _checked_file(path, "no checksum")


def _check_run(run: Path) -> Iterator[CheckedFile]:
    """Yield the check of each file of a run or pretrained model; a run that cannot be opened has a damaged file."""
    try:
        folder, message = RunFolder.open(run), ""
    except LemmaError as error:
        folder, message = None, str(error)
    if isinstance(folder, PretrainedRun):
        files = list(_check_pretrained(folder))
    else:
        files = list(_check_run_folder(run, folder))
    yield from files
    if message and all(file.state != "damaged" for file in files):
        path = next((run / name for name in sorted(RUN_FILES) if name in message), run)
        yield _checked_file(path, "damaged", message)


def _check_pretrained(folder: PretrainedRun) -> Iterator[CheckedFile]:
    """Yield the check of each file of a pretrained model, as far as checksums are known."""
    files = [*folder.source.files, *folder.source.extra_files]
    if (files[0].parent / CHECKSUMS).exists():
        yield from _check_export(files[0].parent, files)
        return
    changes = {file: change for file in files if (change := change_since_opened(file))}
    if changes:
        for file in files:
            yield _checked_file(file, "damaged" if file in changes else "no checksum", changes.get(file, ""))
        return
    note = "Lemma did not write this model, and has no checksums of it. The SHA-256 over its files is now "
    yield from check_files(files, lambda: folder.source.model(), f"{note}{folder.source.hash}.")


def _check_run_folder(run: Path, folder: RunFolder | None) -> Iterator[CheckedFile]:
    """Yield the check of each file of a run folder, by its manifest and own checksums, and each temporary file.

    `folder` is the opened run, None if it cannot be opened.
    """
    try:
        manifest, changes = read_manifest(run), dict(find_changed_files(run))
    except LemmaError as error:
        manifest, changes = {"files": {}, "tables": {}}, {MANIFEST: str(error)}
    names = [*manifest["tables"], *(name for name in manifest["files"] if name not in (METRICS, SUMMARY)), MANIFEST]
    for name in dict.fromkeys(name for name in names if (run / name).exists() or name in changes):
        yield _checked_file(run / name, "damaged" if name in changes else "good", changes.get(name, ""))
    if not (run / MANIFEST).exists():
        note = f"{run} was written by an earlier version of Lemma, which kept no checksums of descriptions."
        yield _checked_file(run / SPEC, "no checksum", note)
    checks: dict[str, Callable[[], object]] = {
        WEIGHTS: lambda: read_weights(run / WEIGHTS),
        METRICS: Metrics(run / METRICS).rows,
        SUMMARY: folder.summary if folder else lambda: read_json(run / SUMMARY),
    }
    for name, check in checks.items():
        if (run / name).exists() or (name == WEIGHTS and folder is not None and folder.is_finished):
            yield from check_files([run / name], check)
    if folder is not None and not folder.is_finished and not folder.is_resumable:
        yield _checked_file(run / SUMMARY, "damaged", folder.incomplete_message())
    if folder is not None and folder.adaptation is not None:
        yield from check_files([run / ADAPTATION], lambda: check_base_hash(folder, folder.base()))
    for checkpoint in list_checkpoints(run / "checkpoints"):
        files = [checkpoint / MANIFEST]
        with suppress(RunError):
            files += [checkpoint / name for name in read_checksums(checkpoint)]
        yield from check_files(files, partial(read_checkpoint, checkpoint))
    for path in sorted(run.rglob(f".*{PARTIAL_SUFFIX}")):
        note = f"{path} was left by a process that was killed, or is being written."
        yield _checked_file(path, "left over", note)


def _check_export(folder: Path, files: Sequence[Path]) -> Iterator[CheckedFile]:
    """Yield the check of each file in an export's list of checksums, and of `files`."""
    manifest = folder / CHECKSUMS
    yield from check_files([manifest], partial(read_checked_json, manifest))
    paths = dict.fromkeys(files)
    with suppress(RunError):
        paths |= dict.fromkeys(folder / str(name) for name in read_checked_json(manifest).get("files", {}))
    for path in paths:
        yield from check_files([path], partial(verify_pretrained_file, path))


def check_files(paths: list[Path], check: Callable[[], object], note: str = "") -> Iterator[CheckedFile]:
    """Call `check`, which checks several files, and yield a result for each: good, damaged, or without a checksum.

    Args:
        paths: Paths of the files; the one that the error names is damaged, or all if it names none.
        check: Raises a LemmaError for damage.
        note: Reason why the files have no checksum; "" if they have.
    """
    try:
        check()
    except MemoryLimitError:  # the file could not be read, so nothing is known of it
        raise
    except LemmaError as error:
        message = str(error)
        damaged = [path for path in paths if str(path) in message] or paths
        for path in paths:
            state = "damaged" if path in damaged else "good"
            yield _checked_file(path, state, message if path == damaged[0] else "")
        return
    for path in paths:
        yield _checked_file(path, "no checksum" if note else "good", note if path == paths[0] else "")


def _checked_file(path: Path, state: State, note: str = "") -> CheckedFile:
    """Return the `CheckedFile` of a path: its size, `state`, and the reason for that, `note`."""
    return CheckedFile(str(path), path.stat().st_size if path.exists() else 0, state, note)
