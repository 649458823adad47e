"""Trainable parameters of each adaptation method and their counts."""

import pytest
import torch
from torch import nn

from lemma.adaptation.adapt import adapt_model, trainable_parameters
from lemma.adaptation.lora import format_paths, match_patterns
from lemma.counting.count import count
from lemma.counting.subject import adapted_subject
from lemma.errors import SpecError
from lemma.models.build import build
from lemma.spec.models import Classifier, Decoder, FeedForward, Lstm, Rnn
from lemma.spec.recipe import Adapters, Frozen, Full, Lora


@pytest.fixture(autouse=True)
def account_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path_factory.mktemp("home")))


def test_frozen_trains_only_the_head_and_full_trains_everything() -> None:
    model = build(Classifier(body=Lstm(vocabulary=13, width=6, hidden=7), classes=3))
    frozen = adapt_model(model, Frozen(), learn=("head.*",))
    assert frozen.model is model
    assert frozen.trainable == [("head.weight", (3, 7)), ("head.bias", (3,))]
    assert (frozen.num_trainable, frozen.trainable_bytes) == (24, 96)
    full = adapt_model(model, Full())
    assert full.num_trainable == sum(parameter.numel() for parameter in model.parameters())


def test_learn_pattern_without_matches_is_rejected() -> None:
    with pytest.raises(SpecError, match=r"learn = 'heads\.\*' matches nothing here. Did you mean"):
        adapt_model(nn.ModuleDict({"head": nn.Linear(2, 2), "body": nn.Linear(2, 2)}), Frozen(), learn=("heads.*",))


def test_tied_parameter_matches_any_name_and_counts_once() -> None:
    model = build(Decoder(vocabulary=13, width=8, depth=1, heads=2))
    adaptation = adapt_model(model, Frozen(), learn=("output.weight",))
    assert trainable_parameters(model) == [("embedding.weight", (13, 8))]
    assert adaptation.num_trainable == 104
    model.to(torch.float64)
    assert adaptation.trainable_bytes == 832


def test_integer_parameters_stay_untrainable() -> None:
    model = nn.ParameterDict({"codes": nn.Parameter(torch.arange(3), requires_grad=False), "real": torch.ones(2)})
    assert adapt_model(model, Full()).trainable == [("real", (2,))]


def test_patterns_are_case_sensitive_and_each_must_match() -> None:
    assert match_patterns("targets", ["a.*"], [["a.b"], ["A.b"]]) == [0]
    with pytest.raises(SpecError, match="'c' matches nothing"):
        match_patterns("targets", ["a.*", "c"], [["a.b"]])
    assert format_paths(f"layer{number}.x" for number in range(30)).endswith("and 6 more")
    assert format_paths([]) == "none"


@pytest.mark.parametrize(
    ("spec", "method", "learn", "formula", "number"),
    [
        (FeedForward(V=10, d=3, d_h=4, N=3), Lora(rank=2), (), "r*((N-1)*d + d_h)", 20),
        (FeedForward(V=10, d=3, d_h=4, N=3), Adapters(bottleneck=5), (), "d_h*(2*m + 1) + m", 49),
        (Rnn(V=10, d=3, D=4, L=3), Lora(rank=2), (), None, 2 * (3 + 4) + 2 * 2 * 8 + 3 * 2 * 8),
        (Decoder(V=10, d=8, L=2, h=2, T=5), Lora(rank=3, targets=("*.output",)), (), None, 2 * 3 * 16),
        (FeedForward(V=10, d=3, d_h=4, N=3), Frozen(), ("output.*",), "V*d_h", 40),
        (FeedForward(V=10, d=3, d_h=4, N=3), Frozen(), (), "0", 0),
    ],
)
def test_trainable_parameter_formula_matches_adapted_module(spec, method, learn, formula, number) -> None:
    figure = count(adapted_subject(spec, method, learn), ["parameters"]).parameters
    assert figure.total == number == adapt_model(build(spec), method, learn).num_trainable
    assert formula is None or figure.formula == formula
    assert not figure.refused
