"""`lemma count`: count parameters, operations and bytes as formulas."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from lemma.cli.common import TEXT, TEXTS, Json, announce_if_slow, option, print_result, split_settings, with_options
from lemma.errors import SpecError

SLOW_MESSAGE = "Reading the formulas off the module, at many small sizes; they are kept for the next time."


Form = StrEnum("Form", ["text", "markdown", "latex", "html"])
Causal = StrEnum("Causal", ["full", "half"])


OPTIONS = {
    "only": option(TEXT, "Some of: parameters, active, flops, backward, activations, cache, optimizer.", "QUANTITY,…"),
    "multiply_add": option(int, "Number of operations per multiply–add: 1 or 2.", default=2, min=1, max=2),
    "causal": option(Causal, "Count all scores of causal attention, or half of them.", default=Causal.full),
    "elementwise": option(bool, "Count elementwise operations too.", names="--elementwise", default=False),
    "solve": option(
        TEXT,
        "Solve for these sizes given --total, or for the largest size: 'activations <= 80GB for d'.",
        "SYMBOL,…|BOUND",
    ),
    "total": option(TEXTS, "Published total to solve for; repeatable, to narrow the search.", "[L=2:]NUMBER"),
    "within": option(TEXTS, "Search range of a size for --solve; repeatable.", "SYMBOL=FROM..TO"),
    "against": option(TEXT, "Compare with torch, torchinfo, fvcore or calflops.", "TOOL,…"),
    "plan": option(
        bool,
        "Plan a training run: memory, time, what fits. Settings: gpu=H200 (or memory= flops= bandwidth=) batch=32 "
        "precision=bfloat16 optimizer=adamw recompute=layers accumulate=1 efficiency=0.6 reserve=0.05; of several "
        "devices: data=2 shards=8 tensor=2 pipeline=4, or devices=64 to choose; link=NVLink network=400Gb/s node=8.",
        names="--plan",
        default=False,
    ),
    "out": option(Path | None, "Output file of --plan: .html, .json, .md …", "FILE"),
    "draw": option(Path | None, "Draw the data flow with all shapes instead.", "FILE.svg"),
    "time_limit": option(float, "CPU time limit for the formulas of one quantity.", "SECONDS", default=120.0),
    "memory_limit": option(float, "Maximum size of the weights in runs on real tensors.", "MIB", default=256.0),
    "form": option(Form, "Output format.", names="--format", default=Form.text),
}


@with_options("options", OPTIONS)
def count(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL [KEY=VALUE]...",
            help="Preset, spec file, run folder, example, config.json, type of transformers model or "
            "package.module:factory or file.py:factory; then sizes such as d=512 B=8.",
        ),
    ],
    json: Json = False,
    *,
    options: dict[str, Any],
) -> None:
    """Count parameters, FLOPs and bytes as formulas.

    They are derived from the real module and verified against it at sizes not used for the fit. Besides presets, count
    takes the examples torch-transformer, torch-lstm, gpt2, llama and self-attention.
    """
    import lemma.api as lemma

    sizes, names = split_settings(arguments)
    unknown = options.get("solve")
    if unknown and len(names) > 1 and names[1] == "for":  # --solve "activations <= 80GB" for d
        unknown, names = f"{unknown} {' '.join(names[1:])}", names[:1]
    if not names and "model_type" in sizes:  # of transformers
        names = [str(sizes.pop("model_type"))]
    if len(names) != 1:
        raise SpecError(f"one MODEL is expected, got {len(names)}: {' '.join(names)}. As in: lemma count decoder d=512")
    model, quantities, form = names[0], _split_list(options.get("only")) or None, options["form"]
    if "out" in options and not options["plan"]:
        raise SpecError("--out belongs to --plan; of an account use --format html, markdown or latex.")
    if options["plan"]:
        with announce_if_slow("Following training steps at several sizes, on tensors that take no memory."):
            result = lemma.count.plan(model, **sizes)
        print_result(result, json, options.get("out"))
        raise typer.Exit(0 if result.fits else 1)
    if unknown or "total" in options:
        solutions, is_solved = _solve(model, unknown, quantities, options, sizes)
        print_result(solutions, json)
        raise typer.Exit(0 if is_solved else 1)
    if tools := _split_list(options.get("against")):
        return print_result(lemma.count.against(model, tools, **sizes), json)
    if draw := options.get("draw"):
        drawing = lemma.count.draw(model, **sizes)
        drawing.save(draw)
        return print_result(drawing, True) if json else typer.echo(f"The drawing is in {draw}")
    settings = {name: options[name] for name in ("multiply_add", "elementwise", "time_limit", "memory_limit")}
    with announce_if_slow(SLOW_MESSAGE):
        account = lemma.count(model, quantities=quantities, causal=str(options["causal"]), **settings, **sizes)
    if json or form is Form.text:
        return print_result(account, json)
    return typer.echo(
        {Form.markdown: account.markdown, Form.latex: account.latex, Form.html: account._repr_html_}[form]()
    )


def _solve(
    model: str, unknown: str | None, quantities: list[str] | None, options: dict[str, Any], sizes: dict[str, Any]
) -> tuple[Any, bool]:
    """Return the result of solving for sizes with given totals or a bound, and whether there is a solution."""
    import lemma.api as lemma

    totals, ranges = options.get("total"), options.get("within", ())
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
    """Return the parts of a comma-separated list; none for None."""
    return [name.strip() for name in (names or "").split(",") if name.strip()]
