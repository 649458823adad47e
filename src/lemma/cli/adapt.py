"""`lemma adapt`: a trained model made fit for labels, text, pairs or pictures of one's own, cheaply."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lemma.cli.common import (
    CaptionColumn,
    Captions,
    ImageColumn,
    Json,
    LabelColumn,
    SourceColumn,
    TargetColumn,
    TextColumn,
    show,
    sort_words,
)
from lemma.errors import SpecError


def adapt(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The finished run to start from: the base.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Words of method or recipe, such as rank=4.")
    ] = None,
    labels: Annotated[
        str | None, typer.Option("--labels", metavar="NAME|FILE", help="Labelled texts: tweets, or CSV, TSV, JSONL.")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option("--text", metavar="CORPUS|FILE...", help="Other text for a language model.")
    ] = None,
    pairs: Annotated[
        str | None, typer.Option("--pairs", metavar="NAME|FILE", help="Other pairs for an encoder-decoder.")
    ] = None,
    images: Annotated[
        str | None, typer.Option("--images", metavar="NAME|FOLDER", help="Other pictures for a dual-encoder.")
    ] = None,
    rerank: Annotated[
        bool, typer.Option("--rerank", help="Make a re-ranker of a dual-encoder, by cross-attention.")
    ] = False,
    method: Annotated[
        str | None,
        typer.Option(help="frozen, full, adapters, lora (default), or all of them, compared in one table."),
    ] = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    source_column: SourceColumn = None,
    target_column: TargetColumn = None,
    captions: Captions = None,
    image_column: ImageColumn = None,
    caption_column: CaptionColumn = None,
    limit: Annotated[int | None, typer.Option(help="Learn from so many of the labelled texts only.")] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Write the adapted RUN as a plain run, without a base.")
    ] = False,
    to_peft: Annotated[bool, typer.Option("--to-peft", help="Write RUN's LoRA weights as peft's folder.")] = False,
    from_peft: Annotated[
        Path | None, typer.Option("--from-peft", metavar="FOLDER", help="Put LoRA weights that peft wrote beside RUN.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="RUN2", help="The folder to write.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is there already.")] = False,
    json: Json = False,
) -> None:
    """Adapt a trained model to your labels, text, pairs or pictures.

    RUN2 keeps only what changed, and the way to its base. Methods: frozen (only the head learns), full (everything),
    adapters (bottleneck=16 placement=…), lora (rank=8 alpha=16 lora_dropout=0 targets=…); all: each of them, and what
    each costs. As in: lemma adapt runs/a --labels mine.csv --out runs/b

    With --rerank a dual-encoder's first findings (candidates=10) are looked at again; its towers stay frozen unless a
    method is named. As in: lemma adapt runs/emoji --rerank --images emoji --out runs/again
    """
    from lemma.api import adapt as adapt_run

    settings, names = sort_words(words or [])
    if out is None:
        raise SpecError(f"--out is missing, as in: lemma adapt {run} --labels tweets --out runs/b")
    if names and not text:
        raise SpecError(f"'{names[0]}' is no KEY=VALUE word.")
    data: dict[str, Any] = {"labels": labels, "text": [*text, *names] if text else None, "pairs": pairs}
    data |= {"images": images, "rerank": rerank}
    columns = {"text_column": text_column, "label_column": label_column}
    columns |= {"source_column": source_column, "target_column": target_column, "captions": captions}
    columns |= {"image_column": image_column, "caption_column": caption_column}
    peft = "to" if to_peft else "from" if from_peft else None
    how: dict[str, Any] = {"method": method, "limit": limit, "merge": merge, "peft": peft, "folder": from_peft}
    show(adapt_run(run, out=out, overwrite=overwrite, **data, **columns, **how, **settings), json)
