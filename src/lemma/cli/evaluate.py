"""`lemma evaluate`: measure the score of a run, with the protocol."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lemma.cli.common import PARSE, TRANSLATE, Json, drop_unset, print_result, with_data


@with_data("limit", "graph", "nodes")
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    split: Annotated[
        str | None, typer.Option(help="Which split of the run's own data: train, validation or test.")
    ] = None,
    context: Annotated[int | None, typer.Option(help="Tokens per window. Default: the model's context.")] = None,
    stride: Annotated[int | None, typer.Option(help="Tokens scored per window. Default: half the context.")] = None,
    limit: Annotated[
        int | None,
        typer.Option(help="Evaluate on the first N sentences of the treebank or pairs, or examples of a task."),
    ] = None,
    harness: Annotated[
        list[Path] | None,
        typer.Option(help="A task file of lm_eval, measured by that harness instead; may be given again."),
    ] = None,
    layer: Annotated[
        int | None, typer.Option(help="Attention as trees: the layer, counted from 0.", rich_help_panel=PARSE)
    ] = None,
    head: Annotated[
        int | None, typer.Option(help="Attention as trees: the head of that layer.", rich_help_panel=PARSE)
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Beam width. Default: 1.", rich_help_panel=TRANSLATE)] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="How much the beam favours long translations.", rich_help_panel=TRANSLATE)
    ] = None,
    json: Json = False,
    *,
    data: dict[str, Any],
) -> None:
    """Evaluate a run, with the full protocol.

    On its own test split, or on other data of the same kind. Language models: perplexity, a full pass that predicts
    every token once. Parsers, and language models with --treebank: UAS and LAS. Translators: BLEU and chrF. Classifiers
    and graph models: accuracy and F1. Dual encoders: recall at 1, 5 and 10 in both directions.
    """
    from lemma import api

    settings = {"layer": layer, "head": head, "context": context, "stride": stride}
    settings |= {"beam": beam, "length_penalty": length_penalty, "limit": limit, "harness": harness or None}
    print_result(api.evaluate(run, split=split, **data, **drop_unset(settings)), json)
