"""The NumPy step has the decoder's logits and is disabled by hooks, recording and autocast."""

import gc
import warnings
from functools import partial

import pytest
import torch
from torch import nn

from lemma.adaptation.adapt import adapt_model
from lemma.errors import InputError
from lemma.generation.engine import BatchEngine, generate
from lemma.generation.sampling import Sampling
from lemma.generation.sequences import TextRequest
from lemma.layers.recording import record_attention
from lemma.models import decoder_numpy
from lemma.models.build import build
from lemma.models.decoder import DecoderCache, DecoderModel, DecoderSlotCache
from lemma.models.decoder_numpy import INITIAL_CAPACITY, NumpyDecoder, step_in_numpy, supports_numpy
from lemma.spec.models import Decoder
from lemma.spec.positions import Rotary, Sinusoidal
from lemma.spec.recipe import Lora

from families import SMALL

WIDE = Decoder(vocabulary=600, width=512, depth=1, heads=4, context=20)  # matrices that are read by all threads
SPECS = {name: spec for name, spec in SMALL.items() if isinstance(spec, Decoder)} | {
    "rotary in part": Decoder(vocabulary=11, width=16, heads=2, positions=Rotary(share=0.5), residual="parallel"),
    "geglu": Decoder(vocabulary=11, width=8, heads=2, gated=True, bias=False, scaled_embedding=True, logit_cap=0.5),
    "exact gelu": Decoder(vocabulary=11, width=8, heads=2, activation="gelu-exact", positions=Sinusoidal(first=1)),
    "wide": WIDE,
}
COVERED = [name for name, spec in SPECS.items() if supports_numpy(build(spec))]


def random_decoder(spec: Decoder) -> DecoderModel:
    torch.manual_seed(3)
    model = build(spec).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3 if parameter.numel() < 10_000 else 0.03)
    assert isinstance(model, DecoderModel)
    return model


def test_numpy_step_supports_expected_decoders() -> None:
    left = {name for name in SPECS if name not in COVERED}
    assert {"decoder", "decoder-alibi", "decoder-rotary", "decoder-none", "rotary in part", "wide"} <= set(COVERED)
    assert {"decoder-merged", "decoder-merged-keys", "decoder-window", "decoder-llama"} <= left
    assert not supports_numpy(build(SPECS["decoder"]).double()) and not supports_numpy(build(SMALL["lstm"]))


@pytest.mark.parametrize("name", COVERED)
@torch.inference_mode()
def test_numpy_logits_match_decoder_within_and_past_context(name: str) -> None:
    model = random_decoder(SPECS[name])
    tokens = torch.randint(11, (1, 30), generator=torch.Generator().manual_seed(2))
    step, (_, state) = partial(step_in_numpy, model, model), model(tokens[:, :3])
    expected = model(tokens)[0]
    for index in range(3, 30):
        logits, state = step(tokens[:, index : index + 1], state)
        torch.testing.assert_close(logits[:, 0], expected[:, index], atol=2e-5, rtol=2e-5)
        assert isinstance(state, DecoderCache if model.window and index + 1 >= model.window else DecoderSlotCache)
        assert torch.equal(state.tensors()["seen"], tokens[:, : index + 1][:, -(model.window or 30) :])


@torch.inference_mode()
def test_numpy_cache_capacity_grows_with_the_sequence() -> None:
    model = random_decoder(Decoder(vocabulary=11, width=8, depth=2, heads=2, context=16, positions=Rotary()))
    tokens = torch.randint(11, (1, 2 * INITIAL_CAPACITY + 40), generator=torch.Generator().manual_seed(2))
    step, (_, state) = partial(step_in_numpy, model, model), model(tokens[:, :3])
    result = []
    for index in range(3, tokens.shape[1]):
        logits, state = step(tokens[:, index : index + 1], state)
        result.append(logits[0, 0])
    torch.testing.assert_close(torch.stack(result), model(tokens)[0][0, 3:], atol=2e-5, rtol=2e-5)


@torch.inference_mode()
def test_sequence_can_alternate_between_numpy_and_torch() -> None:
    model = random_decoder(SPECS["decoder-rotary"])
    tokens = torch.randint(11, (1, 24), generator=torch.Generator().manual_seed(2))
    step, (_, state) = partial(step_in_numpy, model, model), model(tokens[:, :3])
    for index in range(3, 24):
        if index % 5 == 0 and isinstance(state, DecoderSlotCache):
            state = state.to_cache()
        logits, state = (model if index % 5 < 2 else step)(tokens[:, index : index + 1], state)
        torch.testing.assert_close(logits[:, 0], model(tokens)[0][:, index], atol=2e-5, rtol=2e-5)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect the tokens that are read in NumPy."""
    seen, read = list[int](), NumpyDecoder.step
    monkeypatch.setattr(NumpyDecoder, "step", lambda self, *given: seen.append(given[0]) or read(self, *given))
    return seen


GREEDY = Sampling(tokens=6, temperature=0.0)


def test_numpy_step_is_used_for_single_sequences_only(steps: list[int]) -> None:
    model = random_decoder(SPECS["decoder-rotary"])
    generate(model, [[1, 2]], GREEDY)
    assert len(steps) == 5  # the prompt gives the first token
    generate(model, [[1, 2], [3, 4]], GREEDY)
    assert len(steps) == 5


def test_numpy_sequence_continues_after_joining_a_batch(steps: list[int]) -> None:
    model, settings = random_decoder(SPECS["decoder-rotary"]), Sampling(tokens=20, temperature=0.0)
    single = [generate(model, [prompt], settings)[0].tokens for prompt in ([1, 2], [5, 6, 7])]
    steps.clear()
    engine, result = BatchEngine(model, None), {}
    engine.add(TextRequest((1, 2), settings, decode_text=False))
    for turn in range(60):
        if turn == 8:
            engine.add(TextRequest((5, 6, 7), settings, first_row=1, decode_text=False))
        for event in engine.step() if engine.is_busy else ():
            if event.result:
                result[event.request.first_row] = event.result.tokens
    assert [result[0], result[1]] == single and 5 < len(steps) < 19


def test_attention_recording_disables_the_numpy_step(steps: list[int]) -> None:
    model = random_decoder(SPECS["decoder"])
    with record_attention() as records:
        generate(model, [[1, 2]], GREEDY)
    assert len(records) == 6 * 2 and not steps  # six calls of two layers


@torch.inference_mode()
def test_recording_after_numpy_steps_includes_earlier_tokens() -> None:
    model, tokens = random_decoder(SPECS["decoder"]), torch.tensor([[1, 2, 3, 4]])
    step = partial(step_in_numpy, model, model)
    _, state = step(tokens[:, 2:3], model(tokens[:, :2])[1])
    with record_attention() as records:
        logits, _ = step(tokens[:, 3:], state)
    torch.testing.assert_close(logits[:, 0], model(tokens)[0][:, -1], atol=2e-5, rtol=2e-5)
    assert [record.keys.shape[2] for record in records] == [4, 4]


def test_hooks_and_adapters_disable_the_numpy_step(steps: list[int]) -> None:
    model, seen = random_decoder(SPECS["decoder"]), []
    handle = model.layers[1].register_forward_hook(lambda *given: seen.append(1))
    generate(model, [[1, 2]], GREEDY)
    handle.remove()
    assert len(seen) == 6 and not steps
    generate(adapt_model(model, Lora(rank=2)).model, [[1, 2]], GREEDY)
    assert not steps


def test_nonfinite_numpy_logits_raise_without_warnings(steps: list[int]) -> None:
    model = random_decoder(SPECS["decoder"])
    model.positions.weight.data[4] = torch.inf  # read after three tokens
    with warnings.catch_warnings(), pytest.raises(InputError):
        warnings.simplefilter("error")
        generate(model, [[1, 2]], Sampling(tokens=6, temperature=0.0))
    assert steps


def test_numpy_step_uses_current_weights() -> None:
    model = random_decoder(SPECS["decoder"])
    first = generate(model, [[1, 2]], GREEDY)[0].tokens
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.roll(1, 0))
    changed = generate(model, [[1, 2]], GREEDY)[0].tokens
    read = [1, 2]
    with torch.inference_mode():
        for _ in range(6):
            read.append(int(model(torch.tensor([read]))[0][0, -1].argmax()))
    assert changed == tuple(read[2:]) != first


def test_engine_uses_reallocated_weights_for_new_sequences() -> None:
    model, settings, result = random_decoder(SPECS["decoder"]), Sampling(tokens=6, temperature=0.0), []
    engine = BatchEngine(model, None)
    for turn in range(2):
        if turn:
            for parameter in model.parameters():
                parameter.data = parameter.data.roll(1, 0).clone()
        engine.add(TextRequest((1, 2), settings, first_row=turn, decode_text=False))
        while engine.is_busy:
            result += [event.result.tokens for event in engine.step() if event.result]
    assert result[1] == generate(model, [[1, 2]], settings)[0].tokens != result[0]


def test_autocast_disables_the_numpy_step(steps: list[int]) -> None:
    model = random_decoder(SPECS["wide"])
    with torch.autocast("cpu", torch.bfloat16):
        generate(model, [[1, 2]], GREEDY)
    assert not steps
    with torch.inference_mode():
        _, state = step_in_numpy(model, model, torch.tensor([[3]]), model(torch.tensor([[1, 2]]))[1])
        with torch.autocast("cpu", torch.bfloat16):
            logits, _ = step_in_numpy(model, model, torch.tensor([[4]]), state)
            expected = model(torch.tensor([[1, 2, 3, 4]]))[0][:, -1]
    assert len(steps) == 1 and logits.dtype == torch.bfloat16
    torch.testing.assert_close(logits[:, 0], expected, atol=0.1, rtol=0.1)


@torch.inference_mode()
def test_long_multi_query_attention_uses_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Decoder(vocabulary=11, width=64, depth=1, heads=8, key_value_heads=1, context=16, positions=Rotary())
    model, large = random_decoder(spec), []
    by_pytorch = decoder_numpy.matmul
    monkeypatch.setattr(decoder_numpy, "matmul", lambda *given: large.append(1) or by_pytorch(*given))
    tokens = torch.randint(11, (1, 4100), generator=torch.Generator().manual_seed(2))
    expected, _ = model(tokens)
    _, state = model(tokens[:, :4094])
    for index in range(4094, 4100):
        logits, state = step_in_numpy(model, model, tokens[:, index : index + 1], state)
        torch.testing.assert_close(logits[:, 0], expected[:, index], atol=2e-5, rtol=2e-5)
    assert len(large) == 2 * 5  # from 4,096 tokens on: 64 numbers of each


def test_idle_engine_releases_numpy_state() -> None:
    engine = BatchEngine(random_decoder(SPECS["decoder-rotary"]), None)
    engine.add(TextRequest((1, 2), Sampling(tokens=9, temperature=0.0), decode_text=False))
    while engine.is_busy:
        engine.step()
    gc.collect()
    assert not [get_object for get_object in gc.get_objects() if type(get_object) is NumpyDecoder]
