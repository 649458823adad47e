"""`lemma evaluate`: perplexity with its protocol, trees, translations or classes compared with the true ones."""

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
)


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    text: Annotated[
        list[str] | None,
        typer.Option("--text", metavar="CORPUS|FILE", help="Other text; the run's own held-out text if not given."),
    ] = None,
    treebank: Annotated[
        str | None,
        typer.Option("--treebank", metavar="NAME|FILE", help="Compare trees: a parser's, or those of attention."),
    ] = None,
    pairs: Annotated[
        str | None, typer.Option("--pairs", metavar="NAME|FILE", help="Other pairs, to compare translations with.")
    ] = None,
    labels: Annotated[
        str | None, typer.Option("--labels", metavar="NAME|FILE", help="Other labelled texts, to be classified.")
    ] = None,
    images: Annotated[
        str | None,
        typer.Option("--images", metavar="NAME|FOLDER", help="Other pictures with captions, to find by each other."),
    ] = None,
    parser: Annotated[
        str | None,
        typer.Option("--parser", metavar="RUN", help="Of a tree body: another parser's run to draw --labels' trees."),
    ] = None,
    captions: Captions = None,
    image_column: ImageColumn = None,
    caption_column: CaptionColumn = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    source_column: SourceColumn = None,
    target_column: TargetColumn = None,
    split: Annotated[
        str | None, typer.Option(help="Which part of the run's own data or treebank: train, validation or test.")
    ] = None,
    layer: Annotated[int | None, typer.Option(help="The layer whose attention makes trees, counted from 0.")] = None,
    head: Annotated[int | None, typer.Option(help="The head of that layer, counted from 0.")] = None,
    limit: Annotated[
        int | None, typer.Option(help="Sentences of the treebank or pairs to read, the first ones.")
    ] = None,
    context: Annotated[int | None, typer.Option(help="Tokens read at once; the model's context if not given.")] = None,
    stride: Annotated[int | None, typer.Option(help="Tokens scored a window; half the context if not given.")] = None,
    beam: Annotated[int | None, typer.Option(help="Translations followed side by side; 1 if not given.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="How much a beam favours long translations.")] = None,
    json: Json = False,
) -> None:
    """Measure a run by what it was made for, with the whole protocol.

    A language model by perplexity: a full pass, in which every token of the text but the first is predicted once. With
    --treebank, and for a parser, trees: UAS and LAS. A translator by BLEU and chrF, a classifier and a graph
    model by accuracy and F1, a dual encoder by recall among the first 1, 5 and 10, both ways.
    """
    from lemma.api import evaluate as measure

    settings = {"layer": layer, "head": head, "context": context, "stride": stride}
    settings |= {"beam": beam, "length_penalty": length_penalty, "limit": limit}
    given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    columns = {"text_column": text_column, "label_column": label_column}
    columns |= {"source_column": source_column, "target_column": target_column, "captions": captions, "parser": parser}
    columns |= {"image_column": image_column, "caption_column": caption_column}
    data: dict[str, Any] = {"text": text, "treebank": treebank, "pairs": pairs, "labels": labels, "images": images}
    show(measure(run, split=split, **data, **columns, **given), json)
