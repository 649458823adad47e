"""Generation: read the prompt once, then one token at a time through the state."""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from html import escape
from types import FunctionType
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from lemma.data.tokenizers import Tokenizer
from lemma.errors import DataError, InputError
from lemma.generation.loops import Loop, Watch, observed_loop, proved_loop
from lemma.generation.sampling import Sampling, choose, refuse_type
from lemma.layers.state import State
from lemma.models.base import LanguageModel, evaluating
from lemma.report.text import fit

# A module laid bare for decoding: the same forward methods on plain attributes.
#
# At batch 1 a small model spends half its time in `nn.Module.__call__` and `__getattr__`, not in arithmetic. A bare
# copy
# shares the parameters and runs the very same `forward`, on objects that have nothing but attributes. A module that
# has
# hooks, a forward of its own, or a class that is neither ours nor one of torch's simple ones stays as it is, and is
# called as a module: so hooks and wrapped layers go on working.


SIMPLE = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Dropout)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = tuple(f"_global{name}" for name in HOOKS)
TORCHS = frozenset(vars(nn.Module())) - {"training"}  # what every module has for torch's own use
INSIDE = ("_parameters", "_buffers")


def bare(module: nn.Module) -> Any:
    """Return what computes as `module` does, faster, as long as nobody changes the module's tree.

    >>> import torch
    >>> layer = nn.Linear(3, 2)
    >>> torch.equal(bare(layer)(torch.ones(3)), layer(torch.ones(3)))
    True
    """
    if any(getattr(torch_module, name) for name in GLOBAL_HOOKS):
        return module
    if isinstance(module, nn.ModuleList):
        return [bare(part) for part in module]
    if not _can_be_bared(module):
        return module
    copy = _class_of(type(module))()
    vars(copy).update(_plain(module))
    vars(copy).update({name: part if part is None else bare(part) for name, part in module._modules.items()})
    return copy


def _can_be_bared(module: nn.Module) -> bool:
    kind = type(module)
    known = kind in SIMPLE or (kind.__module__.startswith("lemma.") and not _calls_super(kind))
    return known and "forward" not in vars(module) and not any(getattr(module, name) for name in HOOKS)


def _plain(module: nn.Module) -> dict[str, Any]:
    """The attributes of a module that are no modules."""
    own = {name: value for name, value in vars(module).items() if name not in TORCHS}
    return own | {name: value for inside in INSIDE for name, value in getattr(module, inside).items()}


@cache
def _class_of(kind: type[nn.Module]) -> type:
    """A class of modules without `nn.Module`: an instance is called where a module is."""
    return type(kind.__name__, (), _members(kind) | {"__call__": kind.forward})


@cache
def _calls_super(kind: type[nn.Module]) -> bool:
    functions = [member for member in _members(kind).values() if isinstance(member, FunctionType)]
    return any("__class__" in function.__code__.co_freevars for function in functions)


def _members(kind: type[nn.Module]) -> dict[str, Any]:
    """What a class and its parents up to `nn.Module` define, Python's own names left out."""
    ours = [parent for parent in reversed(kind.__mro__) if parent not in nn.Module.__mro__]
    members = {name: value for parent in ours for name, value in vars(parent).items()}
    return {name: value for name, value in members.items() if not name.startswith(("__", "_abc_"))}


# What a generation gives: tokens, and their text.


Stopped = Literal["length", "eos", "loop", "told"]
"""`told`: whoever was reading along had read enough."""


@dataclass(frozen=True)
class Generated:
    """The tokens generated after a prompt, `<eos>` left out, and why they end."""

    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    loop: Loop | None
    stopped: Stopped
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        lists = {"prompt_tokens": list(self.prompt_tokens), "tokens": list(self.tokens)}
        return {**asdict(self), **lists}


@dataclass(frozen=True)
class Generation:
    """The text generated after a prompt."""

    prompt: str
    text: str
    tokens: tuple[int, ...]
    loop: Loop | None
    stopped: Stopped
    tokens_per_second: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "tokens": list(self.tokens)}

    @property
    def remark(self) -> str:
        """One line about the loop; empty if there is none."""
        return f"loop: {self.loop}" if self.loop else ""

    def __str__(self) -> str:
        return f"{self.prompt}{self.text}\n{fit(self.remark)}".rstrip("\n")

    def _repr_html_(self) -> str:
        remark = f"<p><small>{escape(self.remark)}</small></p>" if self.loop else ""
        return f'<pre style="white-space: pre-wrap"><b>{escape(self.prompt)}</b>{escape(self.text)}</pre>{remark}'


# One generation under way: its tokens, its chance, its watch for loops.


class Row:
    """One prompt and what has been generated after it."""

    def __init__(self, number: int, prompt: Sequence[int], settings: Sampling) -> None:
        self.number, self.prompt, self.settings = number, tuple(prompt), settings
        self.random = random.Random(settings.seed + number)
        self.tokens: list[int] = []
        self.stopped: Stopped | None = None
        self.begun = self.ended = 0.0
        self._watch = Watch()
        self._loop: Loop | None = None
        self._about = ""

    def begin(self) -> None:
        """Start the clock."""
        self.begun = time.perf_counter()

    def stop(self, why: Stopped) -> None:
        """End here, and stop the clock."""
        self.stopped, self.ended = why, time.perf_counter()

    def take(self, token: int, eos: int | None) -> bool:
        """Take the next token; return whether it belongs to the text, which `<eos>` does not."""
        if token == eos and self.settings.stop_at_eos:
            self.stop("eos")
            return False
        self.tokens.append(token)
        if len(self.tokens) == self.settings.tokens:
            self.stop("length")
        return True

    def look(self, state: State, place: int, reach: int | None) -> None:
        """See whether the state, whose row in the batch is `place`, has been the same before.

        As long as a bounded memory is not full, its length alone tells each state from all others.
        """
        step, self._about = len(self.tokens), state.about
        if self._loop or len(self.prompt) + step < (reach or 0):
            return
        first = self._watch.earlier(state.signature(place), step)
        if first is not None:
            self._loop = proved_loop(self.tokens, first, step, self._about)
            if self.settings.stop_at_loop:
                self.stop("loop")

    def result(self) -> Generated:
        """Return what has been generated, and the loop in it."""
        assert self.stopped
        loop = self._loop
        if loop is None and self.settings.greedy and self.stopped == "length":
            loop = observed_loop(self.tokens, self._about)
        return Generated(self.prompt, tuple(self.tokens), loop, self.stopped, self.ended - self.begun)


# Generation: read the prompt once, then one token at a time through the state.
#
# Rows whose prompts are equally long run as one batch. Each row has its own numbers of chance, seeded by seed + row,
# and
# never meets another row. Only the rounding of batched matrix products may differ, in the last bit, from that of the
# row
# alone: so a choice can differ where tokens are equally likely up to that bit, and nowhere else.


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
                row.look(state, place, model.receptive_field)
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
    seen = [row.prompt[-model.receptive_field :] if model.receptive_field else row.prompt for row in rows]
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


# Tokens into text as they come, without ever showing half a character.


HALF = "\N{REPLACEMENT CHARACTER}"  # what a tokenizer writes for bytes that are no whole character


class Spelling:
    """Spells the tokens that follow a prompt, piece by piece.

    A token may end inside a character, or need the token before it to know whether a space parts them: so each piece
    is what the text of the latest tokens has gained, and an unfinished end waits for the next token.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._tokens = list(before[-1:])
        self._told = self._spell()

    def add(self, token: int) -> str:
        """Take a token and return what can be told by now."""
        self._tokens.append(token)
        text = self._spell()
        if text.endswith(HALF):
            return ""
        piece = text[len(self._told) :]
        self._tokens = [token]
        self._told = self._spell()
        return piece

    def rest(self) -> str:
        """Return what is still untold at the end, whole or not."""
        return self._spell()[len(self._told) :]

    def _spell(self) -> str:
        return self._tokenizer.decode(self._tokens)


# Generation from text to text.


OnText = Callable[[int, str], object]
"""Is called with a prompt's number and the next piece of its text, whole characters only; True ends that text there."""


def generate_text(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    settings: Sampling,
    on_text: OnText | None = None,
) -> list[Generation]:
    """Continue each prompt.

    A prompt without tokens starts from `<eos>`; if the tokenizer has none, from a newline; if its alphabet has none,
    from token 0.
    """
    for prompt in prompts:
        refuse_type("prompt", prompt, str, "a text")
    encoded = [tokenizer.encode(prompt).tolist() for prompt in prompts]
    spellings = [Spelling(tokenizer, ids) for ids in encoded]

    def tell(row: int, piece: str) -> bool:
        return on_text is not None and bool(piece) and on_text(row, piece) is True

    def spell(row: int, token: int) -> bool:
        return tell(row, spellings[row].add(token))

    starts = [ids or [_beginning(tokenizer)] for ids in encoded]
    results = generate(model, starts, settings, eos=tokenizer.eos, on_token=spell if on_text else None)
    for row, spelling in enumerate(spellings):
        tell(row, spelling.rest())
    return [_generation(tokenizer, *one) for one in zip(prompts, encoded, results, strict=True)]


def _beginning(tokenizer: Tokenizer) -> int:
    if tokenizer.eos is not None:
        return tokenizer.eos
    try:
        return int(tokenizer.encode("\n")[0])
    except DataError:
        return 0


def _generation(tokenizer: Tokenizer, prompt: str, before: list[int], result: Generated) -> Generation:
    """Spell all tokens at once, behind the prompt's last one, which may call for a space."""
    last = before[-1:]
    text = tokenizer.decode([*last, *result.tokens])[len(tokenizer.decode(last)) :]
    speed = len(result.tokens) / result.seconds if result.seconds else 0.0
    return Generation(prompt, text, result.tokens, result.loop, result.stopped, speed)
