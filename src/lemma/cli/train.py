"""`lemma train`: from a text and a spec to a run folder."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lemma.cli.show import Json, show, sort_words, to_json
from lemma.errors import SpecError


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL [KEY=VALUE]...", help="A preset or a spec file, then words such as width=128."),
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option("--text", metavar="CORPUS|FILE...", help="What to learn: a corpus or files.")
    ] = None,
    treebank: Annotated[
        str | None,
        typer.Option("--treebank", metavar="NAME|FILE|FOLDER", help="What a parser learns: ewt, or CoNLL-U files."),
    ] = None,
    dev: Annotated[
        str | None, typer.Option("--dev", metavar="FILE", help="The CoNLL-U file that a parser is validated on.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="RUN", help="The run folder to write.")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", metavar="RUN", help="Continue that run.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is there already.")] = False,
    list_words: Annotated[bool, typer.Option("--words", help="List every word MODEL takes, and leave.")] = False,
    json: Json = False,
) -> None:
    """Train a model on your text.

    MODEL is a preset (feed-forward attentive rnn lstm gru decoder penn-rnn table-a5 parser) or a spec file.
    `lemma train MODEL --words` lists every KEY with its default and what it does.
    Under torchrun: torchrun --nproc-per-node 2 -m lemma train …
    """
    settings, names = sort_words(words or [])
    if resume:
        from lemma.api import resume as continue_run

        if names or text or out or treebank or dev:
            raise SpecError("lemma train --resume RUN takes only KEY=VALUE words beside it: the run knows the rest.")
        return show(continue_run(resume, **settings), json)
    if not names:
        raise SpecError("MODEL is missing, as in: lemma train lstm --text shakespeare --out runs/a")
    if list_words:
        return typer.echo(_describe(names[0], json))
    data = {"text": text, "treebank": treebank, "dev": dev}
    return show(_train(names, data, out, overwrite, settings), json)


def _train(names: list[str], data: dict[str, Any], out: Path | None, overwrite: bool, settings: dict):
    from lemma.api import train as train_model
    from lemma.spec import choose

    model, *files = names
    chosen = choose(model, settings)  # a wrong word is told before anything else is asked for
    if chosen.model.family != "parser" and data["treebank"]:
        raise SpecError(
            f"--treebank is for a parser; {model} learns text, as in: lemma train {model} --text shakespeare"
        )
    if chosen.model.family == "parser":
        return _train_parser(model, files, data, out, overwrite=overwrite, **settings)
    text = data["text"]
    if not text:
        raise SpecError(f"--text is missing, as in: lemma train {model} --text shakespeare --out runs/a")
    if out is None:
        raise SpecError(f"--out is missing, as in: lemma train {model} --text {text[0]} --out runs/a")
    return train_model(model, text=[*text, *files], out=out, overwrite=overwrite, **settings)


def _train_parser(model: str, files: list[str], data: dict[str, Any], out: Path | None, **settings: Any):
    from lemma.api import train as train_model

    if data["treebank"] and (data["text"] or files):
        given = "--text" if data["text"] else f"'{files[0]}'"
        raise SpecError(f"{given} is not for a parser, which learns the trees of --treebank alone. Leave it out.")
    if not data["treebank"]:
        raise SpecError(f"a parser learns a treebank, as in: lemma train {model} --treebank ewt --out runs/parser")
    if out is None:
        raise SpecError(f"--out is missing, as in: lemma train {model} --treebank {data['treebank']} --out runs/parser")
    return train_model(model, treebank=data["treebank"], dev=data["dev"], out=out, **settings)


def _describe(model: str, as_json: bool) -> str:
    from lemma.spec import describe_words

    rows = describe_words(model)
    if as_json:
        return to_json({"model": model, "words": [row.to_dict() for row in rows]})
    widest = max(len(row.title) for row in rows)
    return "\n".join(f"{row.title:<{widest}}  {row.about}" for row in rows)
