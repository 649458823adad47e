"""What a study of graph models came to, shown: the table, what the edges add, the plots."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lemma.data import GraphData
from lemma.ledger.lines import Curve, Plot
from lemma.spec import GraphStudy
from lemma.studies.classifiers_shown import curve_of, learning_curve
from lemma.studies.label_claims import points
from lemma.studies.label_outcome import LabelOutcome, LabelRow, gather, paired, percent
from lemma.studies.label_result import LabelResult, LabelTable
from lemma.studies.table import NONE

PROTOCOL = {
    "splits": "each seed draws the nodes that are learned, validated and tested, and the first weights; all contenders "
    "of a seed have the same split",
    "scores": "on the test nodes, which neither trained nor chose the weights; F1 is the mean over the classes",
    "intervals": "mean ± half the 95 % interval over the seeds (Student's t); differences are taken seed by seed",
    "training seconds": "of the training steps alone; contenders take turns, seed by seed",
}


def describe_graph(graph: GraphData) -> dict[str, str]:
    """What the graph is."""
    sizes = ", ".join(f"{len(nodes):,} for {split}" for split, nodes in graph.by_split.items())
    learned, tested = graph.tokens("train").classes, graph.tokens("test").classes
    commonest = np.bincount(tested, minlength=len(graph.labels)).max() / len(tested)
    known = int((graph.classes >= 0).sum())
    return {
        "graph": f"{graph.about}: {len(graph.classes):,} nodes, {graph.edges.shape[1]:,} edges, "
        f"{graph.features.shape[1]:,} features",
        "classes": f"{', '.join(graph.labels)}; {known:,} nodes have a label, {len(learned):,} of them are learned",
        "nodes": sizes,
        "always the commonest class": f"accuracy {100 * commonest:.1f} % on the first seed's test nodes",
        "SHA-256": graph.hash,
    }


def show_graph_study(
    spec: GraphStudy,
    outcomes: tuple[LabelOutcome, ...],
    data: Mapping[str, str],
    hardware: Mapping[str, str],
    out: Path,
    interrupted: bool,
) -> LabelResult:
    """Put the findings together."""
    rows = gather(outcomes)
    return LabelResult(
        spec=spec,
        data={**data, "seeds": ", ".join(map(str, spec.seeds))},
        hardware=hardware,
        protocol={**PROTOCOL, "models": "; ".join(_in_words(row) for row in rows if row.measured)},
        table=make_table(rows),
        conclusion=conclude(rows),
        plots=tuple(plots_of(rows)),
        runs=outcomes,
        out=out,
        interrupted=interrupted,
    )


def conclude(rows: Sequence[LabelRow]) -> tuple[str, ...]:
    """What the first contender reached, and what each other makes of the same splits."""
    first = rows[0]
    if not first.measured:
        return ("No run of the first contender came to its end, so that there is nothing to compare.",)
    several = f"{len(first.measured)} random splits" if len(first.measured) > 1 else "one split"
    said = [f"{first.title}: accuracy {percent(first.estimate('accuracy'))} % over {several}."]
    for row in rows[1:]:
        gap = paired(row, first, "accuracy")
        if gap is not None:
            known = gap.margin is not None
            sure = "" if not known else "; beyond the noise" if not gap.low <= 0 <= gap.high else "; within the noise"
            said.append(f"{row.title} against {first.title}: {points(gap)}, split by split{sure}.")
    return tuple(said)


def make_table(rows: Sequence[LabelRow]) -> LabelTable:
    """One row a contender: scores in per cent, then costs."""
    header = ("model", "accuracy %", "F1 %", "parameters", "train s")
    notes = tuple(f"{row.title}, {note}" for row in rows for note in row.missing)
    seeds = max(len(row.measured) for row in rows)
    caption = (
        f"On the test nodes; F1 is the mean over the classes. Mean ± half the 95 % interval over {seeds} seeds "
        "(Student's t)."
        if seeds > 1
        else "On the test nodes; F1 is the mean over the classes. One seed has no interval."
    )
    return LabelTable(header, tuple(map(_cells, rows)), tuple(row.to_dict() for row in rows), caption, notes)


def _cells(row: LabelRow) -> tuple[str, ...]:
    parameters, trained = row.count("parameters"), row.estimate("seconds")
    scores = (percent(row.estimate(name)) for name in ("accuracy", "f1"))
    count = NONE if parameters is None else f"{parameters:,}"
    return (row.title, *scores, count, str(trained) if trained else NONE)


def plots_of(rows: Sequence[LabelRow]) -> list[Plot]:
    """The accuracies side by side, and accuracy as training goes on."""
    measured = [row for row in rows if row.measured]
    if not measured:
        return []
    found = [(tick, row, row.estimate("accuracy")) for tick, row in enumerate(measured)]
    bars = tuple(_within(curve_of(row.title, [tick], [one])) for tick, row, one in found if one)
    caption = (
        "Accuracy on the test nodes: means over the seeds (dots) with their 95 % intervals (bars), cut at 0 and 100 %."
    )
    ticks = tuple(row.title for row in measured)
    learning = tuple(_within(curve) for row in measured if (curve := learning_curve(row, "step")))
    way = (
        "Accuracy on the validation nodes against steps: means over the seeds with their 95 % intervals, cut at 0 and "
        "100 %."
    )
    plots = [Plot("", "accuracy, per cent", bars, caption=caption, bars=True, ticks=ticks)]
    return [*plots, Plot("steps", "validation accuracy, per cent", learning, caption=way)] if learning else plots


def _within(curve: Curve) -> Curve:
    """Intervals no further than a share can go: Student's t knows no bounds."""
    return replace(
        curve, low=tuple(max(0.0, low) for low in curve.low), high=tuple(min(100.0, high) for high in curve.high)
    )


def _in_words(row: LabelRow) -> str:
    one = next(iter(row.measured.values()))
    sizes = ", ".join(f"{word} {one.model[word]}" for word in ("depth", "hidden", "normalise"))
    recipe = ", ".join(
        f"{word.replace('_', ' ')} {one.recipe[word]:,}"
        for word in ("steps", "learning_rate", "weight_decay", "dropout")
    )
    return f"{row.title} ({sizes}; {recipe})"
