"""Exports are atomic, replace only Lemma's files with --overwrite, and incomplete ones are named."""

import json
import os
import re
import resource
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import lemma
from faults import forked
from lemma.data.tokenizers import train_tokenizer
from lemma.errors import LemmaError, RunError
from lemma.files import data_home, file_hash
from lemma.models.build import build
from lemma.runs.folder import RunFolder
from lemma.spec.data import Characters
from lemma.spec.models import Decoder

QUICK = {"steps": 2, "batch": 2, "sequence_length": 8, "progress": False}
LLAMA = {"positions": "rotary", "norm": "rms", "gated": True, "activation": "silu", "bias": False}
SMALL = {"width": 16, "depth": 1, "heads": 2, "context": 16, "tokenizer": "byte-pairs", "vocabulary": 280}
FORMS = ("merged", "huggingface", "peft", "gguf")


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a LoRA run on a decoder like Llama."""
    folder = tmp_path_factory.mktemp("exports")
    (folder / "book.txt").write_text("the cat sat on the mat\n" * 100)
    lemma.train("decoder", text=folder / "book.txt", out=folder / "base", **LLAMA, **SMALL, **QUICK)
    lemma.adapt(folder / "base", text=folder / "book.txt", out=folder / "adapted", rank=1, **QUICK)
    return folder / "adapted"


def files(path: Path) -> dict[str, str]:
    inner = [path] if path.is_file() else sorted(path.rglob("*"))
    return {str(file.relative_to(path.parent)): file_hash(file) for file in inner if file.is_file()}


@pytest.mark.parametrize("form", FORMS)
def test_only_lemma_exports_are_replaced_with_overwrite(
    form: str, adapted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from lemma.cli.main import main

    out = tmp_path / ("out.gguf" if form == "gguf" else "out")
    command = ["export", str(adapted), "--to", form, "--out", str(out)]
    lemma.export(adapted, to=form, out=out)  # pyright: ignore
    before = files(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(command)
    assert left.value.code == 2 and "--overwrite" in capsys.readouterr().err and files(tmp_path) == before
    with pytest.raises(SystemExit) as left:
        main([*command, "--overwrite"])
    assert left.value.code == 0 and sorted(files(tmp_path)) == sorted(before)
    if form == "gguf":
        out.write_bytes(b"GGUF of another program")
    else:
        (out / "notes.txt").write_text("mine")
    changed = files(tmp_path)
    with pytest.raises(RunError, match=re.escape(str(out))):
        lemma.export(adapted, to=form, out=out, overwrite=True)  # pyright: ignore
    assert files(tmp_path) == changed


@pytest.mark.parametrize("form", ["huggingface", "peft"])
def test_modified_export_files_are_not_replaced(form: str, adapted: Path, tmp_path: Path) -> None:
    lemma.export(adapted, to=form, out=tmp_path / "out")  # pyright: ignore
    assert lemma.verify(tmp_path / "out").right
    weights = next((tmp_path / "out").glob("*.safetensors"))
    weights.write_bytes(b"tuned with another program")
    with pytest.raises(RunError, match=rf"not as Lemma wrote it.*{weights.name}"):
        lemma.export(adapted, to=form, out=tmp_path / "out", overwrite=True)  # pyright: ignore
    assert weights.read_bytes() == b"tuned with another program"
    weights.unlink()
    missing = [file.path for file in lemma.verify(tmp_path / "out").files if file.state == "damaged"]
    assert missing == [weights.name]


def test_quantized_copy_of_an_export_is_not_replaced(adapted: Path, tmp_path: Path) -> None:
    lemma.export(adapted, to="gguf", out=tmp_path / "out.gguf")
    kind = b"general.file_type\x04\0\0\0"
    content = (tmp_path / "out.gguf").read_bytes()
    assert kind + b"\0" in content
    (tmp_path / "out.gguf").write_bytes(content.replace(kind + b"\0", kind + b"\x07"))
    with pytest.raises(RunError, match="did not write it"):
        lemma.export(adapted, to="gguf", out=tmp_path / "out.gguf", overwrite=True)


def test_folder_with_only_a_spec_is_not_overwritten(adapted: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    shutil.copy(adapted / "spec.toml", tmp_path / "mine")
    with pytest.raises(RunError, match=r"not a run \(recipe\.toml is missing\)"):
        lemma.export(adapted, to="merged", out=tmp_path / "mine", overwrite=True)


def test_full_disk_during_export_names_the_file(adapted: Path, tmp_path: Path) -> None:
    reader, writer = os.pipe()

    def export(layout: str, out: Path) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            lemma.export(adapted, to=layout, out=out)  # pyright: ignore
        except lemma.errors.StorageError as error:
            os.write(writer, f"{error}\n".encode())
            raise

    for layout, name in (("gguf", "a.gguf"), ("merged", "b"), ("huggingface", "c")):
        assert forked(lambda layout=layout, name=name: export(layout, tmp_path / name)) == 2
    os.close(writer)
    with os.fdopen(reader) as messages:
        lines = messages.readlines()
    assert all(re.search(r"cannot be written: File too large \([\d,]+ bytes of it were", line) for line in lines), lines
    assert len(lines) == 3 and not list(tmp_path.iterdir())


CUTS: dict[str, tuple[str, ...]] = {
    "before the weights": ("model.safetensors", "summary.json"),
    "before the summary": ("summary.json",),
}


@pytest.mark.parametrize("cut", CUTS)
def test_incomplete_export_is_named_and_not_retrained(cut: str, adapted: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    lemma.export(adapted, to="merged", out=run)
    for name in CUTS[cut]:  # as an earlier version left it when it was killed
        (run / name).unlink()
    before = files(run)
    actions: list[Callable[[], object]] = [
        lambda: lemma.resume(run, progress=False),
        lambda: lemma.load(run),
        lambda: lemma.adapt(run, text=adapted.parent / "book.txt", out=tmp_path / "other", **QUICK),
    ]
    for action in actions:
        with pytest.raises(RunError, match=r"run is incomplete: .*Write it again with --overwrite"):
            action()
    verified = lemma.verify(run)
    damaged = [(file.path, "is incomplete" in file.why) for file in verified.files if file.state == "damaged"]
    assert damaged == [("summary.json", True)] and files(run) == before
    lemma.export(adapted, to="merged", out=run, overwrite=True)
    assert lemma.verify(run).right


def test_training_killed_before_first_checkpoint_can_resume(adapted: Path, tmp_path: Path) -> None:
    text = adapted.parent / "book.txt"
    full = lemma.train("lstm", text=text, out=tmp_path / "whole", width=4, hidden=4, **QUICK)
    built = RunFolder.open(tmp_path / "whole")
    cut = RunFolder(tmp_path / "cut", built.spec, built.recipe, built.data, built.data_hash).create(built.tokenizer())
    assert cut.is_resumable and lemma.verify(cut.path).right
    assert lemma.resume(cut.path, progress=False).best_loss == full.best_loss


def test_run_without_weights_or_recipe_is_damaged(adapted: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "recipe.toml"):
        shutil.copytree(adapted, tmp_path / name)
        (tmp_path / name / "adaptation.toml").write_text((adapted / "adaptation.toml").read_text())
        (tmp_path / name / name).unlink()
        damaged = [file.path for file in lemma.verify(tmp_path / name).files if file.state == "damaged"]
        assert name in damaged


def test_changed_third_party_model_warns_until_accepted(
    adapted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "home"))
    lemma.export(adapted, to="gguf", out=tmp_path / "a.gguf")
    lemma.load(tmp_path / "a.gguf")
    good = (tmp_path / "a.gguf").read_bytes()
    (tmp_path / "a.gguf").write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"a\.gguf has changed since.*If you replaced it: rm"):
            lemma.load(tmp_path / "a.gguf")
        verified = lemma.verify(tmp_path / "a.gguf")
        assert not verified.right and [file.path for file in verified.files] == ["a.gguf"]
        assert "has changed since" in verified.files[0].why
    lemma.export(adapted, to="gguf", out=tmp_path / "a.gguf", overwrite=True)  # by Lemma itself: no warning
    lemma.load(tmp_path / "a.gguf")
    assert lemma.verify(tmp_path / "a.gguf").right


def test_concurrent_opening_of_a_third_party_file_is_safe(
    adapted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "home"))
    lemma.export(adapted, to="gguf", out=tmp_path / "a.gguf")
    expected = str(lemma.generate(tmp_path / "a.gguf", "the", tokens=2, seed=1))
    for _ in range(3):
        shutil.rmtree(data_home())
        with ThreadPoolExecutor(4) as pool:
            texts = list(
                pool.map(lambda _: str(lemma.generate(tmp_path / "a.gguf", "the", tokens=2, seed=1)), range(8))
            )
        assert texts == [expected] * 8
        records = list((data_home() / "opened").iterdir())
        assert len(records) == 1 and json.loads(records[0].read_text())["hash"] == file_hash(tmp_path / "a.gguf")


NOT_UTF8 = os.fsdecode(b"caf\xe9")


def test_non_utf8_path_is_rejected_before_any_work(adapted: Path, tmp_path: Path) -> None:
    book = adapted.parent / "book.txt"
    shutil.copytree(adapted.parent / "base", tmp_path / NOT_UTF8)
    shutil.copy(book, tmp_path / f"{NOT_UTF8}.txt")
    before = sorted(tmp_path.rglob("*"))
    sizes = {"width": 4, "hidden": 4}
    actions: list[Callable[[], object]] = [
        lambda: lemma.train("lstm", text=book, out=tmp_path / f"{NOT_UTF8}-new", **sizes, **QUICK),
        lambda: lemma.train("lstm", text=tmp_path / f"{NOT_UTF8}.txt", out=tmp_path / "new", **sizes, **QUICK),
        lambda: lemma.resume(tmp_path / NOT_UTF8, progress=False),
        lambda: lemma.verify(tmp_path / NOT_UTF8),
        lambda: lemma.load(tmp_path / NOT_UTF8),
        *(
            lambda layout=layout: lemma.export(adapted, to=layout, out=tmp_path / f"{NOT_UTF8}.gguf")  # pyright: ignore
            for layout in FORMS
        ),
    ]
    for action in actions:
        with pytest.raises(LemmaError, match="name is not UTF-8"):
            action()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["loop", "loop/inside", "*.txt"])
def test_symlink_loop_is_reported_as_missing_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "a.txt").symlink_to(tmp_path / "loop")
    with pytest.raises(LemmaError, match="there is no such file"):
        lemma.train("lstm", text=str(tmp_path / name), out=tmp_path / "run", width=4, hidden=4, **QUICK)
    with pytest.raises(LemmaError):
        lemma.load(tmp_path / name)


class Wrapper(torch.nn.Module):
    """A wrapper like DistributedDataParallel."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module


def test_wrapped_model_is_saved_without_its_wrapper(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(Characters(), ["abc"])
    model = build(Decoder(vocabulary=tokenizer.vocabulary, width=4, depth=1, heads=1, context=4))
    wrapped = [
        Wrapper(torch.compile(model)),  # pyright: ignore
        torch.compile(Wrapper(model)),
        Wrapper(Wrapper(torch.compile(Wrapper(model)))),  # pyright: ignore
    ]
    for number, outer in enumerate(wrapped):
        lemma.runs.save(outer, tokenizer, tmp_path / str(number))
        loaded = lemma.load(tmp_path / str(number)).module
        assert all(map(torch.equal, loaded.state_dict().values(), model.state_dict().values()))
    with pytest.raises(LemmaError, match="--overwrite"):
        lemma.runs.save(model, tokenizer, tmp_path / "0")
    with pytest.raises(LemmaError, match="nothing to resume"):
        lemma.resume(tmp_path / "0")
