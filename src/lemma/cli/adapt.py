"""`lemma adapt` and `lemma export`: train a run further on new data, and write runs in other formats."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lemma.cli.common import Json, print_result, reject_loose_files, split_settings, with_data
from lemma.errors import SpecError


@with_data("treebank", "graph", "nodes", "parser")
def adapt(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Finished run to start from: the base.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings of method or recipe, such as rank=4.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="frozen, full, adapters, lora (default), or all to compare them.")
    ] = None,
    rerank: Annotated[
        bool, typer.Option("--rerank", help="Turn a dual encoder into a cross-attention re-ranker.")
    ] = False,
    from_peft: Annotated[
        Path | None, typer.Option("--from-peft", metavar="FOLDER", help="Apply LoRA weights saved by peft to RUN.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="RUN2", help="Output folder.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite an existing run.")] = False,
    json: Json = False,
    *,
    data: dict[str, Any],
) -> None:
    """Adapt a trained model to your labels, text, pairs or images.

    Example: lemma adapt runs/a --labels mine.csv --out runs/b

    RUN2 stores only the changed weights and a reference to its base. Methods: frozen (train only the head), full (train
    all weights), adapters (bottleneck=16 placement=…), lora (rank=8 alpha=16 lora_dropout=0 targets=…); all: run each
    method and compare their scores and costs.

    --rerank trains a model that re-ranks a dual encoder's top results (candidates=10); the towers stay frozen unless
    --method is set. Example: lemma adapt runs/emoji --rerank --images emoji --out runs/again
    """
    from lemma import api

    settings, names = split_settings(arguments or [])
    if out is None:
        raise SpecError(f"--out is missing, as in: lemma adapt {run} --labels tweets --out runs/b")
    if names and "text" not in data:
        raise SpecError(f"'{names[0]}' is not a KEY=VALUE setting.")
    if from_peft is not None:
        if data or settings or method or rerank:
            raise SpecError("adapt: --from-peft trains nothing. Leave data, settings and method out.")
        return print_result(api.adapt.from_peft(run, from_peft, out=out, overwrite=overwrite), json)
    if names:
        reject_loose_files(names, data)
        data["text"] = [*data["text"], *names]
    if method == "all":
        if rerank:
            raise SpecError("adapt: --rerank takes one method, not all. As in: --method lora")
        return print_result(api.adapt.compare(run, out=out, overwrite=overwrite, **data, **settings), json)
    return print_result(
        api.adapt(run, out=out, overwrite=overwrite, method=method, rerank=rerank, **data, **settings), json
    )


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run to export; merged and peft need an adapted run.")],
    to: Annotated[str | None, typer.Option(metavar="FORM", help="Format: huggingface, gguf, merged or peft.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Output folder; for gguf, the output file.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Overwrite an existing run, or an export written by Lemma.")
    ] = False,
    json: Json = False,
) -> None:
    """Export a run to another format.

    huggingface: a folder for transformers, adapted runs merged. gguf: a file for llama.cpp. merged: an adapted run
    converted to a plain run without a base. peft: a folder for peft with the LoRA weights of an adapted run.

    Example: lemma export runs/a --to huggingface --out folder
    """
    from lemma import api

    if to is None or out is None:
        missing = "--to" if to is None else "--out"
        raise SpecError(f"{missing} is missing, as in: lemma export {run} --to huggingface --out folder")
    print_result(api.export(run, to=to, out=out, overwrite=overwrite), json)  # pyright: ignore[reportArgumentType]
