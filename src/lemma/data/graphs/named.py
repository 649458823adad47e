"""Graphs by name: what they are and where they come from."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from lemma.data.converting import write_rows
from lemma.data.packaged import Packaged
from lemma.errors import DataError

SUBJECTS = (
    "Neural_Networks",
    "Rule_Learning",
    "Reinforcement_Learning",
    "Probabilistic_Methods",
    "Theory",
    "Genetic_Algorithms",
    "Case_Based",
)
"""The subjects of Cora's papers, in the order of the package's numbers."""

MISSING = (
    "cora comes as Parquet, which pyarrow reads when it is fetched for the first time; pyarrow is not installed: "
    "pip install 'lemma[graphs]'"
)


def convert_cora(files: Sequence[Path], into: Path) -> None:
    """Turn Parquet, which only pyarrow reads, into tables of nodes and edges that need nothing."""
    nodes, cited = (_parquet(path) for path in files)
    papers = zip(nodes["nodeId"], nodes["subject"], nodes["features"], strict=True)
    write_rows(
        into / "nodes.csv",
        ("id", "label", "features"),
        ((paper, SUBJECTS[subject], _words(features)) for paper, subject, features in papers),
    )
    write_rows(into / "edges.csv", ("source", "target"), zip(cited["sourceNodeId"], cited["targetNodeId"], strict=True))


def _words(present: Sequence[int]) -> str:
    """The words of a paper; the data set knows them by number only."""
    return " ".join(f"w{number:04d}" for number, there in enumerate(present) if there)


def _parquet(path: Path) -> dict[str, list]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise DataError(MISSING) from None
    return parquet.read_table(path).to_pydict()


def _need_pyarrow() -> None:
    """Look for what is needed afterwards before anything is fetched."""
    if find_spec("pyarrow") is None:
        raise DataError(MISSING)


CORA = Packaged(
    name="cora",
    about="graph: 2,708 papers of seven subjects, 5,278 citations, 1,432 words (Sen et al. 2008)",
    licence="Apache-2.0 (package)",
    size=427_555,
    package="graphdatascience==2.2",
    download=2_100_910,
    pattern="graphdatascience/resources/cora/cora_*.parquet.gzip",
    hash="d219194b3948ebb4b7261530b9dd1589b3cab5b99ab1aca67b33ef7682560956",
    convert=convert_cora,
    needs=_need_pyarrow,
    converted_hash="02bb474cff66e40b0caa2be49e0881cd81c393327e0947036bafb5d16edcb55c",
)
PACKAGED_GRAPHS = {CORA.name: CORA}
GRAPHS: dict[str, str] = {
    "cora": CORA.about,
    "karate": "graph: Zachary's karate club, 34 members in two factions, 78 friendships; part of Lemma",
    "blocks": "graph: generated communities of as many nodes= and edges= as wanted",
}
"""The graphs known by name, and what they are."""
