"""For random specs at random sizes, the formula equals the parameters of the built module."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lemma
from lemma.counting.subject import resolve_subject
from lemma.models.base import count_parameters
from lemma.models.build import build
from lemma.spec.models import Attentive, Decoder, FeedForward, Gru, Lstm, ModelSpec, Rnn

pytestmark = pytest.mark.usefixtures("account_cache")

SIZE = st.integers(1, 40)
RECURRENT = st.sampled_from([Rnn, Lstm, Gru])


@st.composite
def recurrent_specs(draw: st.DrawFn) -> ModelSpec:
    tied = draw(st.booleans())
    width = draw(SIZE)
    sizes = {"width": width, "hidden": width if tied else draw(SIZE), "vocabulary": draw(SIZE)}
    return draw(RECURRENT)(**sizes, tied=tied, depth=draw(st.integers(1, 5)), biases=draw(st.sampled_from([0, 1, 2])))


@st.composite
def decoder_specs(draw: st.DrawFn) -> ModelSpec:
    heads = draw(st.integers(1, 5))
    return Decoder(
        vocabulary=draw(SIZE),
        width=heads * draw(st.integers(1, 8)),
        depth=draw(st.integers(1, 5)),
        heads=heads,
        attention_width=draw(st.none() | st.integers(1, 6).map(lambda size: size * heads)),
        feed_forward=draw(st.none() | SIZE),
        context=draw(SIZE),
        positions=draw(st.sampled_from([{"kind": "none"}, {"kind": "learned"}, {"kind": "sinusoidal"}])),
        norm=draw(st.sampled_from(["layer", "rms"])),
        bias=draw(st.booleans()),
        tied=draw(st.booleans()),
    )


@st.composite
def window_specs(draw: st.DrawFn) -> ModelSpec:
    sizes = {"vocabulary": draw(SIZE), "width": draw(SIZE), "hidden": draw(SIZE), "context": draw(st.integers(2, 9))}
    return draw(
        st.sampled_from([FeedForward(**sizes), Attentive(**sizes, key_width=draw(SIZE), value_width=draw(SIZE))])
    )


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spec=recurrent_specs() | decoder_specs() | window_specs())
def test_formula_matches_the_built_module(spec: ModelSpec) -> None:
    account = lemma.count(spec, quantities=["parameters"])
    assert account.parameters.total == count_parameters(build(spec))
    assert resolve_subject(spec).identity is not None
