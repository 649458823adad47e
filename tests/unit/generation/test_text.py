"""From prompt to text with every kind of tokenizer, streamed and whole."""

import json

import pytest

from lemma.data.tokenizers import Tokenizer, train_tokenizer
from lemma.errors import DataError
from lemma.generation.decode import Generation, Sampling, TextLoop, generate_text
from lemma.report.text import fit
from lemma.spec.data import BytePairs, Characters, Words
from stand_ins import Script

LINES = ["the cat sat on the mat\n", "the dog sat on the log\n"] * 3
CHARACTERS = train_tokenizer(Characters(), LINES)
WORDS = train_tokenizer(Words(), LINES)
BYTES = train_tokenizer(BytePairs(vocabulary=258), LINES)
GREEDY = Sampling(tokens=50, temperature=0)


def tell(tokenizer: Tokenizer, prompt: str, continuation: str, tokens: int = 0) -> tuple[Generation, list[str]]:
    """Generate with a model that says just this after the prompt."""
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
def test_the_text_continues_the_prompt(tokenizer: Tokenizer, prompt: str, more: str) -> None:
    result, pieces = tell(tokenizer, prompt, more)
    assert result.text == more and "".join(pieces) == more
    assert len(pieces) == len(result.tokens)  # each token is told at once
    assert str(result).startswith((prompt + more).rstrip("\n"))


def test_half_a_character_waits_for_its_other_half() -> None:
    result, pieces = tell(BYTES, "é", "ñ€x😀")
    assert len(result.tokens) == 2 + 3 + 1 + 4
    assert pieces == ["ñ", "€", "x", "😀"]


def test_a_character_cut_off_by_the_end_is_told_as_such() -> None:
    result, pieces = tell(BYTES, "a", "b€", tokens=3)
    assert pieces == ["b", "\N{REPLACEMENT CHARACTER}"] and result.text == "".join(pieces)


def test_an_unknown_word_in_the_prompt_does_not_hurt() -> None:
    result, pieces = tell(WORDS, "the aardvark", "sat on")
    assert result.text == "".join(pieces) == " sat on"
    with pytest.raises(DataError, match="'Z'"):
        tell(CHARACTERS, "Z", "a")


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
def test_an_empty_prompt_starts_from_eos_or_a_newline_or_token_0(tokenizer: Tokenizer, start: int) -> None:
    read: list[list[int]] = []
    model = Script(tokenizer.vocabulary, [1])
    model.register_forward_pre_hook(lambda module, given: read.append(given[0][0].tolist()))
    generate_text(model, tokenizer, [""], Sampling(tokens=1))
    assert read == [[start]]


def test_text_ends_before_eos() -> None:
    script = [*WORDS.encode("the cat"), WORDS.eos, 2]
    [result] = generate_text(Script(WORDS.vocabulary, script), WORDS, ["on"], GREEDY)
    assert (result.text, result.stopped) == (" the cat", "eos")


def test_rows_are_streamed_apart() -> None:
    heard: dict[int, str] = {}
    script = BYTES.encode("€uro, €uro").tolist()
    results = generate_text(
        Script(BYTES.vocabulary, script),
        BYTES,
        ["a", "b"],
        Sampling(tokens=len(script), temperature=0),
        on_text=lambda row, piece: heard.update({row: heard.get(row, "") + piece}),
    )
    assert heard == {0: "€uro, €uro", 1: "€uro, €uro"} == {row: result.text for row, result in enumerate(results)}


def test_a_reader_who_has_read_enough_ends_that_text_only() -> None:
    heard = ["", ""]

    def read(row: int, piece: str) -> object:
        heard[row] += piece
        return len(heard[row]) == 4 if row == 0 else len(heard[row])  # a number is no answer, only True is

    script = CHARACTERS.encode("the dog sat").tolist()
    settings = Sampling(tokens=len(script), temperature=0)
    one, other = generate_text(Script(CHARACTERS.vocabulary, script), CHARACTERS, ["a", "a"], settings, on_text=read)
    assert (one.text, len(one.tokens), one.stopped) == ("the ", 4, "told") and heard[0] == "the "
    assert (other.text, other.stopped) == ("the dog sat", "length")


def test_the_result_tells_its_loop_in_terminal_notebook_and_json() -> None:
    loop = TextLoop(37, 12, True, "the last 2 tokens")
    result = Generation("<a>", " & b", (1, 2), loop, "length", 100.0)
    line = "loop: from token 37 the text repeats every 12 tokens, for ever (proved: the last 2 tokens repeated)"
    assert str(result) == f"<a> & b\n{fit(line)}" and result.remark == line
    assert "&lt;a&gt;</" in (page := result._repr_html_()) and " &amp; b" in page and line in page
    plain = json.loads(json.dumps(result.to_dict()))
    assert list(plain) == ["prompt", "text", "tokens", "loop", "stopped", "tokens_per_second"]
    assert plain["loop"] == {"onset": 37, "period": 12, "proved": True, "state": "the last 2 tokens"}
    assert plain["tokens"] == [1, 2]


def test_without_a_loop_only_the_text_is_told() -> None:
    result = Generation("a", "b", (1,), None, "eos", 1.0)
    assert str(result) == "ab" and result.remark == "" and "loop:" not in result._repr_html_()
    assert result.to_dict()["loop"] is None


def test_speed_is_tokens_over_seconds() -> None:
    [result] = generate_text(Script(CHARACTERS.vocabulary, [1, 2, 3]), CHARACTERS, ["t"], GREEDY)
    assert 10 < result.tokens_per_second < 1e6
