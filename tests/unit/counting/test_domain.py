"""Domains of formulas: evaluation at other sizes, complete output in every format, limits of time and memory."""

import json
import time
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lemma
from lemma.counting.account import NO_FORMULA, Account, Part, Quantity
from lemma.counting.count import DEFAULT_CONVENTIONS as CONVENTIONS
from lemma.counting.count import DEFAULT_LIMITS, CountLimits, SubjectCounter, count
from lemma.counting.measure import active_sizes, saved_bytes
from lemma.counting.polynomial import as_polynomial, symbol
from lemma.counting.subject import Inputs, factory_subject
from lemma.errors import CountingError, InputError
from lemma.report.progress import Observer


class Patterned(nn.Module):
    """Every seventh layer is wide, the inner width is rounded up to 256, and a text is padded to chunks of 16."""

    def __init__(self, d: int, L: int, d_ff: int) -> None:
        super().__init__()
        inner = 256 * -(-d_ff // 256)
        widths = [4 * d if (layer + 1) % 7 == 0 else d for layer in range(L)]
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(d, w), nn.Linear(w, d)) for w in widths)
        self.up, self.down = nn.Linear(d, inner), nn.Linear(inner, d)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.pad(x, (0, 0, 0, -x.shape[1] % 16))
        for layer in self.layers:
            x = layer(x)
        return self.down(self.up(x))


def patterned(d: int = 8, L: int = 4, d_ff: int = 64) -> nn.Module:
    return Patterned(d, L, d_ff)


def patterned_inputs(d: int, B: int = 2, T: int = 16) -> Tensor:
    return torch.zeros(B, T, d)


patterned.inputs = patterned_inputs  # pyright: ignore[reportFunctionMemberAccess]


@pytest.fixture(scope="module")
def account() -> Any:
    return lemma.count(patterned, quantities=["parameters", "flops", "activations", "optimizer"])


SIZES = {"d": 8, "L": 4, "d_ff": 64, "B": 2, "T": 16}


@pytest.mark.parametrize("changed", [{"L": 9}, {"d_ff": 300}, {"T": 17}, {"d": 11, "L": 15, "d_ff": 1000, "T": 40}])
def test_evaluation_at_other_sizes_rereads_the_module(account: Any, changed: dict[str, int]) -> None:
    sizes = {**SIZES, **changed}
    module = patterned(*(sizes[name] for name in ("d", "L", "d_ff")))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = {name: account.quantities[name].at(sizes) for name in account.quantities}
    products = sum(2 * layer.weight.numel() for layer in module.modules() if isinstance(layer, nn.Linear))
    assert result["parameters"] == sum(parameter.numel() for parameter in module.parameters())
    assert result["flops"] == products * sizes["B"] * 16 * -(-sizes["T"] // 16)
    assert result["optimizer"] > 8 * result["parameters"]
    inputs = Inputs((patterned_inputs(sizes["d"], sizes["B"], sizes["T"]),))
    assert result["activations"] == sum(size for (size,) in saved_bytes(module, inputs).values())


def test_evaluation_outside_the_domain_warns(account: Any) -> None:
    with pytest.warns(UserWarning, match=r"d_ff = 300.*read off the module; the formula.*d_ff = 64"):
        account.quantities["parameters"].at({**SIZES, "d_ff": 300})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert account.quantities["parameters"].at({"d": 40}) == sum(p.numel() for p in patterned(d=40).parameters())


def test_formula_without_module_is_refused_outside_its_domain(account: Any) -> None:
    from dataclasses import replace

    single = replace(account.quantities["parameters"], recount=None)
    assert single.at(SIZES) == account.parameters.total
    with pytest.raises(InputError, match=r"known at d = 8, L = 4.*not at d = 8, L = 9"):
        single.at({**SIZES, "L": 9})
    assert account.to_dict()["parameters"]["compared_at"] == {"d": 8, "L": 4, "d_ff": 64}


def test_unbuildable_sizes_are_reported(account: Any) -> None:
    with pytest.raises(CountingError, match="cannot be built at d=-1"):
        account.quantities["parameters"].at({**SIZES, "d": -1})


def test_all_output_formats_show_terms_without_formula() -> None:
    quantity = Quantity(
        "flops",
        "FLOPs",
        (Part("patches", symbol("d") * symbol("n"), as_polynomial(2)),),
        refused={"encoder": "no polynomial of n"},
        measured={"encoder": 990},
        compared_at={"d": 5, "n": 1},
        sizes={"d": 5, "n": 1},
    )
    account = Account("vit", {"d": 5, "n": 1}, {"flops": quantity})
    counted, base = account.flops, json.loads(json.dumps(account.to_dict()))
    assert counted.formula == base["flops"]["formula"] == f"2*d*n + {NO_FORMULA}" and counted.total == 1000
    assert counted.latex == base["flops"]["latex"] == rf"2d\,n + \text{{{NO_FORMULA}}}"
    assert sum(part["count"] for part in base["flops"]["parts"]) == base["flops"]["total"]
    assert rf"2d\,n + \text{{{NO_FORMULA}}} = 1{{,}}000" in account.latex()
    for text in (account.markdown(), account._repr_html_(), str(account)):
        assert NO_FORMULA in " ".join(text.split())
    assert {"encoder", "patches"} == {row["path"] for row in account.records()}


def test_derived_size_is_defined_in_latex() -> None:
    def rounded(d: int = 64) -> nn.Module:
        return nn.Linear(d, 64 * -(-8 * d // 192), bias=False)

    account = lemma.count(rounded)
    (letter,) = account.quantities["parameters"].rules
    assert rf"{letter} &= 64 \cdot \lceil" in account.latex()


def test_failing_quantity_does_not_affect_others() -> None:
    def broken(d: int = 4) -> nn.Module:
        return nn.Linear(d, d)

    broken.inputs = lambda d, B=2: torch.zeros(B, d + 1)  # pyright: ignore[reportFunctionMemberAccess]
    account = lemma.count(broken)
    assert account.parameters.formula == "d*(d + 1)" and account.optimizer.total
    assert account.flops.total is None
    assert "forward FLOPs = what follows no formula = unknown" in str(account)
    assert "cannot be run at d=4 B=2" in " ".join(str(account).split())
    with pytest.raises(CountingError, match="cannot be run at d=4 B=2"):
        lemma.count(broken, quantities=["flops"])


def test_fitting_respects_the_time_limit() -> None:
    class Slow(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            end = time.process_time() + 0.05
            while time.process_time() < end:
                pass
            return super().forward(input)

    def slow(d: int = 12) -> nn.Module:
        return Slow(d, d)

    slow.inputs = lambda d, B=2: torch.zeros(B, d)  # pyright: ignore[reportFunctionMemberAccess]
    start = time.process_time()
    account = count(factory_subject(slow, {}), ["parameters", "flops"], limits=CountLimits(seconds=0.2))
    assert time.process_time() - start < 4
    assert account.parameters.formula == "d*(d + 1)"
    assert account.flops.total == 2 * 2 * 12 * 12
    assert "takes more than 0.2 s" in account.quantities["flops"].refused[""]
    assert count(factory_subject(slow, {}), ["flops"]).flops.formula == "2*d**2*B"
    calls: list[tuple[Any, ...]] = []

    class Recorder(Observer):
        def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
            calls.append((phase, total, unit))

        def advance(self, done: int) -> None:
            calls.append((done,))

    start = time.process_time()
    account = count(factory_subject(slow, {}), limits=CountLimits(seconds=0.3), observer=Recorder())
    assert time.process_time() - start < 5  # the limit is for all quantities together, not for each
    assert {"flops", "backward", "activations"} <= {name for name, row in account.quantities.items() if row.refused}
    assert ("counting slow", len(account.quantities), "quantities") in calls
    assert {(0,), (1,), (2,)} <= {*calls}
    for seconds, cache in ((0, 1), (1, 0)):
        with pytest.raises(InputError, match="above 0"):
            CountLimits(seconds, cache)


def test_probing_never_exceeds_the_memory_limit() -> None:
    built: list[int] = []

    def wide(L: int = 3) -> nn.Module:
        module = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(L)))
        if module[0].weight.device.type == "cpu":
            built.append(L)
        return module

    wide.inputs = lambda B=2: torch.zeros(B, 1024)  # pyright: ignore[reportFunctionMemberAccess]
    account = count(factory_subject(wide, {}), limits=CountLimits(memory=2**20))
    assert not built
    assert account.flops.formula == "2097152*L*B" and account.parameters.total == 3 * 2**20
    assert account.activations.total is None and "more than 1 MiB" in " ".join(account.quantities["activations"].notes)


class Experts(nn.Module):
    """Eight experts, two for each token: stacked with biases, or a list of modules."""

    def __init__(self, d: int, E: int, k: int, stacked: bool) -> None:
        super().__init__()
        self.gate, self.k, self.stacked = nn.Linear(d, E, bias=False), k, stacked
        if stacked:
            self.weight, self.bias = nn.Parameter(torch.randn(E, d, d)), nn.Parameter(torch.zeros(E, d))
        else:
            self.experts = nn.ModuleList(nn.Linear(d, d) for _ in range(E))

    def forward(self, x: Tensor) -> Tensor:
        scores, choice = self.gate(x).softmax(-1).topk(self.k)
        if self.stacked:
            each = torch.einsum("nd,nkde->nke", x, self.weight[choice]) + self.bias[choice]
            return x + (each * scores[..., None]).sum(1)
        if x.is_meta:
            return x + self.experts[0](x) * scores.sum(-1, keepdim=True)
        rows: list[Tensor] = []
        for row, weights, experts in zip(x, scores, choice, strict=True):
            each = [weight * self.experts[int(e)](row) for weight, e in zip(weights, experts, strict=True)]
            rows.append(torch.stack(each).sum(0))
        return x + torch.stack(rows)


@pytest.mark.parametrize("stacked", [True, False])
def test_active_parameters_on_meta_match_real_tensors(stacked: bool) -> None:
    real = active_sizes(Experts(6, 8, 2, stacked), Inputs((torch.randn(1, 6),)))
    with torch.device("meta"):
        meta = active_sizes(Experts(6, 8, 2, stacked), Inputs((torch.randn(1, 6),)))
    assert sum(size for (size,) in meta.values()) == sum(size for (size,) in real.values()) == 6 * 8 + 2 * (36 + 6)


def test_active_parameters_of_large_mixture_need_no_memory() -> None:
    def large(d: int = 4096) -> nn.Module:
        module = Experts(d, 8, 2, True)
        assert module.weight.is_meta or d < 1000
        return module

    large.inputs = lambda d, B=2: torch.zeros(B, d)  # pyright: ignore[reportFunctionMemberAccess]
    account = lemma.count(large, quantities=["active", "parameters"])
    assert account.active.total == 8 * 4096 + 2 * (4096**2 + 4096)


def test_measuring_at_requested_sizes_does_not_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: object) -> None:
        raise AssertionError("probed")

    monkeypatch.setattr("lemma.counting.count.fit_groups", never)
    counter = SubjectCounter(factory_subject(patterned, {"L": 8}), CONVENTIONS, DEFAULT_LIMITS)
    expected = sum(parameter.numel() for parameter in patterned(L=8).parameters())
    assert counter.measure_requested("parameters") == expected


def test_omitted_sizes_follow_their_defaults() -> None:
    parameters = lemma.count("decoder", quantities=["parameters"]).quantities["parameters"]
    assert parameters.at({"d": 256}) == lemma.count("decoder", quantities=["parameters"], d=256).parameters.total


@pytest.mark.parametrize(("sizes", "message"), [({"dd": 256}, "unknown size 'dd'"), ({"d": "a"}, "a whole number")])
def test_misspelled_or_nonnumeric_sizes_are_refused(sizes: dict[str, Any], message: str) -> None:
    parameters = lemma.count("rnn", quantities=["parameters"]).quantities["parameters"]
    with pytest.raises(InputError, match=message):
        parameters.at(sizes)


def odd_width(d: int = 10, L: int = 2) -> nn.Module:
    width = int(d**1.5) // 7 * 3 + (d**3) % 11 + 1
    return nn.Sequential(nn.Linear(d, width), nn.ReLU(), nn.Linear(width, d))


def test_derived_size_is_known_at_account_sizes() -> None:
    parameters = lemma.count(odd_width, quantities=["parameters"]).quantities["parameters"]
    assert parameters.at({"d": 10, "L": 2}) == sum(parameter.numel() for parameter in odd_width().parameters())
