"""Resumed runs are bit-identical to uninterrupted ones: every family, at sizes with bad memory alignment."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import lemma
from adapting_runs import StopAt, same_bits, small_table
from image_runs import LSTM, shapes
from lemma.data.treebanks import format_conllu
from lemma.report.progress import SilentObserver
from lemma.runs.checkpoint import Checkpoint, read_latest_checkpoint, read_tensors, save_checkpoint, write_tensors
from lemma.spec.models import FAMILIES
from lemma.tasks.base import LoadContext
from lemma.tasks.registry import task_for
from small_runs import resume_small, small_text, train_small
from treebanks import tiny

QUICK: dict[str, Any] = {"steps": 8, "warm_up": 2, "device": "cpu", "progress": False}
TRANSFORMER = {"heads": 1, "feed_forward": 9, "context": 7}
RECURRENT = {
    f"{family} {width}, accumulate {parts}": (
        family,
        {
            "width": width,
            "hidden": width,
            "batch": rows * parts,
            "sequence_length": sequence_length,
            "accumulate": parts,
        },
    )
    for family in ("rnn", "gru", "lstm")
    for width, rows, sequence_length in ((8, 4, 16), (20, 3, 7), (33, 3, 8))
    for parts in (1, 2)
}
TEXT: dict[str, tuple[str, dict[str, Any]]] = {
    **RECURRENT,
    "deep gru": ("gru", {"width": 5, "hidden": 7, "depth": 2, "batch": 6, "sequence_length": 5, "accumulate": 2}),
    "feed-forward": ("feed-forward", {"width": 7, "hidden": 9, "context": 3, "batch": 3, "sequence_length": 7}),
    "attentive": ("attentive", {"width": 7, "hidden": 9, "context": 3, "batch": 3, "sequence_length": 7}),
    "decoder": ("decoder", {"width": 9, "depth": 2, "batch": 3, **TRANSFORMER}),
    "decoder, muon": ("decoder", {"width": 9, "depth": 2, "batch": 3, **TRANSFORMER, "optimizer": "muon"}),
    "encoder": ("encoder", {"width": 10, "depth": 1, "batch": 3, **TRANSFORMER}),
    "table-a5": ("table-a5", {"embedding": 5, "width": 9, "heads": 1, "feed_forward": 7, "context": 5, "batch": 3}),
}
OTHERS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "parser": ("parser", "treebank", {"width": 9, "buckets": 50, "encoder.hidden": 7, "hidden": 9, "batch": 3}),
    "encoder-decoder": (
        "encoder-decoder",
        "pairs",
        {"width": 9, "encoder_depth": 1, "decoder_depth": 1, "batch": 3, **TRANSFORMER},
    ),
    "classifier": ("gru", "labels", {"width": 7, "hidden": 9, "batch": 5}),
    "tree": ("tree", "trees", {"width": 7, "batch": 3, "held_out": 0.3}),
    "dual-encoder": (LSTM.replace(shared=7, image_width=18), "images", {"batch": 5}),
    "graph": ("graph", "graph", {"hidden": 7}),
}


def data_of(kind: str, folder: Path) -> dict[str, Any]:
    """Write the files of a kind of data and return the arguments that name them."""
    if kind == "text":
        (folder / "text.txt").write_text(small_text())
        return {"text": folder / "text.txt", "tokenizer": "characters"}
    if kind == "pairs":
        lines = [f"{number}\t{str(number)[::-1]}" for number in range(100, 160)]
        (folder / "pairs.tsv").write_text("\n".join(["source\ttarget", *lines]) + "\n")
        return {"pairs": folder / "pairs.tsv", "tokenizer": "characters"}
    if kind == "labels":
        return {"labels": small_table(folder), "tokenizer": "characters"}
    if kind == "images":
        return {"images": shapes(folder / "shapes", 3), "tokenizer": "words"}
    if kind == "graph":
        return {"graph": "karate"}
    sentences = format_conllu(tiny())
    if kind == "trees":
        trees = enumerate(sentences.strip().split("\n\n"))
        (folder / "trees.conllu").write_text("".join(f"# label = {'ab'[n % 2]}\n{tree}\n\n" for n, tree in trees))
        return {"labels": folder / "trees.conllu"}
    (folder / "tiny.conllu").write_text(sentences)
    return {"treebank": folder / "tiny.conllu"}


def assert_resumes(tmp_path: Path, make: Any) -> None:
    """Compare a run that is stopped after three steps and resumed with one that is not."""
    make(tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lemma.api.watch", lambda progress: StopAt(3))
        assert make(tmp_path / "cut").stopped == "interrupted"
    assert lemma.resume(tmp_path / "cut", progress=False).stopped == "done"
    assert same_bits(tmp_path / "whole", tmp_path / "cut")


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("case", TEXT)
def test_resumed_text_run_is_bit_identical_at_odd_sizes(case: str, tmp_path: Path) -> None:
    family, settings = TEXT[case]
    kwargs = {**data_of("text", tmp_path), **QUICK, **settings}
    assert_resumes(tmp_path, lambda out: lemma.train(family, out=out, **kwargs))


def test_sharded_text_run_resumes_exactly_within_an_epoch(tmp_path: Path) -> None:
    lines = small_text().splitlines(keepends=True)
    for index in range(3):
        with gzip.open(tmp_path / f"part-{index}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": line}) + "\n" for line in lines[index::3])
    size = {"width": 8, "depth": 1, "batch": 4, **TRANSFORMER, "tokenizer": "byte-pairs", "vocabulary": 270}
    kwargs = {"text": str(tmp_path / "part-*.jsonl.gz"), **QUICK, **size}
    assert_resumes(tmp_path, lambda out: lemma.train("decoder", out=out, **kwargs))
    run = lemma.load(tmp_path / "cut", device="cpu")
    splits = task_for(run.spec).load(run.data, LoadContext(run.spec, run.recipe, SilentObserver(), run.tokenizer))
    epoch = len(splits.item("train")) / (run.recipe.batch * run.spec.context)
    assert 3 < epoch != int(epoch)  # the first run stopped after three steps


@pytest.mark.parametrize("case", OTHERS)
def test_resumed_run_on_other_data_is_bit_identical_at_odd_sizes(case: str, tmp_path: Path) -> None:
    model, kind, settings = OTHERS[case]
    kwargs = {**data_of(kind, tmp_path), **QUICK, **settings}
    assert_resumes(tmp_path, lambda out: lemma.train(model, out=out, **kwargs))


def test_resumed_reranker_is_bit_identical_at_odd_sizes(tmp_path: Path) -> None:
    kwargs = {**data_of("images", tmp_path), **QUICK, "batch": 5}
    lemma.train(LSTM.replace(shared=7, image_width=18), out=tmp_path / "base", **kwargs)
    del kwargs["tokenizer"]
    kwargs |= {"rerank": True, "method": "lora", "rank": 2, "candidates": 3}
    assert_resumes(tmp_path, lambda out: lemma.adapt(tmp_path / "base", out=out, **kwargs))


def test_every_family_is_tested_for_exact_resume() -> None:
    assert {family for family, _ in TEXT.values()} | OTHERS.keys() | {"cross-attention"} == FAMILIES.keys()


def test_loaded_tensors_are_aligned_like_computed_ones(tmp_path: Path) -> None:
    tensors = {f"{number}": torch.rand(number) for number in range(1, 30)}
    for length in range(20):  # length of the header before the data
        write_tensors(tmp_path / "a.safetensors", tensors, {"about": "x" * length})
        read, _ = read_tensors(tmp_path / "a.safetensors")
        assert all(tensor.data_ptr() % 64 == 0 for tensor in read.values())


def test_changed_thread_count_warns_on_resume(tmp_path: Path, spec_and_data, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("torch.get_num_threads", lambda: 6)
        train_small(tmp_path / "run", "lstm", spec_and_data, observer=StopAt(3))
    (state,) = (tmp_path / "run" / "checkpoints").glob("step-3/state.json")
    assert json.loads(state.read_text())["threads"] == 6
    (warning,) = resume_small(tmp_path / "run", spec_and_data[1]).warnings
    assert "step 3 was saved with 6 CPU threads and this process has 1" in warning and "OMP_NUM_THREADS=6" in warning


def test_equal_or_unrecorded_thread_count_does_not_warn(tmp_path: Path, spec_and_data) -> None:
    for name in ("same", "old"):
        train_small(tmp_path / name, "lstm", spec_and_data, observer=StopAt(3))
    saved = read_latest_checkpoint(tmp_path / "old" / "checkpoints")
    assert saved
    silent = {key: value for key, value in saved.state.items() if key != "threads"}
    save_checkpoint(tmp_path / "old" / "checkpoints", Checkpoint(saved.step, saved.tensors, silent))
    for name in ("same", "old"):
        result = resume_small(tmp_path / name, spec_and_data[1])
        assert result.stopped == "done" and not result.warnings
    assert same_bits(tmp_path / "same", tmp_path / "old")


def test_a_checkpoint_of_version_0_1_keeps_its_carried_states(tmp_path: Path, spec_and_data) -> None:
    for name in ("new", "old"):
        train_small(tmp_path / name, "lstm", spec_and_data, observer=StopAt(3))
    saved = read_latest_checkpoint(tmp_path / "old" / "checkpoints")
    assert saved
    reading = dict(saved.state["reading"])
    reading["stretch"] = reading.pop("sequence_length")
    state = {**saved.state, "reading": reading}
    save_checkpoint(tmp_path / "old" / "checkpoints", Checkpoint(saved.step, saved.tensors, state))
    for name in ("new", "old"):
        assert resume_small(tmp_path / name, spec_and_data[1]).stopped == "done"
    assert same_bits(tmp_path / "new", tmp_path / "old")


@pytest.mark.parametrize(("before", "after"), [("muon", "adamw"), ("adamw", "muon")])
def test_resuming_with_another_optimizer_resets_its_state(
    before: str, after: str, tmp_path: Path, spec_and_data
) -> None:
    train_small(tmp_path / "run", "decoder", spec_and_data, optimizer=before, observer=StopAt(3))
    result = resume_small(tmp_path / "run", spec_and_data[1], changes={"optimizer": after})
    assert result.stopped == "done"
    assert result.warnings == (
        f"The checkpoint of step 3 holds the memory of {before}, another optimizer than {after}: that of this one "
        "begins empty.",
    )
    saved = read_latest_checkpoint(tmp_path / "run" / "checkpoints")
    assert saved
    steps = {int(tensor) for name, tensor in saved.tensors["optimizer"].items() if name.endswith(":step")}
    means = [name for name in saved.tensors["optimizer"] if name.endswith(":mean")]
    assert steps == {result.steps - 3} and bool(means) == (after == "muon")
