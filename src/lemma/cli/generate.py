"""`lemma generate`: text from a run, streamed."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lemma.cli.show import Json, to_json
from lemma.errors import SpecError

TOKENS = 200


def generate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    prompt: Annotated[list[str] | None, typer.Option("--prompt", help="Where to begin; may be given again.")] = None,
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
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token always; 1 is the model's own.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Choose among the k likeliest tokens only.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Choose among the likeliest that make up p.")] = None,
    seed: Annotated[int, typer.Option(help="Fixes the random choices.")] = 1,
    samples: Annotated[int, typer.Option(help="How many texts for each prompt.")] = 1,
    stop_at_loop: Annotated[bool, typer.Option(help="At temperature 0, stop when a loop is proved.")] = False,
    ignore_eos: Annotated[bool, typer.Option(help="Write on past the end-of-sentence token.")] = False,
    json: Json = False,
) -> None:
    """Write text from a run, the translation of a source, or the class of one.

    At temperature 0 it says where the text loops, and whether that is proved.
    """
    from lemma.api import generate as write

    settings = {"beam": beam, "length_penalty": length_penalty, "tokens": tokens}
    given = {name: value for name, value in settings.items() if value is not None}
    if source:
        _answer(run, source, prompt, given, json)
        return
    if beam is not None or length_penalty is not None:
        raise SpecError("--beam and --length-penalty are for translations: give --source as well.")

    prompts = [text for text in prompt or [""] for _ in range(max(1, samples))]
    stream = not json and len(prompts) == 1
    echoed = False

    def echo(piece: str) -> None:
        """Print the prompt before the first piece: by then, all that can be wrong with the request has been told."""
        nonlocal echoed
        typer.echo(piece if echoed else prompts[0] + piece, nl=False)
        echoed = True

    results = write(
        run,
        prompts,
        tokens=TOKENS if tokens is None else tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop_at_loop=stop_at_loop,
        stop_at_eos=not ignore_eos,
        on_text=(lambda _, piece: echo(piece)) if stream else None,
    )
    if json:
        typer.echo(
            to_json(results[0].to_dict() if len(results) == 1 else {"generations": [r.to_dict() for r in results]})
        )
    elif stream:
        echo("")
        typer.echo("\n" + results[0].remark if results[0].remark else "")
    else:
        typer.echo("\n\n---\n\n".join(str(result) for result in results))


def _answer(run: Path, sources: list[str], prompt: list[str] | None, settings: dict[str, Any], json: bool) -> None:
    from lemma.api import generate as write

    if prompt:
        raise SpecError("--prompt and --source are both given: a text is continued, or a source is answered.")
    results = write(run, source=sources, **settings)
    if json:
        values = [result.to_dict() for result in results]
        typer.echo(to_json(values[0] if len(values) == 1 else {"answers": values}))
    else:
        typer.echo("\n".join(str(result) for result in results))
