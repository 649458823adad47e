"""Training on trees: gradients do not depend on accumulation or processes."""

import pytest
import torch

from lemma.data.treebanks import Lexicon, Trees
from lemma.spec.models import Parser
from lemma.spec.recipe import Recipe
from lemma.tasks import parsing
from lemma.training.devices import Distributed
from lemma.training.session import Session
from treebanks import tiny


def gradients(parts: int, team: Distributed | None = None) -> dict[str, torch.Tensor]:
    lexicon = Lexicon.from_sentences(tiny(), 1, 100)
    spec = Parser(
        vocabulary=lexicon.vocabulary,
        relations=len(lexicon.relations),
        buckets=100,
        width=8,
        word_dropout=0.0,
        encoder={"kind": "bilstm", "hidden": 8, "depth": 1},
    )
    recipe = Recipe(batch=4, accumulate=parts, dropout=0.0, seed=3)
    session = Session(
        spec, recipe, Trees(tuple(tiny()), lexicon), team or Distributed(torch.device("cpu")), lambda _: None
    )
    session.state.step = 1
    session.compute_gradients()
    return {name: parameter.grad for name, parameter in session.model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("parts", [2, 4])
def test_accumulated_tree_gradients_equal_full_batch(parts: int) -> None:
    full, cut = gradients(1), gradients(parts)
    assert max(float(gradient.abs().max()) for gradient in full.values()) > 1e-3
    for name, gradient in full.items():
        torch.testing.assert_close(cut[name], gradient, rtol=1e-4, atol=1e-6)


def test_tree_scores_are_computed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    full = gradients(1)
    monkeypatch.setattr(parsing, "MAX_SCORES", 1)
    for name, gradient in gradients(1).items():
        torch.testing.assert_close(gradient, full[name], rtol=1e-4, atol=1e-6)


def test_mean_over_two_processes_equals_full_tree_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Distributed, "wrap", lambda team, module: module
    )  # without processes: each half is computed here
    full = gradients(1)
    halves = [gradients(1, Distributed(torch.device("cpu"), rank, 2)) for rank in (0, 1)]
    for name, gradient in full.items():
        mean = (halves[0][name] + halves[1][name]) / 2
        torch.testing.assert_close(mean, gradient, rtol=1e-4, atol=1e-6)
