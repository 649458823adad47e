"""`lemma generate` and `lemma.generate`: every setting reaches the model, and what does not apply is refused."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

import lemma
from lemma.cli.main import app
from lemma.errors import InputError, LemmaError, SpecError
from lemma.runs.load import Run, load
from served_runs import untrained


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("runs")
    return {kind: load(untrained(folder, kind)) for kind in ("trigram", "decoder", "bytes", "spanish", "mood")}


@pytest.fixture(autouse=True)
def _drawn_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.randbelow", lambda _: 1)


def typed(run: Run, *words: str) -> Any:
    done = CliRunner().invoke(app, ["generate", str(run.path), *words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


OPTIONS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "min_p": (["--min-p", "0.3"], {"min_p": 0.3}),
    "repetition_penalty": (["--repetition-penalty", "3"], {"repetition_penalty": 3.0}),
    "frequency_penalty": (["--frequency-penalty", "2.5"], {"frequency_penalty": 2.5}),
    "presence_penalty": (["--presence-penalty", "4"], {"presence_penalty": 4.0}),
    "no_repeat_ngram": (["--no-repeat-ngram", "1", "--tokens", "9"], {"no_repeat_ngram": 1, "tokens": 9}),
    "logit_bias": (["--logit-bias", "3=9", "--logit-bias", "0=-inf"], {"logit_bias": {3: 9.0, 0: float("-inf")}}),
    "stop": (["--stop", "e", "--stop", "t"], {"stop": ["e", "t"]}),
    "stop_tokens": (["--stop-token", "3", "--stop-token", "4"], {"stop_tokens": [3, 4]}),
    "logprobs": (["--logprobs", "2"], {"logprobs": 2}),
    "top_k": (["--top-k", "2"], {"top_k": 2}),
    "top_p": (["--top-p", "0.4"], {"top_p": 0.4}),
}


@pytest.mark.parametrize("kind", ["trigram", "decoder", "bytes"])
@pytest.mark.parametrize("name", OPTIONS)
def test_generate_options_set_sampling_settings_of_the_same_name(kind: str, name: str, runs: dict[str, Run]) -> None:
    words, settings = OPTIONS[name]
    run = runs[kind]
    results = typed(run, "--prompt", "the", "--temperature", "1.5", *words)
    result = lemma.generate(run, "the", **{"tokens": 200, "temperature": 1.5, **settings})
    base = result.to_dict()
    assert results.pop("tokens_per_second") > 0 and base.pop("tokens_per_second") > 0
    assert results == json.loads(json.dumps(base))
    if name != "logprobs":
        without = lemma.generate(run, "the", tokens=settings.get("tokens", 200), temperature=1.5)
        assert result.tokens != without.tokens
    assert result.stopped == ("stop" if "stop" in name else "length")


def test_samples_are_ordered_by_prompt(runs: dict[str, Run]) -> None:
    run = runs["bytes"]
    result = typed(run, "--prompt", "a", "--prompt", "the", "--samples", "2", "--tokens", "8", "--seed", "5")
    assert [item["prompt"] for item in result["generations"]] == ["a", "a", "the", "the"]
    again = lemma.generate(run, ["a", "the"], samples=2, tokens=8, seed=5)
    assert [item["tokens"] for item in result["generations"]] == [list(item.tokens) for item in again]
    assert again[0].tokens == lemma.generate(run, "a", tokens=8, seed=5).tokens
    assert again[1].tokens == lemma.generate(run, "a", tokens=8, seed=6).tokens
    assert len(lemma.generate(run, "a", samples=1, tokens=1)) == 1  # a list, since `samples` is set


def test_stream_yields_complete_characters(runs: dict[str, Run]) -> None:
    run = runs["bytes"]
    text = lemma.generate(run, "the", tokens=60, temperature=2.0).text
    pieces = list(lemma.generate(run, "the", tokens=60, temperature=2.0, stream=True))
    assert "".join(pieces) == text and len(pieces) > 5
    many = lemma.generate(run, ["the", "a"], tokens=9, stream=True)
    texts = ["", ""]
    for number, piece in many:
        texts[number] += piece
    assert texts == [item.text for item in lemma.generate(run, ["the", "a"], tokens=9)]
    numbered = list(lemma.generate(run, "the", tokens=9, samples=1, stream=True))
    assert {number for number, _ in numbered} == {0}


def test_unset_options_take_their_defaults(runs: dict[str, Run]) -> None:
    run = runs["decoder"]
    choice = lemma.generate(run, "the", temperature=0.0, defaults={"tokens": 7, "temperature": 1.0, "logprobs": 0})
    assert len(choice.tokens) == 7 and choice.logprobs is not None
    assert choice.tokens == lemma.generate(run, "the", temperature=0.0, tokens=7).tokens


def test_terminal_output_shows_text_before_logprobs(runs: dict[str, Run]) -> None:
    words = ["generate", str(runs["trigram"].path), "--prompt", "the", "--tokens", "4", "--logprobs", "1"]
    done = CliRunner().invoke(app, words)
    result = lemma.generate(runs["trigram"], "the", tokens=4, logprobs=1)
    assert done.stdout.startswith(f"the{result.text}\n") and "most likely" in done.stdout
    assert done.stdout.rstrip("\n") == str(result).rstrip("\n")


REFUSED: list[tuple[str, dict[str, Any], type[LemmaError], str]] = [
    ("spanish", {"source": "a", "min_p": 0.1}, SpecError, "min_p: for text after a prompt. A source is translated by"),
    ("spanish", {"source": "a", "stop": "x", "samples": 2}, SpecError, "stop, samples: for text after a prompt"),
    ("spanish", {"source": "a", "stream": True}, SpecError, "stream: for text after a prompt"),
    ("spanish", {"source": "a", "on_text": print}, SpecError, "on_text: for text after a prompt"),
    ("spanish", {"source": "a", "prompt": "x"}, SpecError, "prompt: for text after a prompt"),
    ("mood", {"source": "a", "logprobs": 1}, SpecError, "a classifier has no use for logprobs"),
    ("bytes", {"prompt": "a", "beam": 3}, SpecError, "beam: for translations, which need source"),
    ("bytes", {"prompt": "a", "length_penalty": 1.0}, SpecError, "length_penalty: for translations"),
    ("bytes", {"prompt": "a", "stream": True, "on_text": print}, SpecError, "stream returns the pieces"),
    ("bytes", {"prompt": "a", "minp": 0.1}, SpecError, "Did you mean 'min_p'"),
    ("bytes", {"prompt": "a", "stop_tokens": [10**6]}, InputError, "stop_tokens: token 1000000 is outside"),
]


@pytest.mark.parametrize(("kind", "words", "error", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_inapplicable_generation_settings_are_rejected(
    kind: str, words: dict[str, Any], error: type[LemmaError], message: str, runs: dict[str, Run]
) -> None:
    with pytest.raises(error, match=message):
        lemma.generate(runs[kind], **words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--source", "a", "--min-p", "0.1", "--stop", "x"],
            "--min-p, --stop: for text after a prompt, not for --source",
        ),
        (["--prompt", "a", "--beam", "2"], "--beam: for translations, which need --source"),
        (["--logit-bias", "x=3"], "--logit-bias x=3: expected a token's id and a number, as in 17=-5"),
        (["--logit-bias", "3"], "--logit-bias 3: expected a token's id and a number, as in 17=-5"),
    ],
)
def test_inapplicable_command_line_options_are_rejected(words: list[str], message: str, runs: dict[str, Run]) -> None:
    with pytest.raises(SpecError, match=message):
        CliRunner().invoke(app, ["generate", str(runs["bytes"].path), *words], catch_exceptions=False)
