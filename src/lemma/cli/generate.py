"""`lemma generate`: generate text from a run, streamed; or translate or classify a source."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from lemma.cli.common import Json, to_json
from lemma.errors import SpecError
from lemma.report.text import set_text_width, stream_width

DEFAULT_TOKENS = 200
CHOICE, ENDING = "Choice of tokens", "End"  # groups of options in the help


def generate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run, a Hugging Face folder, a .gguf file or a name.")],
    prompt: Annotated[list[str] | None, typer.Option("--prompt", help="Where to begin; may be given again.")] = None,
    chat: Annotated[str | None, typer.Option("--chat", help="A message to a model that chats.")] = None,
    source: Annotated[
        list[str] | None, typer.Option("--source", help="What to translate, or to classify; may be given again.")
    ] = None,
    beam: Annotated[
        int | None, typer.Option(help="Of --source: translations followed side by side; 1 is greedy.")
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="Of --source: how much a beam favours long ones.")
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="How many tokens to write; 200 if not given.")] = None,
    temperature: Annotated[
        float | None,
        typer.Option(help="0 always takes the most likely token; 1 is the model's own; 0.8 if not given."),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Choose among the k most likely tokens only.", rich_help_panel=CHOICE)
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Choose among the most likely tokens that make up p.", rich_help_panel=CHOICE)
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(help="Choose among tokens with this share of the highest probability.", rich_help_panel=CHOICE),
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        typer.Option(help="Above 1: tokens of prompt and text become less likely.", rich_help_panel=CHOICE),
    ] = None,
    frequency_penalty: Annotated[
        float | None,
        typer.Option(help="Subtracted from a token's logit for each time it was generated.", rich_help_panel=CHOICE),
    ] = None,
    presence_penalty: Annotated[
        float | None,
        typer.Option(help="Subtracted from a token's logit once it was generated.", rich_help_panel=CHOICE),
    ] = None,
    no_repeat_ngram: Annotated[
        int | None, typer.Option(help="Never write the same N tokens in a row twice.", rich_help_panel=CHOICE)
    ] = None,
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID=NUMBER",
            help="Added to the logit of a token, as in 17=-5; 17=-inf forbids it; may be given again.",
            rich_help_panel=CHOICE,
        ),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="End before this text; may be given again.", rich_help_panel=ENDING),
    ] = None,
    stop_token: Annotated[
        list[int] | None,
        typer.Option(help="End before the token with this id; may be given again.", rich_help_panel=ENDING),
    ] = None,
    stop_at_loop: Annotated[
        bool | None,
        typer.Option(
            help="At temperature 0, stop when a loop is proved, or seen three times; no if not given.",
            rich_help_panel=ENDING,
        ),
    ] = None,
    ignore_eos: Annotated[
        bool | None,
        typer.Option(help="Write on past the end-of-sentence token; no if not given.", rich_help_panel=ENDING),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Fixes the random choices; drawn by chance, and printed, if not given.")
    ] = None,
    samples: Annotated[int | None, typer.Option(help="How many texts for each prompt; 1 if not given.")] = None,
    logprobs: Annotated[
        int | None,
        typer.Option(help="Show the model's log-probability of each token, and of the N most likely ones."),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(help="On a GPU: auto (bfloat16 after the prompt), float32 or bfloat16; auto if not given."),
    ] = None,
    json: Json = False,
) -> None:
    """Generate text from a run, or a source's translation or class.

    At temperature 0 it says where the text loops, and whether that is proved.
    """
    sampling = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "no_repeat_ngram": no_repeat_ngram,
        "logit_bias": logit_bias,
        "stop": stop,
        "stop_token": stop_token,
        "stop_at_loop": stop_at_loop,
        "ignore_eos": ignore_eos,
        "seed": seed,
        "samples": samples,
        "logprobs": logprobs,
        "precision": precision,
    }
    beams = {"beam": beam, "length_penalty": length_penalty}
    if source:
        _reject(sampling | {"prompt": prompt}, "for text after a prompt, not for --source")
        _answer_sources(run, source, _drop_unset(beams | {"tokens": tokens}), json)
    else:
        _reject(beams, "for translations, which need --source")
        if chat is not None:
            _reject({"prompt": prompt, "samples": samples}, "not for --chat, which is one message")
        _continue_prompts(run, prompt or [""], _drop_unset(sampling | {"tokens": tokens, "chat": chat}), json)


def _drop_unset(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value not in (None, [])}


def _reject(options: dict[str, Any], reason: str) -> None:
    if names := [f"--{name.replace('_', '-')}" for name in _drop_unset(options)]:
        raise SpecError(f"{', '.join(names)}: {reason}. Leave out the one or the other.")


def _continue_prompts(run: Path, prompts: list[str], settings: dict[str, Any], json: bool) -> None:
    """Continue prompts; print the text of a single one as it is generated."""
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
    token, _, value = text.partition("=")
    try:
        return int(token), float(value)
    except ValueError:
        raise SpecError(f"--logit-bias {text}: expected a token's id and a number, as in 17=-5.") from None


def _make_echo(prompt: str) -> Callable[[int, str], None]:
    """Return a function that prints pieces of text, the prompt before the first: by then, the request is valid."""
    pending = [prompt]

    def echo(_: int, piece: str) -> None:
        typer.echo((pending.pop() if pending else "") + piece, nl=False)

    return echo


def _answer_sources(run: Path, sources: list[str], settings: dict[str, Any], json: bool) -> None:
    from lemma import api

    results = api.generate(run, source=sources, **settings)
    if json:
        _print_json(results, "answers")
    else:
        typer.echo("\n".join(str(result) for result in results))


def _print_json(values: list[Any], name: str) -> None:
    typer.echo(to_json(values[0] if len(values) == 1 else {name: values}))
