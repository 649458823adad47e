"""Problems B2 and B3: focus and near terms and their gradients compared with the formulas, and their memory."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lemma.errors import SpecError
from lemma.layers import penalties as rows
from lemma.layers.penalties import row_statistics
from lemma.layers.recording import AttentionRecord, record_attention
from lemma.models.build import build
from lemma.spec.models import Decoder, Lstm
from lemma.spec.recipe import Recipe
from lemma.tasks.language import LanguageTask, causal_loss

from families import SMALL


def number(tensor: Tensor) -> float:
    return tensor.detach().item()


def reference_shaping(alphas: Sequence[Tensor], distance_max: float) -> tuple[Tensor, Tensor]:
    """Return L_focus and L_near by loops over layers, texts, heads and rows."""
    focus, nearby = [], []
    for layer, alpha in enumerate(alphas):
        batch, heads, new, names = alpha.shape
        for b, k, t1 in ((b, k, t) for b in range(batch) for k in range(heads) for t in range(new)):
            row, index = alpha[b, k, t1], t1 + names - new
            if not bool(row.sum() > 0):
                continue
            seen = row[row > 0]
            focus.append(-(seen * seen.log()).sum())
            squared = sum(row[t2] * (index - t2) ** 2 for t2 in range(names))
            if layer < len(alphas) - 1:
                nearby.append(torch.clamp(torch.as_tensor(squared), max=distance_max))
    return torch.stack(focus).mean(), torch.stack(nearby).mean()


PENALIZED = [name for name, spec in SMALL.items() if name.startswith("decoder") and spec.depth > 1]
PENALIZED.remove("decoder-parallel")  # its positions have a trainable bias of scores, which is refused


@pytest.mark.parametrize("block", [2**20, 64, 1])
@pytest.mark.parametrize("name", PENALIZED)
def test_focus_near_and_gradients_match_the_formulas(name: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BLOCK_SCORES", block)
    model, tokens = build(SMALL[name]).double(), torch.randint(11, (2, 8))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    with record_attention() as records:
        model(tokens)
    shape = row_statistics(records, distance_max=6.0)
    focus, nearby = reference_shaping([record.weights() for record in records], 6.0)
    assert number(shape.entropy) == pytest.approx(number(focus), abs=1e-12)
    assert number(shape.distance) == pytest.approx(number(nearby), abs=1e-12) and 0 < number(nearby) < 6
    expected = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    ours = torch.autograd.grad(shape.entropy + 0.3 * shape.distance, expected, allow_unused=True, retain_graph=True)
    reference = torch.autograd.grad(focus + 0.3 * nearby, expected, allow_unused=True)
    for our, other in zip(ours, reference, strict=True):
        assert (our is None) == (other is None)
        if our is not None and other is not None:
            torch.testing.assert_close(our, other, rtol=1e-9, atol=1e-12)
    assert any(our is not None and our.abs().max() > 1e-4 for our in ours)


@pytest.mark.parametrize("block", [2**20, 1])
def test_masked_keys_and_rows_without_visible_keys_are_ignored(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BLOCK_SCORES", block)
    torch.manual_seed(0)
    queries, keys = torch.randn(2, 2, 3, 5, 4, dtype=torch.float64).unbind()
    hidden = torch.zeros(2, 1, 5, 5, dtype=torch.float64)
    hidden[0, :, :, 3:] = -torch.inf  # padding
    hidden[1, :, 2] = -torch.inf  # a row without visible keys
    records = [AttentionRecord(queries, keys, None, 0.5, hidden)] * 2
    shape = row_statistics(records, 9.0)
    focus, nearby = reference_shaping([record.weights() for record in records], 9.0)
    assert number(shape.entropy) == pytest.approx(number(focus), abs=1e-12)
    assert number(shape.distance) == pytest.approx(number(nearby), abs=1e-12)


@pytest.mark.parametrize("time", [8, 64, 512])
def test_maximum_near_does_not_depend_on_length(time: int) -> None:
    """Every row attends only to the first token, which maximizes the distance."""
    keys = torch.zeros(1, 1, time, 2)
    keys[..., 0, 0] = 1000.0
    queries = torch.ones(1, 1, time, 2)
    nearby = number(
        row_statistics([AttentionRecord(queries, keys, None, 1.0, causal=True)] * 2, distance_max=4.0).distance
    )
    assert nearby <= 4.0 and nearby == pytest.approx(
        4.0 * (1 - (2 - 1 / 4) / time), abs=1e-4
    )  # rows 0 and 1 see 0 and 1


def test_near_excludes_the_last_layer_but_focus_does_not() -> None:
    far = AttentionRecord(torch.zeros(1, 1, 6, 2), torch.zeros(1, 1, 6, 2), None, 1.0)
    self_only = AttentionRecord(far.queries, far.keys, None, 1.0, torch.full((6, 6), -torch.inf).fill_diagonal_(0.0))
    assert number(row_statistics([self_only, far], 100.0).distance) == 0
    assert number(row_statistics([self_only, far], 100.0).entropy) == pytest.approx(math.log(6) / 2)
    assert number(row_statistics([far, self_only], 100.0).distance) > 1
    two = row_statistics(
        [far, self_only, far, far], 100.0, num_layers=2
    )  # two calls per layer: both of the last layer are excluded
    assert number(two.distance) == pytest.approx(number(row_statistics([far, far], 100.0).distance) / 2)
    with pytest.raises(ValueError, match="3 calls"):
        row_statistics([far] * 3, 100.0, num_layers=2)
    with pytest.raises(ValueError, match="0 calls"):
        row_statistics([], 100.0)


class LargestTensorMode(TorchDispatchMode):
    """Dispatch mode that records the largest output of any operation and the floating dtypes."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, Tensor) and tensor._base is None:
                self.size = max(self.size, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


@pytest.mark.parametrize("positions", ["learned", "rotary", "alibi"])
def test_shaping_step_never_materializes_all_weights(positions: str) -> None:
    time, heads = 512, 4
    model = build(Decoder(vocabulary=11, width=16, depth=2, heads=heads, context=time, positions=positions))
    tokens = torch.randint(11, (2, time))
    criterion = LanguageTask().loss(model, Recipe(entropy_penalty=0.01, distance_penalty=0.001))
    rows_at_first_result, rows.BLOCK_SCORES = rows.BLOCK_SCORES, 2 * heads * time * 16
    try:
        with LargestTensorMode() as watch:
            criterion(tokens, tokens, None)[0].backward()
    finally:
        rows.BLOCK_SCORES = rows_at_first_result
    assert watch.size < 2 * heads * time * time / 8


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_objective_is_the_reported_sum_of_terms(precision: torch.dtype) -> None:
    model, tokens = build(SMALL["decoder"]), torch.randint(11, (2, 8))
    criterion = LanguageTask().loss(model, Recipe(entropy_penalty=0.5, distance_penalty=0.25, distance_max=3.0))
    with torch.autocast("cpu", precision, enabled=precision != torch.float32):
        total, (loss, focus, nearby), _ = criterion(tokens, tokens, None)
        expected = causal_loss(model(tokens)[0], tokens)
    assert criterion.terms == ("loss", "entropy", "distance")
    assert number(loss) == pytest.approx(number(expected), rel=1e-3)
    assert number(total) == pytest.approx(number(loss + 0.5 * focus + 0.25 * nearby), rel=1e-5)
    assert 0 < number(focus) < math.log(8) and 0 < number(nearby) <= 3


def test_padded_rows_are_ignored() -> None:
    """A key mask marks padded positions; their rows are excluded."""
    queries, keys = torch.randn(2, 1, 2, 6, 4, dtype=torch.float64).unbind()
    padded = torch.zeros(1, 1, 1, 6, dtype=torch.float64)
    padded[..., 4:] = -torch.inf
    shape = row_statistics([AttentionRecord(queries, keys, None, 0.5, padded)] * 2, 9.0)
    short = [AttentionRecord(queries[..., :4, :], keys[..., :4, :], None, 0.5)] * 2
    expected = reference_shaping([record.weights() for record in short], 9.0)
    assert number(shape.entropy) == pytest.approx(number(expected[0]))


def test_near_with_two_calls_per_layer_excludes_last_layer() -> None:
    model, tokens = build(SMALL["table-a5"]).double(), torch.randint(11, (1, 8))  # self- and cross-attention
    with torch.no_grad(), record_attention() as records:
        model(tokens)
    _, (_, focus, nearby), _ = LanguageTask().loss(model, Recipe(distance_penalty=0.1, distance_max=3.0))(
        tokens, tokens, None
    )
    assert len(records) == 4
    habits = [(record.weights(), record.unmasked_rows()) for record in records]
    rows = [torch.ones_like(alpha[..., 0], dtype=torch.bool) if real is None else real for alpha, real in habits]
    squared = [(alpha * records[0].distances().square()).sum(-1).clamp(max=3.0) for alpha, _ in habits]
    expected = torch.cat([item[real] for item, real in zip(squared[:2], rows[:2], strict=True)]).mean()
    assert number(nearby) == pytest.approx(number(expected)) and number(focus) > 0


def test_zero_weights_keep_the_loss_and_attention_is_required() -> None:
    assert LanguageTask().loss(build(SMALL["decoder"]), Recipe()).terms == ("loss",)
    with pytest.raises(SpecError, match="lstm has none"):
        LanguageTask().loss(build(Lstm(vocabulary=5)), Recipe(entropy_penalty=0.1))
    with pytest.raises(SpecError, match="only one"):
        LanguageTask().loss(build(Decoder(depth=1, width=8, heads=2)), Recipe(distance_penalty=0.1))
    with pytest.raises(SpecError, match="compiled code cannot be recorded"):
        LanguageTask().loss(build(SMALL["decoder"]), Recipe(entropy_penalty=0.1, compile=True))
    with pytest.raises(SpecError, match="sequence_length = 20 is longer"):
        LanguageTask().loss(build(SMALL["decoder"]), Recipe(entropy_penalty=0.1, sequence_length=20))


@pytest.mark.parametrize("name", ["attentive", "table-a5"])
def test_focus_reduces_entropy_of_every_attention_model(name: str) -> None:
    model, tokens = build(SMALL[name]), torch.randint(11, (2, 8))
    criterion = LanguageTask().loss(model, Recipe(entropy_penalty=1.0))
    entropies = []
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(30):
        total, (_, focus, _), _ = criterion(tokens, tokens, None)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        entropies.append(number(focus))
    assert entropies[-1] < 0.7 * entropies[0]


def record_of_weights(weights: list[list[float]]) -> AttentionRecord:
    """Return a record of attention with these weights."""
    bias = torch.tensor(weights, dtype=torch.float64).log()
    nothing = torch.zeros(1, 1, len(weights), 1, dtype=torch.float64)
    return AttentionRecord(nothing, nothing, None, 1.0, bias[None, None])


def test_gallery_example_matches_hand_calculation() -> None:
    """Entropies log 2, 3/2 log 2 and log 3 among six rows; squared distances 0, 1/2 and 9/4, cut at 2."""
    first = record_of_weights([[1, 0, 0], [1 / 2, 1 / 2, 0], [1 / 2, 1 / 4, 1 / 4]])
    last = record_of_weights([[1, 0, 0], [0, 1, 0], [1 / 3, 1 / 3, 1 / 3]])
    assert number(row_statistics([first, last], 2.0).entropy) == pytest.approx((2.5 * math.log(2) + math.log(3)) / 6)
    assert number(row_statistics([first, last], 2.0).distance) == pytest.approx(5 / 6)
    assert number(row_statistics([first, last], 100.0).distance) == pytest.approx((1 / 2 + 9 / 4) / 3)
