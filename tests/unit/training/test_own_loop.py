"""Custom optimizers, schedules and loops give the same training as equal built-in ones."""

import importlib.util
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import nn

import lemma
from lemma.data.tokenizers import train_tokenizer
from lemma.errors import LemmaError, RunError, SpecError, TrainingError
from lemma.layers.state import TokenWindow
from lemma.models.base import LanguageModel
from lemma.models.build import build
from lemma.runs.folder import RunFolder
from lemma.spec.data import Characters
from lemma.spec.models import PLUGIN_FAMILIES, Classifier, Decoder, Graph, NewFamily
from lemma.spec.recipe import NewObjective, Recipe
from lemma.training.optimizer import learning_rate, load_optimizer_state, optimizer_state
from small_runs import small_text

SMALL = {
    "width": 8,
    "heads": 2,
    "depth": 1,
    "context": 8,
    "batch": 4,
    "steps": 6,
    "warm_up": 2,
    "tokenizer": "characters",
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "text.txt"
    path.write_text(small_text(), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def home(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(text.parent / "home"))


def losses(out: Path) -> list[float]:
    return [row["loss"] for row in RunFolder.open(out).metrics.rows()]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Return Lemma's optimizer without weight decay, at twice the peak rate of the recipe."""
    return torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.99), weight_decay=0.0)


def test_custom_optimizer_and_schedule_match_built_in_training(text: Path, tmp_path: Path) -> None:
    base = lemma.train("decoder", text=text, out=tmp_path / "a", weight_decay=0.0, learning_rate=4e-3, **SMALL)
    recipe = Recipe(steps=6, warm_up=2, learning_rate=1.0)
    custom = {"optimizer": adamw, "schedule": lambda step: learning_rate(recipe, step)}
    seen = []
    result = lemma.train(
        "decoder", text=text, out=tmp_path / "b", on_step=lambda item: seen.append(item.latest), **custom, **SMALL
    )
    assert losses(tmp_path / "b") == pytest.approx(losses(tmp_path / "a"), abs=1e-6)
    assert result.best_loss == pytest.approx(base.best_loss, abs=1e-6)
    rates = [[row["learning_rate"] for row in RunFolder.open(tmp_path / name).metrics.rows()] for name in "ab"]
    assert rates[0] == pytest.approx(rates[1])
    assert [float(loss) for loss in seen] == pytest.approx(losses(tmp_path / "b"), abs=1e-6)


def test_on_step_can_stop_a_run_that_resumes_with_its_functions(text: Path, tmp_path: Path) -> None:
    custom = {"optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)}
    custom["schedule"] = lambda step: 1 / step
    lemma.train("decoder", text=text, out=tmp_path / "whole", **custom, **SMALL)
    for reached in (torch.tensor, np.bool_):  # types of comparison results
        ends = lambda item, reached=reached: reached(item.state.step == 3)  # noqa: E731
        result = lemma.train("decoder", text=text, out=tmp_path / "a", on_step=ends, overwrite=True, **custom, **SMALL)
        assert result.steps == 3
    result = lemma.train(
        "decoder",
        text=text,
        out=tmp_path / "a",
        overwrite=True,
        on_step=lambda item: item.latest if item.state.step < 3 else True,
        **custom,
        **SMALL,
    )
    assert (result.stopped, result.steps) == ("asked", 3) and result.validation_loss is not None
    assert "stopped by on_step" in str(result)
    with pytest.raises(SpecError, match=r"optimizer = custom .* lemma.resume"):
        lemma.resume(tmp_path / "a")
    lemma.resume(tmp_path / "a", **custom)
    assert losses(tmp_path / "a") == losses(tmp_path / "whole")


def test_invalid_custom_optimizer_is_rejected(text: Path, tmp_path: Path) -> None:
    other = nn.Linear(2, 2)
    for make, reason in (
        (lambda model: 3, "is expected"),
        (lambda model: torch.optim.SGD(other.parameters(), lr=1), "not par"),
    ):
        with pytest.raises(SpecError, match=reason):
            lemma.train("decoder", text=text, out=tmp_path / "a", optimizer=make, **SMALL)
    with pytest.raises(SpecError, match="schedule = custom"):
        lemma.train("decoder", text=text, out=tmp_path / "a", schedule="custom", **SMALL)
    assert not (tmp_path / "a").exists()


def test_optimizer_state_saves_numbers_and_rejects_lists() -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer.state[model.weight] |= {"count": 3, "mean": torch.ones(1, 2), "nothing": None}
    other = nn.Linear(2, 1, bias=False)
    again = torch.optim.SGD(other.parameters(), lr=1.0)
    load_optimizer_state(again, other, optimizer_state(optimizer, model))
    assert again.state[other.weight]["count"] == 3 and again.state[other.weight]["mean"].tolist() == [[1.0, 1.0]]
    optimizer.state[model.weight]["history"] = [1]
    with pytest.raises(TrainingError, match="keeps a list called history"):
        optimizer_state(optimizer, model)


def test_custom_loop_example_writes_an_ordinary_run(text: Path, tmp_path: Path) -> None:
    path = Path(__file__).parents[3] / "examples" / "own_loop.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 60
    spec = importlib.util.spec_from_file_location("own_loop", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    loss = module.main(str(text), str(tmp_path / "run"), steps=12, batch=4, width=16)
    run = lemma.load(tmp_path / "run")
    assert 0 < loss < np.log(run.tokenizer.vocabulary) + 0.5
    with pytest.raises(SpecError, match="own data are not known"):
        lemma.evaluate(tmp_path / "run")


def test_saved_model_has_equal_logits_and_mismatches_are_rejected(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(Characters(), ["abcde"])
    model = build(Decoder(vocabulary=5, width=8, depth=1, heads=2, context=4)).eval()
    lemma.runs.save(torch.nn.parallel.DataParallel(model), tokenizer, tmp_path / "run")
    tokens = torch.tensor([[0, 1, 2]])
    assert torch.equal(lemma.load(tmp_path / "run", device="cpu").model(tokens)[0], model(tokens)[0])
    labels = build(Classifier(body=Decoder(vocabulary=5, width=8, depth=1, heads=2, context=4))).eval()
    lemma.runs.save(labels, tokenizer, tmp_path / "labels", labels=("no", "yes"))
    chances = lemma.generate(tmp_path / "labels", source="abc").probabilities
    assert list(chances.values()) == pytest.approx(labels(tokens).softmax(-1)[0].tolist())
    (tmp_path / "labels.csv").write_text("text,label\nabc,no\nbca,yes\n")
    assert lemma.evaluate(tmp_path / "labels", labels=tmp_path / "labels.csv", progress=False).texts == 2
    with pytest.raises(RunError, match="--overwrite"):
        lemma.runs.save(model, tokenizer, tmp_path / "run")
    with pytest.raises(RunError, match="6 tokens, and the model is one of 5"):
        lemma.runs.save(model, train_tokenizer(Characters(), ["abcdef"]), tmp_path / "other")
    for nothing in (None, "abcde"):
        with pytest.raises(RunError, match=f"Tokenizer is expected as tokenizer, got {type(nothing).__name__}"):
            lemma.runs.save(model, nothing, tmp_path / "other")
    with pytest.raises(SpecError, match="nothing to resume\\. To train it further: lemma adapt"):
        lemma.resume(tmp_path / "run")
    nodes = build(Graph(features=3, classes=2, hidden=4))
    lemma.runs.save(nodes, None, tmp_path / "nodes", labels=("no", "yes"))
    assert lemma.load(tmp_path / "nodes", device="cpu").spec == nodes.spec
    with pytest.raises(RunError, match="got Linear"):
        lemma.runs.save(nn.Linear(2, 2), tokenizer, tmp_path / "other")
    model.embedding = nn.Embedding(5, 9)
    with pytest.raises(RunError, match="not those of the model's spec"):
        lemma.runs.save(model, tokenizer, tmp_path / "other")
    assert not (tmp_path / "other").exists()


class Unigram(NewFamily):
    """A family with the same logits after every token."""

    family: Literal["unigram"] = "unigram"


class UnigramModel(LanguageModel):
    def __init__(self, spec: Unigram, dropout: float) -> None:
        super().__init__(spec)
        self.logits = nn.Parameter(torch.zeros(spec.vocabulary))

    @property
    def receptive_field(self) -> int:
        return 1

    def forward(self, tokens, state=None):
        return self.logits.expand(*tokens.shape, -1), TokenWindow(tokens[:, -1:], 1)


class Doubled(NewObjective):
    """An objective of twice the causal loss."""

    kind: Literal["doubled"] = "doubled"
    factor: ClassVar[float] = 2.0


def doubled(logits, targets):
    return 2 * nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def test_registered_family_and_objective_train_and_load(text: Path, tmp_path: Path) -> None:
    with pytest.raises(LemmaError, match="unigram"):
        lemma.choose("unigram")
    assert lemma.register(Unigram, model=UnigramModel) is Unigram
    lemma.register(Doubled, loss=doubled)
    small = {"steps": 3, "batch": 4, "tokenizer": "characters"}
    lemma.train("unigram", text=text, out=tmp_path / "a", objective="doubled", **small)
    row = RunFolder.open(tmp_path / "a").metrics.rows()[0]
    assert row["objective"] == pytest.approx(2 * row["loss"])
    assert isinstance(lemma.load(tmp_path / "a").model, UnigramModel)
    PLUGIN_FAMILIES.registered.clear()  # like a new process
    with pytest.raises(RunError, match="unigram"):
        lemma.load(tmp_path / "a")


def test_invalid_registrations_are_rejected() -> None:
    class Lstm(NewFamily):
        family: Literal["lstm"] = "lstm"

    class Nameless(NewFamily):
        family: str = ""

    for kind, parts, reason in (
        (Lstm, {}, "of Lemma's own"),
        (Nameless, {}, "lacks the line"),
        (Unigram, {"loss": doubled}, "Choices: model"),
        (nn.Linear, {}, "a subclass of NewFamily"),
    ):
        with pytest.raises(LemmaError, match=reason):
            lemma.register(kind, **parts)
    assert not PLUGIN_FAMILIES.registered


SGD = torch.optim.SGD


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"on_step": 3}, "on_step: a function of the session is expected, got 3"),
        ({"schedule": lambda step: None}, "gives None for step 1"),
        ({"schedule": lambda step: "x"}, "gives 'x' for step 1"),
        ({"schedule": lambda step: -1}, "gives -1 for step 1, and a number from 0 up is expected"),
        ({"schedule": lambda step: float("nan")}, "gives nan for step 1"),
        ({"optimizer": SGD([torch.zeros(1)], lr=1)}, "does not exist yet. Give a function"),
        ({"optimizer": SGD}, "SGD is a class. Give a function"),
        ({"optimizer": lambda model: torch.optim.LBFGS(model.parameters())}, "LBFGS computes the loss several times"),
    ],
)
def test_invalid_custom_functions_are_rejected_before_overwriting(
    own: dict, said: str, text: Path, tmp_path: Path
) -> None:
    lemma.train("decoder", text=text, out=tmp_path / "a", **SMALL)
    weights = (tmp_path / "a" / "model.safetensors").read_bytes()
    with pytest.raises(SpecError) as caught:
        lemma.train("decoder", text=text, out=tmp_path / "a", overwrite=True, **own, **SMALL)
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == weights


def test_objective_registration_requires_a_loss() -> None:
    class Lossless(NewObjective):
        """An objective without a loss."""

        kind: Literal["lossless"] = "lossless"

    with pytest.raises(SpecError, match=r"Lossless needs its loss: lemma\.register\(Lossless, loss=…\)"):
        lemma.register(Lossless)
