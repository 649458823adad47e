"""Generation: read the prompt once, then one token at a time through the state.

Rows whose prompts are equally long run as one batch. Each row has its own numbers of chance, seeded by seed + row, and
never meets another row. Only the rounding of batched matrix products may differ, in the last bit, from that of the row
alone: so a choice can differ where tokens are equally likely up to that bit, and nowhere else.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lemma.errors import InputError
from lemma.generation.bare import bare
from lemma.generation.generated import Generated
from lemma.generation.row import Row
from lemma.generation.sampling import Sampling, choose
from lemma.models import LanguageModel, evaluating
from lemma.parts import State

OnToken = Callable[[int, int], object]
"""Is called with a row's number and its next token as soon as that is chosen; if it says True, the row ends there."""

LOGITS = 2**24  # a prompt's logits held at once: 64 MB
Last = Float[Tensor, "rows vocabulary"]


@torch.inference_mode()
def generate(
    model: LanguageModel,
    prompts: Sequence[Sequence[int] | np.ndarray],
    settings: Sampling,
    *,
    eos: int | None = None,
    on_token: OnToken | None = None,
) -> list[Generated]:
    """Continue each prompt through the model's state, never reading a token twice.

    (A decoder whose window is full moves all its positions at each token, and therefore reads its window anew.)
    """
    rows = [Row(number, _checked(model, prompt, number), settings) for number, prompt in enumerate(prompts)]
    groups: defaultdict[int, list[Row]] = defaultdict(list)
    for row in rows:
        groups[len(row.prompt)].append(row)
    with evaluating(model):
        for group in groups.values():
            _run(model, group, settings, eos, on_token)
    return [row.result() for row in rows]


def _checked(model: LanguageModel, prompt: Sequence[int] | np.ndarray, number: int) -> list[int]:
    ids = [int(token) for token in prompt]
    if not ids:
        raise InputError(f"prompt {number} has no tokens; a model needs at least one to start from, such as <eos>.")
    wrong = next((token for token in ids if not 0 <= token < model.spec.vocabulary), None)
    if wrong is not None:
        raise InputError(
            f"prompt {number}: token {wrong} is outside the model's vocabulary of {model.spec.vocabulary}. "
            "Use the tokenizer it was trained with."
        )
    return ids


def _run(model: LanguageModel, rows: list[Row], settings: Sampling, eos: int | None, on_token: OnToken | None) -> None:
    for row in rows:
        row.begin()
    logits, state = _read_prompts(model, rows)
    step = bare(model)
    while True:
        if settings.greedy:
            for place, row in enumerate(rows):
                row.look(state, place, model.reach)
        rows, logits, state = _still_running(rows, logits, state)
        if not rows:
            return
        tokens = choose(logits, settings, () if settings.greedy else [row.random.random() for row in rows])
        _hand_out(rows, tokens.tolist(), eos, on_token)
        if all(row.stopped for row in rows):
            return
        logits, state = step(tokens.unsqueeze(1), state)
        logits = logits.select(1, -1)


def _read_prompts(model: LanguageModel, rows: list[Row]) -> tuple[Last, State]:
    """Read what the model can see of equally long prompts, as many tokens at once as memory likes."""
    seen = [row.prompt[-model.reach :] if model.reach else row.prompt for row in rows]
    tokens = torch.tensor(seen, device=next(model.parameters()).device)
    first, *others = tokens.split(max(1, LOGITS // (len(rows) * model.spec.vocabulary)), dim=1)
    logits, state = model(first)
    for part in others:
        logits, state = model(part, state)
    if logits[:, -1].isnan().any():
        raise InputError(
            "the model's logits are not numbers (NaN): its weights are damaged. Use an earlier checkpoint."
        )
    return logits[:, -1], state


def _still_running(rows: list[Row], logits: Last, state: State) -> tuple[list[Row], Last, State]:
    places = [place for place, row in enumerate(rows) if not row.stopped]
    if len(places) == len(rows):
        return rows, logits, state
    index = torch.tensor(places, dtype=torch.long, device=logits.device)
    return [rows[place] for place in places], logits[index], state.rows(index)


def _hand_out(rows: list[Row], tokens: list[int], eos: int | None, on_token: OnToken | None) -> None:
    for row, token in zip(rows, tokens, strict=True):
        if row.take(token, eos) and on_token and on_token(row.number, token) is True:
            row.stop("told")
