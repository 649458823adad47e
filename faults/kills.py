"""Processes killed at random moments: going on afterwards gives what the uninterrupted one gives, bit for bit.

Where something is replaced, they are killed before every change on the disk: the old or the new copy is complete."""

import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import lemma
from faults import SIZES, STEPS, TEXT, FunctionName, Row, board, changes_of, forked, home, small_study
from lemma.adaptation.adapt import merge_lora
from lemma.data.store import prepare_text
from lemma.files import file_hash, restore_moved_folder
from lemma.retrieval.index import Index, IndexEntry, append_entries, create_index
from lemma.runs.folder import RunFolder, is_started, remove_unstarted
from lemma.runs.verify import Verification
from lemma.spec.data import BytePairs, DataSpec
from lemma.training import loop

KILLS = 50


def kills(folder: Path, fraction: float, seed: int = 1) -> Iterator[Row]:
    """Tokenising, training, checkpointing, finishing, adapting, studies and index building."""
    chance = random.Random(seed)
    book = folder / "book.txt"
    book.write_text(TEXT * 5, encoding="utf-8")
    spec = DataSpec(text=(str(book),), tokenizer=BytePairs(vocabulary=280))
    base = folder / "base"
    lemma.train("lstm", text=book, out=base, progress=False, **SIZES, steps=4)

    def tokenised(out: Path) -> str:
        with home(out):
            return str([tokens.tolist() for tokens in prepare_text(spec).items.values()])

    def trained(out: Path) -> str:
        with home(out / "home"):
            run = out / "run"
            if is_started(run):
                lemma.resume(run, progress=False)
            else:
                remove_unstarted(run)
                lemma.train("lstm", text=book, out=run, progress=False, **SIZES, **STEPS)
            assert (verified := lemma.verify(run)).right, _damaged(verified)
            return file_hash(run / "model.safetensors")

    def adapted(out: Path) -> str:
        run = out / "run"
        if is_started(run) and not (run / "summary.json").exists():
            lemma.resume(run, progress=False)
        elif not is_started(run):
            remove_unstarted(run)
            lemma.adapt(base, text=book, out=run, progress=False, steps=12, evaluate_every=4)
        return file_hash(run / "model.safetensors")

    def indexed(out: Path) -> str:
        out.mkdir(exist_ok=True)
        try:
            header = Index.open(out).header
        except lemma.errors.RunError:
            header = create_index(out, "run", 8, "images").header
        vectors = np.random.default_rng(1).normal(size=(400, 8)).astype(np.float32)
        for row in range(header.rows, 400, 10):
            entries = [IndexEntry(f"{number}.png", number, number, "") for number in range(row, row + 10)]
            header = append_entries(out, header, entries, vectors[row : row + 10])
        index = Index.open(out)
        return f"{index.entries} {index.vectors.tolist()}"

    def studied(out: Path) -> str:
        result = board(small_study(folder, out))
        assert (verified := lemma.verify(out)).right, _damaged(verified)
        return str([result, *(file_hash(path) for path in sorted(out.glob("runs/*/model.safetensors")))])

    works: dict[str, tuple[Callable[[Path], str], Sequence[FunctionName]]] = {
        "tokenising": (tokenised, ()),
        "training": (trained, ()),
        "checkpointing": (trained, [(loop, "save_session")]),
        "finishing": (trained, [(RunFolder, "finish")]),
        "adapting": (adapted, ()),
        "a study": (studied, ()),
        "building an index": (indexed, ()),
    }
    for name, (work, within) in works.items():
        yield _killed(name, work, within, folder / name.replace(" ", "-"), max(1, round(KILLS * fraction)), chance)
    (folder / "replaced").mkdir()
    yield from replacements(folder / "replaced", fraction, seed)


LLAMA: dict[str, Any] = {"positions": "rotary", "norm": "rms", "gated": True, "activation": "silu", "bias": False}
DECODER: dict[str, Any] = {"width": 8, "depth": 1, "heads": 2, "context": 8, "vocabulary": 280, "batch": 4, **LLAMA}
Write = Callable[[Path, int, bool], object]
"""Write version 0 or 1 to a path, which may replace what is there."""


def replacements(folder: Path, fraction: float, seed: int = 1) -> Iterator[Row]:
    """Exports, imports, saved models, `train --overwrite`: killed before any change, the old or the new is usable."""
    book, base, adapter = folder / "book.txt", folder / "base", folder / "adapter"
    book.write_text(TEXT, encoding="utf-8")
    lemma.train("decoder", text=book, out=base, progress=False, tokenizer="byte-pairs", steps=2, **DECODER)
    for version in range(2):
        adapted = folder / f"adapted-{version}"
        lemma.adapt(base, text=book, out=adapted, progress=False, steps=1 + version, rank=1)
        lemma.export(adapted, to="peft", out=folder / f"adapter-{version}")
    models = [lemma.load(folder / f"adapted-{version}", device="cpu") for version in range(2)]
    bases = [merge_lora(run.module) for run in models]

    def export(to: Any) -> Write:
        return lambda out, version, overwrite: lemma.export(
            folder / f"adapted-{version}", to=to, out=out, overwrite=overwrite
        )

    def adopt(out: Path, version: int, overwrite: bool) -> object:
        return lemma.adapt.from_peft(base, f"{adapter}-{version}", out=out, overwrite=overwrite)

    def save(out: Path, version: int, overwrite: bool) -> object:
        return lemma.runs.save(bases[version], models[version].tokenizer, out, overwrite=overwrite)

    def train(out: Path, version: int, overwrite: bool) -> object:
        with home(folder / "home"):
            settings: dict[str, Any] = {**SIZES, **STEPS, "seed": version, "progress": False}
            return lemma.train("lstm", text=book, out=out, overwrite=overwrite, **settings)

    works: dict[str, tuple[Write, str]] = {
        **{f"export --to {target}": (export(target), "out") for target in ("merged", "huggingface", "peft")},
        "export --to gguf": (export("gguf"), "out.gguf"),
        "adapt --from-peft": (adopt, "out"),
        "runs.save": (save, "out"),
        "train": (train, "out"),
    }
    chance = random.Random(seed)
    for name, (write, out) in works.items():
        for description, exchange in {
            "": None,
            ", overwriting": True,
            ", overwriting without exchange of names": False,
        }.items():
            if (name == "train" and exchange is None) or (name == "export --to gguf" and exchange is False):
                continue  # the one is tried above, the other is a file, and never moved aside
            target_folder = folder / f"{name}{description}".replace(" ", "-")
            with patch("lemma.files._renameat2", lambda: None) if exchange is False else nullcontext():
                yield _replaced(
                    f"{name}{description}", write, target_folder / out, exchange is not None, fraction, chance
                )


def _replaced(name: str, write: Write, out: Path, replaces: bool, fraction: float, chance: random.Random) -> Row:
    """Kill just before every change on the disk, or before an even sample of many."""
    row, folder = Row("kills", name), out.parent
    hashes = []
    for version in range(2):
        (folder / str(version)).mkdir(parents=True)
        write(folder / str(version) / out.name, version, False)
        hashes.append(_usable(folder / str(version) / out.name))

    def prepare(target_folder: Path) -> Path:
        target_folder.mkdir()
        if replaces:
            old = folder / "0" / out.name
            (shutil.copytree if old.is_dir() else shutil.copy2)(old, target_folder / out.name)
        return target_folder / out.name

    counted = prepare(folder / "counted")
    changes = changes_of(lambda: write(counted, 1, replaces))
    times = max(1, round(min(changes, KILLS) * fraction))
    offset = chance.random()
    for moment in [1 + int((number + offset) * changes / times) for number in range(times)]:
        path = prepare(folder / f"at-{moment}")
        status = forked(partial(write, path, 1, replaces), kill_at=moment)
        try:
            restore_moved_folder(path)
            state = _usable(path) if replaces or path.exists() else None
            problem = None if state in (hashes if replaces else [None, hashes[1]]) else f"another result: {state}"
            write(path, 1, path.exists())
            left = sorted(entry.name for entry in path.parent.iterdir())
            if not problem and (_usable(path) != hashes[1] or left != [path.name]):
                problem = f"the next writer left {left}"
        except Exception as error:
            problem = f"{type(error).__name__}: {str(error)[:160]}"
        row.add(problem and f"before change {moment} of {changes} (status {status}): {problem}")
        shutil.rmtree(path.parent, ignore_errors=True)
    return row


def _usable(path: Path) -> str:
    """Check all files of a run or an export, and return the hash of its weights; resume an unfinished training."""
    restore_moved_folder(path)
    if (path / "spec.toml").exists() and not (path / "summary.json").exists():
        with home(path.parents[2] / "home"):
            lemma.resume(path, progress=False)
    assert (verified := lemma.verify(path)).right, _damaged(verified)
    return file_hash(path if path.is_file() else next(path.glob("*model.safetensors")))


def _killed(
    name: str,
    work: Callable[[Path], str],
    within: Sequence[FunctionName],
    folder: Path,
    times: int,
    chance: random.Random,
) -> Row:
    """Kill at random moments, or just before a change on the disk: every second time, inside these functions always."""
    row = Row("kills", name)
    folder.mkdir()
    start = time.monotonic()
    expected = work(folder / "whole")
    length = time.monotonic() - start
    changes = changes_of(lambda: work(folder / "counted"), within)
    for number in range(times):
        out = folder / str(number)
        status, rounds = -9, 0
        while status == -9 and rounds < 3:  # killed up to three times, then left alone
            if within or number % 2:
                status = forked(partial(work, out), kill_at=chance.randrange(1, changes + 1), within=within)
            else:
                status = forked(partial(work, out), kill_after=length * chance.random())
            rounds += 1
        try:
            row.add(None if (result := work(out)) == expected else f"another result: {result[:60]}")
        except Exception as error:
            row.add(f"{type(error).__name__}: {str(error)[:160]}")
        shutil.rmtree(out, ignore_errors=True)
    return row


def _damaged(verified: Verification) -> str:
    return " ".join(file.why for file in verified.files if file.state == "damaged")
