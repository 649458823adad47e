"""`lemma generate`: text from a run, streamed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lemma.cli.common import Json, given, say, to_json
from lemma.errors import SpecError

TOKENS, TEMPERATURE, SEED = 200, 0.8, 1
"""What is taken where an option is not given; None in the signature tells that it was not."""


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
    from lemma.api import generate as write

    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    sampling |= {"stop_at_loop": stop_at_loop, "ignore_eos": ignore_eos, "samples": samples}
    beams = {"beam": beam, "length_penalty": length_penalty}
    if source:
        _refuse(sampling | {"prompt": prompt}, "for text after a prompt, not for --source")
        answers = write(run, source=source, **given(beams | {"tokens": tokens}))
        return _print(answers, "answers", "\n", json)
    _refuse(beams, "for translations, which need --source")
    settings = {"tokens": TOKENS, "temperature": TEMPERATURE, "seed": SEED, **given(sampling | {"tokens": tokens})}
    times, ignores = settings.pop("samples", 1), settings.pop("ignore_eos", False)
    prompts = [text for text in prompt or [""] for _ in range(max(1, times))]
    before = [prompts[0]]

    def echo(_: int, piece: str) -> None:
        """Print the prompt before the first piece: by then, all that can be wrong with the request has been told."""
        typer.echo((before.pop() if before else "") + piece, nl=False)

    alone = not json and len(prompts) == 1  # printed as it is written
    results = write(run, prompts, stop_at_eos=not ignores, on_text=echo if alone else None, **settings)
    if not alone:
        return _print(results, "generations", "\n\n---\n\n", json)
    echo(0, "")
    return say("\n" + results[0].remark if results[0].remark else "")


def _refuse(options: dict[str, Any], why: str) -> None:
    if names := [f"--{name.replace('_', '-')}" for name in given(options)]:
        raise SpecError(f"{', '.join(names)}: {why}. Leave out the one or the other.")


def _print(results: Sequence[Any], name: str, between: str, as_json: bool) -> None:
    """Print results; as JSON a single one as it is, several under a name."""
    if as_json:
        values = [result.to_dict() for result in results]
        typer.echo(to_json(values[0] if len(values) == 1 else {name: values}))
    else:
        typer.echo(between.join(map(str, results)))
