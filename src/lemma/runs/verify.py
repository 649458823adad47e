"""Whether every file is still what was written: of a run, of a study and its runs, of the caches."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from lemma.data.files import SUFFIX, check_file, read_json, read_sealed, unreadable
from lemma.data.store import HEADER as STORE
from lemma.data.store import TOKENS, TokenStore
from lemma.errors import LemmaError, MemoryLimitError, RunError
from lemma.hub.pretrained import SUMS, change_since_opened, recognise
from lemma.report.result import Block, Result, Table, Text
from lemma.runs.checkpoint import MANIFEST, manifest, read, read_weights, saved
from lemma.runs.folder import (
    ADAPTATION,
    METRICS,
    OWN,
    SPEC,
    SUMMARY,
    WEIGHTS,
    Metrics,
    PretrainedRun,
    RunFolder,
    changed_files,
    is_run,
    read_manifest,
    refuse_name,
)
from lemma.runs.load import refuse_other_base
from lemma.spec.base import exists

STUDY = "study.toml"
MEASURES = ("speed.json", "inference.json", "speeds/*.json", "trials/*.json", "runs/*.json")
"""The files that a study keeps what it measured in."""
State = Literal["good", "damaged", "no checksum", "left over"]


@dataclass(frozen=True)
class CheckedFile:
    """A file, and whether it is what was written."""

    path: str
    bytes: int
    state: State
    why: str = ""


@dataclass(frozen=True)
class Verified(Result):
    """The files of a run or a cache compared with their checksums."""

    title = "Files compared with their checksums"

    path: Path
    files: tuple[CheckedFile, ...]

    @property
    def right(self) -> bool:
        """Whether no file is damaged."""
        return all(file.state != "damaged" for file in self.files)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"path": str(self.path), "right": self.right, "files": [asdict(file) for file in self.files]}

    def records(self) -> list[dict[str, Any]]:
        """A row for each file."""
        return [asdict(file) for file in self.files]

    def blocks(self) -> Iterator[Block]:
        """All files, then what is wrong with some."""
        rows = [(file.path, f"{file.bytes:,}", file.state) for file in self.files]
        yield Table(("file", "bytes", ""), rows, left=(0, 2), flexible=(0,))
        for file in self.files:
            if file.why:
                yield Text(file.why, "bad" if file.state == "damaged" else "note", apart=True)
        count = sum(file.state == "damaged" for file in self.files)
        yield Text(f"{self.path}: " + (f"{count} damaged." if count else "nothing is damaged."), apart=True)


def verify_folder(path: Path) -> Verified:
    """Compare every file of a run, of a study, or of all runs in a folder with its checksum."""
    refuse_name(path)
    if is_run(path):
        return Verified(path, tuple(_run_files(path, path)))
    if exists(path / SUMS):  # of peft
        return Verified(path, tuple(_export_files(path, (), path)))
    if not exists(path) or not path.is_dir():
        raise RunError(f"{path}: there is no such folder. Give a run, a study's folder or an index.")
    try:
        next(path.iterdir(), None)
    except OSError as error:
        raise unreadable(path, error) from None
    runs = sorted(found.parent for found in path.rglob(SPEC))
    places = {found.parent for name in (STUDY, MANIFEST) for found in path.rglob(name)}
    studies = sorted(place for place in places if not any(place.is_relative_to(run) for run in runs))
    if not runs and not studies:
        raise RunError(f"{path} holds no run, no study and no index, and so has no checksums.")
    found = [file for study in studies for file in _study_files(study, runs, path)]
    return Verified(path, (*found, *(file for run in runs for file in _run_files(run, path))))


def verify_home(home: Path) -> Verified:
    """Compare the caches of the data home with their checksums; what is damaged is made again at its next use."""
    files: list[CheckedFile] = []
    sealed = [*(home / "stores").glob(f"*/{STORE}"), *(home / "tokenizers").glob("*.json")]
    for path in sorted([*sealed, *(home / "counts").glob("*.json")]):
        if b'"sha256"' not in path.read_bytes():  # of an earlier version of Lemma, and not used any more
            files.append(_file(path, home, "no checksum"))
        elif path.name == STORE:
            files += judged([path, path.with_name(TOKENS)], home, lambda path=path: TokenStore(path.parent))
        else:
            files += judged([path], home, lambda path=path: read_sealed(path))
    return Verified(home, tuple(files))


def _study_files(study: Path, runs: Sequence[Path], root: Path) -> Iterator[CheckedFile]:
    """What a study writes next to its runs: its description and report, listed in a manifest, and sealed measures."""
    whole = (study / MANIFEST).exists()  # it is written last, and not by version 0.1
    if whole:
        yield from judged([study / MANIFEST], root, lambda: manifest(study))
        with suppress(RunError):
            for name, expected in manifest(study).items():
                yield from judged([study / name], root, partial(check_file, study / name, expected, MANIFEST))
    inside = [run.with_name(f"{run.name}.json") for run in runs if run.is_relative_to(study)]
    kept = {*filter(exists, inside), *(path for pattern in MEASURES for path in study.glob(pattern))}
    for path in sorted(kept):
        if whole or b'"sha256"' in path.read_bytes():
            yield from judged([path], root, partial(read_sealed, path))
        else:
            yield _file(path, root, "no checksum")


def _run_files(run: Path, root: Path) -> Iterator[CheckedFile]:
    """Check the files of a run; one that cannot be opened is damaged even if every file is as it was written."""
    try:
        folder, refused = RunFolder.open(run), ""
    except LemmaError as error:
        folder, refused = None, str(error)
    files = list(_files_of(run, folder, root))
    yield from files
    if refused and all(file.state != "damaged" for file in files):
        yield _file(next((run / name for name in sorted(OWN) if name in refused), run), root, "damaged", refused)


def _files_of(run: Path, folder: RunFolder | None, root: Path) -> Iterator[CheckedFile]:
    if isinstance(folder, PretrainedRun):
        files = [*folder.source.files, *folder.source.more]
        if (files[0].parent / SUMS).exists():
            yield from _export_files(files[0].parent, files, root)
            return
        changes = {file: change for file in files if (change := change_since_opened(file))}
        if changes:
            for file in files:
                yield _file(file, root, "damaged" if file in changes else "no checksum", changes.get(file, ""))
            return
        why = "Lemma did not write this model, and has no checksums of it. The SHA-256 over its files is now "
        yield from judged(files, root, lambda: folder.source.model(), f"{why}{folder.source.hash}.")
        return
    try:
        listed = read_manifest(run)
        wrong = dict(changed_files(run))
    except LemmaError as error:
        listed, wrong = {"files": {}, "tables": {}}, {MANIFEST: str(error)}
    names = [*listed["tables"], *(name for name in listed["files"] if name not in (METRICS, SUMMARY)), MANIFEST]
    for name in dict.fromkeys(name for name in names if (run / name).exists() or name in wrong):
        yield _file(run / name, root, "damaged" if name in wrong else "good", wrong.get(name, ""))
    if not (run / MANIFEST).exists():
        why = f"{run} was written by an earlier version of Lemma, which kept no checksums of descriptions."
        yield _file(run / SPEC, root, "no checksum", why)
    checks: dict[str, Callable[[], object]] = {
        WEIGHTS: lambda: read_weights(run / WEIGHTS),
        METRICS: Metrics(run / METRICS).rows,
        SUMMARY: folder.summary if folder else lambda: read_json(run / SUMMARY),
    }
    for name, check in checks.items():
        if (run / name).exists() or (name == WEIGHTS and folder is not None and folder.finished):
            yield from judged([run / name], root, check)
    if folder is not None and not folder.finished and not folder.resumable:
        yield _file(run / SUMMARY, root, "damaged", folder.incomplete())
    if folder is not None and folder.adaptation is not None:
        yield from judged([run / ADAPTATION], root, lambda: refuse_other_base(folder, folder.base()))
    for checkpoint in saved(run / "checkpoints"):
        inside = [checkpoint / MANIFEST]
        with suppress(RunError):
            inside += [checkpoint / name for name in manifest(checkpoint)]
        yield from judged(inside, root, lambda checkpoint=checkpoint: read(checkpoint))
    for left in sorted(run.rglob(f".*{SUFFIX}")):
        yield _file(left, root, "left over", f"{left} was left by a process that was killed, or is being written.")


def _export_files(folder: Path, files: Sequence[Path], root: Path) -> Iterator[CheckedFile]:
    """Check the files of a folder that Lemma wrote for another library, also those that are listed and missing."""
    yield from judged([folder / SUMS], root, partial(read_sealed, folder / SUMS))
    listed = dict.fromkeys(files)
    with suppress(RunError):
        listed |= dict.fromkeys(folder / str(name) for name in read_sealed(folder / SUMS).get("files", {}))
    for file in listed:
        yield from judged([file], root, partial(recognise, file))


def judged(files: list[Path], root: Path, check: Callable[[], object], why: str = "") -> Iterator[CheckedFile]:
    """Files that are checked together: the one that the error names is damaged, or all if it names none."""
    try:
        check()
    except MemoryLimitError:  # of a file that cannot be read nothing is known
        raise
    except LemmaError as error:
        said = str(error)
        named = [file for file in files if str(file) in said] or files
        for file in files:
            yield _file(file, root, "damaged" if file in named else "good", said if file == named[0] else "")
        return
    for file in files:
        yield _file(file, root, "no checksum" if why else "good", why if file == files[0] else "")


def _file(path: Path, root: Path, state: State, why: str = "") -> CheckedFile:
    inside = path.is_relative_to(root) and path != root  # a model may be a single file
    shown = str(path.relative_to(root)) if inside else path.name if path == root else str(path)
    return CheckedFile(shown, path.stat().st_size if path.exists() else 0, state, why)
