"""The contract of a language model as checks that you can run on your own model.

    from lemma.testing import contract_violations
    assert contract_violations(build(MySpec())) == {}

Each check is a function of a model and tokens that returns what is wrong, or an empty string. The model is a copy in
double precision with large random weights, so that nothing is zero by chance; a model with `vectors` has more checks.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor, nn

from lemma.models.base import Backbone, LanguageModel, Tokens, count_parameters
from lemma.models.build import count_spec_parameters
from lemma.spec.choose import read_model

AnyModule = TypeVar("AnyModule", bound=nn.Module)
Check = Callable[[LanguageModel, Tokens], str]
"""Returns a message of what is wrong with a model on some tokens, "" if nothing is."""
ROWS, MIN_LENGTH, MIDDLE = 3, 23, 12  # of the random tokens, and the position at which they are changed
EXACT, CLOSE = 1e-12, 1e-10  # tolerances
WEIGHT_STD = 0.5  # of the random weights
LOSS_MARGIN = 0.5  # nats that the initial loss may differ from that of uniform predictions


def contract_violations(model: LanguageModel) -> dict[str, str]:
    """Return the message of each check that a model fails, by the check's name; empty for a correct model.

    >>> from lemma.models.build import build
    >>> from lemma.spec.models import FeedForward
    >>> contract_violations(build(FeedForward(V=11, d=6, d_h=7, N=4)))
    {}
    """
    messages = {name: run_check(check, model) for name, check in contract_checks(model).items()}
    return {name: message for name, message in messages.items() if message}


def contract_checks(model: LanguageModel) -> dict[str, Check]:
    """Return the check functions that apply to a model, by name."""
    has_vectors = type(model).vectors is not Backbone.vectors
    return {check.__name__: check for check in (*CHECKS, *(VECTOR_CHECKS if has_vectors else ()))}


def run_check(check: Check, model: LanguageModel) -> str:
    """Run a check on a model and random tokens; return its message, "" if it passes. An exception is a message too."""
    tested = model if check in INITIAL_WEIGHT_CHECKS else randomized_copy(model)
    try:
        return check(tested, random_tokens(tested))
    except Exception as error:  # another package's model may fail in any way
        return f"{type(error).__name__}: {error}"


def randomized_copy(model: AnyModule) -> AnyModule:
    """Return a copy of a model in double precision and evaluation mode, with large random weights."""
    copy = deepcopy(model)
    generators = {device: torch.Generator(device).manual_seed(5) for device in {p.device for p in copy.parameters()}}
    for parameter in copy.parameters():
        torch.nn.init.normal_(parameter, std=WEIGHT_STD, generator=generators[parameter.device])
    return copy.double().eval()


def random_tokens(model: LanguageModel) -> Tokens:
    """Return a batch of random token ids, longer than the model's receptive field."""
    length = max(MIN_LENGTH, 2 * (model.receptive_field or 0) + 5)
    return torch.randint(model.spec.vocabulary, (ROWS, length), generator=torch.Generator().manual_seed(1))


def logits_for_each_token(model: LanguageModel, tokens: Tokens) -> str:
    """Return a message unless the logits have the shape (batch, time, V) and are finite, otherwise ""."""
    logits, _ = model(tokens)
    expected = (*tokens.shape, model.spec.vocabulary)
    if logits.shape != expected:
        return f"logits of the shape {tuple(logits.shape)}, where {expected} is expected"
    return "" if logits.isfinite().all() else "logits that are not finite"


def pieces_give_the_whole(model: LanguageModel, tokens: Tokens) -> str:
    """Return a message unless tokens fed in chunks, with the state, give the logits of all at once, otherwise ""."""
    expected, _ = model(tokens)
    n = tokens.shape[1]
    for sizes in ([1] * n, [5, 1, 12, n - 18], [n - 1, 1], [2, n - 2], [9, 9, n - 18]):
        outputs, state = [], None
        for chunk in tokens.split(sizes, dim=1):
            logits, state = model(chunk, state)
            outputs.append(logits)
        if message := _difference(torch.cat(outputs, dim=1), expected, CLOSE, f"cut as {sizes}, logits"):
            return message
    return ""


def future_cannot_move_the_past(model: LanguageModel, tokens: Tokens) -> str:
    """Return a message unless changing tokens changes logits after them and none before, otherwise ""."""
    changed = _change_tokens(tokens, slice(MIDDLE, None), model)
    before, after = model(tokens)[0], model(changed)[0]
    if torch.allclose(after[:, MIDDLE:], before[:, MIDDLE:]):
        return "other tokens change no logits"
    return _difference(after[:, :MIDDLE], before[:, :MIDDLE], EXACT, "before the first token that was changed, logits")


def receptive_field_is_what_counts(model: LanguageModel, tokens: Tokens) -> str:
    """Return a message unless the last logits depend on exactly the last `receptive_field` tokens, otherwise "".

    A model whose `receptive_field` is None, for unlimited, passes.
    """
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
    """Return a message if a forward pass from a state modifies that state, otherwise ""."""
    _, state = model(tokens[:, :6])
    first, _ = model(tokens[:, 6:8], state)
    model(_change_tokens(tokens[:, 6:8], slice(None), model), state)
    return "" if torch.equal(first, model(tokens[:, 6:8], state)[0]) else "reading on has changed the state"


def state_survives_its_tensors_and_rows(model: LanguageModel, tokens: Tokens) -> str:
    """Return a message unless a state rebuilt from tensors, or cut to rows, gives the same logits, otherwise ""."""
    _, state = model(tokens[:, :7])
    stored = state.with_tensors({name: tensor.clone() for name, tensor in state.tensors().items()})
    expected, _ = model(tokens[:, 7:9], state)
    if not torch.equal(model(tokens[:, 7:9], stored.detach())[0], expected):
        return "a state made of its own tensors gives other logits"
    rows = torch.tensor([2, 0])
    return _difference(
        model(tokens[rows, 7:9], state.select_rows(rows))[0], expected[rows], 1e-7, "of two rows, logits"
    )


def signature_tells_states_apart(model: LanguageModel, tokens: Tokens) -> str:
    """Return a message unless `signature` is equal for equal tokens only and `state.about` not empty, otherwise ""."""
    inputs = (tokens[:1], tokens[:1].clone(), _change_tokens(tokens[:1], slice(None), model))
    states = [model(rows)[1] for rows in inputs]
    first, same, other = (state.signature(0) for state in states)
    if first != same or first == other:
        return "signatures are unequal for equal states" if first != same else "signatures are equal for unequal states"
    return "" if states[0].about else "state.about is empty"


def every_parameter_learns(model: LanguageModel, tokens: Tokens) -> str:
    """Return a message that names parameters without a gradient above rounding error; "" if there are none."""
    model(tokens)[0].logsumexp(-1).sum().backward()
    idle = idle_parameters(model)
    return f"no gradient for {', '.join(idle)}" if idle else ""


def idle_parameters(model: nn.Module) -> list[str]:
    """Return the names of parameters whose gradient is missing or no larger than rounding errors."""
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return [name for name, gradient in gradients.items() if gradient is None or not gradient.abs().max() > EXACT]


def counted_without_memory(model: LanguageModel, tokens: Tokens) -> str:
    """Return a message unless the model and its spec on the meta device have equally many parameters, otherwise ""."""
    actual, counted = count_parameters(model), count_spec_parameters(model.spec)
    return "" if actual == counted else f"the model has {actual:,} parameters, its spec on the meta device {counted:,}"


def spec_survives_a_file(model: LanguageModel, tokens: Tokens) -> str:
    """Return a message unless the model's spec equals the spec read back from its `to_dict()`, otherwise ""."""
    read = read_model(model.spec.to_dict(), "spec")
    return "" if read == model.spec else f"{model.spec.to_dict()} is read as {read.to_dict()}"


def initial_loss_is_near_that_of_chance(model: LanguageModel, tokens: Tokens) -> str:
    """Return a message unless the initial loss is within LOSS_MARGIN nats of log V, that of chance, otherwise ""."""
    with torch.no_grad():
        logits, _ = model(tokens)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).item()
    uniform = math.log(model.spec.vocabulary)
    return "" if abs(loss - uniform) < LOSS_MARGIN else f"the initial loss is {loss:.2f}, that of chance {uniform:.2f}"


def vectors_are_what_the_output_reads(model: LanguageModel, tokens: Tokens) -> str:
    """Return a message unless `vectors` has the right shape, and `logits_of` turns it into the logits, otherwise ""."""
    tokens = tokens[:, : min(9, model.receptive_field or 9)]
    vectors, (logits, _) = model.vectors(tokens), model(tokens)
    expected = (*tokens.shape, model.vector_width)
    if vectors.shape != expected:
        return f"vectors of the shape {tuple(vectors.shape)}, where {expected} is expected"
    return _difference(model.logits_of(vectors), logits, EXACT, "from its vectors, logits")


def padding_changes_no_vector(model: LanguageModel, tokens: Tokens) -> str:
    """Return a message if padding tokens (−1) at the end of rows change vectors before them, otherwise ""."""
    tokens = tokens[:, : min(9, model.receptive_field or 9)]
    padded = torch.nn.functional.pad(tokens, (0, 4), value=-1)
    vectors = model.vectors(padded)[:, : tokens.shape[1]]
    return _difference(vectors, model.vectors(tokens), EXACT, "before padding, vectors")


CHECKS: tuple[Check, ...] = (  # of every language model
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
VECTOR_CHECKS: tuple[Check, ...] = (vectors_are_what_the_output_reads, padding_changes_no_vector)  # of backbones
INITIAL_WEIGHT_CHECKS = (initial_loss_is_near_that_of_chance,)  # these keep the model's initial weights


def _change_tokens(tokens: Tokens, positions: slice, model: LanguageModel) -> Tokens:
    """Return a copy of token ids in which those at `positions` are replaced by other ids."""
    changed = tokens.clone()
    changed[:, positions] = (changed[:, positions] + 1) % model.spec.vocabulary
    return changed


def _difference(actual: Tensor, expected: Tensor, tolerance: float, name: str) -> str:
    """Return a message if two tensors differ by more than the tolerance, else ""; `name` begins the message.

    Args:
        name: plural subject of the message, such as "before padding, vectors".
    """
    if actual.shape != expected.shape:
        return f"{name} have the shape {tuple(actual.shape)}, not {tuple(expected.shape)}"
    difference = (actual - expected).abs().max().item()
    return "" if difference <= tolerance else f"{name} differ by up to {difference:.1e}"
