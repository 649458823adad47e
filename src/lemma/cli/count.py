"""`lemma count`: count parameters, operations and bytes as formulas."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from lemma.cli.common import (
    TEXT,
    TEXTS,
    Json,
    announce_if_slow,
    is_interactive,
    option,
    print_result,
    split_settings,
    with_options,
)
from lemma.errors import SpecError

SLOW_MESSAGE = "Reading the formulas off the module, at many small sizes; they are kept for the next time."


OutputFormat = StrEnum("OutputFormat", ["text", "markdown", "latex", "html"])
Level = StrEnum("Level", ["part", "layer", "module"])
Emit = StrEnum("Emit", ["python", "latex", "json", "markdown"])
Causal = StrEnum("Causal", ["full", "half"])
MODEL_LETTERS = ("A", "B")  # of two models that are compared, in settings of one of them


OPTIONS = {
    "only": option(TEXT, "Some of: parameters, active, flops, backward, activations, cache, optimizer.", "QUANTITY,…"),
    "multiply_add": option(int, "Number of operations per multiply–add: 1 or 2.", default=2, min=1, max=2),
    "causal": option(Causal, "Count all scores of causal attention, or half of them.", default=Causal.full),
    "elementwise": option(bool, "Count elementwise operations too.", names="--elementwise", default=False),
    "by": option(
        Level,
        "Show the share of each part: modules in a layer and next to layers, whole layers, or all modules.",
        names="--by",
    ),
    "at": option(TEXTS, "Sizes for --by; repeatable.", "SYMBOL=SIZE,…"),
    "emit": option(Emit, "Write the formulas alone, with domain and self-check, to paste elsewhere.", names="--emit"),
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
    "out": option(Path | None, "Output file of --plan (.html, .json, .md …) or --emit.", "FILE"),
    "draw": option(Path | None, "Draw the data flow with all shapes instead.", "FILE.svg"),
    "time_limit": option(
        float, "CPU time limit for all formulas; what remains is measured without one.", "SECONDS", default=120.0
    ),
    "memory_limit": option(float, "Maximum size of the weights in runs on real tensors.", "MIB", default=256.0),
    "form": option(OutputFormat, "Output format.", names="--format", default=OutputFormat.text),
}


@with_options("options", OPTIONS)
def count(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL [MODEL] [KEY=VALUE]...",
            help="Preset, spec file, run folder, example, config.json, type of transformers model or "
            "package.module:factory or file.py:factory; then sizes such as d=512 B=8. Two models are compared; A.d=512 "
            "is a size of the first, B.d=512 of the second.",
        ),
    ],
    json: Json = False,
    *,
    options: dict[str, Any],
) -> None:
    """Count parameters, FLOPs and bytes as formulas.

    They are derived from the real module and verified against it at sizes not used for the fit. Besides presets, count
    takes the examples torch-transformer, torch-lstm, gpt2, llama and self-attention. Of two models it writes the
    difference, part by part.
    """
    import lemma.api as lemma

    sizes, names = split_settings(arguments)
    unknown = options.get("solve")
    if unknown and len(names) > 1 and names[1] == "for":  # --solve "activations <= 80GB" for d
        unknown, names = f"{unknown} {' '.join(names[1:])}", names[:1]
    if not names and "model_type" in sizes:  # of transformers
        names = [str(sizes.pop("model_type"))]
    if len(names) not in (1, 2):
        raise SpecError(
            f"one MODEL is expected, or two to compare, got {len(names)}: {' '.join(names)}. "
            "As in: lemma count decoder d=512"
        )
    model, quantities = names[0], _split_list(options.get("only")) or None
    _check_options(options, len(names))
    settings = {name: options[name] for name in ("multiply_add", "elementwise", "time_limit", "memory_limit")}
    settings |= {"quantities": quantities, "causal": str(options["causal"])}
    if len(names) == 2:
        by_model = {letter: _take_settings(sizes, f"{letter}.") for letter in MODEL_LETTERS}
        model_sizes = {"first_sizes": by_model["A"], "second_sizes": by_model["B"]}
        try:
            with announce_if_slow(SLOW_MESSAGE):
                comparison = lemma.count.compare(*names, **model_sizes, **settings, **sizes)
        except SpecError as error:
            name = next((name for name in sizes if "." not in name), None)
            hint = f" Sizes are for both models; {name} of one of them is A.{name} or B.{name}." if name else ""
            raise SpecError(f"{error}{hint}") from None
        return _print(comparison, json, options["form"])
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
    with announce_if_slow(SLOW_MESSAGE):
        account = lemma.count(model, progress=is_interactive(), **settings, **sizes)
        if emit := options.get("emit"):
            text, path = account.emit(str(emit), options.get("out")), options.get("out")
            return typer.echo(f"Written to {path}", err=True) if path else typer.echo(text, nl=False)
        if by := options.get("by"):
            return _print(account.breakdown(str(by), _read_columns(options.get("at"))), json, options["form"])
    return _print(account, json, options["form"])


def _check_options(options: dict[str, Any], num_models: int) -> None:
    """Raise SpecError if options do not go together."""
    actions = {"by": "--by", "emit": "--emit", "solve": "--solve", "total": "--total", "against": "--against"}
    actions |= {"draw": "--draw", "plan": "--plan"}
    selected_actions = [flag for name, flag in actions.items() if options.get(name)]
    if len({*selected_actions} - {"--total"}) > 1:
        raise SpecError(f"{' and '.join(selected_actions)} do not go together. Choose one of them.")
    if num_models == 2 and selected_actions:
        raise SpecError(f"{selected_actions[0]} takes one MODEL, got 2. Two models are compared without it.")
    if (out := options.get("out")) and not out.parent.is_dir():
        raise SpecError(f"--out {out}: there is no folder {out.parent}. Make it first, or choose another one.")
    if "out" in options and not (options["plan"] or options.get("emit")):
        raise SpecError("--out belongs to --plan and --emit; of an account use --format html, markdown or latex.")
    if "at" in options and not options.get("by"):
        raise SpecError("--at belongs to --by, as in: lemma count decoder --by part --at T=1024,8192")
    if options.get("emit") and options["form"] is not OutputFormat.text:
        raise SpecError("--emit and --format do not go together. --emit has a form of its own, as in --emit latex.")


def _take_settings(settings: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Remove the settings whose names start with `prefix`, and return them without it."""
    names = [name for name in settings if name.startswith(prefix)]
    return {name.removeprefix(prefix): settings.pop(name) for name in names}


def _read_columns(texts: list[str] | None) -> dict[str, list[int]] | None:
    """Return the sizes of --at by symbol: T=1024,8192."""
    columns: dict[str, list[int]] = {}
    for text in texts or ():
        name, _, values = text.partition("=")
        sizes = [value.strip().replace("_", "") for value in values.split(",")]
        if not name or not all(size.isascii() and size.isdigit() for size in sizes):
            raise SpecError(f"--at '{text}': a symbol and whole numbers are expected, as in T=1024,8192.")
        columns.setdefault(name.strip(), []).extend(map(int, sizes))
    return columns or None


def _print(result: Any, json: bool, output_format: Any) -> None:
    """Print a result as text or JSON, or in the form of --format."""
    if json or output_format is OutputFormat.text:
        return print_result(result, json)
    renderers = {
        OutputFormat.markdown: result.markdown,
        OutputFormat.latex: result.latex,
        OutputFormat.html: result._repr_html_,
    }
    return typer.echo(renderers[output_format]())


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
