"""Onset, period and proof of loops, against brute force over the whole sequence."""

import random
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from lemma.data.tokenizers import train_tokenizer
from lemma.generation.engine import generate, generate_text
from lemma.generation.sampling import Sampling
from lemma.generation.sequences import GeneratedTokens, TextLoop, find_observed_loop, smallest_period
from lemma.spec.data import Characters
from stand_ins import CertainModel, Script, Table


def greedy(model: Table | Script, prompt: list[int], tokens: int, stop_at_loop: bool = False) -> GeneratedTokens:
    [result] = generate(model, [prompt], Sampling(tokens=tokens, temperature=0, stop_at_loop=stop_at_loop))
    return result


def brute_force(sequence: list[int], longest: int) -> tuple[int, int]:
    """Return the smallest (period, onset) with sequence[t] = sequence[t + period] from the onset to the end."""
    for period in range(1, longest + 1):
        onset = next(t for t in range(len(sequence)) if sequence[t : len(sequence) - period] == sequence[t + period :])
        if onset <= len(sequence) - 2 * longest:
            return onset, period
    raise AssertionError("no loop")


@pytest.mark.parametrize("span", [1, 2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_loop_onset_and_period_are_minimal(span: int, seed: int) -> None:
    chance = random.Random(seed)
    windows = [window for size in range(1, span + 1) for window in product(range(3), repeat=size)]
    table = {window: chance.randrange(3) for window in windows}
    model = Table(3, span, table.__getitem__)
    longest = 3**span
    sequence = list(greedy(model, [0], 5 * longest + 5).tokens)
    onset, period = brute_force(sequence, longest)
    loop = greedy(model, [0], longest + span + 1).loop
    description = "the last token" if span == 1 else f"the last {span} tokens"
    assert loop == TextLoop(onset, period, True, description)


def test_cycle_onset_follows_its_tail() -> None:
    follow = {0: 1, 1: 2, 2: 3, 3: 4, 4: 5, 5: 3}
    result = greedy(Table(6, 1, lambda window: follow[window[-1]]), [0], 20)
    assert result.tokens[:8] == (1, 2, 3, 4, 5, 3, 4, 5)
    assert result.loop == TextLoop(onset=2, period=3, proved=True, state="the last token")


def test_loop_started_in_the_prompt_has_onset_zero() -> None:
    result = greedy(Table(3, 1, lambda window: (window[-1] + 1) % 3), [0, 1, 2, 0, 1], 9)
    assert result.loop == TextLoop(onset=0, period=3, proved=True, state="the last token")


def test_text_period_may_be_shorter_than_state_period() -> None:
    model = Script(3, [0, 1] * 3, modulo=6)
    assert greedy(model, [2], 6).loop == TextLoop(onset=0, period=2, proved=False, state="the number of tokens")
    assert greedy(model, [2], 7).loop == TextLoop(onset=0, period=2, proved=True, state="the number of tokens")
    assert [smallest_period(word) for word in ([0, 1, 0, 1], [0, 1, 0], [0, 0, 0], [5])] == [2, 3, 1, 1]


def test_no_loop_is_reported_before_a_repetition() -> None:
    model = Table(10, 1, lambda window: (window[-1] + 1) % 10)
    assert greedy(model, [0], 10).loop is None  # 1 … 9, 0: the state after 0 is seen only when 0 has been read
    assert greedy(model, [0], 11).loop == TextLoop(0, 10, True, "the last token")


def test_stop_at_loop_ends_at_the_proving_token() -> None:
    follow = {0: 1, 1: 2, 2: 3, 3: 2}
    model = Table(4, 1, lambda window: follow[window[-1]])
    result = greedy(model, [0], 50, stop_at_loop=True)
    assert (result.tokens, result.stopped) == ((1, 2, 3, 2), "loop")
    assert result.loop == TextLoop(1, 2, True, "the last token")
    assert greedy(model, [0], 3, stop_at_loop=True).stopped == "length"


def test_batch_rows_stop_at_separate_loops() -> None:
    follow = {0: 0, 1: 2, 2: 1, 3: 4, 4: 5, 5: 3}
    model = Table(6, 1, lambda window: follow[window[-1]])
    settings = Sampling(tokens=50, temperature=0, stop_at_loop=True)
    results = generate(model, [[3], [0], [1]], settings)
    assert [result.tokens for result in results] == [(4, 5, 3), (0,), (2, 1)]
    assert [result.loop.period for result in results if result.loop] == [3, 1, 2]


def test_repetition_without_repeated_state_is_observed_not_proved() -> None:
    model = Script(3, [2, *[0, 1] * 50])
    assert greedy(model, [0], 6).loop is None  # 2 01 01 0
    assert greedy(model, [0], 7).loop == TextLoop(onset=1, period=2, proved=False, state="the number of tokens")
    stopped = greedy(model, [0], 40, stop_at_loop=True)
    assert (
        (stopped.stopped, stopped.tokens) == ("loop", (2, 0, 1, 0, 1, 0, 1))
        and stopped.loop
        and not stopped.loop.proved
    )


def test_observed_loop_has_shortest_period_and_earliest_onset() -> None:
    assert find_observed_loop([7, 1, 1, 2, 1, 1, 2, 1, 1, 2, 1, 1], "s") == TextLoop(1, 3, False, "s")
    assert find_observed_loop([1, 2, 2, 2, 2], "s") == TextLoop(1, 1, False, "s")
    assert find_observed_loop([1, 2, 1, 2], "s") is None
    assert find_observed_loop([], "s") is None


def test_sampling_reports_no_loop() -> None:
    [result] = generate(Table(2, 1, lambda window: 0), [[0]], Sampling(tokens=9, temperature=0.5))
    assert result.tokens == (0,) * 9 and result.loop is None


def test_finished_text_has_no_loop() -> None:
    [result] = generate(Script(3, [1, 1, 1, 2]), [[0]], Sampling(tokens=9, temperature=0), eos=2)
    assert (result.tokens, result.stopped, result.loop) == ((1, 1, 1), "eos", None)


def test_loop_is_described_in_words() -> None:
    proved = TextLoop(37, 12, True, "the last 2 tokens")
    assert (
        str(proved) == "from token 37 the text repeats every 12 tokens, for ever (proved: the last 2 tokens repeated)"
    )
    seen = str(TextLoop(0, 1, False, "the hidden vectors"))
    assert (
        seen
        == "from the first token the text repeats every token so far (not proved: the hidden vectors did not repeat)"
    )
    assert proved.to_dict() == {"onset": 37, "period": 12, "proved": True, "state": "the last 2 tokens"}


class Ranked(Table):
    """A `Table` whose second most likely token, the next id, is close behind the first."""

    def certain(self, tokens: torch.Tensor) -> torch.Tensor:
        size = self.spec.vocabulary
        ranks = (torch.arange(size) - tokens[..., None]) % size
        return 2.0 - 0.1 * ranks.double()


def continue_greedily(model: CertainModel, settings: Sampling, tokens: int) -> list[int]:
    """Return the tokens of a longer run that does not stop at the loop."""
    [result] = generate(model, [[0]], replace(settings, tokens=tokens, stop_at_loop=False))
    return list(result.tokens)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "words", [{"repetition_penalty": 1.02}, {"presence_penalty": 0.15}, {"repetition_penalty": 1.1}]
)
def test_loop_proved_under_a_token_set_penalty_repeats(seed: int, words: dict[str, float]) -> None:
    """The state alone may recur long before the text repeats, since the penalty has changed in between."""
    chance = random.Random(seed)
    table = {window: chance.randrange(7) for window in range(7)}
    model = Ranked(7, 1, lambda window: table[window[-1]])
    settings = Sampling(tokens=200, temperature=0, stop_at_loop=True, **words)
    [result] = generate(model, [[0]], settings)
    loop, later = result.loop, continue_greedily(model, settings, 400)
    assert result.stopped == "loop" and loop is not None and loop.proved
    assert loop.state == "the last token and the set of tokens used"
    assert later[loop.onset : -loop.period] == later[loop.onset + loop.period :]


def test_repeated_state_proves_a_loop_only_with_fixed_token_set() -> None:
    """Without the set, 1 after 1 would be a proof at the second token; the penalty then takes it to 2, 3, …"""
    model = Ranked(5, 1, lambda window: 1)
    settings = Sampling(tokens=12, temperature=0, presence_penalty=0.15)
    [result] = generate(model, [[1]], settings)
    assert result.tokens[:3] != (1, 1, 1) and result.loop is not None and result.loop.proved
    assert result.loop.onset > 1


@pytest.mark.parametrize(
    ("words", "name"), [({"frequency_penalty": 1e-9}, "frequency_penalty"), ({"no_repeat_ngram": 9}, "no_repeat_ngram")]
)
def test_history_dependent_penalties_leave_loops_unproved(words: dict[str, Any], name: str) -> None:
    model = Table(3, 1, lambda window: (window[-1] + 1) % 3)
    [result] = generate(model, [[0]], Sampling(tokens=9, temperature=0, **words))
    description = f"the text so far, on which {name} depends,"
    assert result.loop == TextLoop(onset=0, period=3, proved=False, state=description)


def test_logit_bias_keeps_loops_proved() -> None:
    model = Ranked(4, 1, lambda window: (window[-1] + 1) % 4)
    [result] = generate(model, [[0]], Sampling(tokens=9, temperature=0, logit_bias={1: -5.0}))
    assert 1 not in result.tokens and result.loop == TextLoop(0, 3, True, "the last token")


LETTERS = train_tokenizer(Characters(), ["abx"])


@pytest.mark.parametrize(
    ("stop", "text", "stopped"),
    [("abababab", "", "stop"), ("bababa", "a", "stop"), ("abx", "aba", "loop"), (["xx", "aa"], "ab", "loop")],
)
def test_loop_ended_by_a_stop_string_is_not_proved(stop: Any, text: str, stopped: str) -> None:
    model = Table(3, 1, lambda window: 1 - window[-1] % 2)  # b a b a …
    settings = Sampling(tokens=30, temperature=0, stop_at_loop=True, stop=stop)
    [result] = generate_text(model, LETTERS, ["b"], settings)
    assert result.stopped == stopped and result.text.startswith(text)
    if stopped == "stop":
        assert result.text == text and result.loop is None
    else:
        assert result.loop and result.loop.proved
        assert result.loop.state == "the last token and what may become a stop string"
