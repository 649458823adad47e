"""Continuous batching: every sequence equals `generate_text` alone, independent of the batch."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from lemma.data.tokenizers import Tokenizer, train_tokenizer
from lemma.errors import InputError
from lemma.generation.engine import BatchEngine, generate, generate_text, stream_text
from lemma.generation.sampling import Sampling, adjust_logits, sample_tokens, token_logprobs
from lemma.generation.sequences import Generation, TextEvent, TextRequest, make_proved_loop
from lemma.models.build import build
from lemma.spec.data import BytePairs
from lemma.spec.models import Decoder, FeedForward, LanguageSpec, Lstm
from stand_ins import Table

from families import SMALL

LINES = ["the cat sat on the mat, and the dog?\n", "THE END: a cat & a dog\n", "naïve café, 10 € 😀 日本\n"]
SPECS: dict[str, LanguageSpec] = {
    "learned": Decoder(width=16, depth=1, heads=2, context=24),
    "rotary": Decoder(width=16, depth=1, heads=2, key_value_heads=1, context=24, positions="rotary"),
    "alibi in windows": Decoder(width=16, depth=2, heads=2, context=24, positions="alibi", window=7),
    "relative": Decoder(width=16, depth=1, heads=2, context=24, positions="relative"),
    "lstm": Lstm(width=8, hidden=12, depth=2),
    "window": FeedForward(width=6, hidden=9, context=6),
}
SETTINGS = [
    Sampling(tokens=40, temperature=0.0),
    Sampling(tokens=30, temperature=0.9, seed=4, logprobs=2),
    Sampling(tokens=9, temperature=1.2, top_k=20, seed=5),
    Sampling(tokens=35, temperature=0.9, top_p=0.8, min_p=0.01, seed=6, samples=3),
    Sampling(tokens=20, temperature=0.0, repetition_penalty=1.3, presence_penalty=0.4),
    Sampling(tokens=30, temperature=0.8, frequency_penalty=0.5, no_repeat_ngram=3, seed=7),
    Sampling(tokens=25, temperature=0.7, logit_bias={5: 3.0, 70: -5.0}, seed=8, logprobs=0),
    Sampling(tokens=40, temperature=1.0, stop=["a", "é"], seed=9),
    Sampling(tokens=33, temperature=0.0, stop="never said", stop_at_loop=True),
]
PROMPTS = [
    "",
    "t",
    "the",
    "the cat",
    "naïve 😀",
    "the cat sat on the mat, and the dog?" * 3,
    "a cat & a dog",
    "日本",
    "END",
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(BytePairs(vocabulary=270), LINES)


def model_of(name: str, tokenizer: Tokenizer) -> Any:
    torch.manual_seed(3)
    model = build(SPECS[name].with_data_sizes({"vocabulary": tokenizer.vocabulary}), 0.0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()


def requests(tokenizer: Tokenizer) -> list[tuple[str, Sampling]]:
    chance = random.Random(1)
    return [(chance.choice(PROMPTS), replace(item, seed=item.seed + turn)) for turn in range(2) for item in SETTINGS]


def written(events: Sequence[TextEvent], request: TextRequest) -> list[tuple[str, Any, Any]]:
    """Return text, result and logprobs of each row of a request."""
    result = []
    for index in range(request.settings.samples):
        custom = [event for event in events if event.request is request and event.index == index]
        assert custom[-1].result and not any(event.result for event in custom[:-1])
        logprobs = [logprob for event in custom for logprob in event.logprobs]
        result.append(("".join(event.text for event in custom), custom[-1].result, logprobs))
    return result


@pytest.mark.parametrize("name", SPECS)
def test_continuous_batching_equals_separate_generation(name: str, tokenizer: Tokenizer) -> None:
    model, chance, events = model_of(name, tokenizer), random.Random(name), list[TextEvent]()
    expected: list[tuple[TextRequest, list[Generation]]] = []
    for prompt, settings in requests(tokenizer):
        request = TextRequest(tuple(tokenizer.encode(prompt).tolist()), settings, owner=len(expected) % 4)
        expected.append((request, generate_text(model, tokenizer, [prompt], settings)))
    engine, coming = BatchEngine(model, tokenizer, rows=6, chunk=11), [request for request, _ in expected]
    most = 0
    while coming or engine.is_busy:
        for _ in range(min(len(coming), chance.choice((0, 0, 1, 3)))):
            engine.add(coming.pop())
        events += engine.step()
        most = max(most, engine.num_running)
    assert most == 6  # all rows were used, and never more
    for request, single in expected:
        for (text, done, logprobs), item in zip(written(events, request), single, strict=True):
            assert done.tokens == item.tokens and text == item.text
            assert (done.stopped, done.loop) == (item.stopped, item.loop)
            if item.logprobs is not None:
                assert [log.token for log in logprobs] == [log.token for log in item.logprobs]
                pairs = zip(logprobs, item.logprobs, strict=True)
                assert all(abs(ours.logprob - other.logprob) < 1e-4 for ours, other in pairs)
                assert [[top.token for top in log.top] for log in logprobs] == [
                    [top.token for top in log.top] for log in item.logprobs
                ]


def test_long_prompt_does_not_delay_other_sequences(tokenizer: Tokenizer) -> None:
    engine = BatchEngine(model_of("rotary", tokenizer), tokenizer, rows=4, chunk=8)
    short = TextRequest((5,), Sampling(tokens=100, temperature=0.9))
    engine.add(short)
    engine.step()
    engine.add(TextRequest(tuple(range(200)), Sampling(tokens=2, temperature=0.9)))
    engine.add(late := TextRequest((9, 9), Sampling(tokens=3, temperature=0.9)))
    firsts, tokens = {}, 0
    for step in range(30):
        for event in engine.step():
            firsts.setdefault(event.request, step)
        tokens = len(next(text.tokens for text in engine.slots.sequences if text and text.request is short))
    assert tokens == 31  # one token per step while the long prompt was prefilled in chunks of 8
    assert firsts[late] <= 3 and max(firsts.values()) >= 200 // 8


def test_prefill_chunk_shrinks_with_model_size(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("rotary", tokenizer)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert BatchEngine(model, tokenizer).chunk == 256
    for tokens, chunk in ((40, 40), (3, 16)):
        monkeypatch.setattr("lemma.generation.engine.CHUNK_FLOPS", 2 * parameters * tokens)
        assert BatchEngine(model, tokenizer).chunk == chunk


def test_only_prompts_longer_than_a_chunk_are_split() -> None:
    model, read = build(Decoder(vocabulary=20, width=8, heads=1, context=64)), []
    engine = BatchEngine(model, None, chunk=20, same_length=True)
    step = engine.step_model
    engine.step_model = lambda tokens, state=None: (read.append(tuple(tokens.shape)), step(tokens, state))[1]
    for number in range(4):
        length = 25 if number == 3 else 8
        prompt = tuple((number + index) % 20 for index in range(length))
        engine.add(TextRequest(prompt, Sampling(tokens=1), owner=number, decode_text=False, stream=False))
    events = [event for _ in range(4) for event in engine.step()]
    assert read == [(2, 8), (1, 8), (1, 12), (1, 13)] and len([event for event in events if event.result]) == 4


@pytest.mark.parametrize("name", SPECS)
def test_batched_prefill_of_similar_lengths_changes_nothing(name: str, tokenizer: Tokenizer) -> None:
    model, read = model_of(name, tokenizer), []
    engine = BatchEngine(model, tokenizer, rows=8, chunk=30)
    step, slotted = engine.step_model, engine.slots is not None
    engine.step_model = lambda tokens, state=None: (read.append(tuple(tokens.shape)), step(tokens, state))[1]
    chance = random.Random(name)
    settings = Sampling(tokens=12, temperature=0.8, logprobs=1, seed=3)
    prompts = [tuple(chance.choices(range(3, tokenizer.vocabulary), k=size)) for size in (5, 3, 6, 5, 40)]
    query = [TextRequest(prompt, settings, owner=prompt, score_prompt=prompt == prompts[2]) for prompt in prompts]
    scored = TextRequest(prompts[1][:2], settings, owner="scored", score_prompt=True, generates=False)
    for request in (*query[:4], scored, query[4]):
        engine.add(request)
    events = engine.step()
    assert (read[:1] == [(5, 6)]) == slotted  # the longest is split and prefilled separately
    while engine.is_busy:
        events += engine.step()
    for request in query:
        single = BatchEngine(model, tokenizer, rows=8)
        single.add(request)
        custom: list[TextEvent] = []
        while single.is_busy:
            custom += single.step()
        (text, done, logprobs), (same, other, remaining) = written(events, request)[0], written(custom, request)[0]
        assert text == same and done.tokens == other.tokens
        assert all(abs(a.logprob - b.logprob) < 1e-5 for a, b in zip(logprobs, remaining, strict=True))
    scores = {event.request: event.prompt_logprobs for event in events if event.prompt_logprobs}
    exact = torch.log_softmax(model(torch.tensor([prompts[2]]))[0][0].detach(), -1)
    for request in (query[2], scored):
        assert request in scores and len(scores[request]) == len(request.prompt)
    for index, (item, token) in enumerate(zip(scores[query[2]][1:], prompts[2][1:], strict=True)):
        assert item and abs(item.logprob - float(exact[index, token])) < 1e-5


def test_prefill_step_is_bounded_by_chunk_including_padding(tokenizer: Tokenizer) -> None:
    engine, read = BatchEngine(model_of("rotary", tokenizer), tokenizer, rows=16, chunk=32), list[int]()
    step = engine.step_model
    engine.step_model = lambda tokens, state=None: (read.append(tokens.numel()), step(tokens, state))[1]
    for size in (2, 1, 16, *[1] * 9, 15):
        engine.add(TextRequest(tuple(range(3, 3 + size)), Sampling(tokens=30, temperature=0.0), owner=object()))
    while engine.prefilling or engine.waiting:
        read.clear()
        engine.step()
        assert sum(read) <= 32
    assert engine.num_running == 13


def test_owners_are_scheduled_round_robin(tokenizer: Tokenizer) -> None:
    engine = BatchEngine(model_of("window", tokenizer), tokenizer, rows=1)
    for _ in range(5):
        engine.add(TextRequest((5,), Sampling(tokens=2), owner="greedy"))
    engine.add(TextRequest((5,), Sampling(tokens=2), owner="modest"))
    ended = []
    while engine.is_busy:
        ended += [event.request.owner for event in engine.step() if event.result]
    assert ended == ["greedy", "modest", *["greedy"] * 4]


@pytest.mark.parametrize("name", ["learned", "lstm"])
def test_cancelled_request_frees_its_row_within_a_step(name: str, tokenizer: Tokenizer) -> None:
    engine = BatchEngine(model_of(name, tokenizer), tokenizer, rows=2, chunk=8)
    stay, leave = Sampling(tokens=60, temperature=0.9, seed=3), Sampling(tokens=1000, samples=2)
    engine.add(TextRequest((5, 6), leave, owner="waits"))
    engine.add(TextRequest((5,) * 100, stay, owner="reads"))
    engine.add(TextRequest((7,), stay, owner="stays"))
    engine.step()
    engine.cancel("waits")
    engine.step()
    assert engine.num_running == 2 and not [text for pool in engine.groups for text in pool.sequences]
    engine.cancel("reads")
    events = []
    while engine.is_busy:
        events += engine.step()
    assert {event.request.owner for event in events} == {"stays"} and events[-1].result.stopped in ("length", "eos")
    engine.cancel("nobody")


@pytest.mark.parametrize("name", ["learned", "window", "lstm"])
def test_prompt_tokens_are_scored(name: str, tokenizer: Tokenizer) -> None:
    model, ids = model_of(name, tokenizer), tokenizer.encode("the cat sat on the mat").tolist()
    engine = BatchEngine(model, tokenizer, chunk=5)
    engine.add(TextRequest(tuple(ids), Sampling(tokens=1, logprobs=1), score_prompt=True, generates=False))
    events = []
    while engine.is_busy:
        events += engine.step()
    logs = model(torch.tensor([ids]))[0].double().log_softmax(-1)[0]
    first, *tail = events[0].prompt_logprobs
    assert first is None and events[-1].result.tokens == ()
    assert [item.logprob for item in tail] == pytest.approx(
        logs[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    )
    assert [item.top[0].token for item in tail] == logs[:-1].argmax(-1).tolist()


def test_error_ends_only_its_sequence(tokenizer: Tokenizer) -> None:
    model = Table(tokenizer.vocabulary, 1, lambda seen: 65)
    engine = BatchEngine(model, tokenizer)
    engine.add(TextRequest((66,), Sampling(tokens=5, temperature=0.0)))
    forbidding = {token: -float("inf") for token in range(tokenizer.vocabulary)}
    engine.add(TextRequest((66,), Sampling(tokens=5, temperature=0.0, logit_bias=forbidding)))
    events = []
    while engine.is_busy:
        events += engine.step()
    assert sorted(str(event.error)[:20] for event in events if event.error) == ["no token is left to "]
    assert [event.result.tokens for event in events if event.result] == [(65,) * 5]
    with pytest.raises(InputError, match="outside the model's vocabulary"):
        engine.add(TextRequest((9999,), Sampling()))
    with pytest.raises(InputError, match="less than 1"):
        BatchEngine(model, tokenizer, rows=0)


OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.2, "logit_bias": {3: 0.7}, "logprobs": 2},
    {"temperature": 0.9, "top_k": 6, "top_p": 0.9, "min_p": 0.02, "logprobs": 0, "stop_tokens": [4]},
    {"temperature": 1.3, "frequency_penalty": 0.4, "no_repeat_ngram": 3, "samples": 2},
]


def generate_uncached(
    model: Any, prompt: list[int], settings: Sampling, number: int
) -> tuple[list[int], list[Any], Any]:
    """Return the expected text by rereading the full sequence, or its last window, for each token."""
    field, samples, tokens, logprobs, seen, loop = (
        model.receptive_field,
        random.Random(settings.seed + number),
        [],
        [],
        {},
        None,
    )
    while len(tokens) < settings.tokens:
        read = [*prompt, *tokens]
        window = tuple(read[-field:]) if field else None
        proves = settings.is_greedy and not settings.depends_on_history and getattr(model.spec, "window", None) is None
        if proves and window and len(read) >= field and loop is None:
            first = seen.setdefault(window, len(tokens))
            loop = (first, len(tokens)) if first < len(tokens) else None
        logits = model(torch.tensor([window or read]))[0][:, -1]
        chances = () if settings.is_greedy else [samples.random()]
        token = sample_tokens(adjust_logits(logits, settings, torch.tensor([read]), len(tokens)), settings, chances)
        if int(token) in settings.stop_tokens:
            break
        logprobs += [] if settings.logprobs is None else token_logprobs(logits, token, settings.logprobs)
        tokens.append(int(token))
    return tokens, logprobs, loop and make_proved_loop(tokens, *loop, "").onset


@pytest.mark.parametrize("name", SMALL)
@torch.inference_mode()
def test_every_generation_path_equals_uncached_decoding(name: str) -> None:
    """Compare one prompt, a batch, and requests added during decoding, for each family and option."""
    torch.manual_seed(5)
    model = build(SMALL[name]).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    prompts, expected, requests = [[1, 2, 3], [7, 8, 9], [5, 6, 1, 2, 3, 4, 8]], [], []
    for position, option in enumerate(OPTIONS):
        settings = Sampling(tokens=14, seed=position, stop_at_eos=False, **option)
        target = [generate_uncached(model, prompt, settings, number * settings.samples + index)
                  for number, prompt in enumerate(prompts) for index in range(settings.samples)]  # fmt: skip
        together = generate(model, prompts, settings)
        for (tokens, logprobs, onset), item in zip(target, together, strict=True):
            assert list(item.tokens) == tokens, option
            assert [log.token for log in logprobs] == [log.token for log in item.logprobs or ()]
            assert all(abs(a.logprob - b.logprob) < 1e-4 for a, b in zip(logprobs, item.logprobs or (), strict=True))
            assert onset is None or (item.loop and item.loop.proved and item.loop.onset == onset)
        single = generate(model, prompts[:1], settings)
        assert [item.tokens for item in single] == [item.tokens for item in together[: settings.samples]]
        for number, prompt in enumerate(prompts):
            request = TextRequest(tuple(prompt), settings, number * settings.samples, owner=position, decode_text=False)
            requests.append(request)
            expected += [((request, index), together[request.first_row + index]) for index in range(settings.samples)]
    engine, result, chance = BatchEngine(model, None, rows=4, chunk=9), {}, random.Random(name)
    while requests or engine.is_busy:
        for _ in range(min(len(requests), chance.choice((0, 1, 4)))):
            engine.add(requests.pop())
        result |= {(event.request, event.index): event.result for event in engine.step() if event.result}
    for key, item in expected:
        assert (result[key].tokens, result[key].stopped, result[key].loop) == (item.tokens, item.stopped, item.loop)


def test_stream_equals_text_for_prompts_of_any_length(tokenizer: Tokenizer) -> None:
    model, settings = model_of("learned", tokenizer), Sampling(tokens=30, temperature=0.9, stop=["a", "é"], samples=2)
    pieces = [""] * 2 * len(PROMPTS)
    for number, piece in stream_text(model, tokenizer, PROMPTS, settings):
        pieces[number] += piece
    assert pieces == [item.text for item in generate_text(model, tokenizer, PROMPTS, settings)]
    single = [
        generate_text(model, tokenizer, [item], replace(settings, seed=1 + 2 * n)) for n, item in enumerate(PROMPTS)
    ]
    assert pieces == [item.text for subset in single for item in subset]


@pytest.mark.parametrize("name", ["learned", "lstm"])
def test_engine_counts_running_sequences(name: str, tokenizer: Tokenizer) -> None:
    engine, counted = BatchEngine(model_of(name, tokenizer), tokenizer), []
    for way in ("step_model", "step_single"):
        read = getattr(engine, way)
        setattr(engine, way, lambda *given, read=read: counted.append(engine.num_running) or read(*given))
    engine.add(TextRequest((5, 8), Sampling(tokens=30, temperature=0.0)))
    while engine.is_busy:
        engine.step()
    assert set(counted[1:]) == {1} and len(counted) >= 30  # the first call is the prefill
