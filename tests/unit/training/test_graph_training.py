"""Training graph models: learning, checkpoints, resume and evaluation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import lemma
from lemma.data.graphs import prepare_graph
from lemma.errors import RunError, SpecError
from lemma.layers import graph as sparse
from lemma.models.build import build
from lemma.models.graph import GraphModel, build_graph_inputs
from lemma.runs.folder import RunFolder
from lemma.spec.choose import choose
from lemma.spec.data import GraphSpec
from lemma.spec.models import Graph
from lemma.training.devices import Distributed
from lemma.training.session import Session


def trained(out: Path, **words: Any):
    return lemma.train("graph", graph="karate", out=out, progress=False, device="cpu", **{"steps": 60, **words})


def test_graph_model_learns_karate_club_and_scores_held_out_nodes(tmp_path: Path) -> None:
    result = trained(tmp_path / "run", steps=100)
    assert result.figures["accuracy"] >= 0.8
    score: Any = lemma.evaluate(tmp_path / "run", progress=False)
    assert score.texts == 20 and "20" in str(score) and "nats/node" in str(score)
    assert score.to_dict()["nodes"] == 20 and score.accuracy.value >= 0.8
    other: Any = lemma.evaluate(tmp_path / "run", split="validation", progress=False)
    assert other.texts == 10
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert "labels.json" in files and "tokenizer.json" not in files


def test_interrupted_graph_run_resumes_bit_identically(tmp_path: Path, monkeypatch) -> None:
    trained(tmp_path / "whole", checkpoint_every=20)
    real, used = Session.step, []

    def stopping(session: Session) -> None:
        real(session)
        used.append(1)
        if len(used) == 33:
            raise KeyboardInterrupt

    monkeypatch.setattr(Session, "step", stopping)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "parts", checkpoint_every=20)
    monkeypatch.undo()
    lemma.resume(tmp_path / "parts", progress=False)
    ones, remaining = (
        lemma.load(tmp_path / name).require(GraphModel, "a graph model").state_dict() for name in ("whole", "parts")
    )
    assert all(torch.equal(ones[name], remaining[name]) for name in ones)


def test_resuming_with_another_seed_preserves_the_node_split(tmp_path: Path) -> None:
    trained(tmp_path / "run", seed=3, steps=20)
    lemma.resume(tmp_path / "run", progress=False, seed=4, steps=30)
    data = RunFolder.open(tmp_path / "run").data
    assert isinstance(data, GraphSpec) and data.split == 3


def test_graph_model_rejects_text_with_advice(tmp_path: Path) -> None:
    trained(tmp_path / "run", steps=2)
    run = lemma.load(tmp_path / "run")
    with pytest.raises(RunError, match="a classifier of a graph's nodes"):
        _ = run.tokenizer
    with pytest.raises(RunError, match="a classifier of a graph's nodes"):
        lemma.generate(run, "a")
    with pytest.raises(RunError, match=r"answers a source\. .*a graph's nodes.*lemma evaluate \S+$"):
        lemma.generate(run, source="a")
    with pytest.raises(SpecError, match=r"test nodes .*, not on text\. Leave --text out: lemma evaluate \S+$"):
        lemma.evaluate(run, "shakespeare", progress=False)


def test_resuming_with_a_changed_graph_is_rejected(tmp_path: Path) -> None:
    nodes, edges = tmp_path / "nodes.csv", tmp_path / "edges.csv"
    nodes.write_text("id,label\n" + "".join(f"{index},{'xy'[index % 2]}\n" for index in range(12)))
    edges.write_text("source,target\n0,1\n2,3\n")
    words: Any = {"graph": edges, "nodes": nodes, "out": tmp_path / "run", "progress": False, "device": "cpu"}
    lemma.train("graph", steps=2, checkpoint_every=1, **words)
    edges.write_text("source,target\n0,1\n2,5\n")
    with pytest.raises(RunError, match=r"trained on the graph with hash .* Give the same graph"):
        lemma.resume(tmp_path / "run", progress=False, steps=4)


def test_graph_training_reports_no_tokens_per_second(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lemma.train("graph", graph="karate", out=tmp_path / "run", steps=2, device="cpu")
    output = capsys.readouterr()
    assert "validation accuracy" in output.err and "tokens/s" not in output.err + output.out
    assert any("tokens_per_second" in row for row in RunFolder.open(tmp_path / "run").metrics.rows())


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("batch", "all labelled nodes"),
        ("accumulate", "read as a whole"),
        ("sequence_length", "classifiers of texts"),
        ("mask_rate", "encoder"),
        ("entropy_penalty", "no attention"),
    ],
)
def test_ineffective_graph_settings_are_rejected_with_the_reason(word: str, why: str) -> None:
    with pytest.raises(SpecError, match=rf"recipe.{word} has no effect on a model of the family graph: .*{why}"):
        choose("graph", {word: 0.2 if word == "mask_rate" else 2})


def test_graph_settings_reach_the_data_spec() -> None:
    choice = choose("graph", {"labelled": 5, "edges": 500, "D": 8, "seed": 7})
    data = choice.data_spec("graph", "blocks", nodes=200)
    assert (data.labelled, data.edges, data.nodes, data.split) == (5, 500, 200, 7)
    assert choice.model.hidden == 8  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(SpecError, match="Did you mean 'labelled'"):
        choose("graph", {"labeled": 5})
    with pytest.raises(SpecError, match="tokenizer"):
        choose("graph", {"tokenizer": "words"})


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_sparse_features_match_dense_outputs_and_gradients(depth: int) -> None:
    random = np.random.default_rng(depth)
    graph = prepare_graph(GraphSpec(graph="blocks", nodes=60, edges=150), seed=1).item("train").graph
    table = random.random((60, 9)).astype(np.float32) * (random.random((60, 9)) < 0.3)
    saved = csr_array(table)
    model = build(Graph(features=9, hidden=5, classes=4, depth=depth))
    _, adjacency = build_graph_inputs(graph, "symmetric")
    results = []
    for features in (saved, table):
        object.__setattr__(graph, "features", features)
        laid, _ = build_graph_inputs(graph, "symmetric")
        result = model(laid, adjacency)
        results.append((result, *torch.autograd.grad(result.square().sum(), list(model.parameters()))))
    for item, other in zip(*results, strict=True):
        torch.testing.assert_close(item, other, rtol=1e-4, atol=1e-5)


def test_sparse_feature_dropout_drops_and_rescales_entries() -> None:
    graph = prepare_graph(GraphSpec(graph="karate"), seed=1)
    model = build(Graph(features=34, classes=2), dropout=0.5).train()
    features: Any = build_graph_inputs(graph.item("train").graph, "symmetric")[0]
    torch.manual_seed(1)
    dropped: Any = model._apply_dropout(features).values
    assert set(dropped.tolist()) == {0.0, 2.0}
    assert torch.equal(model.eval()._apply_dropout(features).values, features.values)  # pyright: ignore


def test_graph_training_step_matches_dense_autograd() -> None:
    """Loss and gradient equal those of softmax(Â relu(Â X W) V) without dropout."""
    graph = prepare_graph(GraphSpec(graph="blocks", nodes=80, edges=200), seed=1)
    choice = choose("graph", {"dropout": 0.0, "weight_decay": 0.0, "clip": 0.0, "bias": False})
    spec = choice.model.with_data_sizes(graph.sizes())
    session = Session(spec, choice.recipe, graph.item("train"), Distributed(torch.device("cpu")), print)
    weights = [parameter.detach().clone().requires_grad_() for parameter in session.model.parameters()]
    full = graph.item("train").graph
    dense = build_graph_inputs(full, "symmetric")[1].to_dense()
    hidden = torch.relu(dense @ torch.from_numpy(full.features) @ weights[0].T)
    nodes = torch.from_numpy(graph.item("train").nodes)
    logits = (dense @ hidden @ weights[1].T)[nodes]
    expected = torch.nn.functional.cross_entropy(logits, torch.from_numpy(full.classes)[nodes])
    (loss,) = _gradients(session)
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=1e-5)
    for ours, reference in zip(session.model.parameters(), torch.autograd.grad(expected, weights), strict=True):
        torch.testing.assert_close(ours.grad, reference, rtol=1e-4, atol=1e-5)


def _gradients(session: Session) -> list[torch.Tensor]:
    session.state.step += 1
    return session.compute_gradients()


def test_graph_step_memory_scales_with_edges(monkeypatch) -> None:
    """A dense Â of 4,000 nodes has 16 million entries; no tensor of a step exceeds nodes × width."""
    graph = prepare_graph(GraphSpec(graph="blocks", nodes=4_000, edges=12_000), seed=1)
    choice = choose("graph", {"hidden": 8})
    session = Session(
        choice.model.with_data_sizes(graph.sizes()),
        choice.recipe,
        graph.item("train"),
        Distributed(torch.device("cpu")),
        print,
    )
    assert _largest_of(session) <= 4_000 * 16
    assert session.batches.adjacency.values.numel() == 4_000 + 2 * 12_000  # pyright: ignore
    monkeypatch.setattr(sparse, "_multiply", lambda rows, dense: rows.to_dense() @ dense)
    assert _largest_of(session) >= 4_000**2, "the measure would see a dense product"


def _largest_of(session: Session) -> int:
    with Largest() as seen:
        session.step()
    return seen.entries


class Largest(TorchDispatchMode):
    """Dispatch mode that records the size of the largest tensor in forward and backward."""

    entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tree_leave in tree_leaves(result):
            if isinstance(tree_leave, torch.Tensor):
                custom = tree_leave.values() if tree_leave.layout == torch.sparse_csr else tree_leave
                self.entries = max(self.entries, custom.numel())
        return result
