"""Contract checks of every family; those of language models are public in `lemma.testing`."""

import pytest
import torch
from torch import Tensor

from lemma.errors import InputError, SpecError
from lemma.models.base import count_parameters
from lemma.models.build import build, count_spec_parameters
from lemma.models.encoder_decoder import EncoderDecoderModel
from lemma.models.transformer import EncoderModel
from lemma.spec.models import Classifier, Encoder
from lemma.testing import CHECKS, VECTOR_CHECKS, contract_checks, idle_parameters, randomized_copy, run_check

from families import BODIES, CLASSIFIERS, ENCODERS, SMALL, TRANSLATORS

LONG = 23  # past the context of every small model


@pytest.fixture(params=TRANSLATORS)
def translator(request: pytest.FixtureRequest) -> EncoderDecoderModel:
    """Return a small encoder–decoder with large random weights."""
    return randomized_copy(build(TRANSLATORS[request.param]))


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(11, (3, LONG), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("promise", [promise.__name__ for promise in (*CHECKS, *VECTOR_CHECKS)])
@pytest.mark.parametrize("name", SMALL)
def test_language_models_satisfy_the_contract(name: str, promise: str) -> None:
    model = build(SMALL[name])
    assert run_check(contract_checks(model)[promise], model) == ""


@pytest.mark.parametrize("name", ENCODERS)
def test_encoder_output_layer_reads_its_vectors(name: str, tokens: Tensor) -> None:
    model = randomized_copy(build(ENCODERS[name]))
    vectors, logits = model.vectors(tokens[:, :9]), model(tokens[:, :9])
    assert vectors.shape == (3, 9, model.vector_width)
    torch.testing.assert_close(model.output(vectors), logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["decoder", "encoder-learned-pre", "encoder-decoder-sinusoidal-post"])
def test_tokens_past_the_context_are_rejected_but_padding_is_not(name: str, tokens: Tensor) -> None:
    model = randomized_copy(build(BODIES[name]))
    with pytest.raises(InputError, match=r"context = 9 .* got 23 tokens"):
        model.vectors(tokens)
    padded = torch.nn.functional.pad(tokens[:, :9], (0, 4), value=-1)
    assert torch.equal(model.vectors(padded)[:, :9], model.vectors(tokens[:, :9]))


def test_encoder_heads_require_their_training_objective(tokens: Tensor) -> None:
    masked, follows = (build(Encoder(vocabulary=11, objective=objective)) for objective in ("masked", "next-sentence"))
    assert follows.follows(tokens).shape == (3, 2)
    with pytest.raises(SpecError, match="objective=both"):
        follows(tokens)
    with pytest.raises(SpecError, match="objective=both"):
        masked.follows(tokens)


@pytest.mark.parametrize("name", ENCODERS)
def test_encoder_positions_attend_to_all_positions(name: str, tokens: Tensor) -> None:
    model: EncoderModel = randomized_copy(build(ENCODERS[name]))
    embedded: list[Tensor] = []
    model.embedding.register_forward_hook(lambda *given: embedded.append(given[2]))
    vectors = model.vectors(tokens[:1, :7])
    for index in range(7):
        (slope,) = torch.autograd.grad(vectors[0, index].square().sum(), embedded[0], retain_graph=True)
        assert (slope.abs().sum(-1) > 0).all()


@pytest.mark.parametrize("sizes", [[1] * 8, [3, 1, 4], [7, 1]])
def test_incremental_target_decoding_equals_full_forward(
    translator: EncoderDecoderModel, tokens: Tensor, sizes: list[int]
) -> None:
    source, target = tokens[:, 9:16].clone(), tokens[:, :8]
    source[1, 4:] = source[2, 1:] = -1
    state, pieces = translator.begin(source), []
    for piece in target.split(sizes, dim=1):
        logits, state = translator.step(piece, state)
        pieces.append(logits)
    torch.testing.assert_close(torch.cat(pieces, dim=1), translator(source, target), rtol=0, atol=1e-10)


def test_future_target_tokens_do_not_affect_earlier_logits(translator: EncoderDecoderModel, tokens: Tensor) -> None:
    source, target = tokens[:, 9:16], tokens[:, :8].clone()
    before = translator(source, target)
    target[:, 5:] = (target[:, 5:] + 1) % 11
    after = translator(source, target)
    torch.testing.assert_close(after[:, :5], before[:, :5], rtol=0, atol=1e-12)
    assert not torch.allclose(after[:, 5:], before[:, 5:])


def test_every_source_token_affects_every_target_logit(translator: EncoderDecoderModel, tokens: Tensor) -> None:
    source, target = tokens[:, 9:16], tokens[:, :8]
    before = translator(source, target)
    for index in range(7):
        changed = source.clone()
        changed[:, index] = (changed[:, index] + 1) % 11
        assert ((translator(changed, target) - before).abs().amax(-1) > 1e-9).all()


def test_translation_state_is_immutable_and_serializable(translator: EncoderDecoderModel, tokens: Tensor) -> None:
    source, target = tokens[:, 9:16].clone(), tokens[:, :5]
    source[1, 4:] = -1
    for text in (0, 3):  # before the first step the state holds the source as vectors
        _, state = translator.step(target[:, :text], translator.begin(source)) if text else (0, None)
        state = state or translator.begin(source)
        first, _ = translator.step(target[:, 3:], state)
        translator.step((target[:, 3:] + 3) % 11, state)
        stored = state.with_tensors({name: tensor.clone() for name, tensor in state.tensors().items()})
        assert torch.equal(translator.step(target[:, 3:], stored.detach())[0], first)
        assert stored.signature(1) == state.signature(1) != state.signature(0)
        choice = torch.tensor([2, 0])
        torch.testing.assert_close(translator.step(target[choice, 3:], state.select_rows(choice))[0], first[choice])


def test_translation_past_the_context_is_rejected(tokens: Tensor) -> None:
    model = build(TRANSLATORS["encoder-decoder-learned-pre"])
    _, state = model.step(tokens[:, :9], model.begin(tokens[:, :9]))
    with pytest.raises(InputError, match=r"encoder-decoder\.context = 9"):
        model.step(tokens[:, :1], state)


@pytest.mark.parametrize("name", [*ENCODERS, *TRANSLATORS, *CLASSIFIERS])
def test_other_families_train_all_counted_parameters(name: str, tokens: Tensor) -> None:
    spec = {**ENCODERS, **TRANSLATORS, **CLASSIFIERS}[name]
    model, source = randomized_copy(build(spec)), tokens[:, :7]
    if isinstance(model, EncoderDecoderModel):
        outputs = [model(source, tokens[:, 8:12])]
    else:
        outputs = [model(source), *([model.follows(source)] if spec.family == "encoder" and model.follow else [])]
    torch.stack([output.logsumexp(-1).square().sum() for output in outputs]).sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
    first_only = isinstance(spec, Classifier) and spec.pool == "first" and spec.body in SMALL.values()
    assert (
        first_only or idle_parameters(model) == []
    )  # pooling the first token leaves causal weights of later tokens untrained
    assert count_spec_parameters(spec) == count_parameters(model)


@pytest.mark.parametrize("name", [*ENCODERS, *TRANSLATORS])
def test_initial_transformer_loss_is_near_chance(name: str, tokens: Tensor) -> None:
    model = build(BODIES[name])
    source = tokens[:, :9]
    logits = model(source, source) if isinstance(model, EncoderDecoderModel) else model(source)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 9:18].flatten())
    assert abs(loss.item() - torch.tensor(11.0).log().item()) < 0.5


def test_classifier_contains_only_the_backbone_of_its_body() -> None:
    for name, body in BODIES.items():
        names = build(Classifier(body=body)).state_dict()
        assert not any(part.split(".")[1] in ("output", "follow", "decoder") for part in names), name
        assert {part.removeprefix("body.") for part in names if part.startswith("body.")} <= set(
            build(body).state_dict()
        )
