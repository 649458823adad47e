"""Recording attention: queries and keys as they pass, from which the weights are recomputed."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, TypeVar

import torch
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

# Seeing every call of PyTorch's fused attention, whoever makes it, without changing what it computes.


FUSED = functional.scaled_dot_product_attention


class FusedCalls(TorchFunctionMode):
    """A context in which `around` is handed every call of `scaled_dot_product_attention` of its own thread.

    As a mode it sees every call but those that PyTorch's own functions make, such as multi-head attention's: for these
    the function itself is replaced for as long as anyone watches. Calls inside compiled code are not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self._inside = False

    def around(self, attend: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Call `attend(*args, **kwargs)` and note what there is to note."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Watch."""
        REPLACED.begin(self)
        super().__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        """Leave everything as it was."""
        super().__exit__(*failure)
        REPLACED.end(self)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function; fused attention is noted."""
        if func is FUSED and not torch.compiler.is_compiling():
            return self.once(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def once(self, attend: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Hand a call on, unless it is one that is being handed on already."""
        if self._inside:
            return attend(*args, **kwargs)
        self._inside = True
        try:
            return self.around(attend, args, kwargs)
        finally:
            self._inside = False


class Replaced(threading.local):
    """The watchers of each thread, and the function that stands in for PyTorch's while any thread has one."""

    lock, users = threading.Lock(), 0
    before: Callable[..., Tensor] = FUSED

    def __init__(self) -> None:
        self.watchers: list[FusedCalls] = []

    def begin(self, watcher: FusedCalls) -> None:
        """Let a watcher of this thread see; the first of all puts the function in its place."""
        self.watchers.append(watcher)
        with Replaced.lock:
            if not Replaced.users:
                Replaced.before = functional.scaled_dot_product_attention
                functional.scaled_dot_product_attention = _stand_in
            Replaced.users += 1

    def end(self, watcher: FusedCalls) -> None:
        """Let it go; the last of all puts back what was there before."""
        self.watchers.remove(watcher)
        with Replaced.lock:
            Replaced.users -= 1
            if not Replaced.users:
                functional.scaled_dot_product_attention = Replaced.before


REPLACED = Replaced()


def _stand_in(*args: Any, **kwargs: Any) -> Tensor:
    return _through(REPLACED.watchers, *args, **kwargs)


def _through(watchers: Sequence[FusedCalls], *args: Any, **kwargs: Any) -> Tensor:
    """Hand a call to the innermost watcher, which hands it on to the next."""
    if not watchers or torch.compiler.is_compiling():
        return Replaced.before(*args, **kwargs)
    *outer, inner = watchers
    return inner.once(partial(_through, outer), args, kwargs)


# A tap on attention: queries and keys as they pass, from which its weights can be worked out again.
#
# The fused kernel stays the one that runs and whoever does not look pays nothing: our own attention says what it is
# about
# to do, and every other call of PyTorch's fused kernel is seen from outside. So this works on our models, on
# torch.nn's
# and on Hugging Face ones.


@dataclass(frozen=True)
class AttentionRecord:
    """What one call of attention was given: α = softmax(scale · q·k + bias), over the keys that may be seen."""

    queries: Float[Tensor, "batch heads new width"]
    keys: Float[Tensor, "batch heads known width"]
    values: Float[Tensor, "batch heads known value_width"] | None
    scale: float
    bias: Float[Tensor, "... new known"] | None = None
    """Added to the scaled scores, −∞ where a key is masked."""
    causal: bool = False
    """Whether query i sees keys up to i + known − new only."""
    line: Float[Tensor, "heads distances"] | None = None
    """What positions add to the scaled scores of each head, at the distances 1 − new … known − 1."""
    name: str = ""
    """The path of the module that attended."""

    def scores(self) -> Float[Tensor, "batch heads new known"]:
        """The scaled scores with bias, −∞ where a key may not be seen."""
        scores = self.queries @ self.keys.mT * self.scale
        scores = scores if self.line is None else scores + self.by_distance(self.steps())
        scores = scores if self.bias is None else scores + self.bias
        return scores.masked_fill(~self.allowed(), -torch.inf) if self.causal else scores

    def weights(self) -> Float[Tensor, "batch heads new known"]:
        """The attention weights; a row that may see nothing is zero."""
        scores = self.scores()
        return scores.softmax(-1).masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0.0)

    def distances(self) -> Float[Tensor, "new known"]:
        """How far each key lies before each query, as a number of the queries' kind."""
        return self.steps().to(self.queries.dtype)

    def steps(self) -> Int[Tensor, "new known"]:
        """The same in whole numbers, which half precision rounds from 257 on."""
        new, known = self.queries.shape[-2], self.keys.shape[-2]
        rows = torch.arange(known - new, known, device=self.keys.device)
        return rows[:, None] - torch.arange(known, device=self.keys.device)

    def by_distance(self, distances: Real[Tensor, "rows known"]) -> Float[Tensor, "heads rows known"]:
        """What positions add to the scores of keys that lie so far before some of the queries."""
        assert self.line is not None
        return self.line[:, distances.long() + (self.queries.shape[-2] - 1)]

    def allowed(self) -> Bool[Tensor, "new known"]:
        """Which keys each query may see as far as order goes."""
        return self.distances() >= 0 if self.causal else torch.ones_like(self.distances(), dtype=torch.bool)

    def counted(self) -> Bool[Tensor, "batch heads new"] | None:
        """Which rows stand at a place that is not masked itself, as padding is; None if all do.

        Only a mask of keys tells: the same for every row, over as many rows as keys.
        """
        if self.bias is None or self.bias.shape[-2] != 1 or self.queries.shape[-2] != self.keys.shape[-2]:
            return None
        return (self.bias[..., 0, :] > -torch.inf).expand(self.queries.shape[:3])


class Listener(FusedCalls):
    """Hears of every call of attention while it is open, and lets it pass."""

    def __init__(self) -> None:
        super().__init__()
        self.told = False

    def hear(self, record: AttentionRecord) -> None:
        """Take in what attention is about to do."""
        raise NotImplementedError


class Recorder(Listener):
    """Keeps a record of every call of attention, under the path of the module at work."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[AttentionRecord] = []
        self.path: list[str] = []

    def hear(self, record: AttentionRecord) -> None:
        """Keep a record."""
        self.records.append(replace(record, name=self.path[-1] if self.path else ""))

    def around(self, attend: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Note a call that nobody has told of."""
        if not self.told:
            self.hear(record_of(*args, **kwargs))
        return attend(*args, **kwargs)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Where torch.nn's attention returns its weights, and so passes the kernel by, let it call the kernel too."""
        kwargs = kwargs or {}
        if func is functional.multi_head_attention_forward and kwargs.get("need_weights", True):
            with torch.random.fork_rng(enabled=bool(kwargs.get("training", True))):
                func(*args, **{**kwargs, "need_weights": False})
        return super().__torch_function__(func, types, args, kwargs)


AnyListener = TypeVar("AnyListener", bound=Listener)


class Ears(threading.local):
    """Those who listen in this thread."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []

    def __bool__(self) -> bool:
        return bool(self.listeners)


EARS = Ears()


def announce(record: AttentionRecord) -> None:
    """Say what attention is about to do."""
    for listener in EARS.listeners:
        listener.hear(record)


@contextmanager
def telling(record: AttentionRecord) -> Iterator[None]:
    """Say what attention is about to do; what its kernel is then called with is not noted a second time."""
    announce(record)
    for listener in EARS.listeners:
        listener.told = True
    try:
        yield
    finally:
        for listener in EARS.listeners:
            listener.told = False


@contextmanager
def overhear() -> Iterator[list[AttentionRecord]]:
    """Collect a record of every call of attention, without the names of modules."""
    with listening(Recorder()) as recorder:
        yield recorder.records


@contextmanager
def listening(listener: AnyListener) -> Iterator[AnyListener]:
    """Let someone hear of every call of attention in this thread."""
    EARS.listeners.append(listener)
    try:
        with listener:
            yield listener
    finally:
        EARS.listeners.remove(listener)


@contextmanager
def tap(model: nn.Module) -> Iterator[list[AttentionRecord]]:
    """Collect a record of every call of attention inside a model, in order, each with its module's path.

    >>> layer = nn.MultiheadAttention(4, 2, batch_first=True)
    >>> with torch.no_grad(), tap(layer) as records:
    ...     _ = layer(*[torch.ones(1, 3, 4)] * 3, need_weights=False)
    >>> records[0].weights().shape, records[0].weights()[0, 0, 0, 0].item()
    (torch.Size([1, 2, 3, 3]), 0.3333333432674408)
    """
    with ExitStack() as stack:
        stack.enter_context(_without_shortcuts(model))
        recorder = stack.enter_context(listening(Recorder()))
        for name, module in model.named_modules():
            stack.enter_context(_named(module, name, recorder.path))
        yield recorder.records


@contextmanager
def _named(module: nn.Module, name: str, path: list[str]) -> Iterator[None]:
    """Keep `path` at the names of the modules that are at work."""
    begin = module.register_forward_pre_hook(lambda *_: path.append(name))
    end = module.register_forward_hook(lambda *_: (path.pop(), None)[1], always_call=True)
    try:
        yield
    finally:
        begin.remove()
        end.remove()


@contextmanager
def _without_shortcuts(model: nn.Module) -> Iterator[None]:
    """Leave the paths that pass the fused kernel by: torch.nn's shortcut, and Hugging Face's other implementations."""
    configs = {id(config): config for part in model.modules() if (config := getattr(part, "config", None)) is not None}
    others = [one for one in configs.values() if getattr(one, "_attn_implementation", "sdpa") != "sdpa"]
    named = [(config, config._attn_implementation) for config in others]
    shortcut = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for config, _ in named:
            config._attn_implementation = "sdpa"
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(shortcut)
        for config, implementation in named:
            config._attn_implementation = implementation


def record_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> AttentionRecord:
    """Turn the arguments of PyTorch's fused attention into a record; the names are PyTorch's."""
    queries, keys, values = (_with_heads(tensor) for tensor in (query, key, value))
    heads = queries.shape[1]
    square = queries.shape[-2] == keys.shape[-2]
    bias = bias_of(attn_mask, queries)
    if is_causal and not square:  # PyTorch aligns its causal mask with the first key
        bias = bias_of(torch.ones(queries.shape[-2], keys.shape[-2], device=keys.device, dtype=torch.bool).tril(), keys)
    return AttentionRecord(
        queries,
        spread(keys, heads),
        spread(values, heads),
        queries.shape[-1] ** -0.5 if scale is None else scale,
        bias,
        is_causal and square,
    )


def bias_of(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """A mask as what it adds to the scores: −∞ where it is False."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=like.dtype, device=mask.device).masked_fill(~mask, -torch.inf)


def spread(tensor: Float[Tensor, "batch groups time width"], heads: int) -> Float[Tensor, "batch heads time width"]:
    """Give each of `heads` heads the keys or values of its group; one group for all is not copied."""
    groups = tensor.shape[1]
    if groups == heads:
        return tensor
    return tensor.expand(-1, heads, -1, -1) if groups == 1 else tensor.repeat_interleave(heads // groups, dim=1)


def _with_heads(tensor: Tensor) -> Tensor:
    """Give a tensor of three dimensions a batch of one; flatten what there is beyond four."""
    return tensor[None] if tensor.dim() == 3 else tensor.flatten(0, -4)
