"""Flipped bits and cut-off files: every one is found, with the file named, or proved to change nothing."""

import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

import lemma
from faults import Row, board, home, small_run, small_study
from lemma.data.store import prepare_text
from lemma.errors import LemmaError
from lemma.retrieval.index import Index, IndexEntry, append_entries, create_index
from lemma.runs.checkpoint import read_latest_checkpoint
from lemma.runs.folder import RunFolder
from lemma.spec.data import BytePairs, DataSpec

FLIPS, CUTS = 100, 20


def damage(folder: Path, fraction: float, seed: int = 1) -> Iterator[Row]:
    """Flip bits in and truncate each file of every kind of folder."""
    chance = random.Random(seed)
    run = small_run(folder)
    files = [path for path in run.iterdir() if path.is_file()]
    yield from _files("run", run, files, lambda: _used(run), fraction, chance)
    newest = max((run / "checkpoints").iterdir(), key=lambda path: int(path.name.partition("-")[2]))
    yield from _files("checkpoint", newest, list(newest.iterdir()), lambda: _restored(run), fraction, chance)
    adapted = folder / "adapted"
    lemma.adapt(run, text=folder / "book.txt", out=adapted, steps=4, progress=False)
    files = [path for path in adapted.iterdir() if path.is_file()]
    yield from _files("adapted run", adapted, files, lambda: _used(adapted), fraction, chance)
    base = [run / "model.safetensors", run / "tokenizer.json", run / "spec.toml"]
    yield from _files("base of an adapted run", run, base, lambda: _used(adapted), fraction, chance)
    with home(folder / "home") as home_folder:
        spec = DataSpec(text=(str(folder / "book.txt"),), tokenizer=BytePairs(vocabulary=280))

        def tokens() -> Any:
            return {name: ids.tolist() for name, ids in prepare_text(spec).items.items()}

        tokens()
        caches = [path for path in home_folder.rglob("*") if path.is_file()]
        yield from _files("token store and tokenizer", home_folder, caches, tokens, fraction, chance)
        shutil.rmtree(home_folder)

        def counted() -> Any:
            return lemma.count("lora", quantities=["parameters"]).to_dict()

        counted()
        yield from _files("count cache", home_folder, list(home_folder.rglob("*.json")), counted, fraction, chance)
    yield from _imported(folder, fraction, chance)
    yield from _study(folder, fraction, chance)
    yield from _index(folder / "index", fraction, chance)


def _imported(folder: Path, fraction: float, chance: random.Random) -> Iterator[Row]:
    """A Hugging Face folder: one that Lemma wrote lists its checksums, any other is known since it was first opened."""
    run, ours, foreign = folder / "decoder", folder / "exported", folder / "imported"
    sizes: dict[str, Any] = {"width": 8, "heads": 2, "depth": 1, "vocabulary": 280, "context": 8, "batch": 4}
    lemma.train("decoder", text=folder / "book.txt", out=run, steps=2, progress=False, **sizes)
    lemma.export(run, to="huggingface", out=ours)
    shutil.copytree(ours, foreign)
    (foreign / "lemma.json").unlink()

    def used(model_folder: Path) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loaded = lemma.load(model_folder, device="cpu")
            weights = [tensor.tolist() for tensor in loaded.module.parameters()]
            text = lemma.generate(model_folder, "the", tokens=4, seed=1)
        if caught := [str(warning.message) for warning in caught if "has changed since" in str(warning.message)]:
            raise LemmaError(" ".join(caught))
        return weights, loaded.tokenizer.hash, str(text)

    for description, model_folder in (("folder that Lemma wrote", ours), ("folder of another library", foreign)):
        with home(folder / "imported-home"):
            yield from _files(
                description,
                model_folder,
                list(model_folder.iterdir()),
                lambda model_folder=model_folder: used(model_folder),
                fraction,
                chance,
            )


def _study(folder: Path, fraction: float, chance: random.Random) -> Iterator[Row]:
    """Every file of a study: `lemma.verify` names it, or the same call again comes to the same.

    The call is made again every tenth time too, and must come to the same or name the file.
    """
    study, good = folder / "study", folder / "study-as-it-was"
    expected = board(small_study(folder, study, seeds=[1]))
    study.rename(good)
    number = count()

    def studied() -> Any:
        verification = lemma.verify(study)
        if verification.right or next(number) % 10 == 0:
            result = board(small_study(folder, study, seeds=[1]))
            assert result == expected, "the study came to something else"
        if not verification.right:
            raise LemmaError(" ".join(file.why for file in verification.files if file.state == "damaged"))
        return expected

    same = ("trials/rnn-learning_rate-0.002-seed-2/", "/checkpoints/step-1/", "/checkpoints/step-8/")  # as others
    names = [str(path.relative_to(good)) for path in good.rglob("*") if path.is_file() and path.suffix != ".lock"]
    files = [study / name for name in names if not any(part in name for part in same)]
    yield from _files("study", study, files, studied, fraction, chance, good)


def _index(folder: Path, fraction: float, chance: random.Random) -> Iterator[Row]:
    folder.mkdir()
    vectors = np.random.default_rng(1).normal(size=(50, 8)).astype(np.float32)
    header = create_index(folder, "run", 8, "images").header
    for first in (0, 25):
        entries = [IndexEntry(f"{row}.png", row, row, f"{row:x}") for row in range(first, first + 25)]
        header = append_entries(folder, header, entries, vectors[first : first + 25])

    def searched() -> Any:
        index = Index.open(folder)
        return index.entries, index.vectors.tolist()

    yield from _files(
        "index", folder, [path for path in folder.iterdir() if path.is_file()], searched, fraction, chance
    )


def _used(run: Path) -> Any:
    """Use everything that is read from a finished run."""
    loaded = lemma.load(run, device="cpu")
    if loaded.note:  # damaged weights: the last checkpoint serves, and the file is named
        raise LemmaError(loaded.note)
    rows = RunFolder.open(run).metrics.rows()
    weights = [tensor.tolist() for tensor in loaded.module.parameters()]
    return loaded.summary, rows, loaded.recipe, loaded.data, weights, loaded.tokenizer.hash


def _restored(run: Path) -> Any:
    """The newest good checkpoint; one that is skipped is named."""
    messages: list[str] = []
    checkpoint = read_latest_checkpoint(run / "checkpoints", messages.append)
    assert checkpoint is not None
    if messages:
        raise LemmaError(" ".join(messages))
    tensors = {
        name: {key: tensor.tolist() for key, tensor in group.items()} for name, group in checkpoint.tensors.items()
    }
    return checkpoint.step, tensors, checkpoint.state


def _files(
    description: str,
    root: Path,
    files: list[Path],
    use: Callable[[], Any],
    fraction: float,
    chance: random.Random,
    pristine: Path | None = None,
) -> Iterator[Row]:
    """Damage each file in turn and use its folder, which is copied from `whole` each time if using it changes it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if pristine:
            shutil.copytree(pristine, root)
        expected = use()
        for file in sorted(files):
            row = Row("damage", f"{description}: {file.relative_to(root)}")
            good = file.read_bytes()
            if not good:
                continue
            contents = []
            for _ in range(max(1, round(FLIPS * fraction))):
                offset, bit = chance.randrange(len(good)), 1 << chance.randrange(8)
                contents.append(good[:offset] + bytes([good[offset] ^ bit]) + good[offset + 1 :])
            contents += [good[: chance.randrange(len(good))] for _ in range(max(1, round(CUTS * fraction)))]
            for content in contents:
                row.add(_try_content(file, content, use, expected))
                if pristine:
                    shutil.rmtree(root)
                    shutil.copytree(pristine, root)
                else:
                    file.write_bytes(good)
            yield row


def _try_content(file: Path, content: bytes, use: Callable[[], Any], expected: Any) -> str | None:
    """Return why a damaged file was handled wrongly; None if it was named, or changed nothing."""
    file.write_bytes(content)
    try:
        result = use()
    except LemmaError as error:
        return (
            None if file.name in str(error) or file.parent.name in str(error) else f"{file.name} is not named: {error}"
        )
    except Exception as error:
        return f"{file.name}: {type(error).__name__}: {str(error)[:100]}"
    return None if result == expected else f"{file.name}: accepted in silence"
