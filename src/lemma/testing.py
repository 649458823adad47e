"""What every language model promises, as checks that you can run on your own model.

    from lemma.testing import broken_promises
    assert broken_promises(build(MySpec())) == {}

Each promise is a function of a model and tokens that says what is wrong, or nothing. The model is a copy in double
precision with large random weights, so that nothing is zero by chance; a model that has `vectors` promises more.
"""

import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import TypeVar

import torch
from jaxtyping import Int
from torch import Tensor, nn

from lemma.models.base import Backbone, LanguageModel, count_parameters
from lemma.models.build import count_spec_parameters
from lemma.spec.choose import read_model

Tokens = Int[Tensor, "batch time"]
AnyModule = TypeVar("AnyModule", bound=nn.Module)
Check = Callable[[LanguageModel, Tokens], str]
ROWS, SHORTEST, MIDDLE = 3, 23, 12
EXACT, CLOSE = 1e-12, 1e-10
WEIGHT_STD, LOSS_MARGIN = (
    0.5,
    0.5,
)  # of the random weights; how far from that of chance the initial loss may be, in nats


def contract_violations(model: LanguageModel) -> dict[str, str]:
    """The promises that a model breaks, each with what was found; none for a good model.

    >>> from lemma.models.build import build
    >>> from lemma.spec.models import FeedForward
    >>> broken_promises(build(FeedForward(V=11, d=6, d_h=7, N=4)))
    {}
    """
    found = {name: run_check(promise, model) for name, promise in contract_checks(model).items()}
    return {name: wrong for name, wrong in found.items() if wrong}


def contract_checks(model: LanguageModel) -> dict[str, Check]:
    """The promises that this model makes, by their names."""
    reads = type(model).vectors is not Backbone.vectors
    return {promise.__name__: promise for promise in (*CHECKS, *(VECTOR_CHECKS if reads else ()))}


def run_check(check: Check, model: LanguageModel) -> str:
    """Check one promise; an exception breaks it too."""
    tried = model if check in INITIAL_WEIGHT_CHECKS else randomized_copy(model)
    try:
        return check(tried, random_tokens(tried))
    except Exception as error:  # another package's model may fail in any way
        return f"{type(error).__name__}: {error}"


def randomized_copy(model: AnyModule) -> AnyModule:
    """A copy in double precision, in evaluation mode, with new large random weights."""
    copy = deepcopy(model)
    generators: dict[torch.device, torch.Generator] = {}
    for parameter in copy.parameters():
        device = parameter.device
        if device not in generators:
            generators[device] = torch.Generator(device).manual_seed(5)
        torch.nn.init.normal_(parameter, std=WEIGHT_STD, generator=generators[device])
    return copy.double().eval()


def random_tokens(model: LanguageModel) -> Tokens:
    """Rows of random tokens, longer than the model's receptive field."""
    length = max(SHORTEST, 2 * (model.receptive_field or 0) + 5)
    return torch.randint(model.spec.vocabulary, (ROWS, length), generator=torch.Generator().manual_seed(1))


def logits_for_each_token(model: LanguageModel, tokens: Tokens) -> str:
    """Logits are (batch, time, V), and finite."""
    logits, _ = model(tokens)
    wanted = (*tokens.shape, model.spec.vocabulary)
    if logits.shape != wanted:
        return f"logits of the shape {tuple(logits.shape)}, where {wanted} is expected"
    return "" if logits.isfinite().all() else "logits that are not finite"


def pieces_give_the_whole(model: LanguageModel, tokens: Tokens) -> str:
    """Tokens in any pieces through the state give the logits of all at once."""
    whole, _ = model(tokens)
    return next(
        (wrong for sizes in chunk_sizes(tokens.shape[1]) if (wrong := _check_chunks(model, tokens, sizes, whole))), ""
    )


def chunk_sizes(length: int) -> Iterator[list[int]]:
    """Ways to cut a row: token by token, unevenly, the last one alone, the first two alone, in three."""
    yield [1] * length
    yield [5, 1, 12, length - 18]
    yield [length - 1, 1]
    yield [2, length - 2]
    yield [9, 9, length - 18]


def _check_chunks(model: LanguageModel, tokens: Tokens, sizes: list[int], whole: Tensor) -> str:
    pieces, state = [], None
    for piece in tokens.split(sizes, dim=1):
        logits, state = model(piece, state)
        pieces.append(logits)
    return _difference(torch.cat(pieces, dim=1), whole, CLOSE, f"cut as {sizes}, logits")


def future_cannot_move_the_past(model: LanguageModel, tokens: Tokens) -> str:
    """Other tokens from a position on change the logits from there on, and none before."""
    changed = _change_tokens(tokens, slice(MIDDLE, None), model)
    before, after = model(tokens)[0], model(changed)[0]
    if torch.allclose(after[:, MIDDLE:], before[:, MIDDLE:]):
        return "other tokens change no logits"
    return _difference(after[:, :MIDDLE], before[:, :MIDDLE], EXACT, "before the first token that was changed, logits")


def receptive_field_is_what_counts(model: LanguageModel, tokens: Tokens) -> str:
    """The last logits depend on exactly the last `receptive_field` tokens; None promises nothing."""
    field = model.receptive_field
    if field is None:
        return ""
    last = model(tokens)[0][:, -1]
    changed = _change_tokens(tokens, slice(-field, 1 - field or None), model)
    if torch.allclose(model(changed)[0][:, -1], last):
        return f"the token {field} positions back has no influence, yet receptive_field is {field}"
    alone = model(tokens[:, -field:])[0][:, -1]
    return _difference(alone, last, CLOSE, f"after the last {field} tokens alone, logits")


def state_is_a_value(model: LanguageModel, tokens: Tokens) -> str:
    """Reading on from a state leaves that state as it was."""
    _, state = model(tokens[:, :6])
    first, _ = model(tokens[:, 6:8], state)
    model(_change_tokens(tokens[:, 6:8], slice(None), model), state)
    return "" if torch.equal(first, model(tokens[:, 6:8], state)[0]) else "reading on has changed the state"


def state_survives_its_tensors_and_rows(model: LanguageModel, tokens: Tokens) -> str:
    """A state can be stored, cut off from its graph, and cut by rows of the batch."""
    _, state = model(tokens[:, :7])
    stored = state.with_tensors({name: tensor.clone() for name, tensor in state.tensors().items()})
    whole, _ = model(tokens[:, 7:9], state)
    if not torch.equal(model(tokens[:, 7:9], stored.detach())[0], whole):
        return "a state made of its own tensors gives other logits"
    chosen = torch.tensor([2, 0])
    return _difference(
        model(tokens[chosen, 7:9], state.select_rows(chosen))[0], whole[chosen], 1e-7, "of two rows, logits"
    )


def signature_tells_states_apart(model: LanguageModel, tokens: Tokens) -> str:
    """Signatures are equal exactly when the state is, and a state says what it is."""
    states = [
        model(some)[1] for some in (tokens[:1], tokens[:1].clone(), _change_tokens(tokens[:1], slice(None), model))
    ]
    first, same, other = (state.signature(0) for state in states)
    if first != same or first == other:
        return "signatures are unequal for equal states" if first != same else "signatures are equal for unequal states"
    return "" if states[0].about else "state.about is empty"


def every_parameter_learns(model: LanguageModel, tokens: Tokens) -> str:
    """Every parameter has a gradient that is more than rounding."""
    model(tokens)[0].logsumexp(-1).sum().backward()
    idle = idle_parameters(model)
    return f"no gradient for {', '.join(idle)}" if idle else ""


def idle_parameters(model: nn.Module) -> list[str]:
    """Parameters without a gradient, or with one that is nothing but rounding."""
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return [name for name, gradient in gradients.items() if gradient is None or not gradient.abs().max() > EXACT]


def counted_without_memory(model: LanguageModel, tokens: Tokens) -> str:
    """On the meta device its spec has as many parameters as the model itself."""
    own, counted = count_parameters(model), count_spec_parameters(model.spec)
    return "" if own == counted else f"the model has {own:,} parameters, its spec on the meta device {counted:,}"


def spec_survives_a_file(model: LanguageModel, tokens: Tokens) -> str:
    """The spec comes back from its plain words, by the name of its family."""
    read = read_model(model.spec.to_dict(), "spec")
    return "" if read == model.spec else f"{model.spec.to_dict()} is read as {read.to_dict()}"


def initial_loss_is_near_that_of_chance(model: LanguageModel, tokens: Tokens) -> str:
    """With its initial weights all tokens are about equally likely."""
    with torch.no_grad():
        logits, _ = model(tokens)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).item()
    chance = math.log(model.spec.vocabulary)
    return "" if abs(loss - chance) < LOSS_MARGIN else f"the initial loss is {loss:.2f}, that of chance {chance:.2f}"


def vectors_are_what_the_output_reads(model: LanguageModel, tokens: Tokens) -> str:
    """`logits_of(vectors(tokens))` are the logits, so that others can read the vectors too."""
    some = tokens[:, : min(9, model.receptive_field or 9)]
    vectors, (logits, _) = model.vectors(some), model(some)
    if vectors.shape != (*some.shape, model.vector_width):
        return f"vectors of the shape {tuple(vectors.shape)}, where {(*some.shape, model.vector_width)} is expected"
    return _difference(model.logits_of(vectors), logits, EXACT, "from its vectors, logits")


def padding_changes_no_vector(model: LanguageModel, tokens: Tokens) -> str:
    """Tokens of −1 at the right end of a row change nothing before them."""
    some = tokens[:, : min(9, model.receptive_field or 9)]
    padded = torch.nn.functional.pad(some, (0, 4), value=-1)
    return _difference(model.vectors(padded)[:, : some.shape[1]], model.vectors(some), EXACT, "before padding, vectors")


CHECKS: tuple[Check, ...] = (
    logits_for_each_token,
    pieces_give_the_whole,
    future_cannot_move_the_past,
    receptive_field_is_what_counts,
    state_is_a_value,
    state_survives_its_tensors_and_rows,
    signature_tells_states_apart,
    every_parameter_learns,
    counted_without_memory,
    spec_survives_a_file,
    initial_loss_is_near_that_of_chance,
)
"""What every language model promises."""
VECTOR_CHECKS: tuple[Check, ...] = (vectors_are_what_the_output_reads, padding_changes_no_vector)
"""What a model promises that can be the backbone of a classifier."""
INITIAL_WEIGHT_CHECKS = (initial_loss_is_near_that_of_chance,)
"""Promises about the initial weights."""


def _change_tokens(tokens: Tokens, positions: slice, model: LanguageModel) -> Tokens:
    changed = tokens.clone()
    changed[:, positions] = (changed[:, positions] + 1) % model.spec.vocabulary
    return changed


def _difference(actual: Tensor, expected: Tensor, tolerance: float, name: str) -> str:
    """Say how far two tensors lie apart, if it is further than allowed."""
    if actual.shape != expected.shape:
        return f"{name} have the shape {tuple(actual.shape)}, not {tuple(expected.shape)}"
    apart = (actual - expected).abs().max().item()
    return "" if apart <= tolerance else f"{name} differ by up to {apart:.1e}"
