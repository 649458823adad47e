"""A training step against plain PyTorch: batches, carried states, accumulation."""

import numpy as np
import pytest
import torch
from torch import distributed

from lemma.data.batches import ContiguousStreams, RandomWindows
from lemma.errors import DataError, SpecError
from lemma.models.build import build
from lemma.spec.recipe import Recipe
from lemma.tasks.language import LanguageTask, TextBatches, causal_loss, training_length
from lemma.training.devices import Distributed
from lemma.training.session import Session
from small_runs import MODELS, QUICK

CPU = torch.device("cpu")
TEXT = np.random.default_rng(0).integers(0, 9, 700).astype(np.uint16)


def session_of(family: str, team: Distributed | None = None, **words) -> Session:
    spec = MODELS[family].replace(vocabulary=9)
    return Session(spec, Recipe(**{**QUICK, **words}), TEXT, team or Distributed(CPU), print)


def take_gradients(session: Session) -> tuple[float, dict[str, torch.Tensor]]:
    session.state.step += 1
    session.model.zero_grad()
    loss = session.compute_gradients()[0]
    return loss.item(), {name: p.grad.clone() for name, p in session.model.named_parameters()}


@pytest.mark.parametrize("order", [RandomWindows(700, 12, 8, 3), ContiguousStreams(700, 12, 8, 3)])
def test_text_batches_follow_the_order_with_shifted_targets(order) -> None:
    batches = TextBatches(TEXT, order, 12, Recipe(batch=8), Distributed(CPU))
    for step in (0, 1, 50):
        inputs, targets = batches.batch(step)
        for row, offset in enumerate(order.offsets(step)):
            assert inputs[row].tolist() == TEXT[offset : offset + 12].tolist()
            assert targets[row].tolist() == TEXT[offset + 1 : offset + 13].tolist()
        assert inputs.dtype == torch.int64 and batches.resets_state(step) == (
            isinstance(order, RandomWindows) or order.starts_epoch(step)
        )


def test_process_slices_join_to_the_global_batch() -> None:
    order = RandomWindows(700, 12, 8, 3)
    full = TextBatches(TEXT, order, 12, Recipe(batch=8), Distributed(CPU)).batch(5)[0]
    parts = [TextBatches(TEXT, order, 12, Recipe(batch=8), Distributed(CPU, rank, 4)).batch(5)[0] for rank in range(4)]
    assert torch.equal(torch.cat(parts), full)


def test_recurrent_models_use_streams_and_others_windows() -> None:
    kinds = {name: type(session_of(name).batches.order) for name in ("lstm", "decoder", "feed-forward")}
    assert kinds == {"lstm": ContiguousStreams, "decoder": RandomWindows, "feed-forward": RandomWindows}


def test_sequence_length_defaults_to_context_or_64() -> None:
    assert training_length(MODELS["decoder"], Recipe()) == 12 and training_length(MODELS["lstm"], Recipe()) == 64
    assert (
        training_length(MODELS["decoder"], Recipe(sequence_length=5)) == 5
        and training_length(MODELS["feed-forward"], Recipe()) == 64
    )


def test_too_short_training_text_is_rejected() -> None:
    with pytest.raises(DataError, match="700 tokens"):
        LanguageTask().batches(build(MODELS["lstm"]), TEXT, Recipe(sequence_length=100), Distributed(CPU))


@pytest.mark.parametrize("family", ["decoder", "lstm", "feed-forward"])
@pytest.mark.parametrize("parts", [2, 4])
def test_accumulated_gradients_equal_full_batch(family: str, parts: int) -> None:
    full, cut = session_of(family), session_of(family, accumulate=parts)
    for _ in range(3):  # the second and third steps continue from the carried states
        (loss, gradients), (cut_loss, cut_gradients) = take_gradients(full), take_gradients(cut)
        assert cut_loss == pytest.approx(loss, abs=1e-6)
        for name in gradients:
            torch.testing.assert_close(cut_gradients[name], gradients[name], atol=1e-6, rtol=1e-4)


def test_carried_state_continues_streams_until_the_epoch_ends() -> None:
    session = session_of("lstm")
    streams = session.batches.order
    assert isinstance(streams, ContiguousStreams) and streams.steps > 2
    for epoch in range(2):
        for index in range(streams.steps):
            loss, _ = take_gradients(session)
            begin = streams.offsets(epoch * streams.steps)
            rows = np.stack([TEXT[start : start + 12 * (index + 1) + 1] for start in begin]).astype(np.int64)
            tokens = torch.from_numpy(rows)
            logits, _ = session.model(tokens[:, :-1])  # from the start of the streams, without a carried state
            expected = causal_loss(logits[:, -12:], tokens[:, -12:])
            assert loss == pytest.approx(expected.item(), abs=1e-6)


def test_carried_state_is_detached() -> None:
    session = session_of("lstm")
    take_gradients(session)
    assert all(not tensor.requires_grad for tensor in session.carried_states[0].tensors().values())


def test_indivisible_batch_is_rejected_with_the_nearest_size() -> None:
    with pytest.raises(SpecError, match=r"batch = 8 .* 3 processes × accumulate 1\. Nearest batch: 9"):
        session_of("decoder", Distributed(CPU, 0, 3))
    with pytest.raises(SpecError, match="accumulate 3"):
        session_of("decoder", accumulate=3)


def test_seed_determines_weights_and_batches() -> None:
    first, again, other = (session_of("decoder", seed=seed) for seed in (1, 1, 2))
    assert take_gradients(first)[0] == take_gradients(again)[0] != take_gradients(other)[0]


def test_bfloat16_training_is_close_to_float32() -> None:
    exact, rough = session_of("decoder"), session_of("decoder", precision="bfloat16")
    a, b = take_gradients(exact)[0], take_gradients(rough)[0]
    assert a != b and a == pytest.approx(b, rel=0.02)


def test_ddp_reducers_are_released_before_the_process_group() -> None:
    """In the other order PyTorch's destructors may deadlock, which shows only on a busy machine."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    team = Distributed(CPU, 0, 2)
    shared = team.wrap(torch.nn.Linear(3, 2))
    shared(torch.ones(1, 3)).sum().backward()
    team.leave()
    assert not distributed.is_initialized()
    assert team.ddp_modules == [] and not hasattr(shared, "reducer") and not hasattr(shared, "logger")
