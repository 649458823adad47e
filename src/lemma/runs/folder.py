"""The run folder: all files of one training run, each written completely or not at all.

    spec.toml  recipe.toml  tokenizer.json  metrics.jsonl  model.safetensors  summary.json  checkpoints/step-N/
    manifest.json

A parser's run has a `lexicon.json` instead of the tokenizer, a classifier's a `labels.json` next to it. An adapted run
has an `adaptation.toml` that names its base; the tokenizer and all weights that it did not change are the base's.
`recipe.toml` holds the recipe and, under [data], the data and their hash. `model.safetensors` and `summary.json` appear
when the run is finished. `manifest.json` has the SHA-256 of each file and the content of the TOML files, so that a
change of any of them is an error. Nothing in a run says what to import.

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
    write_atomically,
    write_checked_json,
)
from lemma.hub.pretrained import Pretrained, is_pretrained, open_pretrained
from lemma.runs.checkpoint import MANIFEST, remove_checkpoints_after, write_weights
from lemma.spec.base import exists, is_utf8, read_toml, to_toml
from lemma.spec.choose import read_model
from lemma.spec.data import AnyDataSpec, PretrainedData, read_data
from lemma.spec.models import PLUGIN_FAMILIES, Classifier, Graph, ModelSpec, Parser
from lemma.spec.positions import PLUGIN_POSITIONS
from lemma.spec.recipe import AdaptationSpec, Method, Recipe

SPEC, RECIPE, TOKENIZER, METRICS = "spec.toml", "recipe.toml", "tokenizer.json", "metrics.jsonl"
LEXICON, LABELS, ADAPTATION = "lexicon.json", "labels.json", "adaptation.toml"
WEIGHTS, SUMMARY, CHECKPOINTS, TENSORBOARD = "model.safetensors", "summary.json", "checkpoints", "tensorboard"
INITIAL_FILES = {SPEC, TOKENIZER, CONFIG_FILE, GENERATION_FILE, LEXICON, LABELS, ADAPTATION, MANIFEST}
"""Files that are written before the recipe when a run folder is made."""
RUN_FILES = {*INITIAL_FILES, RECIPE, METRICS, WEIGHTS, SUMMARY, CHECKPOINTS, TENSORBOARD}
TABLE_FILES = (SPEC, RECIPE, ADAPTATION)  # the manifest has their content
HASHED_FILES = (TOKENIZER, CONFIG_FILE, GENERATION_FILE, LEXICON, LABELS)  # the manifest has their SHA-256
TRAINING = "training"
"""Entry of a manifest: true until training is finished. Only then can a run without a checkpoint start again."""


@dataclass(frozen=True)
class RunFolder:
    """A run on disk: spec, recipe, data and adaptation as attributes, other files read by methods."""

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
        """Write a new run atomically; raise RunError if its path is taken, unless by a run and `overwrite`.

        Args:
            has_lock: Whether the caller holds the `write_lock`.
            result: Weights and summary of a run that is not trained here, and cannot be resumed.
        """
        check_run_target(self.path, overwrite)
        try:
            self.path.absolute().parent.mkdir(parents=True, exist_ok=True)
            with nullcontext() if has_lock else write_lock(self.path):
                check_run_target(self.path, overwrite)  # again, now that nobody else writes there
                with atomic_replace(self.path) as temporary:
                    temporary.mkdir()
                    if self.adaptation:  # the base has the tokenizer
                        (temporary / ADAPTATION).write_text(to_toml(self.adaptation.to_dict()), encoding="utf-8")
                    elif tokenizer is not None:
                        tokenizer.save(temporary / (LEXICON if isinstance(tokenizer, Lexicon) else TOKENIZER))
                    if labels:
                        names = json.dumps({"labels": list(labels)}, ensure_ascii=False)
                        (temporary / LABELS).write_text(names, encoding="utf-8")
                    (temporary / SPEC).write_text(to_toml(self.spec.to_dict()), encoding="utf-8")
                    (temporary / RECIPE).write_text(to_toml(self._recipe_table()), encoding="utf-8")
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
        """Open the run at a path, or a pretrained model as a finished run.

        `overrides` are settings of the recipe that are about to be replaced, in which recipe.toml may differ.
        """
        check_utf8_path(path)
        restore_moved_folder(path)
        if not exists(path / SPEC) and is_pretrained(path):
            source = open_pretrained(path)
            return PretrainedRun(path, source.spec, Recipe(), PretrainedData(pretrained=str(path)), "", source=source)
        check_is_run(path)
        try:
            recipe_settings, spec_settings = read_toml(path / RECIPE), read_toml(path / SPEC)
            data_settings = recipe_settings.pop("data", {})
            data_hash = str(data_settings.pop("hash", ""))
            for _, message in find_changed_files(path, overrides):
                raise RunError(message)
            check_plugins_installed(spec_settings, path)
            spec = read_model(spec_settings, str(path / SPEC))
            recipe = Recipe.read(recipe_settings, f"{path / RECIPE}: recipe")
            data = read_data(data_settings, f"{path / RECIPE}: data")
            adaptation = None
            if (path / ADAPTATION).exists():
                adaptation = AdaptationSpec.read(read_toml(path / ADAPTATION), str(path / ADAPTATION))
            return cls(path, spec, recipe, data, data_hash, adaptation)
        except SpecError as error:
            raise RunError(f"The run folder {path} is damaged. {error}") from None

    @property
    def method(self) -> Method | None:
        """Adaptation method; None for a run that was not adapted."""
        return self.adaptation.method if self.adaptation else None

    @property
    def metrics(self) -> "Metrics":
        """The rows of metrics.jsonl."""
        return Metrics(self.path / METRICS)

    @property
    def checkpoints(self) -> Path:
        """Path of the folder of checkpoints."""
        return self.path / CHECKPOINTS

    @property
    def is_finished(self) -> bool:
        """True if the run has its summary."""
        return (self.path / SUMMARY).exists()

    @property
    def is_resumable(self) -> bool:
        """True if training can continue: from a checkpoint, or from the start if there is none yet.

        A folder that has neither was cut off while an earlier version wrote an export, or has lost files.
        """
        if any(self.checkpoints.glob("step-*")):
            return True
        is_training = bool(read_manifest(self.path).get(TRAINING))
        return is_training and not exists(self.path / WEIGHTS) and not self.is_finished

    def check_resumable(self) -> None:
        """Raise a RunError if there is nothing to resume training from."""
        if not self.is_resumable and self.is_finished:
            hint = "Adapt its base again with more steps." if self.adaptation else "Train a new run, or adapt this one."
            raise RunError(f"{self.path} is finished, and keeps no checkpoint to resume from. {hint}")
        self.check_complete()

    def check_complete(self) -> None:
        """Raise a RunError if the run is neither finished nor resumable."""
        if not self.is_finished and not self.is_resumable:
            raise RunError(self.incomplete_message())

    def incomplete_message(self) -> str:
        """Return the error message about a run that is neither finished nor resumable."""
        return (
            f"{self.path} is incomplete: it has no {SUMMARY} and no checkpoint to resume from. "
            "Write it again with --overwrite, or remove it."
        )

    def summary(self) -> dict[str, Any] | None:
        """Read the summary of a finished run; None if the run is not finished."""
        if not self.is_finished:
            return None
        has_checksums = (self.path / MANIFEST).exists()  # not in version 0.1
        return (read_checked_json if has_checksums else read_json)(self.path / SUMMARY)

    def base(self) -> "RunFolder":
        """Open the run or pretrained model that this run was adapted from."""
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
        """Read the run's tokenizer; that of an adapted run is in its base."""
        if self.adaptation:
            return self.base().tokenizer()
        body = getattr(self.spec, "body", self.spec)
        try:
            return Tokenizer.load(self.path / TOKENIZER, getattr(body, "vocabulary", None))
        except DataError as error:
            raise RunError(f"The run folder {self.path} is damaged. {error}") from None

    def vocabulary(self) -> Tokenizer | Lexicon | None:
        """Read the run's tokenizer, or a parser's lexicon; None for data without text."""
        if isinstance(self.spec, Parser):
            return self.lexicon()
        has_text = "tokenizer" in type(self.data).model_fields and self.spec.data_kind != "graph"
        return self.tokenizer() if has_text else None

    def labels(self) -> tuple[str, ...]:
        """Read the class names of a classifier, in the order of its outputs; empty for other runs."""
        if not isinstance(self.spec, Classifier | Graph):
            return ()
        names = read_json(self.path / LABELS).get("labels")
        if not isinstance(names, list) or len(names) != self.spec.classes:
            raise RunError(f"The run folder {self.path} is damaged. {LABELS} has not {self.spec.classes} names.")
        return tuple(str(name) for name in names)

    def lexicon(self) -> Lexicon:
        """Read the lexicon of a parser's run."""
        try:
            return Lexicon.load(self.path / LEXICON)
        except DataError as error:
            raise RunError(f"The run folder {self.path} is damaged. {error}") from None

    def rewind(self, step: int) -> None:
        """Remove the metrics and checkpoints of all steps after `step`, from which the run resumes.

        The result of a finished run stays until there is a checkpoint of the steps that follow.
        """
        remove_stale_temp_files(self.path)
        rows = self.metrics.rows()
        self._write_manifest(self.path)  # without a checksum of the metrics, which change next
        self.metrics.write(row for row in rows if row["step"] <= step)
        write_atomically(self.path / RECIPE, to_toml(self._recipe_table()))
        remove_checkpoints_after(self.checkpoints, step)

    def reopen(self) -> None:
        """Remove the final weights and summary of a finished run, since a checkpoint with more steps exists."""
        for name in (SUMMARY, WEIGHTS):  # in this order: weights without a summary count as unfinished
            (self.path / name).unlink(missing_ok=True)

    def finish(self, weights: Mapping[str, Tensor], summary: Mapping[str, Any]) -> None:
        """Write the final weights, by name, and then the summary, which marks the run as finished.

        The summary holds its own checksum, so that the one of an earlier end stays valid until it is replaced.
        """
        write_weights(self.path / WEIGHTS, weights, self.spec, self.method)
        self._write_manifest(self.path, {METRICS: self.metrics.sync()})
        write_checked_json(self.path / SUMMARY, summary)

    def _write_manifest(self, folder: Path, final_files: Mapping[str, Any] | None = None) -> None:
        """Write the manifest: content of the TOML files, and checksums of other files in `folder`.

        `final_files` are checksums of files that only a finished run has; None while training goes on.
        """
        tables = {name: _read_table(folder, name) for name in TABLE_FILES if (folder / name).exists()}
        tables[RECIPE] = json.loads(json.dumps(self._recipe_table()))
        files = {name: file_checksum(folder / name) for name in HASHED_FILES if (folder / name).exists()}
        manifest = {
            "files": {**files, **(final_files or {})},
            "tables": tables,
            TRAINING: final_files is None,
        }
        write_checked_json(folder / MANIFEST, manifest)

    def _recipe_table(self) -> dict[str, Any]:
        """Return the content of recipe.toml: the recipe, and the data with their hash."""
        return {**self.recipe.to_dict(), "data": {**self.data.to_dict(), "hash": self.data_hash}}


@dataclass(frozen=True)
class PretrainedRun(RunFolder):
    """A pretrained model of another library as a finished run without a known training."""

    source: Pretrained = field(kw_only=True)

    @property
    def is_finished(self) -> bool:
        """Always True."""
        return True

    def summary(self) -> None:
        """Return None: the training of a pretrained model is unknown."""
        return

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the pretrained model."""
        return self.source.tokenizer

    def labels(self) -> tuple[str, ...]:
        """Return the class names of a classifier, LABEL_i for those without a name; empty for other models."""
        if not isinstance(self.spec, Classifier):
            return ()
        names = self.source.config.get("id2label") or {}
        return tuple(str(names.get(str(index), f"LABEL_{index}")) for index in range(self.spec.classes))


@dataclass(frozen=True)
class Metrics:
    """Rows of `metrics.jsonl`: one JSON object per line, each with its `step`, in the order of steps."""

    path: Path

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a row to the file."""
        with explain_storage_errors(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """Read all rows; a last line that was only half written when the run was killed is left out."""
        if not self.path.exists():
            return []
        self.check(read_manifest(self.path.parent)["files"].get(METRICS), MANIFEST)
        try:
            *lines, _ = self.path.read_bytes().split(b"\n")
        except OSError as error:
            raise unreadable_error(self.path, error) from None
        rows: list[dict[str, Any]] = []
        for number, line in enumerate(lines, start=1):
            try:
                rows.append(parse_json(line))
                if not isinstance(rows[-1], dict) or type(rows[-1].get("step")) is not int:
                    raise ValueError("it does not say its step")
            except ValueError as error:
                raise RunError(f"{self.path}, line {number}, is damaged: {error}. {REMOVE_METRICS}") from None
        return rows

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replace all rows of the file."""
        write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in rows))

    def sync(self) -> dict[str, Any]:
        """Flush the file to the disk, before a checkpoint relies on it, and return its checksum and size."""
        if not self.path.exists():
            return {}
        with explain_storage_errors(self.path), self.path.open("rb+") as file:
            os.fsync(file.fileno())
        return file_checksum(self.path)

    def check(self, expected: Mapping[str, Any] | None, manifest_name: str) -> None:
        """Raise RunError unless the file begins with the bytes of which `expected` has number and SHA-256, if any.

        `manifest_name` is the file that `expected` is from, for the message.
        """
        if not expected:
            return
        try:
            with self.path.open("rb") as file:
                content = file.read(expected["bytes"])
        except OSError as error:
            raise unreadable_error(self.path, error) from None
        if len(content) < expected["bytes"] or hashlib.sha256(content).hexdigest() != expected["sha256"]:
            raise RunError(
                f"{self.path} is damaged: its lines do not have the SHA-256 in {manifest_name}. {REMOVE_METRICS}"
            )


REMOVE_METRICS = "The run needs it for its curves only: remove it to go on without."


@contextmanager
def write_lock(folder: Path) -> Iterator[None]:
    """Hold a lock on a run folder; raise a RunError if another process holds it."""
    with file_lock(folder, timeout=0.2) as is_locked:
        if not is_locked:
            raise RunError(f"{folder} is being trained by another process. Wait for it, or stop it first.")
        yield


def is_run(path: Path) -> bool:
    """Return whether a path is a run folder, or a pretrained model in a folder, in a file or by name."""
    restore_moved_folder(path)
    return exists(path / SPEC) or is_pretrained(path)


def _read_table(folder: Path, name: str) -> dict[str, Any]:
    """Return the content of the TOML file `name` of a run folder, without the path of the base, which may change."""
    return {key: value for key, value in read_toml(folder / name).items() if (name, key) != (ADAPTATION, "base")}


def read_manifest(path: Path) -> dict[str, dict[str, Any]]:
    """Return a run's manifest: checksums of files under "files", content of TOML files under "tables"."""
    if not (path / MANIFEST).exists():
        return {"files": {}, "tables": {}}
    manifest = read_checked_json(path / MANIFEST)
    if not all(isinstance(manifest.get(part), dict) for part in ("files", "tables")):
        raise RunError(f"{path / MANIFEST} is damaged: it lists no files.")
    return manifest


def find_changed_files(path: Path, overrides: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield (file name, message) for each described file of a run that was changed or removed since it was written.

    Settings of the recipe named in `overrides` may differ.
    """
    manifest = read_manifest(path)
    for name, expected in manifest["tables"].items():
        if name not in TABLE_FILES or not isinstance(expected, dict):
            continue
        if not (path / name).exists():
            yield name, f"{path / name} is missing."
            continue
        try:
            actual = _read_table(path, name)
        except SpecError as error:
            yield name, str(error)
            continue
        for key in {**expected, **actual}:
            if expected.get(key) != actual.get(key) and not (name == RECIPE and key in overrides):
                before, after = expected.get(key, "unset"), actual.get(key, "unset")
                hint = "or train again"
                if name == RECIPE and key != "data":
                    hint = f"or take it over: lemma train --resume {quote(str(path))} {key}={after}"
                message = f"{path / name} says {key} = {after}; the run was made with {before}. Put it back, {hint}."
                yield name, message
                break
    for name, expected in manifest["files"].items():
        try:
            if name in HASHED_FILES:
                verify_file(path / name, expected, MANIFEST)
        except RunError as error:
            yield name, str(error)


def check_plugins_installed(spec: Mapping[str, Any], path: Path) -> None:
    """Raise RunError if the settings `spec` of the run at `path` name a family or positions of a missing plugin."""
    for noun, name in plugin_names(spec):
        group = PLUGIN_FAMILIES if noun == "family" else PLUGIN_POSITIONS
        if name not in group.reserved_names() and not group.provides(name):
            raise RunError(
                f"{path} holds a model whose {noun} is '{name}'. It is not one of Lemma's own, and the package that "
                f"brings it is not installed. Install that package, and try again."
            )


def plugin_names(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield ("family" or "positions", its name) for each that the settings of a spec use, nested ones included.

    >>> list(plugin_names({"family": "classifier", "body": {"family": "bag", "positions": {"kind": "fading"}}}))
    [('family', 'classifier'), ('family', 'bag'), ('positions', 'fading')]
    """
    for key, value in spec.items():
        if key == "family" and isinstance(value, str):
            yield key, value
        elif key == "positions" and isinstance(value, Mapping):
            yield key, str(value.get("kind"))
        elif isinstance(value, Mapping):
            yield from plugin_names(value)


def is_started(path: Path) -> bool:
    """Return whether a path holds more than what a process leaves that is killed while creating a run folder.

    Such a process leaves nothing, an empty folder, temporary files, or the files that are written before the recipe.
    """
    restore_moved_folder(path)
    if not path.is_dir():
        return path.exists()
    return any(entry.name not in INITIAL_FILES and not entry.name.endswith(PARTIAL_SUFFIX) for entry in path.iterdir())


def remove_unstarted(path: Path) -> None:
    """Remove the folder of a run whose creation was interrupted; leave any other folder."""
    if path.is_dir():
        with write_lock(path):
            if not is_started(path):  # checked while nobody else writes there
                shutil.rmtree(path)


def check_run_target(path: Path, overwrite: bool) -> None:
    """Raise a RunError unless a run can be written to a path: nothing is there, or a run and `overwrite`."""
    check_utf8_path(path)
    restore_moved_folder(path)
    try:
        path.lstat()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:  # too long, a NUL in it, no such encoding
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"{str(path)[:200]!r}: the run folder cannot be made: {reason}. Choose another place.") from None
    if not path.is_dir():
        raise RunError(f"{path} is a file. Choose another place for the run.")
    names = {entry.name for entry in path.iterdir()}
    is_run_folder = {SPEC, RECIPE} <= names
    if is_run_folder and not overwrite:
        can_resume = CHECKPOINTS in names or SUMMARY not in names
        resume = f" To continue it: lemma train --resume {quote(str(path))}." if can_resume else ""
        raise RunError(f"{path} holds a run already.{resume} To replace it: --overwrite, in Python overwrite=True.")
    if names and not is_run_folder:
        missing = RECIPE if SPEC in names else SPEC
        raise RunError(f"{path} is not empty and not a run ({missing} is missing). Choose another place for the run.")
    if unexpected := sorted(name for name in names - RUN_FILES if not name.endswith(PARTIAL_SUFFIX)):
        raise RunError(
            f"{path} also holds files that are not the run's: {', '.join(unexpected)}. "
            "Move it away to overwrite the run."
        )
    check_replaceable(path)


def check_utf8_path(path: Path) -> None:
    """Raise a RunError if a path is not UTF-8; safetensors and TOML cannot hold others."""
    if not is_utf8(str(path)):
        raise RunError(f"{str(path)!r}: the name is not UTF-8. Rename the folder, or choose another name.")


def check_is_run(path: Path) -> None:
    """Raise a RunError that says what is wrong if a path is not a run folder."""
    if path.suffix == ".gguf" and not exists(path):
        raise RunError(f"{path}: there is no such file. Check the name and the folder it is looked for in.")
    if not exists(path):
        matches = get_close_matches(str(path), MODELS, n=1, cutoff=0.5)
        suggestion = f" Did you mean the pretrained model {matches[0]}?" if matches else ""
        raise RunError(
            f"{path}: there is no such folder.{suggestion} "
            f"To make a run there: lemma train MODEL --text FILE --out {path}"
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
