"""The `openai` package against a real server: responses equal `lemma.generate`."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import lemma
from lemma.data.tokenizers import train_tokenizer
from lemma.models.build import build
from lemma.retrieval.embedding import Embedder
from lemma.runs.checkpoint import named_weights
from lemma.runs.folder import RunFolder
from lemma.runs.load import load
from lemma.serving.jobs import GenerationJob
from lemma.spec.data import Characters
from lemma.spec.models import Encoder
from lemma.spec.recipe import Recipe
from search_runs import untrained_run
from served_runs import LINES, TEXT, running

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


def test_runs_are_listed_by_folder_name(client: Any, runs: dict[str, Path]) -> None:
    listed = {model.id: model for model in client.models.list()}
    assert list(listed) == list(runs)
    assert listed["decoder"].shows == ["generate", "look", "count", "evaluate"]
    assert "look" not in listed["trigram"].shows and listed["mood"].answers == "class"
    assert client.models.retrieve("bytes").family == "lstm"
    with pytest.raises(openai.NotFoundError, match="Did you mean 'trigram'"):
        client.models.retrieve("trigam")


@pytest.mark.parametrize("model", ["trigram", "decoder", "bytes"])
def test_completions_equal_generate_with_and_without_streaming(model: str, client: Any, runs: dict[str, Path]) -> None:
    for more, settings in (({}, {}), ({"top_p": 0.7}, {"top_p": 0.7}), ({"temperature": 0}, {"temperature": 0.0})):
        expected = lemma.generate(runs[model], "the cat", **{**SETTINGS, **settings})
        full = client.completions.create(model=model, prompt="the cat", **{**SAID, **more})
        assert full.choices[0].text == expected.text and len(expected.text) > 20
        assert joined(client.completions.create(model=model, prompt="the cat", stream=True, **{**SAID, **more})) == [
            expected.text
        ]


def test_usage_counts_tokens_exactly(client: Any, runs: dict[str, Path]) -> None:
    prompts = ["naïve 😀", "a"]
    answer = client.completions.create(model="bytes", prompt=prompts, n=2, max_tokens=9, seed=1, temperature=0.5)
    read = sum(len(load(runs["bytes"]).tokenizer.encode(prompt)) for prompt in prompts)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (read, 4 * 9)
    assert answer.usage.total_tokens == read + 36 and answer.choices[0].finish_reason == "length"
    *_, last = client.completions.create(
        model="decoder", prompt="the cat", max_tokens=7, stream=True, stream_options={"include_usage": True}
    )
    assert last.choices == [] and (last.usage.prompt_tokens, last.usage.completion_tokens) == (7, 7)


def test_choices_equal_rows_of_one_generation(client: Any, runs: dict[str, Path]) -> None:
    prompts = ["the", "a dog"]
    rows = lemma.generate(runs["decoder"], [text for text in prompts for _ in range(3)], **SETTINGS)
    request = {"model": "decoder", "prompt": prompts, "n": 3, **SAID}
    answer = client.completions.create(**request)
    assert [choice.text for choice in answer.choices] == [row.text for row in rows] and len({*map(str, rows)}) == 6
    assert joined(client.completions.create(**request, stream=True), 6) == [row.text for row in rows]


def test_unseeded_responses_differ_and_report_their_seed(client: Any, runs: dict[str, Path]) -> None:
    item, other = (client.completions.create(model="trigram", prompt="the", max_tokens=50) for _ in range(2))
    assert item.choices[0].text != other.choices[0].text
    again = lemma.generate(runs["trigram"], "the", tokens=50, temperature=1.0, seed=item.seed)
    assert again.text == item.choices[0].text  # clients expect temperature 1 by default


@pytest.mark.parametrize("stream", [False, True])
def test_completion_ends_before_the_first_stop_string(stream: bool, client: Any, runs: dict[str, Path]) -> None:
    text = lemma.generate(runs["decoder"], "the", **SETTINGS).text
    stop = [text[20:23], text[11:13], "never said"]
    cut = min(index for index in map(text.find, stop) if index >= 0)
    assert cut > 3
    request = {"model": "decoder", "prompt": "the", "stop": stop, **SAID}
    if stream:
        assert joined(client.completions.create(**request, stream=True)) == [text[:cut]]
    else:
        answer = client.completions.create(**request)
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == (text[:cut], "stop")
        seen = min(index + len(item) for item in stop if (index := text.find(item)) >= 0)
        assert (
            answer.usage.completion_tokens == seen < 60
        )  # characters: generation stops as soon as the stop string is complete


def test_chat_without_template_joins_messages_by_newline(client: Any, runs: dict[str, Path]) -> None:
    output = [{"role": "system", "content": "a cat"}, {"role": "user", "content": [{"type": "text", "text": "a dog"}]}]
    text = lemma.generate(runs["bytes"], "a cat\na dog", **SETTINGS)
    expected, reason = text.text, {"eos": "stop", "length": "length"}[text.stopped]
    answer = client.chat.completions.create(model="bytes", messages=output, **SAID)
    assert answer.choices[0].message.content == expected and answer.choices[0].message.role == "assistant"
    chunks = list(client.chat.completions.create(model="bytes", messages=output, stream=True, **SAID))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[-1].choices[0].finish_reason == reason


def test_echo_prepends_the_prompt(client: Any) -> None:
    request = {"model": "trigram", "prompt": ["the", "a dog"], **SAID}
    base, echoed = (client.completions.create(**request, echo=echo) for echo in (False, True))
    assert [choice.text for choice in echoed.choices] == [
        prompt + choice.text for prompt, choice in zip(request["prompt"], base.choices, strict=True)
    ]


def test_temperature_0_response_reports_a_proved_loop(client: Any, runs: dict[str, Path]) -> None:
    request = {"model": "trigram", "prompt": "the", "max_tokens": 200, "temperature": 0}
    loop = lemma.generate(runs["trigram"], "the", tokens=200, temperature=0.0).loop
    messages = client.completions.create(**request).choices[0].loop
    assert (messages["onset"], messages["period"], messages["proved"]) == (loop.onset, loop.period, True)
    *_, last = client.completions.create(**request, stream=True)
    assert last.choices[0].loop == messages and "for ever" in messages["remark"]


def test_translator_and_classifier_accept_a_source(client: Any, runs: dict[str, Path]) -> None:
    texts = ["a cat", "the dog"]
    labelled = lemma.generate(runs["mood"], source=texts)
    answer = client.completions.create(model="mood", prompt=texts)
    assert [choice.text for choice in answer.choices] == [item.label for item in labelled]
    assert answer.choices[0].chances == pytest.approx(labelled[0].probabilities) and answer.usage.prompt_tokens == 12
    translated = lemma.generate(runs["spanish"], source="the dog", tokens=5)
    output = [{"role": "user", "content": "what went before"}, {"role": "user", "content": "the dog"}]
    answer = client.chat.completions.create(model="spanish", messages=output, max_tokens=5)
    assert answer.choices[0].message.content == translated.text and answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == len(translated.tokens)
    with pytest.raises(openai.BadRequestError, match="gives the translation"):
        client.completions.create(model="spanish", prompt="a", temperature=0.5)


def test_simultaneous_requests_do_not_interfere(client: Any, runs: dict[str, Path]) -> None:
    jobs = [(model, seed) for model in ("decoder", "bytes") for seed in range(5)]
    with ThreadPoolExecutor(10) as pool:
        texts = pool.map(
            lambda job: client.completions.create(model=job[0], prompt="the", **{**SAID, "seed": job[1]}), jobs
        )
        result = [answer.choices[0].text for answer in texts]
    assert result == [lemma.generate(runs[m], "the", **{**SETTINGS, "seed": s}).text for m, s in jobs]


def test_logprobs_equal_generate(client: Any, runs: dict[str, Path]) -> None:
    expected = lemma.generate(runs["decoder"], "the", **SETTINGS, logprobs=3)
    messages = client.completions.create(model="decoder", prompt="the", logprobs=3, **SAID).choices[0].logprobs
    assert messages.token_logprobs == pytest.approx([logprob.logprob for logprob in expected.logprobs], abs=1e-4)
    assert "".join(messages.tokens) == expected.text and messages.text_offset == list(range(3, 63))
    for top, logprob in zip(messages.top_logprobs, expected.logprobs, strict=True):
        best = {other.text: other.logprob for other in logprob.top}
        assert {name: top[name] for name in best} == pytest.approx(best, abs=1e-4) and set(top) <= {*best, logprob.text}
    output = [{"role": "user", "content": "the"}]
    request = {"model": "decoder", "messages": output, "logprobs": True, "top_logprobs": 2, **SAID}
    content = client.chat.completions.create(**request).choices[0].logprobs.content
    assert [logprob.logprob for logprob in content] == pytest.approx(messages.token_logprobs)
    assert [bytes(logprob.bytes).decode() for logprob in content] == messages.tokens and {
        len(logprob.top_logprobs) for logprob in content
    } == {2}
    chunks = list(client.chat.completions.create(stream=True, **request))
    with pytest.raises(openai.BadRequestError, match="needs logprobs = true"):
        client.chat.completions.create(**{**request, "logprobs": None})
    streamed = [
        logprob for chunk in chunks if chunk.choices[0].logprobs for logprob in chunk.choices[0].logprobs.content
    ]
    assert [logprob.logprob for logprob in streamed] == pytest.approx(messages.token_logprobs)


@pytest.mark.parametrize("echo", [True, False])
@pytest.mark.parametrize("prompt", ["é🙂x", "café", "日", "a"])
def test_text_offsets_count_characters_with_partial_tokens(prompt: str, echo: bool, client: Any) -> None:
    request = {"model": "bytes", "prompt": prompt, "max_tokens": 40, "logprobs": 0, "echo": echo, "temperature": 1.5}
    parts = 0
    for seed in range(4):
        [choice] = client.completions.create(**request, seed=seed).choices
        text, messages = choice.text if echo else prompt + choice.text, choice.logprobs
        for token, offset in zip(messages.tokens, messages.text_offset, strict=True):
            parts += "\N{REPLACEMENT CHARACTER}" in token
            separate = "\N{REPLACEMENT CHARACTER}" in token or token == "<eos>"  # it ends the text
            assert separate or text[offset : offset + len(token)] == token
        streamed = client.completions.create(**request, seed=seed, stream=True)
        offsets = [chunk.choices[0].logprobs.text_offset for chunk in streamed if chunk.choices[0].logprobs]
        assert [offset for subset in offsets for offset in subset] == messages.text_offset
    assert parts


def test_text_offsets_of_invalid_bytes_are_exact_and_cheap(
    client: Any, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, spell = [], GenerationJob.decode_partial
    monkeypatch.setattr(
        GenerationJob, "decode_partial", lambda job, *given: looked.append(len(given[0])) or spell(job, *given)
    )
    byte = next(token for token in range(3, 259) if lemma.load(runs["bytes"]).tokenizer.decode([token]) == "\ufffd")
    request = {"model": "bytes", "prompt": "a", "max_tokens": 300, "logprobs": 0, "logit_bias": {str(byte): 100}}
    [choice] = client.completions.create(**request, seed=1).choices
    offsets = choice.logprobs.text_offset
    assert len(choice.text) == 300 and offsets == sorted(offsets)
    assert all(
        0 <= index + 1 - offset <= 3 for index, offset in enumerate(offsets)
    )  # the last bytes may still become another character
    assert 0 < max(looked) <= 9


def test_penalties_and_bias_equal_generate(client: Any, runs: dict[str, Path]) -> None:
    same = {"frequency_penalty": 0.7, "presence_penalty": -0.3}
    more = {"min_p": 0.02, "repetition_penalty": 1.2}
    text = lemma.generate(runs["decoder"], "the", **SETTINGS, **same, **more, logit_bias={7: 4.0}).text
    request = {"model": "decoder", "prompt": "the", **SAID, **same, "logit_bias": {"7": 4}, "extra_body": more}
    assert client.completions.create(**request).choices[0].text == text
    assert text != lemma.generate(runs["decoder"], "the", **SETTINGS).text


def test_prompts_may_be_token_ids(client: Any, runs: dict[str, Path]) -> None:
    tokenizer = load(runs["bytes"]).tokenizer
    ids = [tokenizer.encode(text).tolist() for text in ("the cat", "naïve 😀")]
    of_texts = client.completions.create(model="bytes", prompt=["the cat", "naïve 😀"], **SAID)
    of_tokens = client.completions.create(model="bytes", prompt=ids, **SAID)
    assert [choice.text for choice in of_tokens.choices] == [choice.text for choice in of_texts.choices]
    assert of_tokens.usage == of_texts.usage
    single = client.completions.create(model="bytes", prompt=ids[0], echo=True, **SAID)
    assert single.choices[0].text == "the cat" + of_texts.choices[0].text


def test_echo_scores_prompt_tokens(client: Any, runs: dict[str, Path]) -> None:
    run, text = load(runs["decoder"]), "the cat"
    ids = torch.tensor([run.tokenizer.encode(text).tolist()])
    logs = run.model(ids)[0].double().log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
    for stream in (False, True):
        request = {"model": "decoder", "prompt": text, "echo": True, "logprobs": 1, "max_tokens": 0, "stream": stream}
        answer = client.completions.create(**request)
        choice = next(chunk.choices[0] for chunk in answer) if stream else answer.choices[0]
        assert choice.text == text and choice.logprobs.tokens == list(text)
        assert choice.logprobs.token_logprobs[0] is None and choice.logprobs.text_offset == list(range(7))
        assert choice.logprobs.token_logprobs[1:] == pytest.approx(logs.tolist(), abs=1e-5)


def test_empty_prompt_has_no_logprobs(client: Any) -> None:
    answer = client.completions.create(model="decoder", prompt="", echo=True, logprobs=0, **SAID)
    assert answer.usage.prompt_tokens == 0
    assert len(answer.choices[0].logprobs.tokens) == answer.usage.completion_tokens


def test_overlong_prompt_is_rejected_or_truncated_on_request(client: Any, runs: dict[str, Path]) -> None:
    long = "the cat sat on the mat"
    with pytest.raises(openai.BadRequestError, match="truncate_prompt_tokens") as caught:
        client.completions.create(model="decoder", prompt=long, **SAID)
    assert caught.value.code == "context_length_exceeded"
    for request, saved in ((-1, 12), (5, 5), (500, 12)):
        extra = {"truncate_prompt_tokens": request}
        answer = client.completions.create(model="decoder", prompt=long, extra_body=extra, **SAID)
        assert answer.choices[0].text == lemma.generate(runs["decoder"], long[-saved:], **SETTINGS).text
        assert answer.usage.prompt_tokens == saved and answer.prompt_tokens_cut == 22 - saved


def test_encoder_and_dual_encoder_serve_embeddings(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(Characters(), LINES)
    spec = Encoder(width=8, depth=1, heads=2, context=16).with_data_sizes({"vocabulary": tokenizer.vocabulary + 3})
    torch.manual_seed(2)
    model = build(spec, 0.0)
    folder = RunFolder(tmp_path / "reader", spec, Recipe(device="cpu"), TEXT, "0").create(tokenizer)
    folder.finish(named_weights(model, include_frozen=True), {})
    towers = untrained_run(tmp_path / "towers")
    with running(tmp_path / "reader", towers) as address:
        custom = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        texts, marks = ["the cat", "a dog?"], tokenizer.vocabulary
        built = custom.embeddings.create(model="reader", input=texts, encoding_format="float")
        for text, item in zip(texts, built.data, strict=True):
            ids = torch.tensor([[marks, *tokenizer.encode(text).tolist(), marks + 1]])
            mean = model.eval().vectors(ids)[0, 1:-1].mean(0)
            assert item.embedding == pytest.approx((mean / mean.norm()).tolist(), abs=1e-5)
        assert built.usage.prompt_tokens == 13
        again = custom.embeddings.create(model="reader", input=[tokenizer.encode(item).tolist() for item in texts])
        assert again.data[1].embedding == pytest.approx(built.data[1].embedding)
        with pytest.raises(openai.BadRequestError, match="from 1 to 14 are read"):
            custom.embeddings.create(model="reader", input="the cat sat on the mat")
        with pytest.raises(openai.BadRequestError, match="/v1/embeddings"):
            custom.completions.create(model="towers", prompt="a")
        expected, _ = Embedder(load(towers)).text_vectors(["a red"])
        result = custom.embeddings.create(model="towers", input="a red", encoding_format="float").data[0].embedding
        assert result == pytest.approx(expected[0].tolist(), abs=1e-6)

        service: Any = running.server._service
        item, embedded = service.served["reader"], list[str]()

        def embed_slowly(inputs: list[Any], real: Any = item.embed) -> Any:
            embedded.extend(inputs)
            time.sleep(0.4)
            return real(inputs)

        item.embed, service.limits = embed_slowly, replace(service.limits, seconds=0.2)
        with pytest.raises(openai.InternalServerError, match=r"more than 0\.2 s") as raised:
            custom.embeddings.create(model="reader", input="too late")
        assert raised.value.status_code == 504
        service.limits = replace(service.limits, seconds=20)
        with pytest.raises(openai.APITimeoutError):  # the client left before its turn
            custom.embeddings.create(model="reader", input="who leaves", timeout=0.1)
        assert custom.embeddings.create(model="reader", input="the cat", encoding_format="float").data
        assert embedded == ["too late", "the cat"] and not item.jobs
