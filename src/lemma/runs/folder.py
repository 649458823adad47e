"""The run folder: all that is known of one training run, each file there whole or not at all.

    spec.toml  recipe.toml  tokenizer.json  metrics.jsonl  model.safetensors  summary.json  checkpoints/step-N/
    manifest.json

A parser's run has a `lexicon.json` instead of the tokenizer, a classifier's a `labels.json` next to it. An adapted run
has an `adaptation.toml` that names its base; the tokenizer and all weights that it did not change are the base's.
`recipe.toml` holds the recipe and, under [data], the data and their hash. `model.safetensors` and `summary.json` appear
when the run is finished. `manifest.json` has the SHA-256 of each file, and what the TOML files say, so that a change of
any of them is met with an error. Nothing in a run says what to import.

A pretrained model of another library (a Hugging Face folder, a `.gguf` file, a name) is opened as a finished run too.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from shlex import quote
from typing import Any, Self

from torch import Tensor

from lemma.data.corpora import MODELS
from lemma.data.tokenizers import CONFIG_FILE, GENERATION_FILE, Tokenizer
from lemma.data.treebanks import Lexicon
from lemma.errors import DataError, RunError, SpecError, StorageError
from lemma.files import (
    PARTIAL_SUFFIX,
    atomic_replace,
    check_replaceable,
    explain_storage_errors,
    file_checksum,
    file_lock,
    parse_json,
    read_checked_json,
    read_json,
    real_path,
    remove_stale_temp_files,
    restore_moved_folder,
    unreadable_error,
    verify_file,
    with_checksum,
    write_atomically,
)
from lemma.hub.pretrained import Pretrained, is_pretrained, open_pretrained
from lemma.runs.checkpoint import MANIFEST, remove_checkpoints_after, write_weights
from lemma.spec.base import exists, is_utf8, read_toml, to_toml
from lemma.spec.choose import read_model
from lemma.spec.data import AnyDataSpec, PretrainedData, read_data
from lemma.spec.models import PLUGIN_FAMILIES, Classifier, Graph, ModelSpec, Parser
from lemma.spec.positions import PLUGIN_POSITIONS
from lemma.spec.recipe import AdaptationSpec, Method, Recipe

PLUGIN_GROUPS = {"family": PLUGIN_FAMILIES, "positions": PLUGIN_POSITIONS}


def check_plugins_installed(spec: Mapping[str, Any], path: Path) -> None:
    """Refuse a run of which a family or kind of positions is neither Lemma's nor brought by an installed package."""
    for what, name in plugin_names(spec):
        group = PLUGIN_GROUPS[what]
        if name not in group.reserved_names() and not group.provides(name):
            raise RunError(
                f"{path} holds a model whose {what} is '{name}'. It is not one of Lemma's own, and the package that "
                f"brings it is not installed. Install that package, and try again."
            )


def plugin_names(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every family and every kind of positions that a spec names, in its body and towers too.

    >>> list(named({"family": "classifier", "body": {"family": "bag", "positions": {"kind": "fading"}}}))
    [('family', 'classifier'), ('family', 'bag'), ('positions', 'fading')]
    """
    for word, value in spec.items():
        if word == "family" and isinstance(value, str):
            yield word, value
        elif word == "positions" and isinstance(value, Mapping):
            yield word, str(value.get("kind"))
        elif isinstance(value, Mapping):
            yield from plugin_names(value)


@contextmanager
def write_lock(folder: Path) -> Iterator[None]:
    """Hold a folder while it is written: two processes that train in one folder would undo each other's work."""
    with file_lock(folder, timeout=0.2) as held:
        if not held:
            raise RunError(f"{folder} is being trained by another process. Wait for it, or stop it first.")
        yield


@dataclass(frozen=True)
class Metrics:
    """`metrics.jsonl`: one JSON object per line, each with its `step`, in the order of steps."""

    path: Path

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a line."""
        with explain_storage_errors(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """Read all lines; a last one that was only half written when the run was killed is left out."""
        if not self.path.exists():
            return []
        self.check(read_manifest(self.path.parent)["files"].get(METRICS), MANIFEST)
        try:
            *whole, _half = self.path.read_bytes().split(b"\n")
        except OSError as error:
            raise unreadable_error(self.path, error) from None
        return [self._row(number, line) for number, line in enumerate(whole, start=1)]

    def _row(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            row = parse_json(line)
            if not isinstance(row, dict) or type(row.get("step")) is not int:
                raise ValueError("it does not say its step")
        except ValueError as error:
            raise RunError(f"{self.path}, line {number}, is damaged: {error}. {self._without}") from None
        return row

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replace all lines."""
        write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in rows))

    def sync(self) -> dict[str, Any]:
        """Make sure that the lines are on the disk before a checkpoint counts on them; return their checksum."""
        if not self.path.exists():
            return {}
        with explain_storage_errors(self.path), self.path.open("rb+") as file:
            os.fsync(file.fileno())
        return file_checksum(self.path)

    def check(self, expected: Mapping[str, Any] | None, listed_in: str) -> None:
        """Compare as many bytes as a checkpoint or the manifest counts on with their checksum."""
        if expected:
            try:
                with self.path.open("rb") as file:
                    content = file.read(expected["bytes"])
            except OSError as error:
                raise unreadable_error(self.path, error) from None
            if len(content) < expected["bytes"] or hashlib.sha256(content).hexdigest() != expected["sha256"]:
                raise RunError(
                    f"{self.path} is damaged: its lines do not have the SHA-256 in {listed_in}. {self._without}"
                )

    @property
    def _without(self) -> str:
        return "The run needs it for its curves only: remove it to go on without."


SPEC, RECIPE, TOKENIZER, METRICS = "spec.toml", "recipe.toml", "tokenizer.json", "metrics.jsonl"
LEXICON, LABELS, ADAPTATION = "lexicon.json", "labels.json", "adaptation.toml"
WEIGHTS, SUMMARY, CHECKPOINTS, TENSORBOARD = "model.safetensors", "summary.json", "checkpoints", "tensorboard"
INITIAL_FILES = {SPEC, TOKENIZER, CONFIG_FILE, GENERATION_FILE, LEXICON, LABELS, ADAPTATION, MANIFEST}
"""Files that are there before the recipe, which is written last when a run folder is made."""
TABLES, NAMES = (SPEC, RECIPE, ADAPTATION), (TOKENIZER, CONFIG_FILE, GENERATION_FILE, LEXICON, LABELS)
"""What a manifest has the words of, and what it has the SHA-256 of from the start."""
TRAINING = "training"
"""Entry of a manifest: true until training is finished. Only then can a run without a checkpoint start again."""
RUN_FILES = {*INITIAL_FILES, RECIPE, METRICS, WEIGHTS, SUMMARY, CHECKPOINTS, TENSORBOARD}


@dataclass(frozen=True)
class RunFolder:
    """A run on the disk: its descriptions read, its other files a call away."""

    path: Path
    spec: ModelSpec
    recipe: Recipe
    data: AnyDataSpec
    data_hash: str
    adaptation: AdaptationSpec | None = None

    def create(
        self,
        tokenizer: Tokenizer | Lexicon | None,
        overwrite: bool = False,
        labels: Sequence[str] = (),
        has_lock: bool = False,
        result: tuple[Mapping[str, Tensor], Mapping[str, Any]] | None = None,
    ) -> Self:
        """Write a new run to the disk in one go; what is there already is refused, or replaced if it is a run.

        `held` says that the caller is the only writer already. A run that is not trained here has its `result` at once:
        its weights and its summary. Only others can be resumed.
        """
        check_run_target(self.path, overwrite)
        try:
            self.path.absolute().parent.mkdir(parents=True, exist_ok=True)
            with nullcontext() if has_lock else write_lock(self.path):
                check_run_target(self.path, overwrite)  # again, now that nobody else writes there
                with atomic_replace(self.path) as temporary:
                    temporary.mkdir()
                    self._save_vocabulary(temporary, tokenizer, labels)
                    (temporary / SPEC).write_text(to_toml(self.spec.to_dict()), encoding="utf-8")
                    (temporary / RECIPE).write_text(self._recipe_toml(), encoding="utf-8")
                    if result is None:
                        self._write_manifest(temporary)
                    else:
                        replace(self, path=temporary).finish(*result)
        except StorageError:
            raise
        except OSError as error:
            raise RunError(f"{self.path}: the run folder cannot be made: {error}.") from None
        return self

    @classmethod
    def open(cls, path: Path, overrides: Collection[str] = ()) -> "RunFolder":
        """Read the descriptions of a run; no folder, not a run and a damaged file are different errors.

        `settings` of the recipe are about to be given again, so that recipe.toml may differ in them.
        """
        check_utf8_path(path)
        restore_moved_folder(path)
        if not exists(path / SPEC) and is_pretrained(path):
            source = open_pretrained(path)
            return PretrainedRun(path, source.spec, Recipe(), PretrainedData(pretrained=str(path)), "", source=source)
        check_is_run(path)
        try:
            words = read_toml(path / RECIPE)
            data = words.pop("data", {})
            data_hash = str(data.pop("hash", ""))
            table = read_toml(path / SPEC)
            check_unchanged(path, overrides)
            check_plugins_installed(table, path)
            spec = read_model(table, str(path / SPEC))
            recipe = Recipe.read(words, f"{path / RECIPE}: recipe")
            found = read_data(data, f"{path / RECIPE}: data")
            return cls(path, spec, recipe, found, data_hash, _read_adaptation(path))
        except SpecError as error:
            raise RunError(f"The run folder {path} is damaged. {error}") from None

    @property
    def method(self) -> Method | None:
        """How the run was adapted, if it was."""
        return self.adaptation.method if self.adaptation else None

    @property
    def metrics(self) -> Metrics:
        """The run's metrics."""
        return Metrics(self.path / METRICS)

    @property
    def checkpoints(self) -> Path:
        """Where the run's checkpoints are."""
        return self.path / CHECKPOINTS

    @property
    def is_finished(self) -> bool:
        """Whether the run is finished."""
        return (self.path / SUMMARY).exists()

    @property
    def is_resumable(self) -> bool:
        """Whether training can continue: from a checkpoint, or from the start if it was killed before the first one.

        A folder without both was cut while an earlier version wrote an export, or has lost files.
        """
        if any(self.checkpoints.glob("step-*")):
            return True
        return bool(read_manifest(self.path).get(TRAINING)) and not exists(self.path / WEIGHTS) and not self.is_finished

    def check_resumable(self) -> None:
        """Refuse to resume a run that has nothing to continue from, before its data are read."""
        if self.is_resumable:
            return
        if self.is_finished:
            how = "Adapt its base again with more steps." if self.adaptation else "Train a new run, or adapt this one."
            raise RunError(f"{self.path} is finished, and keeps no checkpoint to resume from. {how}")
        raise RunError(self.incomplete_message())

    def incomplete_message(self) -> str:
        """Say what is missing of a run that is neither finished nor resumable, and what to do."""
        return (
            f"{self.path} is incomplete: it has no {SUMMARY} and no checkpoint to resume from. "
            "Write it again with --overwrite, or remove it."
        )

    def summary(self) -> dict[str, Any] | None:
        """Read the summary of a finished run; None before the end."""
        if not self.is_finished:
            return None
        listed = read_manifest(self.path)
        if SUMMARY in listed.get("sealed", ()):
            return read_checked_json(self.path / SUMMARY)
        if expected := listed["files"].get(SUMMARY):  # of an earlier version
            verify_file(self.path / SUMMARY, expected, MANIFEST)
        return read_json(self.path / SUMMARY)

    def base(self) -> "RunFolder":
        """Open the base of an adapted run, wherever it lies; its hash is checked when its weights are read."""
        assert self.adaptation is not None
        path = real_path(self.path / self.adaptation.base)
        if not path.exists() and self.adaptation.base in MODELS:
            path = Path(self.adaptation.base)
        if not is_run(path):
            raise RunError(
                f"{self.path} was adapted from {path}, whose weights have the SHA-256 {self.adaptation.base_hash}; "
                f"no run is there now. Put it back, or write its new place into {self.path / ADAPTATION}."
            )
        return RunFolder.open(path)

    def tokenizer(self) -> Tokenizer:
        """Read the tokenizer that the run was trained with; an adapted run has its base's."""
        if self.adaptation:
            return self.base().tokenizer()
        try:
            return Tokenizer.load(
                self.path / TOKENIZER, getattr(getattr(self.spec, "body", self.spec), "vocabulary", None)
            )
        except DataError as error:
            raise RunError(f"The run folder {self.path} is damaged. {error}") from None

    def vocabulary(self) -> Tokenizer | Lexicon | None:
        """Read the tokenizer or the lexicon that the run was trained with; data without text have neither."""
        if isinstance(self.spec, Parser):
            return self.lexicon()
        reads = "tokenizer" in type(self.data).model_fields and self.spec.data_kind != "graph"
        return self.tokenizer() if reads else None

    def labels(self) -> tuple[str, ...]:
        """Read the names of a classifier's classes, in the order of its outputs; a run without classes has none."""
        if not isinstance(self.spec, Classifier | Graph):
            return ()
        names = read_json(self.path / LABELS).get("labels")
        if not isinstance(names, list) or len(names) != self.spec.classes:
            raise RunError(f"The run folder {self.path} is damaged. {LABELS} has not {self.spec.classes} names.")
        return tuple(str(name) for name in names)

    def lexicon(self) -> Lexicon:
        """Read the lexicon that a parser's run was trained with."""
        try:
            return Lexicon.load(self.path / LEXICON)
        except DataError as error:
            raise RunError(f"The run folder {self.path} is damaged. {error}") from None

    def rewind(self, step: int) -> None:
        """Put the folder where a run that goes on from `step` needs it: nothing in it from later steps.

        What it had come to, if it was finished, stays until there is a checkpoint of the steps that follow.
        """
        remove_stale_temp_files(self.path)
        rows = self.metrics.rows()
        self._write_manifest(self.path)  # which counts on no lines any more
        self.metrics.write(row for row in rows if row["step"] <= step)
        write_atomically(self.path / RECIPE, self._recipe_toml())
        remove_checkpoints_after(self.checkpoints, step)

    def reopen(self) -> None:
        """Forget what a finished run had come to, now that a checkpoint has more."""
        for name in (SUMMARY, WEIGHTS):  # in this order: weights without a summary count as unfinished
            (self.path / name).unlink(missing_ok=True)

    def finish(self, weights: Mapping[str, Tensor], summary: Mapping[str, Any]) -> None:
        """Write the weights that the run ends with, then its summary.

        The summary has its checksum in itself: the one of a run that was finished before is good until the new one is
        there.
        """
        write_weights(self.path / WEIGHTS, weights, self.spec, self.method)
        self._write_manifest(self.path, {METRICS: self.metrics.sync()})
        write_atomically(self.path / SUMMARY, json.dumps(with_checksum(summary), indent=1, ensure_ascii=False) + "\n")

    def _write_manifest(self, folder: Path, more: Mapping[str, Any] | None = None) -> None:
        """Write what the files of the run are to be; the recipe is this one, whether it is on the disk yet or not."""
        tables = {name: _read_table(folder, name) for name in TABLES if (folder / name).exists()}
        tables[RECIPE] = json.loads(json.dumps(self._recipe_table()))
        files = {name: file_checksum(folder / name) for name in NAMES if (folder / name).exists()}
        content = with_checksum(
            {"files": {**files, **(more or {})}, "tables": tables, "sealed": [SUMMARY], TRAINING: more is None}
        )
        write_atomically(folder / MANIFEST, json.dumps(content, indent=1, ensure_ascii=False) + "\n")

    def _save_vocabulary(self, folder: Path, tokenizer: Tokenizer | Lexicon | None, labels: Sequence[str]) -> None:
        """What turns text into numbers and numbers into names, unless the base has it, and the way to the base."""
        if self.adaptation:
            (folder / ADAPTATION).write_text(to_toml(self.adaptation.to_dict()), encoding="utf-8")
        elif tokenizer is not None:
            tokenizer.save(folder / (LEXICON if isinstance(tokenizer, Lexicon) else TOKENIZER))
        if labels:
            (folder / LABELS).write_text(json.dumps({"labels": list(labels)}, ensure_ascii=False), encoding="utf-8")

    def _recipe_toml(self) -> str:
        return to_toml(self._recipe_table())

    def _recipe_table(self) -> dict[str, Any]:
        return {**self.recipe.to_dict(), "data": {**self.data.to_dict(), "hash": self.data_hash}}


@dataclass(frozen=True)
class PretrainedRun(RunFolder):
    """A pretrained model of another library as a finished run, of whose training nothing is known."""

    source: Pretrained = field(kw_only=True)

    @property
    def is_finished(self) -> bool:
        """It is."""
        return True

    def summary(self) -> None:
        """Nothing is known of its training."""

    def tokenizer(self) -> Tokenizer:
        """The model's own tokenizer."""
        return self.source.tokenizer

    def labels(self) -> tuple[str, ...]:
        """The names of a classifier's classes."""
        if not isinstance(self.spec, Classifier):
            return ()
        names = self.source.config.get("id2label") or {}
        return tuple(str(names.get(str(number), f"LABEL_{number}")) for number in range(self.spec.classes))


def is_run(path: Path) -> bool:
    """Whether a path is a run: a run folder, or a pretrained model in a folder, in a file or by name."""
    restore_moved_folder(path)
    return exists(path / SPEC) or is_pretrained(path)


def _read_adaptation(path: Path) -> AdaptationSpec | None:
    if not (path / ADAPTATION).exists():
        return None
    return AdaptationSpec.read(read_toml(path / ADAPTATION), str(path / ADAPTATION))


def _read_table(folder: Path, name: str) -> dict[str, Any]:
    """What a TOML file of a run says; where the base is may be changed, since its weights have a checksum."""
    return {word: value for word, value in read_toml(folder / name).items() if (name, word) != (ADAPTATION, "base")}


def read_manifest(path: Path) -> dict[str, dict[str, Any]]:
    """The checksums of a run's files and the words of its tables; of a run of version 0.1, none."""
    if not (path / MANIFEST).exists():
        return {"files": {}, "tables": {}}
    found = read_checked_json(path / MANIFEST)
    if not all(isinstance(found.get(part), dict) for part in ("files", "tables")):
        raise RunError(f"{path / MANIFEST} is damaged: it lists no files.")
    return found


def check_unchanged(path: Path, overrides: Collection[str] = ()) -> None:
    """Refuse a run of which a description is no longer what was written, naming the file and what differs."""
    for _, why in changed_files(path, overrides):
        raise RunError(why)


def changed_files(path: Path, overrides: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """The descriptions of a run that are no longer what was written, and what differs; `settings` may."""
    listed = read_manifest(path)
    for name, was in listed["tables"].items():
        if name not in TABLES or not isinstance(was, dict):
            continue
        if not (path / name).exists():
            yield name, f"{path / name} is missing."
            continue
        try:
            now = _read_table(path, name)
        except SpecError as error:
            yield name, str(error)
            continue
        for word in {**was, **now}:
            if was.get(word) != now.get(word) and not (name == RECIPE and word in overrides):
                before, after = was.get(word, "unset"), now.get(word, "unset")
                takes = f", or take it over: lemma train --resume {quote(str(path))} {word}={after}"
                taken = takes if name == RECIPE and word != "data" else ", or train again"
                yield name, f"{path / name} says {word} = {after}; the run was made with {before}. Put it back{taken}."
                break
    for name, expected in listed["files"].items():
        try:
            if name in NAMES:
                verify_file(path / name, expected, MANIFEST)
        except RunError as error:
            yield name, str(error)


def is_started(path: Path) -> bool:
    """Whether a path holds anything but what a process leaves that dies while it makes a run folder.

    That is nothing at all, an empty folder, temporary files, or files that are written before the recipe.
    """
    restore_moved_folder(path)
    if not path.is_dir():
        return path.exists()
    return any(entry.name not in INITIAL_FILES and not entry.name.endswith(PARTIAL_SUFFIX) for entry in path.iterdir())


def remove_unstarted(path: Path) -> None:
    """Remove a run folder that was never begun, so that the run can be trained there."""
    if path.is_dir():
        with write_lock(path):
            if not is_started(path):  # asked while nobody else writes there
                shutil.rmtree(path)


def check_run_target(path: Path, overwrite: bool) -> None:
    """Refuse a place where something stands: a run unless it may be overwritten, anything else always."""
    check_utf8_path(path)
    restore_moved_folder(path)
    try:
        path.lstat()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:  # too long, a NUL in it, no such encoding
        why = getattr(error, "strerror", None) or error
        raise RunError(f"{str(path)[:200]!r}: the run folder cannot be made: {why}. Choose another place.") from None
    if not path.is_dir():
        raise RunError(f"{path} is a file. Choose another place for the run.")
    inside = {entry.name for entry in path.iterdir()}
    foreign = sorted(name for name in inside - RUN_FILES if not name.endswith(PARTIAL_SUFFIX))
    if {SPEC, RECIPE} <= inside and not overwrite:
        goes_on = CHECKPOINTS in inside or SUMMARY not in inside
        continuing = f" To continue it: lemma train --resume {quote(str(path))}." if goes_on else ""
        raise RunError(f"{path} holds a run already.{continuing} To replace it: --overwrite, in Python overwrite=True.")
    if inside and not {SPEC, RECIPE} <= inside:
        missing = RECIPE if SPEC in inside else SPEC
        raise RunError(f"{path} is not empty and not a run ({missing} is missing). Choose another place for the run.")
    if foreign:
        raise RunError(
            f"{path} also holds files that are not the run's: {', '.join(foreign)}. Move it away to overwrite the run."
        )
    check_replaceable(path)


def check_utf8_path(path: Path) -> None:
    """Refuse a name that is not UTF-8, which safetensors cannot open and a description cannot hold."""
    if not is_utf8(str(path)):
        raise RunError(f"{str(path)!r}: the name is not UTF-8. Rename the folder, or choose another name.")


def check_is_run(path: Path) -> None:
    """Refuse a path that is not a run folder."""
    if path.suffix == ".gguf" and not exists(path):
        raise RunError(f"{path}: there is no such file. Check the name and the folder it is looked for in.")
    if not exists(path):
        meant = get_close_matches(str(path), MODELS, n=1, cutoff=0.5)
        raise RunError(
            f"{path}: there is no such folder."
            + (f" Did you mean the pretrained model {meant[0]}?" if meant else "")
            + f" To make a run there: lemma train MODEL --text FILE --out {path}"
        )
    if not path.is_dir():
        raise RunError(f"{path} is a file; a run is a folder with a {SPEC} in it, or a .gguf file.")
    try:
        next(path.iterdir(), None)
    except OSError as error:
        raise unreadable_error(path, error) from None
    if (path / "adapter_config.json").exists():
        raise RunError(
            f"{path} is an adapter that peft wrote, which needs its base: "
            f"lemma adapt BASE --from-peft {quote(str(path))} --out RUN"
        )
    if not (path / SPEC).exists():
        raise RunError(
            f"{path} is not a run: {SPEC} is missing, and config.json of a Hugging Face folder too. A run is what "
            "lemma train --out makes."
        )
