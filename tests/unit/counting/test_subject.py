"""Subjects of counting: live modules and factories are never modified or cached."""

import os
import random
import sys
from collections.abc import Callable
from copy import deepcopy
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lemma
from lemma.counting.subject import resolve_subject
from lemma.errors import CountingError, InputError, SpecError


class Live(nn.Module):
    """A module with all state that a run may change: batch statistics, dropout, gradients, a count of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
        first, *_, last = self.layers.parameters()
        first.requires_grad_(False)
        self.layers.get_parameter("3.weight").grad = torch.ones(2, 4)
        self.scale = last * 2  # no leaf: deepcopy alone refuses it
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layers(x)


def numpy_state() -> list[int]:
    return np.random.get_state(legacy=True)[1].tolist()  # noqa: NPY002  # pyright: ignore[reportArgumentType]


def state_of(module: Live) -> dict[str, Any]:
    parameters = dict(module.named_parameters())
    hooks = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules()]
    return {
        "tensors": {name: tensor.clone() for name, tensor in module.state_dict().items()},
        "gradients": {name: None if item.grad is None else item.grad.clone() for name, item in parameters.items()},
        "learned": {name: item.requires_grad for name, item in parameters.items()},
        "modes": [part.training for part in module.modules()],
        "hooks": hooks,
        "calls": module.calls,
        "random": (torch.get_rng_state(), torch.tensor(numpy_state()), random.getstate()),
    }


def assert_equal_states(before: dict[str, Any], after: dict[str, Any]) -> None:
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def factory_of_module(module: Live) -> Callable[[], nn.Module]:
    def model() -> nn.Module:
        return module

    return model


def factory_of_container(module: Live) -> Callable[[], nn.Module]:
    def model(d: int = 3) -> nn.Module:
        return nn.Sequential(module, nn.Linear(2, d))

    return model


def test_counting_does_not_modify_a_live_module() -> None:
    module = Live()
    module.layers[0].register_forward_hook(lambda *args: None)
    before = state_of(module)
    with pytest.warns(UserWarning, match="built already"):
        account = lemma.count(module)
    assert account.parameters.total == sum(parameter.numel() for parameter in module.parameters())
    assert account.optimizer.total
    assert_equal_states(before, state_of(module))


@pytest.mark.parametrize("wrapped", [factory_of_module, factory_of_container])
@pytest.mark.parametrize("training", [True, False])
def test_live_modules_from_factories_are_counted_on_copies(wrapped: Any, training: bool) -> None:
    module = Live().train(training)
    factory: Any = wrapped(module)
    factory.inputs = lambda B=3: torch.randn(B, 4)
    before = state_of(module)
    account = lemma.count(factory)
    assert account.flops.total and account.backward.total
    assert_equal_states(before, state_of(module))


def test_counting_preserves_the_random_state() -> None:
    def drops(d: int = 4) -> nn.Module:
        _ = random.random(), np.random.rand()  # noqa: NPY002
        return nn.Sequential(nn.Linear(d, d), nn.Dropout(0.5))

    drops.inputs = lambda d, B=2: torch.rand(B, d)  # pyright: ignore[reportFunctionMemberAccess]
    before = torch.get_rng_state(), random.getstate(), numpy_state()
    lemma.count(drops)
    lemma.count.draw(drops)
    after = torch.get_rng_state(), random.getstate(), numpy_state()
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]


def test_uncopyable_module_error_suggests_a_factory() -> None:
    module = nn.Linear(2, 2)
    module.thread = sys._getframe()  # pyright: ignore[reportArgumentType]
    with pytest.warns(UserWarning), pytest.raises(CountingError, match="Give what builds it"):
        lemma.count(module)
    assert not hasattr(deepcopy(nn.Linear(2, 2)), "thread")


@pytest.mark.parametrize("what", ["environment", "file"])
def test_factory_with_external_state_is_not_cached(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = "os.environ['W']" if what == "environment" else f"open({str(tmp_path / 'width')!r}).read()"
    (tmp_path / "reading_factory.py").write_text(
        f"import os\nfrom torch import nn\ndef model(d=4):\n    return nn.Linear(d, int({reads}))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "reading_factory", raising=False)
    totals = []
    for width in (4, 8):
        os.environ["W"] = str(width)
        (tmp_path / "width").write_text(str(width))
        totals.append(lemma.count("reading_factory:model", quantities=["parameters"]).parameters.total)
    monkeypatch.delenv("W")
    assert totals == [5 * 4, 5 * 8]


def test_noninteger_sizes_are_explained() -> None:
    for word, size in (("in_features", "abc"), ("out_features", 1.5)):
        with pytest.raises(InputError, match=f"{word} = .*a whole number is expected"):
            lemma.count("torch.nn:Linear", **{"in_features": 2, "out_features": 2, word: size})
    with pytest.raises(InputError, match="B = 'abc': a whole number"):
        lemma.count("gpt2", B="abc")


def test_packed_quantized_weights_are_counted() -> None:
    base = nn.Sequential(nn.Linear(4, 5), nn.LSTM(5, 2), nn.GRUCell(2, 3))
    packed = torch.ao.quantization.quantize_dynamic(base)
    with pytest.warns(UserWarning, match="built already"):
        account = lemma.count(packed)
    assert account.parameters.total == sum(parameter.numel() for parameter in base.parameters())
    assert account.optimizer.total == 0
    assert {part["note"] for part in account.parameters.parts} == {"frozen"}


def test_lazy_module_error_names_the_unknown_shape() -> None:
    with pytest.warns(UserWarning), pytest.raises(CountingError, match="does not know the shape of weight"):
        lemma.count(nn.LazyLinear(4))


def test_example_identity_without_transformers_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of that name, such as a clone of the repository, can be imported but has none."""

    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("lemma.counting.subject.version", version)
    assert resolve_subject("torch-lstm").identity == "example torch-lstm [] transformers "


def write_factory(path: Path, code: str = "from torch import nn\nfrom helper_sizes import OUT\n") -> str:
    path.parent.mkdir(exist_ok=True)
    path.with_name("helper_sizes.py").write_text("OUT = 3\n")
    path.write_text(f"{code}def model(d=4):\n    return nn.Linear(d, OUT, bias=False)\n")
    return f"{path}:model"


def test_factory_in_a_file_is_counted_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "helper_sizes", raising=False)
    name = write_factory(tmp_path / "models" / "own.py")
    before = list(sys.path)
    assert lemma.count(name, quantities=["parameters"], d=5).parameters.formula == "3*d"
    monkeypatch.chdir(tmp_path)
    assert lemma.count("models/own.py:model", quantities=["parameters"]).parameters.total == 12
    write_factory(tmp_path / "models" / "own.py", "from torch import nn\nOUT = 7\n")  # edited: it is run again
    assert lemma.count("models/own.py:model", quantities=["parameters"]).parameters.total == 28
    assert sys.path == before


def test_factory_in_a_file_that_fails_is_explained(tmp_path: Path) -> None:
    name = write_factory(tmp_path / "own.py", "from torch import n\n")
    with pytest.raises(SpecError, match=r"own\.py:model: cannot be imported \(ImportError: .*file\.py:factory"):
        lemma.count(name)
    with pytest.raises(SpecError, match=r"there is no file .*other\.py"):
        lemma.count(f"{tmp_path / 'other.py'}:model")
    with pytest.raises(SpecError, match=r"own\.py is Python code: name the function .*own\.py:model"):
        lemma.count(str(tmp_path / "own.py"))
    with pytest.raises(SpecError, match="a file must not do"):
        resolve_subject(name)
