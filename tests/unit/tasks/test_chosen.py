"""Objectives of other packages are minimised and reported next to the causal loss."""

from pathlib import Path

import pytest
import torch

from lemma.errors import PackageError, SpecError
from lemma.models.build import build
from lemma.spec.models import Decoder
from lemma.spec.recipe import ObjectiveChoice, Recipe
from lemma.tasks.language import LanguageTask, causal_loss, objective_function

SPEC = """
from typing import ClassVar, Literal
from lemma.spec.recipe import NewObjective
class Added(NewObjective):
    loss: ClassVar[str] = "{module}:loss"
    kind: Literal["{module}"] = "{module}"
    weight: float = 1.0
def loss(logits, targets, weight):
    return {formula}
"""
TWICE = "2 * weight * torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())"
TOKENS = torch.tensor([[1, 2, 3, 4]])


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)

    def install_package(module: str, formula: str) -> None:
        metadata = tmp_path / f"{module}-2.0.dist-info"
        metadata.mkdir()
        (tmp_path / f"{module}.py").write_text("import torch\n" + SPEC.format(module=module, formula=formula))
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 2.0\n")
        (metadata / "entry_points.txt").write_text(f"[lemma.objectives]\n{module} = {module}:Added\n")

    return install_package


def test_plugin_objective_is_minimised_and_causal_loss_reported(install) -> None:
    install("doubled", TWICE)
    model = build(Decoder(vocabulary=11, width=8, depth=2, heads=2, context=9))
    criterion = LanguageTask().loss(model, Recipe(objective={"kind": "doubled", "weight": 3.0}))
    minimised, terms, _ = criterion(TOKENS, TOKENS + 1, None)
    base = causal_loss(model(TOKENS)[0], TOKENS + 1)
    assert criterion.terms == ("loss", "objective")
    torch.testing.assert_close(minimised, 6 * base)
    torch.testing.assert_close(terms[0], base)
    torch.testing.assert_close(terms[1], 6 * base)
    minimised.backward()
    assert model.embedding.weight.grad.abs().sum() > 0


def test_plugin_objective_combines_with_attention_penalties(install) -> None:
    install("doubled_too", TWICE)
    model = build(Decoder(vocabulary=11, width=8, depth=2, heads=2, context=9))
    criterion = LanguageTask().loss(model, Recipe(objective="doubled_too", entropy_penalty=0.5))
    minimised, (loss, objective, focus, _), _ = criterion(TOKENS, TOKENS + 1, None)
    assert criterion.terms == ("loss", "objective", "entropy", "distance")
    torch.testing.assert_close(objective, 2 * loss)
    torch.testing.assert_close(minimised, objective + 0.5 * focus.to(objective.dtype))


@pytest.mark.parametrize(
    "formula", ["logits.sum(-1)", "1 / 0", "logits.detach().mean()", "logits.mean() / 0", "targets.max() * 1.0", "None"]
)
def test_invalid_plugin_loss_is_rejected_before_training(install, formula: str) -> None:
    module = f"bad_{abs(hash(formula))}"
    install(module, formula)
    with pytest.raises(PackageError, match=module):
        objective_function(ObjectiveChoice(kind=module))


def test_missing_plugin_objective_is_named() -> None:
    with pytest.raises(SpecError, match=r"unknown recipe.objective 'gone'"):
        LanguageTask().loss(build(Decoder()), Recipe(objective="gone"))
