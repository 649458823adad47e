"""Properties of generation: it is a function of the prompt, the seed and the model alone."""

import functools
import json
from typing import Any

import hypothesis.strategies as st
import torch
from hypothesis import given, settings

from lemma.data.tokenizers import train_tokenizer
from lemma.errors import InputError
from lemma.generation.engine import generate
from lemma.generation.sampling import Sampling, probabilities, sample_tokens
from lemma.generation.sequences import MAX_PENDING_TOKENS, Detokenizer, strip_partial_character
from lemma.models.base import LanguageModel
from lemma.models.build import build
from lemma.spec.data import BytePairs, Words
from stand_ins import Table

from families import SMALL

NAMES = st.sampled_from(sorted(SMALL))
TOKENS = st.integers(0, 10)
PROMPTS = st.lists(st.lists(TOKENS, min_size=1, max_size=12), min_size=1, max_size=4)
LINES = ["grüße an die welt, 你好 😀\n", "eine welt\n"] * 3
BYTE_PAIRS = train_tokenizer(BytePairs(vocabulary=270), LINES)
WORDS = train_tokenizer(Words(), LINES)
VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]  # bytes that are written literally
SPELLED = {byte: chr(byte) for byte in VISIBLE}
SPELLED |= {byte: chr(256 + offset) for offset, byte in enumerate(sorted(set(range(256)) - set(VISIBLE)))}
NUMBERS = json.loads(BYTE_PAIRS.json)["model"]["vocab"]
BYTES = {bytes([byte]): NUMBERS[character] for byte, character in SPELLED.items()}


@functools.cache
def model_of(name: str) -> LanguageModel:
    torch.manual_seed(1)
    model = build(SMALL[name])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.8)
    return model.double()


CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.sampled_from([0.8, 1.3]),
        "frequency_penalty": st.sampled_from([-0.2, 0.6]),
        "presence_penalty": st.sampled_from([0.5]),
        "no_repeat_ngram": st.integers(2, 3),
        "logit_bias": st.sampled_from([{1: 2.0, 4: -3.0}]),
        "min_p": st.sampled_from([0.1]),
        "stop_tokens": st.sampled_from([(5, 6)]),
    },
)


@settings(deadline=None, max_examples=80)
@given(NAMES, PROMPTS, st.sampled_from([0, 0.5, 1.5]), st.integers(0, 99), CHANGES)
def test_batched_rows_equal_single_generation(
    name: str, prompts: list[list[int]], temperature: float, seed: int, changes: dict[str, Any]
) -> None:
    model, expected = model_of(name), functools.partial(Sampling, tokens=8, temperature=temperature, **changes)
    together = generate(model, prompts, expected(seed=seed), eos=3)
    for row, prompt in enumerate(prompts):
        [single] = generate(model, [prompt], expected(seed=seed + row), eos=3)
        assert (together[row].tokens, together[row].stopped) == (single.tokens, single.stopped)


@settings(deadline=None, max_examples=60)
@given(NAMES, st.lists(TOKENS, min_size=1, max_size=6), CHANGES)
def test_proved_loop_continues_for_all_settings(name: str, prompt: list[int], changes: dict[str, Any]) -> None:
    model, expected = model_of(name), functools.partial(Sampling, temperature=0, **changes)
    try:
        [text] = generate(model, [prompt], expected(tokens=40))
        [longer] = generate(model, [prompt], expected(tokens=90))
    except InputError:  # no n-gram is left
        return
    assert longer.tokens[:40] == text.tokens
    if text.loop and text.loop.proved:
        onset, period = text.loop.onset, text.loop.period
        assert longer.tokens[onset:-period] == longer.tokens[onset + period :] and len(longer.tokens) == 90


@settings(deadline=None, max_examples=40)
@given(NAMES, PROMPTS, st.integers(1, 7), st.integers(1, 7))
def test_longer_generation_extends_the_shorter(name: str, prompts: list[list[int]], short: int, more: int) -> None:
    model = model_of(name)
    for seed in (0, 5):
        shorter, longer = (generate(model, prompts, Sampling(tokens=size, seed=seed)) for size in (short, short + more))
        assert [text.tokens[:short] for text in longer] == [text.tokens for text in shorter]


@settings(deadline=None, max_examples=40)
@given(NAMES, st.lists(TOKENS, min_size=1, max_size=8), st.integers(1, 8))
def test_greedy_continuation_is_consistent(name: str, prompt: list[int], cut: int) -> None:
    model, greedy = model_of(name), functools.partial(Sampling, temperature=0)
    [full] = generate(model, [prompt], greedy(tokens=12))
    [tail] = generate(model, [[*prompt, *full.tokens[:cut]]], greedy(tokens=12 - cut))
    assert full.tokens[cut:] == tail.tokens


@settings(deadline=None)
@given(
    st.lists(st.integers(-30, 30).map(lambda tenths: tenths / 10), min_size=1, max_size=12),
    st.floats(0.05, 5),
    st.none() | st.integers(1, 14),
    st.none() | st.floats(0.01, 1),
    st.floats(0, 1, exclude_max=True),
)
def test_probabilities_sum_to_one_and_samples_are_possible(
    logits: list[float], temperature: float, top_k: int | None, top_p: float | None, chance: float
) -> None:
    row = torch.tensor([logits], dtype=torch.float64)
    chances = probabilities(row, temperature, top_k, top_p)[0]
    base = probabilities(row, temperature)[0]
    saved = chances > 0
    assert abs(chances.sum().item() - 1) < 1e-12 and saved.sum() <= (top_k or len(logits))
    assert torch.allclose(chances[saved], base[saved] / base[saved].sum())
    assert saved[row.argmax()]
    assert saved[sample_tokens(row, Sampling(temperature=temperature, top_k=top_k, top_p=top_p), [chance])]


@settings(deadline=None)
@given(st.integers(2, 3), st.integers(1, 2), st.data())
def test_proved_loop_holds_and_is_minimal(vocabulary: int, span: int, data: st.DataObject) -> None:
    states = vocabulary**span
    follow = data.draw(st.lists(st.integers(0, vocabulary - 1), min_size=states, max_size=states))
    table = Table(vocabulary, span, lambda window: follow[sum(t * vocabulary**i for i, t in enumerate(window))])
    [text] = generate(table, [[0] * span], Sampling(tokens=3 * states + 2, temperature=0))
    loop, tokens = text.loop, list(text.tokens)
    assert loop is not None and loop.proved and loop.onset + loop.period <= states
    holds = [tokens[loop.onset :][:-period] == tokens[loop.onset :][period:] for period in range(1, loop.period + 1)]
    assert holds == [False] * (loop.period - 1) + [True]
    assert loop.onset == 0 or tokens[loop.onset - 1] != tokens[loop.onset - 1 + loop.period]


@settings(deadline=None)
@given(st.sampled_from([BYTE_PAIRS, WORDS]), st.data())
def test_streamed_pieces_join_to_the_text_without_partial_characters(tokenizer, data: st.DataObject) -> None:
    ids = st.integers(0, tokenizer.vocabulary - 1)
    before, tokens = data.draw(st.lists(ids, max_size=1)), data.draw(st.lists(ids, max_size=12))
    spelling = Detokenizer(tokenizer, before)
    pieces = [spelling.add(token) for token in tokens]
    for index, piece in enumerate(pieces, start=1):  # emitted characters are final: three more bytes are held back
        messages = tokenizer.decode([*before, *tokens[:index]])
        assert not piece.endswith("\N{REPLACEMENT CHARACTER}") or messages.endswith(4 * "\N{REPLACEMENT CHARACTER}")
    text = tokenizer.decode([*before, *tokens])[len(tokenizer.decode(before)) :]
    assert "".join([*pieces, spelling.flush()]) == strip_partial_character(
        tokenizer, text
    )  # nothing completes its partial first character


@settings(deadline=None)
@given(st.lists(st.sampled_from([b"\x80", b"\xe2", b"\x82", b"\xac", b"\xf0", b"\x9f", b"a", b"\xff"]), max_size=80))
def test_invalid_bytes_are_streamed_with_bounded_decoding(parts: list[bytes]) -> None:
    tokens, longest = [BYTES[part] for part in parts], []

    class Measured:
        kind = BYTE_PAIRS.kind

        def decode(self, ids: list[int]) -> str:
            longest.append(len(ids))
            return BYTE_PAIRS.decode(ids)

    spelling = Detokenizer(Measured(), tokens[:1])  # pyright: ignore[reportArgumentType]
    pieces = [spelling.add(token) for token in tokens[1:]]
    for index, piece in enumerate(pieces, start=2):
        messages = BYTE_PAIRS.decode(tokens[:index])
        assert not piece.endswith("\N{REPLACEMENT CHARACTER}") or messages.endswith(4 * "\N{REPLACEMENT CHARACTER}")
    text = "".join([*pieces, spelling.flush()])
    before = BYTE_PAIRS.decode(tokens[:1])
    assert text == strip_partial_character(BYTE_PAIRS, BYTE_PAIRS.decode(tokens)[len(before) :])
    assert max(longest) <= MAX_PENDING_TOKENS + 24


@settings(deadline=None)
@given(st.text(max_size=20))
def test_arbitrary_text_streams_without_broken_characters(text: str) -> None:
    spelling = Detokenizer(BYTE_PAIRS, [])
    pieces = [spelling.add(int(token)) for token in BYTE_PAIRS.encode(text)]
    assert "".join([*pieces, spelling.flush()]) == text
