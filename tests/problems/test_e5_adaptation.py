"""Problem E5: fine-tuning methods, and the parameters that each trains and stores."""

from fractions import Fraction

import pytest
from torch import nn

from lemma.adaptation.adapt import adapt_model, lora_matrix, trainable_parameters
from lemma.counting.count import count
from lemma.counting.polynomial import symbol
from lemma.counting.subject import resolve_subject
from lemma.models.build import build
from lemma.spec.models import Classifier, Encoder
from lemma.spec.recipe import Adapters, Frozen, Full, Lora

SIZES = {"W_in": 200, "W_out": 50, "R": 5}


@pytest.fixture(autouse=True)
def account_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path_factory.mktemp("home")))


def test_lora_at_200_50_5_trains_one_eighth() -> None:
    module = lora_matrix(**SIZES)
    assert [shape for _, shape in trainable_parameters(module)] == [(5, 200), (50, 5)]
    trained = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    frozen = sum(parameter.numel() for parameter in module.parameters() if not parameter.requires_grad)
    assert (trained, frozen) == (1250, 10_000)
    assert Fraction(trained, frozen) == Fraction(1, 8)


def test_lora_formula_is_r_times_in_plus_out() -> None:
    parts = count(resolve_subject(lora_matrix, SIZES), ["parameters"]).quantities["parameters"].groups
    trained = sum((part.total for part in parts if "frozen" not in part.note), start=symbol("R") * 0)
    frozen = sum((part.total for part in parts if "frozen" in part.note), start=symbol("R") * 0)
    assert trained == symbol("R") * (symbol("W_in") + symbol("W_out"))
    assert frozen == symbol("W_in") * symbol("W_out")
    assert trained.at(SIZES) / frozen.at(SIZES) == Fraction(1, 8)


def test_stored_parameters_are_ordered_by_method() -> None:
    spec = Classifier(body=Encoder(vocabulary=50, width=16, depth=2, heads=2, context=12), classes=3)
    methods = [Frozen(), Lora(rank=2), Adapters(bottleneck=4), Full()]
    stored = {
        method.kind: adapt_model(build(spec), method, ("head.*",) if method.kind != "full" else ()).trainable_bytes
        for method in methods
    }
    head = 4 * (3 * 16 + 3)
    layers = {"lora": 2 * 2 * (16 + 48 + 16 + 16 + 16 + 64 + 64 + 16), "adapters": 2 * 2 * (2 * 16 * 4 + 4 + 16)}
    assert stored["frozen"] == head
    assert stored["lora"] == head + 4 * layers["lora"]
    assert stored["adapters"] == head + 4 * layers["adapters"]
    assert stored["frozen"] < stored["adapters"] < stored["lora"] < stored["full"]


def test_high_rank_lora_trains_more_than_the_matrix() -> None:
    """R(W_in + W_out) = W_in W_out at R = 40 for 200 and 50: at higher ranks LoRA saves nothing."""
    matrix = nn.Sequential(nn.Linear(200, 50, bias=False))
    assert adapt_model(matrix, Lora(rank=40)).num_trainable == 200 * 50
