"""`lemma generate`: text from a run, streamed."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from lemma.cli.common import Json, say, to_json
from lemma.errors import SpecError

TOKENS = 200
"""What is taken where an option is not given; None in the signature tells that it was not."""


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
    top_k: Annotated[int | None, typer.Option(help="Choose among the k most likely tokens only.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Choose among the most likely tokens that make up p.")] = None,
    seed: Annotated[int | None, typer.Option(help="Fixes the random choices; 1 if not given.")] = None,
    samples: Annotated[int | None, typer.Option(help="How many texts for each prompt; 1 if not given.")] = None,
    stop_at_loop: Annotated[
        bool | None, typer.Option(help="At temperature 0, stop when a loop is proved; no if not given.")
    ] = None,
    ignore_eos: Annotated[
        bool | None, typer.Option(help="Write on past the end-of-sentence token; no if not given.")
    ] = None,
    json: Json = False,
) -> None:
    """Write text from a run, or a source's translation or class.

    At temperature 0 it says where the text loops, and whether that is proved.
    """
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    sampling |= {"stop_at_loop": stop_at_loop, "ignore_eos": ignore_eos, "samples": samples}
    beams = {"beam": beam, "length_penalty": length_penalty}
    if source:
        _refuse(sampling | {"prompt": prompt}, "for text after a prompt, not for --source")
        _answer(run, source, _given(beams | {"tokens": tokens}), json)
    else:
        _refuse(beams, "for translations, which need --source")
        if chat is not None:
            _refuse({"prompt": prompt, "samples": samples}, "not for --chat, which is one message")
        _write(run, prompt or [""], _given(sampling | {"tokens": tokens, "chat": chat}), json)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _refuse(options: dict[str, Any], why: str) -> None:
    if names := [f"--{name.replace('_', '-')}" for name in _given(options)]:
        raise SpecError(f"{', '.join(names)}: {why}. Leave out the one or the other.")


def _write(run: Path, prompts: list[str], given: dict[str, Any], json: bool) -> None:
    """Continue prompts; a single one as it is written."""
    from lemma.api import generate as write

    settings = {"tokens": TOKENS, **given}
    samples, ignores = settings.pop("samples", 1), settings.pop("ignore_eos", False)
    prompts = [text for text in prompts for _ in range(max(1, samples))]
    echo = None if json or len(prompts) > 1 else _echo(prompts[0])
    if "chat" in settings:
        results = [write(run, stop_at_eos=not ignores, on_text=echo, **settings)]
    else:
        results = write(run, prompts, stop_at_eos=not ignores, on_text=echo, **settings)
    if json:
        _print_json([result.to_dict() for result in results], "generations")
    elif echo:
        echo(0, "")
        say("\n" + results[0].remark if results[0].remark else "")
    else:
        typer.echo("\n\n---\n\n".join(str(result) for result in results))


def _echo(prompt: str) -> Callable[[int, str], None]:
    """Print the prompt before the first piece: by then, all that can be wrong with the request has been told."""
    before = [prompt]

    def echo(_: int, piece: str) -> None:
        typer.echo((before.pop() if before else "") + piece, nl=False)

    return echo


def _answer(run: Path, sources: list[str], settings: dict[str, Any], json: bool) -> None:
    from lemma.api import generate as write

    results = write(run, source=sources, **settings)
    if json:
        _print_json([result.to_dict() for result in results], "answers")
    else:
        typer.echo("\n".join(str(result) for result in results))


def _print_json(values: list[dict[str, Any]], name: str) -> None:
    typer.echo(to_json(values[0] if len(values) == 1 else {name: values}))
