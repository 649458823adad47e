"""Processes killed at random moments: going on afterwards gives what the uninterrupted one gives, bit for bit."""

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

import lemma
from faults import SIZES, STEPS, TEXT, Place, Row, board, count_changes, forked, home, small_study
from lemma.data.files import file_hash
from lemma.data.store import prepare
from lemma.retrieval.index import Entry, Index, append, start
from lemma.runs.folder import RunFolder, is_begun, remove_unbegun
from lemma.runs.verify import Verified
from lemma.spec.data import BytePairs, DataSpec
from lemma.training import session

KILLS = 50


def kills(folder: Path, share: float, seed: int = 1) -> Iterator[Row]:
    """Tokenising, training, checkpointing, finishing, adapting, studies and index building."""
    chance = random.Random(seed)
    book = folder / "book.txt"
    book.write_text(TEXT * 5, encoding="utf-8")
    spec = DataSpec(text=(str(book),), tokenizer=BytePairs(vocabulary=280))
    base = folder / "base"
    lemma.train("lstm", text=book, out=base, progress=False, **SIZES, steps=4)

    def tokenised(out: Path) -> str:
        with home(out):
            return str([tokens.tolist() for tokens in prepare(spec).items.values()])

    def trained(out: Path) -> str:
        with home(out / "home"):
            run = out / "run"
            if is_begun(run):
                lemma.resume(run, progress=False)
            else:
                remove_unbegun(run)
                lemma.train("lstm", text=book, out=run, progress=False, **SIZES, **STEPS)
            assert (verified := lemma.verify(run)).right, _damaged(verified)
            return file_hash(run / "model.safetensors")

    def adapted(out: Path) -> str:
        run = out / "run"
        if is_begun(run) and not (run / "summary.json").exists():
            lemma.resume(run, progress=False)
        elif not is_begun(run):
            remove_unbegun(run)
            lemma.adapt(base, text=book, out=run, progress=False, steps=12, evaluate_every=4)
        return file_hash(run / "model.safetensors")

    def indexed(out: Path) -> str:
        out.mkdir(exist_ok=True)
        try:
            header = Index.open(out).read().header
        except lemma.errors.RunError:
            header = start(out, "run", 8, "images").header
        vectors = np.random.default_rng(1).normal(size=(400, 8)).astype(np.float32)
        for row in range(header.rows, 400, 10):
            entries = [Entry(f"{place}.png", place, place, "") for place in range(row, row + 10)]
            header = append(out, header, entries, vectors[row : row + 10])
        index = Index.open(out).read()
        return f"{index.entries} {index.vectors.tolist()}"

    def studied(out: Path) -> str:
        found = board(small_study(folder, out))
        assert (verified := lemma.verify(out)).right, _damaged(verified)
        return str([found, *(file_hash(path) for path in sorted(out.glob("runs/*/model.safetensors")))])

    works: dict[str, tuple[Callable[[Path], str], Sequence[Place]]] = {
        "tokenising": (tokenised, ()),
        "training": (trained, ()),
        "checkpointing": (trained, [(session, "save")]),
        "finishing": (trained, [(RunFolder, "finish")]),
        "adapting": (adapted, ()),
        "a study": (studied, ()),
        "building an index": (indexed, ()),
    }
    for name, (work, within) in works.items():
        yield _killed(name, work, within, folder / name.replace(" ", "-"), max(1, round(KILLS * share)), chance)


def _killed(
    name: str, work: Callable[[Path], str], within: Sequence[Place], folder: Path, times: int, chance: random.Random
) -> Row:
    """Kill at random moments, or just before a change on the disk: every second time, inside these functions always."""
    row = Row("kills", name)
    folder.mkdir()
    begin = time.monotonic()
    expected = work(folder / "whole")
    length = time.monotonic() - begin
    reader, writer = os.pipe()
    forked(lambda: (count_changes(lambda count: os.write(writer, b"."), within), work(folder / "counted")))
    changes = len(os.read(reader, 1 << 16))
    os.close(reader)
    os.close(writer)
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
            row.add(None if (found := work(out)) == expected else f"another result: {found[:60]}")
        except Exception as error:
            row.add(f"{type(error).__name__}: {str(error)[:160]}")
        shutil.rmtree(out, ignore_errors=True)
    return row


def _damaged(verified: Verified) -> str:
    return " ".join(file.why for file in verified.files if file.state == "damaged")
