"""Recording of attention: queries and keys of each call, from which the weights are recomputed.

The fused kernel still runs, and without a listener there is no cost: our own attention notifies listeners before it
calls the kernel, and every other call of PyTorch's fused kernel is intercepted. So this works on our models, on
torch.nn's and on Hugging Face's. Calls inside compiled code are not seen.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

SDPA = functional.scaled_dot_product_attention


@dataclass(frozen=True)
class AttentionRecord:
    """The inputs of one call of attention: α = softmax(scale · q·k + bias), over the visible keys."""

    queries: Float[Tensor, "batch heads new width"]
    keys: Float[Tensor, "batch heads known width"]
    values: Float[Tensor, "batch heads known value_width"] | None
    scale: float
    bias: Float[Tensor, "... new known"] | None = None  # added to the scaled scores, −∞ where a key is masked
    causal: bool = False  # query i sees keys up to i + known − new only
    position_bias: Float[Tensor, "heads distances"] | None = None  # added by distance: 1 − new … known − 1
    name: str = ""  # path of the module that attended
    sinks: Float[Tensor, " heads"] | None = None
    """Score of each head's attention sink, a key without a value, which takes a part of every row (gpt-oss)."""

    def scores(self) -> Float[Tensor, "batch heads new known"]:
        """Return the scaled scores q·k plus bias; −∞ where a key is not visible."""
        scores = self.queries @ self.keys.mT * self.scale
        scores = scores if self.position_bias is None else scores + self.position_bias_at(self.distances())
        scores = scores if self.bias is None else scores + self.bias
        return scores.masked_fill(self.distances() < 0, -torch.inf) if self.causal else scores

    def weights(self) -> Float[Tensor, "batch heads new known"]:
        """Return the attention weights, the softmax of the scores; a row without visible keys is zero."""
        scores = self.scores()
        weights = scores.softmax(-1).masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0.0)
        return weights if self.sinks is None else weights * self.non_sink_fraction()

    def non_sink_fraction(self) -> Float[Tensor, "batch heads new 1"]:
        """Return the fraction of each row's weight that the sink leaves to keys: Σ exp(score) / (Σ + exp(sink))."""
        assert self.sinks is not None
        sums = self.scores().logsumexp(-1, keepdim=True)
        return torch.sigmoid(sums - self.sinks.to(sums)[:, None, None])

    def distances(self) -> Int[Tensor, "new known"]:
        """Return query position − key position for all pairs."""
        new, known = self.queries.shape[-2], self.keys.shape[-2]
        rows = torch.arange(known - new, known, device=self.keys.device)
        return rows[:, None] - torch.arange(known, device=self.keys.device)

    def position_bias_at(self, distances: Real[Tensor, "rows known"]) -> Float[Tensor, "heads rows known"]:
        """Return the bias of the scores at these distances (query position − key position) for each head."""
        assert self.position_bias is not None
        return self.position_bias[:, distances.long() + (self.queries.shape[-2] - 1)]

    def unmasked_rows(self) -> Bool[Tensor, "batch heads new"] | None:
        """Return a mask of the queries, False at padding; None if it is not known where padding is.

        Padding is known only from a mask of keys that is the same for every row, with as many rows as keys.
        """
        if self.bias is None or self.bias.shape[-2] != 1 or self.queries.shape[-2] != self.keys.shape[-2]:
            return None
        return (self.bias[..., 0, :] > -torch.inf).expand(self.queries.shape[:3])


class AttentionListener(TorchFunctionMode):
    """A context that is notified of every call of attention in its thread.

    Our own attention calls `on_attention` before it calls the kernel, and sets `is_announced` meanwhile. `on_sdpa` gets
    every call of `scaled_dot_product_attention`: as a mode this class sees all but those of PyTorch's own functions,
    such as multi-head attention's; for these the function itself is replaced while any thread listens.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_announced = False
        self._inside = False

    def on_attention(self, record: AttentionRecord) -> None:
        """Handle a call of Lemma's own attention; subclasses override this."""
        raise NotImplementedError

    def on_sdpa(self, attend: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Return `attend(*args, **kwargs)`, the output of PyTorch's fused attention; subclasses record the call."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Start listening."""
        LISTENERS.add(self)
        super().__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        """Stop listening."""
        super().__exit__(*failure)
        LISTENERS.remove(self)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function; fused attention goes through `on_sdpa`."""
        if func is SDPA and not torch.compiler.is_compiling():
            return self.dispatch(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def dispatch(self, attend: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Return the output of `on_sdpa`, or of `attend` itself for a call from inside `on_sdpa`."""
        if self._inside:
            return attend(*args, **kwargs)
        self._inside = True
        try:
            return self.on_sdpa(attend, args, kwargs)
        finally:
            self._inside = False


class ListenerRegistry(threading.local):
    """Attention listeners by thread; while there is any, PyTorch's fused attention is replaced to call them."""

    lock, count = threading.Lock(), 0
    original_sdpa: Callable[..., Tensor] = SDPA

    def __init__(self) -> None:
        self.active: list[AttentionListener] = []

    def add(self, listener: AttentionListener) -> None:
        """Add a listener for this thread; the first of all threads patches `scaled_dot_product_attention`."""
        self.active.append(listener)
        with ListenerRegistry.lock:
            if not ListenerRegistry.count:
                ListenerRegistry.original_sdpa = functional.scaled_dot_product_attention
                functional.scaled_dot_product_attention = _patched_sdpa
            ListenerRegistry.count += 1

    def remove(self, listener: AttentionListener) -> None:
        """Remove a listener; the last of all threads restores `scaled_dot_product_attention`."""
        self.active.remove(listener)
        with ListenerRegistry.lock:
            ListenerRegistry.count -= 1
            if not ListenerRegistry.count:
                functional.scaled_dot_product_attention = ListenerRegistry.original_sdpa


LISTENERS = ListenerRegistry()


def _patched_sdpa(*args: Any, **kwargs: Any) -> Tensor:
    """Return `scaled_dot_product_attention(*args, **kwargs)`, computed through this thread's listeners."""
    return _dispatch_sdpa(LISTENERS.active, *args, **kwargs)


def _dispatch_sdpa(listeners: Sequence[AttentionListener], *args: Any, **kwargs: Any) -> Tensor:
    """Return `scaled_dot_product_attention`, called through the last listener, which calls the one before it, etc."""
    if not listeners or torch.compiler.is_compiling():
        return ListenerRegistry.original_sdpa(*args, **kwargs)
    *outer, inner = listeners
    return inner.dispatch(partial(_dispatch_sdpa, outer), args, kwargs)


@contextmanager
def notify_listeners(record: AttentionRecord) -> Iterator[None]:
    """Pass the record to this thread's listeners (`on_attention`); inside, they do not record the kernel call again."""
    for listener in LISTENERS.active:
        listener.on_attention(record)
        listener.is_announced = True
    try:
        yield
    finally:
        for listener in LISTENERS.active:
            listener.is_announced = False


class AttentionRecorder(AttentionListener):
    """A listener that collects records, each with the path of the module that attended."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[AttentionRecord] = []
        self.path: list[tuple[str, nn.Module]] = []  # modules being called, the innermost last

    def on_attention(self, record: AttentionRecord) -> None:
        """Append a record of a call of attention, with the path of the module that is being called."""
        self.records.append(replace(record, name=self.path[-1][0] if self.path else ""))

    def on_sdpa(self, attend: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Call PyTorch's fused attention, record it and return its output, scaled for the module's sinks if any."""
        outputs = attend(*args, **kwargs)
        if self.is_announced:
            return outputs
        record = record_from_sdpa(*args, **kwargs)
        sinks = getattr(self.path[-1][1], "sinks", None) if self.path else None
        if isinstance(sinks, Tensor) and sinks.shape == record.queries.shape[1:2]:
            record = replace(record, sinks=sinks.detach())
            outputs = outputs * record.non_sink_fraction().reshape(*outputs.shape[:-1], 1).to(outputs.dtype)
        self.on_attention(record)
        return outputs

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make torch.nn's attention call the kernel too where it returns its weights, for which it skips the kernel."""
        kwargs = kwargs or {}
        if func is functional.multi_head_attention_forward and kwargs.get("need_weights", True):
            with torch.random.fork_rng(enabled=bool(kwargs.get("training", True))):
                func(*args, **{**kwargs, "need_weights": False})
        return super().__torch_function__(func, types, args, kwargs)


@contextmanager
def record_attention(model: nn.Module | None = None) -> Iterator[list[AttentionRecord]]:
    """Yield a list to which every call of attention in this thread is appended as a record, in order.

    With a model, each record has the path of the module that attended, and the model's attention is kept from
    skipping the fused kernel: by torch.nn's shortcut, and by other implementations of Hugging Face's.

    >>> layer = nn.MultiheadAttention(4, 2, batch_first=True)
    >>> with torch.no_grad(), record_attention(layer) as records:
    ...     _ = layer(*[torch.ones(1, 3, 4)] * 3, need_weights=False)
    >>> records[0].weights().shape, records[0].weights()[0, 0, 0, 0].item()
    (torch.Size([1, 2, 3, 3]), 0.3333333432674408)
    """
    with ExitStack() as stack:
        if model is not None:
            stack.enter_context(_force_sdpa(model))
        recorder = stack.enter_context(AttentionRecorder())
        recording_thread = threading.get_ident()  # hooks are called in every thread that uses the model

        def enter(name: str, module: nn.Module) -> None:
            if threading.get_ident() == recording_thread:
                recorder.path.append((name, module))

        def leave(*_: Any) -> None:
            if threading.get_ident() == recording_thread:
                recorder.path.pop()

        for name, module in () if model is None else model.named_modules():
            stack.callback(module.register_forward_pre_hook(lambda module, _, name=name: enter(name, module)).remove)
            stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield recorder.records


@contextmanager
def _force_sdpa(model: nn.Module) -> Iterator[None]:
    """Make a model use PyTorch's fused attention inside the context, so that listeners see its calls."""
    configs: dict[int, Any] = {
        id(config): config for config in (getattr(module, "config", None) for module in model.modules())
    }
    implementations = [(config, getattr(config, "_attn_implementation", "sdpa")) for config in configs.values()]
    changed = [(config, implementation) for config, implementation in implementations if implementation != "sdpa"]
    shortcut = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for config, _ in changed:
            config._attn_implementation = "sdpa"
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(shortcut)
        for config, implementation in changed:
            config._attn_implementation = implementation


def record_from_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> AttentionRecord:
    """Return the record of a call of `scaled_dot_product_attention`; the arguments have PyTorch's names."""
    # Three dimensions get a batch of one; dimensions beyond four are flattened.
    queries, keys, values = (t[None] if t.dim() == 3 else t.flatten(0, -4) for t in (query, key, value))
    heads = queries.shape[1]
    square = queries.shape[-2] == keys.shape[-2]
    bias = mask_to_bias(attn_mask, queries)
    if is_causal and not square:  # PyTorch aligns its causal mask with the first key
        bias = mask_to_bias(
            torch.ones(queries.shape[-2], keys.shape[-2], device=keys.device, dtype=torch.bool).tril(), keys
        )
    factor = queries.shape[-1] ** -0.5 if scale is None else scale
    return AttentionRecord(
        queries, expand_kv_heads(keys, heads), expand_kv_heads(values, heads), factor, bias, is_causal and square
    )


def mask_to_bias(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """Return a boolean mask as a bias in the dtype of `like`, −∞ where it is False; a float mask or None unchanged."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=like.dtype, device=mask.device).masked_fill(~mask, -torch.inf)


def expand_kv_heads(
    tensor: Float[Tensor, "batch groups time width"], heads: int
) -> Float[Tensor, "batch heads time width"]:
    """Return keys or values repeated for each query head of their group; those of a single group are not copied."""
    groups = tensor.shape[1]
    if groups == heads:
        return tensor
    return tensor.expand(-1, heads, -1, -1) if groups == 1 else tensor.repeat_interleave(heads // groups, dim=1)
