"""Training on trees: what a batch is cut into changes nothing."""

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
def test_the_gradient_of_a_batch_of_trees_cut_into_parts_is_that_of_the_whole(parts: int) -> None:
    full, cut = gradients(1), gradients(parts)
    assert max(float(gradient.abs().max()) for gradient in full.values()) > 1e-3
    for name, gradient in full.items():
        torch.testing.assert_close(cut[name], gradient, rtol=1e-4, atol=1e-6)


def test_scores_that_do_not_fit_in_memory_are_worked_out_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    full = gradients(1)
    monkeypatch.setattr(parsing, "MAX_SCORES", 1)
    for name, gradient in gradients(1).items():
        torch.testing.assert_close(gradient, full[name], rtol=1e-4, atol=1e-6)


def test_the_mean_over_two_processes_is_the_gradient_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Distributed, "wrap", lambda team, module: module)  # no processes: each half is worked out here
    full = gradients(1)
    halves = [gradients(1, Distributed(torch.device("cpu"), rank, 2)) for rank in (0, 1)]
    for name, gradient in full.items():
        mean = (halves[0][name] + halves[1][name]) / 2
        torch.testing.assert_close(mean, gradient, rtol=1e-4, atol=1e-6)
