"""More padding never changes a result, in any family, and has zero gradient."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from lemma.models.build import build
from lemma.tasks.base import cross_entropy

from families import BODIES, CLASSIFIERS, ENCODERS, TRANSLATORS

EXACT = {"rtol": 0.0, "atol": 1e-10}
MODELS: dict[str, Any] = {}
rows = st.lists(st.lists(st.integers(0, 10), min_size=1, max_size=9), min_size=1, max_size=3)
pads = st.integers(0, 5)


def model_of(name: str) -> Any:
    """Return a small model with large random weights, built once."""
    if name not in MODELS:
        torch.manual_seed(7)
        model = build({**BODIES, **CLASSIFIERS}[name]).double().eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
        MODELS[name] = model
    return MODELS[name]


def pad_texts(texts: list[list[int]], more: int = 0) -> Tensor:
    longest = max(map(len, texts)) + more
    return torch.tensor([[*text, *[-1] * (longest - len(text))] for text in texts])


@settings(max_examples=80, deadline=None)
@given(name=st.sampled_from([*BODIES]), texts=rows, more=pads)
def test_hidden_states_do_not_depend_on_padding(name: str, texts: list[list[int]], more: int) -> None:
    model = model_of(name)
    together = model.vectors(pad_texts(texts, more))
    assert together.isfinite().all()
    for row, text in enumerate(texts):
        single = model.vectors(torch.tensor([text]))[0]
        torch.testing.assert_close(together[row, : len(text)], single, **EXACT)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from([*CLASSIFIERS]), texts=rows, more=pads)
def test_class_logits_do_not_depend_on_padding(name: str, texts: list[list[int]], more: int) -> None:
    model = model_of(name)
    single = torch.cat([model(torch.tensor([text])) for text in texts])
    torch.testing.assert_close(model(pad_texts(texts, more)), single, **EXACT)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from([*TRANSLATORS]), texts=rows, others=rows, more=pads, most=pads)
def test_translation_logits_do_not_depend_on_padding(
    name: str, texts: list[list[int]], others: list[list[int]], more: int, most: int
) -> None:
    model, number = model_of(name), min(len(texts), len(others))
    sources, targets = texts[:number], others[:number]
    together = model(pad_texts(sources, more), pad_texts(targets, most))
    stepped, _ = model.step(pad_texts(targets), model.begin(pad_texts(sources, more)))
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        single = model(torch.tensor([source]), torch.tensor([target]))[0]
        torch.testing.assert_close(together[row, : len(target)], single, **EXACT)
        torch.testing.assert_close(stepped[row, : len(target)], single, **EXACT)


@pytest.mark.parametrize("name", [*ENCODERS, *TRANSLATORS, *CLASSIFIERS])
def test_padding_has_zero_gradient(name: str) -> None:
    """The gradient of every padded position is zero, and that of the others is not."""
    model, tokens = model_of(name), pad_texts([[1, 2, 3, 4, 5], [6, 7], [8]])
    body, embedded = getattr(model, "body", model), []
    handle = body.embedding.register_forward_hook(lambda *given: embedded.append(given[2]))
    logits = model(tokens, tokens) if name in TRANSLATORS else model(tokens)
    targets = tokens if logits.dim() == 3 else torch.tensor([0, 2, 1])
    slopes = torch.autograd.grad(cross_entropy(logits, targets).objective, embedded)
    handle.remove()
    for slope in slopes:
        present = functional.pad(tokens >= 0, (0, slope.shape[1] - 5))
        assert (slope[~present] == 0).all()
        assert slope[present].abs().sum() > 0


def test_empty_row_does_not_affect_other_rows() -> None:
    for name in ("encoder-alibi-pre", "encoder-rotary-post", "encoder-decoder-sinusoidal-pre", "lstm-mean"):
        model = model_of(name)
        vectors = getattr(model, "body", model).vectors(torch.tensor([[1, 2], [-1, -1]]))
        assert vectors.isfinite().all()
        torch.testing.assert_close(vectors[:1], getattr(model, "body", model).vectors(torch.tensor([[1, 2]])), **EXACT)


def test_compiled_encoder_decoder_has_no_data_dependent_branches() -> None:
    """In one graph: no branch depends on token values, which would synchronize a GPU."""
    model, tokens = model_of("encoder-decoder-sinusoidal-pre"), pad_texts([[1, 2, 3, 4], [5, 6]])
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    present = tokens >= 0
    torch.testing.assert_close(compiled(tokens, tokens)[present], model(tokens, tokens)[present], **EXACT)
