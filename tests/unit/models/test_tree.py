"""Tree models: adjacency, padding, and independence of word order."""

import pytest
import torch

from lemma.errors import SpecError
from lemma.layers.graph import build_adjacency
from lemma.models.build import build
from lemma.models.classifier import TreeModel, tree_adjacency
from lemma.spec.models import Classifier, Tree

TREES = [[1, -1, 1, 2], [-1, 0], [-1], [-1, -1, 1]]  # the last has two roots: a text of two sentences


def filled(rows: list[list[int]], longest: int) -> torch.Tensor:
    return torch.tensor([row + [-1] * (longest - len(row)) for row in rows])


def read(seed: int = 1, longest: int = 4) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    tokens = [torch.randint(9, (len(tree),), generator=draw).tolist() for tree in TREES]
    return torch.stack([filled(tokens, longest), filled(TREES, longest)], dim=2)


def body(depth: int = 2) -> TreeModel:
    torch.manual_seed(3)
    return build(Tree(vocabulary=9, width=5, depth=depth)).eval()


def test_batched_adjacency_equals_that_of_single_trees() -> None:
    tokens = read()
    built = tree_adjacency(tokens[..., 1], tokens[..., 0] >= 0)
    for row, tree in enumerate(TREES):
        arcs = [(word, head) for word, head in enumerate(tree) if head >= 0]
        edges = torch.tensor(arcs, dtype=torch.long).reshape(-1, 2).T
        single = build_adjacency(edges, len(tree)).to_dense()
        torch.testing.assert_close(built[row, : len(tree), : len(tree)], single)
        torch.testing.assert_close(built[row, len(tree) :, : len(tree)], torch.zeros(4 - len(tree), len(tree)))


def test_negative_depth_is_rejected() -> None:
    with pytest.raises(SpecError, match="depth = -1"):
        Tree().replace(depth=-1)


def test_padding_does_not_change_tree_vectors_or_classes() -> None:
    model = build(Classifier(body=Tree(vocabulary=9, width=5), classes=3)).eval()
    torch.testing.assert_close(model(read(longest=9)), model(read()))
    for row, tree in enumerate(TREES):
        torch.testing.assert_close(model(read(longest=9)[row : row + 1, : len(tree)])[0], model(read())[row])


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_tree_vectors_are_equivariant_to_word_order(depth: int) -> None:
    """Permuting words together with their arcs permutes the vectors."""
    order = torch.tensor([2, 0, 3, 1])  # the word that moves to each position
    index = order.argsort()
    tokens = read()[:1]
    heads = tokens[0, order, 1]
    moved = torch.stack([tokens[0, order, 0], torch.where(heads >= 0, index[heads], heads)], dim=1)[None]
    torch.testing.assert_close(body(depth).vectors(moved), body(depth).vectors(tokens)[:, order])


def test_arcs_change_vectors_only_with_graph_layers() -> None:
    tokens = read()[:1]
    other = tokens.clone()
    other[0, 3, 1] = 0
    torch.testing.assert_close(body(0).vectors(other), body(0).vectors(tokens))
    assert not torch.allclose(body(1).vectors(other), body(1).vectors(tokens))


def test_receptive_field_in_arcs_equals_depth() -> None:
    """Words 3 – 2 – 1 – 0 form a path: word 0 influences word 2 through two layers, word 3 through three."""
    tokens = read()[:1]
    other = tokens.clone()
    other[0, 0, 0] = (other[0, 0, 0] + 1) % 9
    for depth, reached in ((1, [True, True, False, False]), (2, [True, True, True, False]), (3, [True] * 4)):
        differs = (body(depth).vectors(other) - body(depth).vectors(tokens)).abs().sum(-1)[0] > 1e-7
        assert differs.tolist() == reached


def test_tree_layer_equals_reference_residual_update() -> None:
    model, tokens = body(1), read()[:1]
    words = model.embedding(tokens[0, :, 0])
    dense = build_adjacency(torch.tensor([[0, 2, 3], [1, 1, 2]]), 4).to_dense()
    layer = model.layers[0]
    expected = words + torch.relu(dense @ words @ layer.map.weight.T + layer.bias)
    torch.testing.assert_close(model.vectors(tokens)[0], expected)
