"""`lemma check`: check a derivation. Exits with 0 if it is right, 1 if it is wrong, 2 if it cannot be read."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from lemma.cli.common import Json, announce_if_slow, print_result, split_settings
from lemma.errors import SpecError, describe_unknown
from lemma.spec.exercises import KINDS

app = typer.Typer(
    help="Check your own derivation: a formula, a number, a gradient, a computation by hand, or a sheet of answers.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Model = Annotated[str, typer.Argument(metavar="MODEL", help="Preset, spec file, run folder or factory.")]
Sizes = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Model sizes, such as L=2.")]
Lines = Annotated[Path | None, typer.Option("--file", help="Text file with such lines.")]
Formula = Annotated[
    str, typer.Argument(metavar="FORMULA", help="Formula in Python or simple LaTeX: '|V|(d + d_h) + ((N-1)d + 1)d_h'.")
]


def _add_formula_command(quantity: str, help_text: str) -> None:
    """Add the command `lemma check QUANTITY` for formulas; `help_text` is shown by --help."""

    @app.command(quantity, help=help_text)
    def check_formula(model: Model, formula: Formula, sizes: Sizes = None, json: Json = False) -> None:
        from lemma.api import check

        _finish(getattr(check, quantity)(model, formula, **_parse_sizes(sizes)), json)


_add_formula_command("parameters", "Check a formula for the number of parameters.")
_add_formula_command("flops", "Check a formula for the FLOPs of a forward pass.")
_add_formula_command("trainable", "Check a formula for the number of trainable parameters.")


@app.command()
def shape(
    model: Model,
    lines: Annotated[list[str], typer.Argument(metavar="'NAME = SHAPE'...", help="Shapes, such as 'Q = H×S×M_QK'.")],
    json: Json = False,
) -> None:
    """Check the shapes of a model's tensors.

    Use the names of the drawing: lemma count MODEL --draw FILE.svg.
    """
    from lemma.api import check

    _finish(check.shape(model, *lines), json)


@app.command()
def number(
    model: Model,
    quantity: Annotated[
        str, typer.Argument(metavar="QUANTITY", help="parameters, flops, cache, trainable …; or trainable/frozen.")
    ],
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="Such as '9,721,596', '9.7M' or '54.1 % increase from L=2 to L=4'.")
    ],
    sizes: Sizes = None,
    json: Json = False,
) -> None:
    """Check a number, or a percentage change between two sizes."""
    from lemma.api import check

    _finish(check.number(model, quantity, value, **_parse_sizes(sizes)), json)


@app.command()
def gradient(
    cell: Annotated[
        str, typer.Argument(metavar="FUNCTION", help="lstm, layer-norm, attention …, or a TOML file with your own.")
    ],
    lines: Annotated[
        list[str] | None,
        typer.Argument(metavar="['NAME = EXPRESSION']...", help="Gradients, as in 'dz = y_hat - y'."),
    ] = None,
    file: Lines = None,
    names: Annotated[
        bool, typer.Option("--names", help="Show the function and all names you can use, and exit.")
    ] = False,
    json: Json = False,
) -> None:
    """Check gradients derived by hand against autograd.

    Define your own function in a TOML file with forward, loss, answers, [sizes] and [inputs].
    """
    from lemma.api import check, describe_cell

    if names:
        return typer.echo(describe_cell(cell))
    example = "gradient softmax-cross-entropy 'dz = y_hat - y'"
    has_answers = Path(cell).suffix == ".toml" and not file and not lines
    texts = [] if has_answers else _read_lines(file, lines, example)
    return _finish(check.gradient(cell, *texts), json)


@app.command()
def derivation(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Text file with one step per line; TOML for matrices.")],
    json: Json = False,
) -> None:
    """Check each step of a derivation against the one before."""
    from lemma.api import check

    _finish(check.derivation(str(file)), json)


@app.command()
def worked(
    case: Annotated[str, typer.Argument(metavar="CASE", help="c1 e1 e7 e8 e9 d4 …, a TOML file, or bpe:TEXT.")],
    lines: Annotated[
        list[str] | None,
        typer.Argument(metavar="['NAME = VALUE']...", help="Values, as in 'c_t = [0.52, -0.34]'."),
    ] = None,
    file: Lines = None,
    names: Annotated[
        bool, typer.Option("--names", help="Show all names you can use with their shapes, and exit.")
    ] = False,
    solution: Annotated[bool, typer.Option("--solution", help="Show what is right for wrong lines.")] = False,
    json: Json = False,
) -> None:
    """Check a computation by hand against a worked case.

    A number is right if it is the exact value rounded to as many decimals. Name elements by row and column:
    'alpha2[they, Ajax] = 0.119'.
    """
    from lemma.api import check, describe_worked

    if names:
        return typer.echo(describe_worked(case))
    return _finish(
        check.worked(case, *_read_lines(file, lines, "worked e9 'c_t = [0.52, -0.34]'"), solution=solution), json
    )


@app.command()
def sheet(
    questions: Annotated[Path, typer.Argument(metavar="SHEET", help="Sheet of questions in TOML or Markdown.")],
    answers: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[ANSWERS|FOLDER|CSV]...", help="Answers of a student or a class."),
    ] = None,
    out: Annotated[
        list[Path] | None,
        typer.Option("--out", metavar="FILE", help="Output file for the marks: .csv, .json, .html or .md; repeatable."),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option("--as", metavar="TOOL", help="Format --out for another tool: gradescope, lti, otter or nbgrader."),
    ] = None,
    overrides: Annotated[
        Path | None,
        typer.Option(
            "--overrides", metavar="FILE", help="Marks changed by hand: [[overrides]] student question points."
        ),
    ] = None,
    previous: Annotated[
        Path | None,
        typer.Option("--previous", metavar="marks.json", help="Earlier marks: report what changed, and why."),
    ] = None,
    queue: Annotated[
        Path | None,
        typer.Option("--queue", metavar="FILE", help="Answers to look at: written, and your decisions in it applied."),
    ] = None,
    undiagnosed: Annotated[
        bool, typer.Option("--undiagnosed", help="Queue wrong answers without an explanation too.")
    ] = False,
    json: Json = False,
) -> None:
    """Grade the answers of a student or a class.

    A class is several files, a folder, or a table with one row per student. --as gradescope --out results/ writes a
    results.json for each student. --as otter and --as nbgrader take no answers: they convert the sheet to tests that
    these tools run.
    """
    from lemma.api import check
    from lemma.report.result import check_save_path

    files = {"overrides": overrides, "previous": previous, "queue": queue, "undiagnosed": undiagnosed}
    if undiagnosed and not queue:
        raise SpecError("--undiagnosed: name the queue too, as in --queue queue.toml")
    if format:
        if len(out or []) != 1:
            raise SpecError(f"--as {format}: where to? Name one file or folder, as in --out results.json")
        path = check.write_sheet(questions, *(answers or []), format=format, out=(out or [])[0], **files)
        return typer.echo(f"Written to {path}", err=True)
    for target in out or []:
        check_save_path(target, (".csv", ".json", ".html", ".md", ".txt", ".svg"))
    with announce_if_slow(f"Marking the answers to {questions} …"):
        marks = check.sheet(questions, *(answers or []), **files)
    for target in out or []:
        marks.save(target)
    print_result(marks, json)
    for target in [*(out or []), *([queue] if queue else [])]:
        typer.echo(f"Written to {target}", err=True)
    return None


@app.command()
def identity(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME] [KEY=VALUE]...", help="a2 … e3, or a keyword such as rotary; then sizes such as D=256."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Output file: .html, .json, .txt or .svg.")] = None,
    json: Json = False,
) -> None:
    """Check an identity from the sources numerically.

    Print both numbers and the tolerance. Without a name, list all identities. Exits with 1 if the source's claim is
    false.
    """
    from lemma.api import check

    sizes, names = split_settings(arguments or [])
    if len(names) > 1:  # a size without its value, or a second identity
        listed = check.identities().to_dict()["identities"]
        defaults = {name: identity["sizes"] for identity in listed for name in (identity["name"], *identity["words"])}
        default = defaults.get(names[0].lower(), {}).get(names[1])
        if default is not None:
            raise SpecError(f"{names[1]} needs a value, as in {names[1]}={default}.")
        raise SpecError(f"one identity at a time: got {', '.join(names)}.")
    if out and not names:
        raise SpecError(f"which identity is to be written to {out}? As in: lemma check identity b5 --out {out}")
    if sizes and not names:
        raise SpecError(f"which identity is to be run with {', '.join(sizes)}? lemma check identity lists them.")
    if not names:
        return print_result(check.identities(), json)
    report = check.identity(names[0], **sizes)
    print_result(report, json, out)
    raise typer.Exit(0 if report.holds else 1)


@app.command()
def sources(
    rows: Annotated[
        list[str] | None, typer.Argument(metavar="[ROW]...", help="Rows (C2) or groups of rows (c). Default: all.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Output file: .html, .md or .json.")] = None,
    json: Json = False,
) -> None:
    """Check the claims of the problems' sources.

    Check every claim of rows A1 to E9 with the checkers that check yours. Exits with 1 if a claim is wrong.
    """
    from lemma.api import check

    audit = check.sources(*(rows or []), progress=True)
    print_result(audit, json, out)
    raise typer.Exit(0 if audit.right else 1)


@app.command()
def exercises(
    kind: Annotated[str, typer.Argument(metavar="[KIND]", help="A kind of exercise, such as n-gram.")] = "",
    json: Json = False,
) -> None:
    """List the exercises that come with Lemma."""
    from lemma.api import check

    print_result(check.exercises(kind), json)


class AnswerCommand(TyperCommand):
    """A command whose arguments may be negative numbers, such as -0.416 or -ln(2); options begin with two signs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Mark arguments such as -0.5 with a blank, so that they are not read as options."""
        marked = [
            f" {text}" if text[:1] == "-" and text[:2] != "--" and text not in ("-h", "-") else text for text in args
        ]
        return super().parse_args(ctx, marked)


Show = Annotated[
    str | None,
    typer.Option(
        "--show", metavar="LEVEL", help="Show hint, where (what is wrong in the answer) or solution, and exit."
    ),
]


def _add_exercise_command(kind: str) -> None:
    """Add the command `lemma check KIND` for a kind of exercise."""
    entry = KINDS[kind]

    about = f"{entry.summary}\n\nAs in: lemma check {kind} {entry.example}"
    brief = f"{entry.summary.partition(':')[0].rstrip('.')}."

    @app.command(kind, cls=AnswerCommand, help=about, short_help=brief)
    def check_exercise(
        arguments: Annotated[
            list[str] | None,
            typer.Argument(
                metavar="[EXERCISE] [FIELD=VALUE]... ['NAME = VALUE']...",
                help="A TOML file or an exercise of Lemma's (optional), its fields, and your answer.",
            ),
        ] = None,
        file: Lines = None,
        names: Annotated[
            bool, typer.Option("--names", help="Show the fields, and all names an answer can use, and exit.")
        ] = False,
        show: Show = None,
        json: Json = False,
    ) -> None:
        from lemma.api import check

        if unknown := next((text for text in arguments or [] if re.match(r"--[a-z]", text)), None):
            raise SpecError(describe_unknown("option", unknown, ["--file", "--names", "--show", "--json", "--help"]))
        if file and kind == "code":  # a file must not name the code that is run
            raise SpecError(
                "--file holds lines of an answer; name the Python file itself: lemma check code softmax mine.py"
            )
        answers = _read_lines(file, None, "") if file else []
        if names:
            return typer.echo(check.describe_exercise(kind, *(arguments or [])))
        if show:
            return print_result(check.help_with(show, kind, *(arguments or []), *answers), json)
        return _finish(check.exercise(kind, *(arguments or []), *answers), json)


for _kind in KINDS:
    _add_exercise_command(_kind)


def _read_lines(file: Path | None, lines: list[str] | None, example: str) -> list[str]:
    """Return the lines of `file`, if any, then the typed `lines`.

    If there are none, raise an error with the example.
    """
    try:
        texts = [*([file.read_text(encoding="utf-8")] if file else []), *(lines or [])]
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{file}: it cannot be read as text ({error}).") from None
    if not texts:
        raise SpecError(f"nothing to check. As in: lemma check {example}")
    return texts


def _parse_sizes(arguments: list[str] | None) -> dict[str, Any]:
    """Return sizes by name from arguments of the form L=2; raise SpecError for another argument."""
    sizes, names = split_settings(arguments or [])
    if names:
        raise SpecError(f"'{names[0]}' is not of the form key=value, as in L=2.")
    return sizes


def _finish(result: Any, as_json: bool) -> None:
    """Print the result of a check, and exit with 0 if it is right, else with 1."""
    print_result(result, as_json)
    raise typer.Exit(0 if result else 1)
