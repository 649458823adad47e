"""The real `openai` package against a real server: what it gets is what `lemma.generate` writes."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import lemma
from lemma.runs.load import load

openai = pytest.importorskip("openai", reason="needs the openai package")
SAID = {"max_tokens": 60, "temperature": 0.9, "seed": 11}
SETTINGS = {"tokens": 60, "temperature": 0.9, "seed": 11}


@pytest.fixture(scope="module")
def client(address: str) -> Any:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)


def joined(stream: Any, rows: int = 1) -> list[str]:
    texts = [""] * rows
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    return texts


def test_runs_are_listed_by_their_folders_names(client: Any, runs: dict[str, Path]) -> None:
    listed = {model.id: model for model in client.models.list()}
    assert list(listed) == list(runs)
    assert listed["decoder"].shows == ["generate", "look", "count", "evaluate"]
    assert "look" not in listed["trigram"].shows and listed["mood"].answers == "class"
    assert client.models.retrieve("bytes").family == "lstm"
    with pytest.raises(openai.NotFoundError, match="Did you mean 'trigram'"):
        client.models.retrieve("trigam")


@pytest.mark.parametrize("model", ["trigram", "decoder", "bytes"])
def test_the_text_is_generates_whole_and_streamed(model: str, client: Any, runs: dict[str, Path]) -> None:
    for more, settings in (({}, {}), ({"top_p": 0.7}, {"top_p": 0.7}), ({"temperature": 0}, {"temperature": 0.0})):
        expected = lemma.generate(runs[model], "the cat", **{**SETTINGS, **settings})
        whole = client.completions.create(model=model, prompt="the cat", **{**SAID, **more})
        assert whole.choices[0].text == expected.text and len(expected.text) > 20
        assert joined(client.completions.create(model=model, prompt="the cat", stream=True, **{**SAID, **more})) == [
            expected.text
        ]


def test_tokens_are_counted_exactly(client: Any, runs: dict[str, Path]) -> None:
    prompts = ["naïve 😀", "a"]
    answer = client.completions.create(model="bytes", prompt=prompts, n=2, max_tokens=9, seed=1, temperature=0.5)
    read = sum(len(load(runs["bytes"]).tokenizer.encode(prompt)) for prompt in prompts)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (read, 4 * 9)
    assert answer.usage.total_tokens == read + 36 and answer.choices[0].finish_reason == "length"
    *_, last = client.completions.create(
        model="decoder", prompt="the cat", max_tokens=7, stream=True, stream_options={"include_usage": True}
    )
    assert last.choices == [] and (last.usage.prompt_tokens, last.usage.completion_tokens) == (7, 7)


def test_choices_are_the_rows_of_one_generation(client: Any, runs: dict[str, Path]) -> None:
    prompts = ["the", "a dog"]
    rows = lemma.generate(runs["decoder"], [text for text in prompts for _ in range(3)], **SETTINGS)
    asked = {"model": "decoder", "prompt": prompts, "n": 3, **SAID}
    answer = client.completions.create(**asked)
    assert [choice.text for choice in answer.choices] == [row.text for row in rows] and len({*map(str, rows)}) == 6
    assert joined(client.completions.create(**asked, stream=True), 6) == [row.text for row in rows]


def test_without_a_seed_texts_differ_and_the_answer_names_the_one_it_took(client: Any, runs: dict[str, Path]) -> None:
    one, other = (client.completions.create(model="trigram", prompt="the", max_tokens=50) for _ in range(2))
    assert one.choices[0].text != other.choices[0].text
    again = lemma.generate(runs["trigram"], "the", tokens=50, temperature=1.0, seed=one.seed)
    assert again.text == one.choices[0].text  # temperature 1 is what clients expect where nothing is said


@pytest.mark.parametrize("stream", [False, True])
def test_text_ends_before_the_first_stop_string(stream: bool, client: Any, runs: dict[str, Path]) -> None:
    text = lemma.generate(runs["decoder"], "the", **SETTINGS).text
    stop = [text[20:23], text[11:13], "never said"]
    cut = min(place for place in map(text.find, stop) if place >= 0)
    assert cut > 3
    asked = {"model": "decoder", "prompt": "the", "stop": stop, **SAID}
    if stream:
        assert joined(client.completions.create(**asked, stream=True)) == [text[:cut]]
    else:
        answer = client.completions.create(**asked)
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == (text[:cut], "stop")
        seen = min(place + len(one) for one in stop if (place := text.find(one)) >= 0)
        assert answer.usage.completion_tokens == seen < 60  # characters: what was written until it was seen, no more


def test_a_chat_is_its_messages_a_line_each(client: Any, runs: dict[str, Path]) -> None:
    said = [{"role": "system", "content": "a cat"}, {"role": "user", "content": [{"type": "text", "text": "a dog"}]}]
    written = lemma.generate(runs["bytes"], "a cat\na dog", **SETTINGS)
    expected, reason = written.text, {"eos": "stop", "length": "length"}[written.stopped]
    answer = client.chat.completions.create(model="bytes", messages=said, **SAID)
    assert answer.choices[0].message.content == expected and answer.choices[0].message.role == "assistant"
    chunks = list(client.chat.completions.create(model="bytes", messages=said, stream=True, **SAID))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[-1].choices[0].finish_reason == reason


def test_echo_puts_the_prompt_before_the_text(client: Any) -> None:
    asked = {"model": "trigram", "prompt": ["the", "a dog"], **SAID}
    plain, echoed = (client.completions.create(**asked, echo=echo) for echo in (False, True))
    assert [choice.text for choice in echoed.choices] == [
        prompt + choice.text for prompt, choice in zip(asked["prompt"], plain.choices, strict=True)
    ]


def test_at_temperature_0_the_loop_is_proved(client: Any, runs: dict[str, Path]) -> None:
    asked = {"model": "trigram", "prompt": "the", "max_tokens": 200, "temperature": 0}
    loop = lemma.generate(runs["trigram"], "the", tokens=200, temperature=0.0).loop
    told = client.completions.create(**asked).choices[0].loop
    assert (told["onset"], told["period"], told["proved"]) == (loop.onset, loop.period, True)
    *_, last = client.completions.create(**asked, stream=True)
    assert last.choices[0].loop == told and "for ever" in told["remark"]


def test_a_translator_and_a_classifier_answer_a_source(client: Any, runs: dict[str, Path]) -> None:
    texts = ["a cat", "the dog"]
    named = lemma.generate(runs["mood"], source=texts)
    answer = client.completions.create(model="mood", prompt=texts)
    assert [choice.text for choice in answer.choices] == [one.label for one in named]
    assert answer.choices[0].chances == pytest.approx(named[0].chances) and answer.usage.prompt_tokens == 12
    translated = lemma.generate(runs["spanish"], source="the dog", tokens=5)
    said = [{"role": "user", "content": "what went before"}, {"role": "user", "content": "the dog"}]
    answer = client.chat.completions.create(model="spanish", messages=said, max_tokens=5)
    assert answer.choices[0].message.content == translated.text and answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == len(translated.tokens)
    with pytest.raises(openai.BadRequestError, match="gives the translation"):
        client.completions.create(model="spanish", prompt="a", temperature=0.5)


def test_requests_at_the_same_moment_do_not_meet(client: Any, runs: dict[str, Path]) -> None:
    jobs = [(model, seed) for model in ("decoder", "bytes") for seed in range(5)]
    with ThreadPoolExecutor(10) as pool:
        texts = pool.map(
            lambda job: client.completions.create(model=job[0], prompt="the", **{**SAID, "seed": job[1]}), jobs
        )
        found = [answer.choices[0].text for answer in texts]
    assert found == [lemma.generate(runs[m], "the", **{**SETTINGS, "seed": s}).text for m, s in jobs]
