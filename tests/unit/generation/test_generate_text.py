"""Text generation with every kind of tokenizer, streamed and complete."""

import json
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lemma.data.tokenizers import Tokenizer, train_tokenizer
from lemma.errors import DataError, InputError
from lemma.generation.engine import generate, generate_text, stream_text
from lemma.generation.sampling import Sampling, TokenLogprob
from lemma.generation.sequences import Generation, StopStringFilter, TextLoop
from lemma.report.text import wrap_lines
from lemma.spec.data import BytePairs, Characters, Words
from stand_ins import Script

LINES = ["the cat sat on the mat\n", "the dog sat on the log\n"] * 3
CHARACTERS = train_tokenizer(Characters(), LINES)
WORDS = train_tokenizer(Words(), LINES)
BYTES = train_tokenizer(BytePairs(vocabulary=258), LINES)
GREEDY = Sampling(tokens=50, temperature=0)


def generate_script(
    tokenizer: Tokenizer, prompt: str, continuation: str, tokens: int = 0
) -> tuple[Generation, list[str]]:
    """Generate with a model that continues the prompt with exactly this text."""
    script = tokenizer.encode(continuation).tolist()
    before = max(0, len(tokenizer.encode(prompt)) - 1)
    model = Script(tokenizer.vocabulary, [0] * before + script)
    pieces: list[str] = []
    settings = Sampling(tokens=tokens or len(script), temperature=0, stop_at_eos=False)
    [result] = generate_text(model, tokenizer, [prompt], settings, on_text=lambda row, piece: pieces.append(piece))
    [silent] = generate_text(model, tokenizer, [prompt], settings)
    assert silent.text == result.text and silent.tokens == result.tokens == tuple(script[: settings.tokens])
    return result, pieces


@pytest.mark.parametrize("tokenizer", [CHARACTERS, WORDS, BYTES], ids=lambda tokenizer: tokenizer.kind)
@pytest.mark.parametrize(("prompt", "more"), [("the cat", " sat on\nthe mat\n\nthe"), ("", "the dog")])
def test_generated_text_continues_the_prompt(tokenizer: Tokenizer, prompt: str, more: str) -> None:
    result, pieces = generate_script(tokenizer, prompt, more)
    assert result.text == more and "".join(pieces) == more
    assert len(pieces) == len(result.tokens)  # each token is streamed immediately
    assert str(result).startswith((prompt + more).rstrip("\n"))


def test_incomplete_character_is_buffered() -> None:
    result, pieces = generate_script(BYTES, "é", "ñ€x😀")
    assert len(result.tokens) == 2 + 3 + 1 + 4
    assert pieces == ["ñ", "€", "x", "😀"]


def test_character_truncated_at_the_end_is_reported() -> None:
    result, pieces = generate_script(BYTES, "a", "b€", tokens=3)
    assert pieces == ["b", "\N{REPLACEMENT CHARACTER}"] and result.text == "".join(pieces)


def test_unknown_prompt_words_are_accepted() -> None:
    result, pieces = generate_script(WORDS, "the aardvark", "sat on")
    assert result.text == "".join(pieces) == " sat on"
    with pytest.raises(DataError, match="'Z'"):
        generate_script(CHARACTERS, "Z", "a")


@pytest.mark.parametrize(
    ("tokenizer", "start"),
    [
        (WORDS, WORDS.eos),
        (BYTES, BYTES.eos),
        (CHARACTERS, CHARACTERS.encode("\n")[0]),
        (train_tokenizer(Characters(), ["abc"]), 0),
    ],
    ids=["words", "byte-pairs", "characters", "no newline"],
)
def test_empty_prompt_starts_from_eos_newline_or_token_0(tokenizer: Tokenizer, start: int) -> None:
    read: list[list[int]] = []
    model = Script(tokenizer.vocabulary, [1])
    model.register_forward_pre_hook(lambda module, options: read.append(options[0][0].tolist()))
    generate_text(model, tokenizer, [""], Sampling(tokens=1))
    assert read == [[start]]


def test_text_excludes_eos() -> None:
    script = [*WORDS.encode("the cat"), WORDS.eos, 2]
    [result] = generate_text(Script(WORDS.vocabulary, script), WORDS, ["on"], GREEDY)
    assert (result.text, result.stopped) == (" the cat", "eos")


def test_rows_are_streamed_separately() -> None:
    received: dict[int, str] = {}
    script = BYTES.encode("€uro, €uro").tolist()
    results = generate_text(
        Script(BYTES.vocabulary, script),
        BYTES,
        ["a", "b"],
        Sampling(tokens=len(script), temperature=0),
        on_text=lambda row, piece: received.update({row: received.get(row, "") + piece}),
    )
    assert received == {0: "€uro, €uro", 1: "€uro, €uro"} == {row: result.text for row, result in enumerate(results)}


def test_closing_one_stream_ends_only_that_row() -> None:
    received = ["", ""]

    def read(row: int, piece: str) -> object:
        received[row] += piece
        return len(received[row]) == 4 if row == 0 else len(received[row])  # only True stops a row

    script = CHARACTERS.encode("the dog sat").tolist()
    settings = Sampling(tokens=len(script), temperature=0)
    item, other = generate_text(Script(CHARACTERS.vocabulary, script), CHARACTERS, ["a", "a"], settings, on_text=read)
    assert (item.text, len(item.tokens), item.stopped) == ("the ", 4, "told") and received[0] == "the "
    assert (other.text, other.stopped) == ("the dog sat", "length")


def test_loop_is_shown_in_terminal_notebook_and_json() -> None:
    loop = TextLoop(37, 12, True, "the last 2 tokens")
    result = Generation("<a>", " & b", (1, 2), loop, "length", 100.0)
    line = "loop: from token 37 the text repeats every 12 tokens, for ever (proved: the last 2 tokens repeated)"
    assert str(result) == f"<a> & b\n{wrap_lines(line)}" and result.note == line
    assert "&lt;a&gt;</" in (page := result._repr_html_()) and " &amp; b" in page and line in page
    base = json.loads(json.dumps(result.to_dict()))
    assert list(base) == ["prompt", "text", "tokens", "loop", "stopped", "tokens_per_second", "logprobs", "seed"]
    assert base["loop"] == {"onset": 37, "period": 12, "proved": True, "state": "the last 2 tokens"}
    assert base["tokens"] == [1, 2]


def test_result_without_loop_shows_only_the_text() -> None:
    result = Generation("a", "b", (1,), None, "eos", 1.0)
    assert str(result) == "ab" and result.note == "" and "loop:" not in result._repr_html_()
    assert result.to_dict()["loop"] is None


def test_speed_is_tokens_per_second() -> None:
    [result] = generate_text(Script(CHARACTERS.vocabulary, [1, 2, 3]), CHARACTERS, ["t"], GREEDY)
    assert 10 < result.tokens_per_second < 1e6


@settings(deadline=None, max_examples=200)
@given(st.text("ab#", max_size=30), st.lists(st.text("ab#", min_size=1, max_size=4), max_size=3), st.data())
def test_stop_string_matching_does_not_depend_on_chunking(text: str, stops: list[str], data: Any) -> None:
    ending, messages, tail = StopStringFilter(stops), "", text
    while tail and not ending.has_stopped:
        size = data.draw(st.integers(1, len(tail)))
        messages, tail = messages + ending.add(tail[:size]), tail[size:]
        assert not any(stop in messages for stop in stops)
    messages += ending.flush()
    positions = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    assert ending.has_stopped == bool(positions)
    assert messages == (text[: min(positions)[1]] if positions else text)


@pytest.mark.parametrize("pieces", [["abcd"], ["ab", "cd"], ["a", "b", "c", "d"]])
def test_earliest_completed_overlapping_stop_wins(pieces: list[str]) -> None:
    stops = StopStringFilter(["abcd", "bc"])
    assert "".join(map(stops.add, pieces)) == "a" and stops.has_stopped


PAIRS = train_tokenizer(BytePairs(vocabulary=300), LINES)


@pytest.mark.parametrize("stop", ["at o", ["log", "sat"], "e c", ["\n"], "x"])
@pytest.mark.parametrize("tokenizer", [CHARACTERS, PAIRS, BYTES], ids=["characters", "pairs", "bytes"])
def test_stop_string_spanning_tokens_ends_the_text(tokenizer: Tokenizer, stop: Any) -> None:
    text = " cat sat on the mat\nthe dog sat on the log\n"
    script = tokenizer.encode(text).tolist()
    model = Script(tokenizer.vocabulary, [0] * (len(tokenizer.encode("the")) - 1) + script)
    expected = Sampling(tokens=len(script), temperature=0, stop=stop)
    messages: list[str] = []
    [result] = generate_text(model, tokenizer, ["the"], expected, on_text=lambda row, piece: messages.append(piece))
    [silent] = generate_text(model, tokenizer, ["the"], expected)
    stops = [stop] if isinstance(stop, str) else stop
    index = min((text.find(item) for item in stops if item in text), default=len(text))
    assert result.text == silent.text == "".join(messages) == text[:index]
    assert result.stopped == silent.stopped == ("stop" if index < len(text) else "length")
    decoded = tokenizer.decode(result.tokens)  # the tokens end with the one that completes the stop
    assert any(item in decoded for item in stops) == (result.stopped == "stop")
    assert not any(item in tokenizer.decode(result.tokens[:-1]) for item in stops)


@pytest.mark.parametrize("seed", range(5))
def test_stop_strings_match_transformers_criteria(seed: int) -> None:
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer as Engine

    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=Engine.from_str(PAIRS.json))
    chance = random.Random(seed)
    words = " ".join(chance.choice(["the", "cat", "sat", "on", "mat", "log", "dog"]) for _ in range(30))
    stops = [words[index : index + chance.randint(2, 9)] for index in (chance.randint(20, 60), chance.randint(20, 60))]
    criteria = transformers.StopStringCriteria(fast, stops)
    script = PAIRS.encode(words).tolist()
    ends = next(n for n in range(1, len(script) + 1) if criteria(torch.tensor([script[:n]]), None).item())
    expected = Sampling(tokens=len(script), temperature=0, stop=stops)
    [result] = generate_text(Script(PAIRS.vocabulary, script), PAIRS, ["\n"], expected)
    assert len(result.tokens) == ends and result.stopped == "stop"


def test_stop_strings_ignore_the_prompt_and_partial_characters() -> None:
    script = BYTES.encode("ñ€x😀").tolist()
    model = Script(BYTES.vocabulary, script)
    expected = Sampling(tokens=len(script), temperature=0, stop="x😀")
    [result] = generate_text(model, BYTES, ["x"], expected)
    assert (result.text, result.stopped) == ("ñ€", "stop")
    [other] = generate_text(model, BYTES, ["x"], Sampling(tokens=len(script), temperature=0, stop=["xñ", "😀!"]))
    assert (other.text, other.stopped) == ("ñ€x😀", "length")  # only generated text can match a stop string


def test_stop_token_is_excluded_and_reported_apart_from_eos() -> None:
    script = [*WORDS.encode("the cat sat"), WORDS.eos]
    model, cat = Script(WORDS.vocabulary, script), int(WORDS.encode("cat")[0])
    [result] = generate_text(model, WORDS, ["on"], Sampling(tokens=9, temperature=0, stop_tokens=[cat]))
    assert (result.text, result.stopped) == (" the", "stop")
    [ended] = generate_text(model, WORDS, ["on"], Sampling(tokens=9, temperature=0, stop_tokens=[WORDS.eos or 0]))
    assert (ended.text, ended.stopped) == (" the cat sat", "eos")
    with pytest.raises(InputError, match="stop_tokens: token 999 is outside"):
        generate_text(model, WORDS, ["on"], Sampling(stop_tokens=[999]))
    with pytest.raises(InputError, match="logit_bias: token 999 is outside"):
        generate_text(model, WORDS, ["on"], Sampling(logit_bias={999: 1.0}))
    with pytest.raises(InputError, match="stop strings need a tokenizer"):
        generate(model, [[1]], Sampling(stop="a"))


def test_samples_of_a_prompt_share_one_prefill() -> None:
    sizes: list[tuple[int, ...]] = []
    model = Flat(CHARACTERS.vocabulary)
    model.register_forward_pre_hook(lambda module, options: sizes.append(tuple(options[0].shape)))
    expected = Sampling(tokens=8, temperature=1.0, samples=3)
    results = generate_text(model, CHARACTERS, ["the", "cat"], expected)
    assert [result.prompt for result in results] == ["the"] * 3 + ["cat"] * 3
    assert len({result.text for result in results}) == 6
    assert sizes[0] == (2, 3) and set(sizes[1:]) == {(6, 1)}
    first_result = generate_text(
        model, CHARACTERS, [prompt for prompt in ("the", "cat") for _ in range(3)], Sampling(tokens=8, temperature=1.0)
    )
    assert [result.tokens for result in first_result] == [result.tokens for result in results]


class Flat(Script):
    """Every token is equally likely."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__(vocabulary, [0])

    def certain(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*tokens.shape, self.spec.vocabulary)


def test_stream_equals_reported_text_and_can_be_closed() -> None:
    script = BYTES.encode("ñ€x😀 and more").tolist()
    model = Script(BYTES.vocabulary, script).train()
    expected = Sampling(tokens=len(script), temperature=0)
    assert list(stream_text(model, BYTES, ["a"], expected))[:4] == [(0, "ñ"), (0, "€"), (0, "x"), (0, "😀")]
    stream = stream_text(model, BYTES, ["a"], expected)
    assert next(stream) == (0, "ñ") and not torch.is_inference_mode_enabled()
    stream.close()
    assert model.training  # restored


def test_logprobs_include_token_texts() -> None:
    script = WORDS.encode("the cat").tolist()
    model = Script(WORDS.vocabulary, [*script, WORDS.eos])
    [result] = generate_text(model, WORDS, ["on"], Sampling(tokens=5, temperature=0, logprobs=2))
    assert result.logprobs is not None and result.stopped == "eos"
    assert [logprob.text for logprob in result.logprobs] == [" the", " cat"] and len(result.tokens) == 2
    assert "".join(logprob.text for logprob in result.logprobs) == result.text
    base = json.loads(json.dumps(result.to_dict()))["logprobs"]
    assert [list(logprob) for logprob in base] == [["token", "text", "logprob", "top"]] * 2
    assert [logprob["text"] for logprob in base[0]["top"]] == [" the", f" {WORDS.decode([0])}"] and base[0][
        "logprob"
    ] > -1e-9
    rendered = str(result)
    assert rendered.startswith("on the cat\n") and "log p" in rendered and "␣the 0.000, ␣<unk> -50.000" in rendered
    bare = Generation("a", "b", (1,), None, "eos", 1.0, (TokenLogprob(1, -0.5, text="b"),))
    assert bare.to_dict()["logprobs"] == [{"token": 1, "text": "b", "logprob": -0.5}]
    assert "most likely" not in str(bare)
