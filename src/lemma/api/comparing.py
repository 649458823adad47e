"""The verb that compares: study; and what data there are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lemma.api.shared import watch
from lemma.spec import read_cost, read_graph_study, read_label_study, read_study

if TYPE_CHECKING:
    from lemma.data import CorpusRow
    from lemma.studies import CostResult, LabelResult, StudyResult


def study(
    name: str | Path, *, out: Path | str, progress: bool = True, **words: Any
) -> StudyResult | CostResult | LabelResult:
    """Compare models at an equal budget over seeds, classifiers, or what parts cost: built in, or from a TOML file."""
    from lemma.studies import run_cost, run_graph_study, run_label_study, run_study

    cost = read_cost(str(name), words)
    if cost is not None:
        return run_cost(cost, Path(out), watch(progress))
    graphs = read_graph_study(str(name), words)
    if graphs is not None:
        return run_graph_study(graphs, Path(out), watch(progress))
    labelled = read_label_study(str(name), words)
    if labelled is not None:
        return run_label_study(labelled, Path(out), watch(progress))
    return run_study(read_study(str(name), words), Path(out), observer=watch(progress))


def corpora() -> list[CorpusRow]:
    """List the corpora known by name."""
    from lemma.data import corpora_table

    return corpora_table()
