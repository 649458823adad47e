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
CHOICE, ENDING = "Choice of tokens", "End"  # groups of options in the help
FRACTION, FLAG = float | None, bool | None
OPTIONS = {
    "prompt": option(TEXTS, "Where to begin; may be given again."),
    "chat": option(TEXT, "A message to a model that chats."),
    "source": option(TEXTS, "What to translate, or to classify; may be given again."),
    "beam": option(NUMBER, "Of --source: translations followed side by side; 1 is greedy."),
    "length_penalty": option(FRACTION, "Of --source: how much a beam favours long ones."),
    "tokens": option(NUMBER, "How many tokens to write; 200 if not given."),
    "temperature": option(FRACTION, "0 always takes the most likely token; 1 is the model's own; 0.8 if not given."),
    "top_k": option(NUMBER, "Choose among the k most likely tokens only.", group=CHOICE),
    "top_p": option(FRACTION, "Choose among the most likely tokens that make up p.", group=CHOICE),
    "min_p": option(FRACTION, "Choose among tokens with this share of the highest probability.", group=CHOICE),
    "repetition_penalty": option(FRACTION, "Above 1: tokens of prompt and text become less likely.", group=CHOICE),
    "frequency_penalty": option(
        FRACTION, "Subtracted from a token's logit for each time it was generated.", group=CHOICE
    ),
    "presence_penalty": option(FRACTION, "Subtracted from a token's logit once it was generated.", group=CHOICE),
    "no_repeat_ngram": option(NUMBER, "Never write the same N tokens in a row twice.", group=CHOICE),
    "logit_bias": option(
        TEXTS,
        "Added to the logit of a token, as in 17=-5; 17=-inf forbids it; may be given again.",
        "ID=NUMBER",
        CHOICE,
    ),
    "stop": option(TEXTS, "End before this text; may be given again.", group=ENDING),
    "stop_token": option(list[int] | None, "End before the token with this id; may be given again.", group=ENDING),
    "stop_at_loop": option(
        FLAG, "At temperature 0, stop when a loop is proved, or seen three times; no if not given.", group=ENDING
    ),
    "ignore_eos": option(FLAG, "Write on past the end-of-sentence token; no if not given.", group=ENDING),
    "seed": option(NUMBER, "Fixes the random choices; drawn by chance, and printed, if not given."),
    "samples": option(NUMBER, "How many texts for each prompt; 1 if not given."),
    "logprobs": option(NUMBER, "Show the model's log-probability of each token, and of the N most likely ones."),
    "precision": option(TEXT, "On a GPU: auto (bfloat16 after the prompt), float32 or bfloat16; auto if not given."),
}


@with_options("options", OPTIONS)
def generate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run, a Hugging Face folder, a .gguf file or a name.")],
    json: Json = False,
    *,
    options: dict[str, Any],
) -> None:
    """Generate text from a run, or a source's translation or class.

    At temperature 0 it says where the text loops, and whether that is proved.
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
