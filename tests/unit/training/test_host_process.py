"""Lemma does not change the random state, environment or allocator of the calling program."""

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import nn

import lemma
from adapting_runs import small_base
from lemma.layers.state import TokenWindow
from lemma.models.base import LanguageModel
from lemma.models.build import build, build_uninitialized
from lemma.spec.models import NewFamily
from lemma.spec.recipe import Recipe
from lemma.testing import contract_violations
from lemma.training.devices import Distributed
from lemma.training.session import Session
from small_runs import MODELS, QUICK

from families import SMALL

STUDY = """
name = "tiny"
models = ["rnn"]
seeds = [1]
sample_tokens = 5
settings = { width = 4, hidden = 8, batch = 4, sequence_length = 8, steps = 4, warm_up = 1, device = "cpu" }
data = { text = ["TEXT"], tokenizer = { kind = "characters" } }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a small base, its LoRA adaptation and a study file."""
    folder = tmp_path_factory.mktemp("host")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEMMA_HOME", str(folder / "home"))
        base, text = small_base(folder), folder / "text.txt"
        lemma.adapt(base, text=text, out=folder / "adapted", method="lora", steps=2, progress=False, device="cpu")
        (folder / "study.toml").write_text(STUDY.replace("TEXT", str(text)))
    return folder


@contextmanager
def unchanged_random_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail if a global random state changes. Seeds of uninitialized GPUs are queued."""
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    before = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    yield
    assert torch.equal(torch.get_rng_state(), before[0]), "torch's"
    assert random.getstate() == before[1], "Python's"
    assert repr(np.random.get_state()) == before[2], "NumPy's"  # noqa: NPY002
    assert not seeds, "CUDA's"


COSTS: dict[str, Any] = {"d": 8, "B": 2, "repetitions": 2, "device": "cpu", "progress": False}
TRAINING: dict[str, Any] = {"width": 8, "hidden": 8, "steps": 3, "warm_up": 1, "batch": 4, "tokenizer": "characters"}
CALLS: dict[str, Callable[[Path, Path], Any]] = {
    "load": lambda folder, out: lemma.load(folder / "base-decoder"),
    "load an adapted run": lambda folder, out: lemma.load(folder / "adapted"),
    "generate": lambda folder, out: lemma.generate(folder / "base-decoder", prompt="a", tokens=3),
    "evaluate": lambda folder, out: lemma.evaluate(folder / "base-decoder", progress=False),
    "export": lambda folder, out: lemma.export(folder / "adapted", to="merged", out=out),
    "train": lambda folder, out: lemma.train(
        "lstm", text=folder / "text.txt", out=out, progress=False, device="cpu", **TRAINING
    ),
    "study of a grid": lambda folder, out: lemma.study(folder / "study.toml", out=out, progress=False),
    "study heads": lambda folder, out: lemma.study("heads", out=out, h=[1, 2], T=[4], **COSTS),
    "study length": lambda folder, out: lemma.study("length", out=out, h=2, T=[2, 4], **COSTS),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_do_not_change_global_random_state(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(folder / "home"))
    with unchanged_random_state(monkeypatch):
        CALLS[name](folder, tmp_path / "out")


def test_contract_checks_do_not_change_random_state(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(SMALL["lstm"])
    with unchanged_random_state(monkeypatch):
        assert contract_violations(model) == {}


def test_loading_does_not_initialize_weights_randomly(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("weights are drawn")

    for name in ("normal_", "uniform_"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    assert lemma.load(folder / "base-decoder").model(torch.zeros(1, 3, dtype=torch.int64))[0].isfinite().all()


class Shift(NewFamily):
    """A family of another package with buffers that its constructor and `init_weights` fill."""

    model: ClassVar[str] = f"{__name__}:ShiftModel"
    family: Literal["shift"] = "shift"
    vocabulary: int = 11


class ShiftModel(LanguageModel):
    """An embedding plus two constants."""

    def __init__(self, spec: Shift, dropout: float = 0.0) -> None:
        super().__init__(spec)
        self.embedding = nn.Embedding(spec.vocabulary, spec.vocabulary)
        self.register_buffer("first", torch.empty(3).fill_(2.0), persistent=False)
        self.register_buffer("second", torch.empty(3), persistent=False)

    @property
    def receptive_field(self) -> int:
        """Return one token."""
        return 1

    def init_weights(self) -> None:
        """Draw the embedding and fill the second constant."""
        nn.init.normal_(self.embedding.weight)
        self.second.fill_(3.0)  # pyright: ignore[reportCallIssue]

    def forward(self, tokens: Any, state: Any = None) -> tuple[torch.Tensor, TokenWindow]:
        """Not needed here."""
        raise NotImplementedError


def test_uninitialized_model_has_the_buffers_of_an_initialized_one() -> None:
    lemma.register(Shift)
    for spec in (*SMALL.values(), Shift()):
        model, filled = build(spec), build_uninitialized(spec)
        buffers = dict(model.named_buffers())
        assert buffers.keys() == dict(filled.named_buffers()).keys()
        for name, buffer in filled.named_buffers():
            assert torch.equal(buffer, buffers[name]), (spec.family, name)


def test_collected_losses_are_copied_from_static_memory(spec_and_data: Any) -> None:
    recipe = Recipe(**{**QUICK, "steps": 3})
    spec = MODELS["lstm"].with_data_sizes(spec_and_data[1].sizes())
    session = Session(spec, recipe, spec_and_data[1].item("train"), Distributed(torch.device("cpu")), print)
    static = torch.zeros(())  # a CUDA graph writes each step's loss to the same memory

    def replay(*batch: torch.Tensor) -> list[torch.Tensor]:
        return [static.add_(1.0), torch.zeros(())]

    session.graph_step = replay  # pyright: ignore[reportAttributeAccessIssue]
    losses = []
    for _ in range(3):
        session.step()
        losses.append(session.latest)
    session.batches.close()
    assert [float(loss) for loss in losses] == [1.0, 2.0, 3.0]


PAGE_FAULTS = """
import resource, sys, torch
import lemma

def page_faults():
    block = torch.zeros(5_000_000)
    block + 1  # glibc keeps blocks of this size from the first that was freed
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        block + 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = page_faults()
settings = dict(progress=False, device="cpu", steps=2, warm_up=1, width=8, hidden=8, tokenizer="characters")
lemma.train("lstm", text={text!r}, out={out!r}, **settings)
print(before, page_faults())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_training_does_not_change_allocator_settings(folder: Path, tmp_path: Path) -> None:
    paths = {"text": str(folder / "text.txt"), "out": str(tmp_path / "run")}
    environment = {**os.environ, "LEMMA_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", PAGE_FAULTS.format(**paths)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert after <= 2 * before + 1000  # with glibc's fixed thresholds each addition takes 5,000 new pages
