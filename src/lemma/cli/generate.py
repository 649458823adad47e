"""`lemma generate`: generate text from a run, streamed; or translate or classify a source."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from lemma.cli.common import NUMBER, TEXT, TEXTS, Json, option, to_json, with_options
from lemma.errors import SpecError
from lemma.report.text import set_text_width, stream_width

DEFAULT_TOKENS = 200
CHOICE, ENDING = "Sampling", "Stopping"  # groups of options in the help
FRACTION, FLAG = float | None, bool | None
OPTIONS = {
    "prompt": option(TEXTS, "Prompt to continue; repeatable."),
    "chat": option(TEXT, "User message for a chat model."),
    "source": option(TEXTS, "Text to translate or classify; repeatable."),
    "beam": option(NUMBER, "Beam width for --source; 1 is greedy search."),
    "length_penalty": option(FRACTION, "Length penalty for --source; higher values favour long translations."),
    "tokens": option(NUMBER, "Maximum number of tokens to generate. Default: 200; for --source, the context."),
    "temperature": option(FRACTION, "Sampling temperature; 0 is greedy, 1 leaves the logits unchanged. Default: 0.8."),
    "top_k": option(NUMBER, "Keep only the k most likely tokens.", group=CHOICE),
    "top_p": option(FRACTION, "Keep the fewest most likely tokens whose total probability reaches p.", group=CHOICE),
    "min_p": option(FRACTION, "Keep tokens with at least this fraction of the highest probability.", group=CHOICE),
    "repetition_penalty": option(FRACTION, "Above 1, tokens of prompt and text become less likely.", group=CHOICE),
    "frequency_penalty": option(FRACTION, "Logit penalty for each time a token was generated.", group=CHOICE),
    "presence_penalty": option(FRACTION, "Logit penalty for a token that was generated at least once.", group=CHOICE),
    "no_repeat_ngram": option(NUMBER, "Never generate the same n-gram of N tokens twice.", group=CHOICE),
    "logit_bias": option(
        TEXTS,
        "Bias added to a token's logit, such as 17=-5; 17=-inf forbids the token; repeatable.",
        "ID=NUMBER",
        CHOICE,
    ),
    "stop": option(TEXTS, "Stop before this text; repeatable.", group=ENDING),
    "stop_token": option(list[int] | None, "Stop before the token with this id; repeatable.", group=ENDING),
    "stop_at_loop": option(
        FLAG, "At temperature 0, stop when a loop is proved or seen three times. Default: no.", group=ENDING
    ),
    "ignore_eos": option(FLAG, "Continue past the end-of-sentence token. Default: no.", group=ENDING),
    "seed": option(NUMBER, "Random seed. Default: chosen at random and printed."),
    "samples": option(NUMBER, "Number of samples per prompt. Default: 1."),
    "logprobs": option(NUMBER, "Show the model's log-probability of each token and of the N most likely tokens."),
    "precision": option(TEXT, "Precision on a GPU: float32, bfloat16 or auto (bfloat16 after the prompt; default)."),
}


@with_options("options", OPTIONS)
def generate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run, Hugging Face folder, .gguf file or model name.")],
    json: Json = False,
    *,
    options: dict[str, Any],
) -> None:
    """Generate text from a prompt, or translate or classify a text.

    At temperature 0, report where the text loops and whether the loop is proved.
    """
    beams = ("beam", "length_penalty")
    if sources := options.pop("source", None):
        options.pop("chat", None)
        sampling = [name for name in options if name not in (*beams, "tokens")]
        _reject(sampling, "for text after a prompt, not for --source")
        _answer_sources(run, sources, options, json)
    else:
        _reject([name for name in beams if name in options], "for translations, which need --source")
        if "chat" in options:
            extra = [name for name in ("prompt", "samples") if name in options]
            _reject(extra, "not for --chat, which is one message")
        _continue_prompts(run, options.pop("prompt", [""]), options, json)


def _reject(names: list[str], reason: str) -> None:
    """Raise SpecError with the reason if `names` has options that do not apply."""
    if names:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in names)
        raise SpecError(f"{flags}: {reason}. Leave out the one or the other.")


def _continue_prompts(run: Path, prompts: list[str], settings: dict[str, Any], json: bool) -> None:
    """Generate and print a continuation of each prompt; that of a single one as it is generated."""
    from lemma import api

    samples = settings.pop("samples", 1)
    if "logit_bias" in settings:
        settings["logit_bias"] = dict(map(_parse_bias, settings["logit_bias"]))
    if "stop_token" in settings:
        settings["stop_tokens"] = settings.pop("stop_token")
    if "ignore_eos" in settings:
        settings["stop_at_eos"] = not settings.pop("ignore_eos")
    echo = None if json or len(prompts) * samples > 1 else _make_echo(prompts[0])
    args = [] if "chat" in settings else [prompts]
    results = api.generate(run, *args, samples=samples, on_text=echo, defaults={"tokens": DEFAULT_TOKENS}, **settings)
    if json:
        _print_json(results, "generations")
        return
    with set_text_width(stream_width(sys.stdout)):
        if echo:
            echo(0, "")
            typer.echo("\n" + results[0].notes if results[0].notes else "")
        else:
            typer.echo("\n\n---\n\n".join(str(result) for result in results))


def _parse_bias(text: str) -> tuple[int, float]:
    """Return token id and bias of an argument such as 17=-5."""
    token, _, value = text.partition("=")
    try:
        return int(token), float(value)
    except ValueError:
        raise SpecError(f"--logit-bias {text}: expected a token's id and a number, as in 17=-5.") from None


def _make_echo(prompt: str) -> Callable[[int, str], None]:
    """Return a function (index, piece) that prints pieces of a text, preceded by its prompt."""
    pending = [prompt]

    def echo(_: int, piece: str) -> None:
        typer.echo((pending.pop() if pending else "") + piece, nl=False)

    return echo


def _answer_sources(run: Path, sources: list[str], settings: dict[str, Any], json: bool) -> None:
    """Print the translation or the class of each source."""
    from lemma import api

    results = api.generate(run, source=sources, **settings)
    if json:
        _print_json(results, "answers")
    else:
        typer.echo("\n".join(str(result) for result in results))


def _print_json(values: list[Any], name: str) -> None:
    """Print a single value as JSON, or several as the list `name` of an object."""
    typer.echo(to_json(values[0] if len(values) == 1 else {name: values}))
