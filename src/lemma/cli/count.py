"""`lemma count`: count parameters, operations and bytes as formulas."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from lemma.cli.common import Json, announce_if_slow, print_result, split_settings
from lemma.errors import SpecError

SLOW_MESSAGE = "Reading the formulas off the module, at many small sizes; they are kept for the next time."


Form = StrEnum("Form", ["text", "markdown", "latex", "html"])
Causal = StrEnum("Causal", ["full", "half"])


def count(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL [KEY=VALUE]...",
            help="A preset, spec file, run folder, example or package.module:factory; then sizes such as d=512 B=8.",
        ),
    ],
    only: Annotated[
        str | None,
        typer.Option(
            metavar="QUANTITY,…", help="Some of: parameters, active, flops, backward, activations, cache, optimizer."
        ),
    ] = None,
    multiply_add: Annotated[int, typer.Option(min=1, max=2, help="A multiply–add counts as 1 or as 2.")] = 2,
    causal: Annotated[Causal, typer.Option(help="Count all scores of causal attention, or half.")] = Causal.full,
    elementwise: Annotated[bool, typer.Option("--elementwise", help="Count elementwise work too.")] = False,
    solve: Annotated[
        str | None,
        typer.Option(
            metavar="SYMBOL,…|BOUND",
            help="Find these sizes from a printed --total; or the largest one: 'activations <= 80GB for d'.",
        ),
    ] = None,
    total: Annotated[
        list[str] | None, typer.Option(metavar="[L=2:]NUMBER", help="A printed total; several narrow the search.")
    ] = None,
    within: Annotated[
        list[str] | None, typer.Option(metavar="SYMBOL=FROM..TO", help="Where to look for a size, for --solve.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="TOOL,…", help="Set torchinfo, fvcore or calflops next to the exact figures."),
    ] = None,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Plan a training: memory, time, what fits. Settings: gpu=H200 (or memory= flops= bandwidth=) batch=32 "
            "precision=bfloat16 optimizer=adamw recompute=layers shards=8 accumulate=1 efficiency=0.6 reserve=0.05.",
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Of --plan: write it there (.html, .json, .md, …).")
    ] = None,
    draw: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw the flow of data with all its shapes instead.")
    ] = None,
    time_limit: Annotated[
        float, typer.Option(metavar="SECONDS", help="Processor time for the formulas of one quantity.")
    ] = 120.0,
    memory_limit: Annotated[
        float, typer.Option(metavar="MIB", help="How much memory the weights of a run may take while counting.")
    ] = 256.0,
    form: Annotated[Form, typer.Option("--format", help="How to write it.")] = Form.text,
    json: Json = False,
) -> None:
    """Count parameters, FLOPs and bytes as formulas.

    They are read off the real module and proved against it at sizes not used for the fit. Examples next to the presets:
    torch-transformer, torch-lstm, gpt2, llama, self-attention.
    """
    import lemma.api as lemma

    sizes, names = split_settings(arguments)
    if solve and len(names) > 1 and names[1] == "for":  # --solve "activations <= 80GB" for d
        solve, names = f"{solve} {' '.join(names[1:])}", names[:1]
    if len(names) != 1:
        raise SpecError(f"one MODEL is expected, got {len(names)}: {' '.join(names)}. As in: lemma count decoder d=512")
    model, quantities = names[0], _split_list(only) or None
    if out and not plan:
        raise SpecError("--out belongs to --plan; of an account use --format html, markdown or latex.")
    if plan:
        with announce_if_slow("Following training steps at several sizes, on tensors that take no memory."):
            result = lemma.count.plan(model, **sizes)
        print_result(result, json, out)
        raise typer.Exit(0 if result.fits else 1)
    if solve or total:
        solutions, is_solved = _solve(model, solve, total, quantities, within or (), sizes)
        print_result(solutions, json)
        raise typer.Exit(0 if is_solved else 1)
    if against:
        return print_result(lemma.count.against(model, _split_list(against), **sizes), json)
    if draw:
        drawing = lemma.count.draw(model, **sizes)
        drawing.save(draw)
        return print_result(drawing, True) if json else typer.echo(f"The drawing is in {draw}")
    conventions: dict[str, Any] = {"multiply_add": multiply_add, "causal": str(causal), "elementwise": elementwise}
    limits: dict[str, Any] = {"time_limit": time_limit, "memory_limit": memory_limit}
    with announce_if_slow(SLOW_MESSAGE):
        account = lemma.count(model, quantities=quantities, **conventions, **limits, **sizes)
    if json or form is Form.text:
        return print_result(account, json)
    return typer.echo(
        {Form.markdown: account.markdown, Form.latex: account.latex, Form.html: account._repr_html_}[form]()
    )


def _solve(
    model: str,
    unknown: str | None,
    totals: list[str] | None,
    quantities: list[str] | None,
    ranges: Sequence[str],
    sizes: dict[str, Any],
) -> tuple[Any, bool]:
    """Find sizes from totals, or the largest below a bound; return the result, and whether there is one."""
    import lemma.api as lemma

    if unknown and any(sign in unknown for sign in "<>≤≥"):
        with announce_if_slow(SLOW_MESSAGE):
            largest: Any = lemma.count.solve(model, unknown, ranges=ranges, **sizes)
        return largest, largest.size is not None
    if not unknown or not totals:
        raise SpecError(
            "--solve and --total belong together, as in: lemma count table-a5 --solve V,d_e --total 9721596"
        )
    if quantities and len(quantities) > 1:
        raise SpecError(f"--solve takes one quantity, got {', '.join(quantities)}.")
    (quantity,) = quantities or ["parameters"]
    solutions: Any = lemma.count.solve(model, _split_list(unknown), totals, quantity=quantity, ranges=ranges, **sizes)
    return solutions, bool(solutions.number)


def _split_list(names: str | None) -> list[str]:
    return [name.strip() for name in (names or "").split(",") if name.strip()]
