"""Seeing every call of PyTorch's fused attention, whoever makes it, without changing what it computes."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

FUSED = functional.scaled_dot_product_attention


class FusedCalls(TorchFunctionMode):
    """A context in which `around` is handed every call of `scaled_dot_product_attention`.

    As a mode it sees every call but those that PyTorch's own functions make, such as multi-head attention's: for these
    the function itself is replaced for as long as the context lasts.
    """

    def __init__(self) -> None:
        super().__init__()
        self._before, self._inside = FUSED, False

    def around(self, attend: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Call `attend(*args, **kwargs)` and note what there is to note."""
        raise NotImplementedError

    def __enter__(self) -> "FusedCalls":
        """Watch."""
        self._before = functional.scaled_dot_product_attention
        functional.scaled_dot_product_attention = self._replaced
        return super().__enter__()

    def __exit__(self, *failure: Any) -> None:
        """Leave everything as it was."""
        functional.scaled_dot_product_attention = self._before
        super().__exit__(*failure)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function; fused attention is noted."""
        if func is FUSED:
            return self._once(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _replaced(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._once(self._before, args, kwargs)

    def _once(self, attend: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Hand a call on, unless it is one that is being handed on already."""
        if self._inside:
            return attend(*args, **kwargs)
        self._inside = True
        try:
            return self.around(attend, args, kwargs)
        finally:
            self._inside = False
