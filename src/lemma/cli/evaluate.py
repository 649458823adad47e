"""`lemma evaluate`: measure the score of a run, with the protocol."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lemma.cli.common import NUMBER, PARSE, TEXT, TRANSLATE, Json, option, print_result, with_data, with_options

SETTINGS = {
    "split": option(TEXT, "Split of the run's own data: train, validation or test."),
    "context": option(NUMBER, "Tokens per window. Default: the model's context."),
    "stride": option(NUMBER, "Tokens scored per window. Default: half the context."),
    "limit": option(NUMBER, "Evaluate only the first N sentences, pairs or task examples."),
    "harness": option(list[Path] | None, "Task file to evaluate with lm_eval instead; repeatable."),
    "layer": option(NUMBER, "Layer whose attention is compared with trees, counted from 0.", group=PARSE),
    "head": option(NUMBER, "Attention head in that layer, counted from 0.", group=PARSE),
    "beam": option(NUMBER, "Beam width. Default: 1.", group=TRANSLATE),
    "length_penalty": option(float | None, "Length penalty; higher values favour long translations.", group=TRANSLATE),
}


@with_data("limit", "graph", "nodes")
@with_options("settings", SETTINGS)
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    json: Json = False,
    *,
    data: dict[str, Any],
    settings: dict[str, Any],
) -> None:
    """Evaluate a run on its test split or on other data.

    Print the score with the full protocol. Language models: perplexity, from a full pass that predicts every token
    once. Parsers, and language models with --treebank: UAS and LAS. Translators: BLEU and chrF. Classifiers
    and graph models: accuracy and F1. Dual encoders: recall at 1, 5 and 10 in both directions.
    """
    from lemma import api

    print_result(api.evaluate(run, **data, **settings), json)
