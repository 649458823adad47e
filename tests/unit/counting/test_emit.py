"""Emitted formulas: executed in a bare interpreter and compared with real modules, outside their domain refused."""

import ast
import json
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import lemma
from lemma.counting.account import Account
from lemma.counting.subject import Subject, factory_subject, import_model, resolve_subject
from lemma.errors import InputError

BARE = [sys.executable, "-I", "-S"]  # no installed packages, nothing of the environment
RUNNER = """
import json, runpy, sys
functions = runpy.run_path(sys.argv[1])
results = []
for name, sizes in json.load(sys.stdin):
    try:
        results.append(functions[name](**sizes))
    except ValueError as error:
        results.append(f"ValueError: {error}")
print(json.dumps(results))
"""


class Rounded(nn.Module):
    """Inner widths 64·⌈8d/192⌉, every third layer without a gate, attention to the last w positions."""

    def __init__(self, d: int, L: int, w: int) -> None:
        super().__init__()
        self.w, inner = w, 64 * -(-8 * d // 192)
        self.up = nn.ModuleList(nn.Linear(d, inner, bias=layer % 3 != 2) for layer in range(L))
        self.down = nn.ModuleList(nn.Linear(inner, d) for _ in range(L))

    def forward(self, x: Tensor) -> Tensor:
        for up, down in zip(self.up, self.down, strict=True):
            last = x[:, -self.w :]
            x = down(up(x)) + (x @ last.mT).softmax(-1) @ last
        return x


def rounded(d: int = 48, L: int = 6, w: int = 5) -> nn.Module:
    return Rounded(d, L, w)


rounded.inputs = lambda d, B=2, T=12: torch.zeros(B, T, d)  # pyright: ignore[reportFunctionMemberAccess]


def padded(d: int = 40) -> nn.Module:
    """Return a layer whose width is a multiple of 256: a constant up to d = 256."""
    return nn.Linear(256 * -(-d // 256), d, bias=False)


MODELS: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "decoder": ("decoder", {"d": 16, "L": 2, "h": 2, "T": 8, "V": 20}, ["parameters", "flops"]),
    "encoder-decoder": ("encoder-decoder", {"d": 16, "h": 2, "T": 8, "V": 20, "S": 7}, ["parameters", "flops"]),
    "lstm": ("lstm", {"d": 8, "V": 20, "T": 6}, ["parameters", "flops"]),
    "gpt2": ("gpt2", {"V": 40, "d": 24, "L": 2, "h": 2, "T": 8}, ["parameters", "flops"]),
    "torch-lstm": ("torch-lstm", {"d": 6, "D": 5, "T": 4}, ["parameters", "flops"]),
    "torch-transformer": ("torch-transformer", {"d": 16, "h": 2, "d_ff": 8, "S": 5, "T": 4}, ["parameters"]),
    "qwen3_moe": (
        "qwen3_moe",
        {"V": 60, "d": 32, "L": 2, "h": 4, "h_kv": 2, "E": 8, "k": 2, "d_e": 8, "T": 6},
        ["parameters", "flops"],
    ),
    "gemma3_text": (
        "gemma3_text",
        {"V": 60, "d": 24, "L": 7, "h": 4, "h_kv": 2, "d_h": 8, "d_ff": 16, "w": 4, "T": 9},
        ["parameters", "cache"],
    ),
    "rounded": (rounded, {}, ["parameters", "flops"]),
    "padded": (padded, {}, ["parameters"]),
}


def run_bare(*arguments: Any, **options: Any) -> str:
    """Return what a program prints in an interpreter without packages."""
    run = subprocess.run([*BARE, *arguments], capture_output=True, text=True, check=False, **options)
    assert run.returncode == 0, run.stderr
    return run.stdout


def evaluate(path: Path, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Any]:
    """Return what functions of an emitted module give in a bare interpreter, errors as text."""
    run = subprocess.run(
        [*BARE, "-c", RUNNER, path], input=json.dumps(calls), capture_output=True, text=True, check=True
    )
    return json.loads(run.stdout)


def read_cache(outputs: Any) -> int:
    """Return the bytes of the tensors in the key–value cache of a transformers model."""
    return sum(
        t.numel() * t.element_size() for layer in outputs.past_key_values.layers for t in (layer.keys, layer.values)
    )


def measure(subject: Subject, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return figures of the real module that Lemma's counting takes no part in."""
    module: Any = subject.build(sizes, "cpu")
    inputs = subject.build_inputs(sizes, "cpu") if subject.make_inputs else None
    if hasattr(module, "set_experts_implementation"):
        module.set_experts_implementation("eager")  # torch has no rule for grouped products
    figures = {"parameters": sum(parameter.numel() for parameter in module.parameters())}
    if inputs:
        math, native = sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False)  # torch counts these
        with math, native, FlopCounterMode(display=False) as counter, torch.no_grad():
            outputs = module(*inputs.args, **inputs.kwargs)
        figures["flops"] = counter.get_total_flops()
        if "k" in sizes and "E" in sizes:  # the weighted sum of the chosen experts, which torch does not count
            figures["flops"] += 2 * sizes["k"] * sizes["B"] * sizes["T"] * sizes["d"] * sizes["L"]
        if hasattr(outputs, "past_key_values"):
            figures["cache"] = read_cache(outputs)
    return figures


@pytest.mark.parametrize("name", MODELS)
def test_emitted_functions_equal_the_module_at_fresh_sizes(name: str, tmp_path: Path) -> None:
    model, settings, quantities = MODELS[name]
    account = lemma.count(model, quantities=quantities, **settings)
    path = tmp_path / "costs.py"
    path.write_text(account.emit("python"), encoding="utf-8")
    assert "numbers of the module agree" in run_bare(path)
    subprocess.run([sys.executable, "-m", "ruff", "check", "--isolated", path], check=True, capture_output=True)

    subject = resolve_subject(import_model(model), settings)
    functions = {"parameters": "parameters", "flops": "forward_flops", "cache": "cache_bytes"}
    arguments = arguments_of(path)
    rng, requested = random.Random(7), subject.sizes(True)
    calls: list[tuple[str, dict[str, int]]] = []
    figures: list[int] = []
    for _ in range(24):
        sizes = {
            key: max(1, size * rng.randint(1, 4) // rng.choice((1, 2)) + rng.choice((0, 0, 0, 1)))
            for key, size in requested.items()
        }
        try:
            expected = measure(subject, sizes)
        except Exception:  # heads that do not divide a width, sizes past a position table …
            continue
        for key in quantities:
            calls.append((functions[key], {size: sizes[size] for size in arguments[functions[key]]}))
            figures.append(expected[key])
    results = list(zip(calls, evaluate(path, calls), figures, strict=True))
    wrong = [row for row in results if not str(row[1]).startswith("ValueError") and row[1] != row[2]]
    assert not wrong
    assert sum(not str(actual).startswith("ValueError") for _, actual, _ in results) >= 3


def arguments_of(path: Path) -> dict[str, list[str]]:
    """Return the arguments of each function of a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.name: [arg.arg for arg in node.args.kwonlyargs] for node in tree.body if isinstance(node, ast.FunctionDef)
    }


def test_sizes_outside_the_domain_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "padded.py"
    path.write_text(lemma.count(padded).emit("python"), encoding="utf-8")
    inside, outside, zero, fraction = evaluate(
        path,
        [("parameters", {"d": size}) for size in (256, 257, 0, 2.5)],
    )
    assert inside == 256 * 256 and outside == "ValueError: the formula holds only where d <= 256"
    assert "a whole number from 1 up" in zero and "a whole number from 1 up" in fraction


def test_sliding_window_is_refused_where_the_cache_changes(tmp_path: Path) -> None:
    config: dict[str, Any] = {"V": 60, "d": 24, "L": 7, "h": 4, "h_kv": 2, "d_h": 8, "d_ff": 16, "w": 40, "T": 9}
    path = tmp_path / "gemma.py"
    path.write_text(lemma.count("gemma3_text", quantities=["cache"], **config).emit("python"), encoding="utf-8")
    subject, arguments = resolve_subject("gemma3_text", config), arguments_of(path)["cache_bytes"]
    for length in (38, 39, 40, 41, 60):
        sizes = {**subject.sizes(True), "T": length}
        (actual,) = evaluate(path, [("cache_bytes", {name: sizes[name] for name in arguments})])
        if length >= 40:
            assert actual == "ValueError: the formula holds only where T < w"
        else:
            assert actual == measure(subject, sizes)["cache"]


def test_sizes_that_follow_others_are_optional(tmp_path: Path) -> None:
    path = tmp_path / "decoder.py"
    path.write_text(lemma.count("decoder", quantities=["parameters"]).emit("python"), encoding="utf-8")
    sizes = {"V": 50, "d": 24, "L": 3, "T": 10}
    unset, widened = evaluate(path, [("parameters", sizes), ("parameters", {**sizes, "d_ff": 7})])
    module = resolve_subject("decoder", {**sizes, "h": 2}).build(
        {**resolve_subject("decoder", {**sizes, "h": 2}).symbols}
    )
    assert unset == sum(parameter.numel() for parameter in module.parameters())
    assert unset - widened == 3 * (96 - 7) * (2 * 24 + 1)


def test_terms_of_the_json_give_the_checks() -> None:
    document = json.loads(lemma.count("gpt2", quantities=["parameters", "flops"]).emit("json"))
    from fractions import Fraction
    from math import prod

    for quantity in document["quantities"].values():
        assert len(quantity["checks"]) >= 3
        for check in quantity["checks"]:
            terms = (
                Fraction(term["coefficient"]) * prod(check["sizes"][s] ** p for s, p in term["powers"].items())
                for term in quantity["terms"]
            )
            assert sum(terms) == check["value"]


def test_latex_and_markdown_define_every_symbol() -> None:
    account = lemma.count(rounded, quantities=["parameters"])
    latex, markdown = account.emit("latex"), account.emit("markdown")
    for text in (latex, markdown):
        assert r"64 \cdot \lceil \frac{d}{24} \rceil" in text or r"\lceil" in text
        assert "read off the module" in text or "check, parameters of the module" in text
    assert r"\begin{align*}" in latex and r"\item $d$:" in latex and r"\item $L$:" in latex
    assert "| $d$ |" in markdown


HOSTILE = '"""\nimport os\nos.system("touch OWNED")\n"""#\\'


def test_hostile_names_stay_in_strings_and_comments(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.add_module(HOSTILE.replace(".", "_"), nn.Linear(width, 2))
            self.add_module("class", nn.Linear(width, 3))
            self.add_module("min", nn.Linear(width, 4))

    def factory(width: int = 8, max: int = 3) -> nn.Module:
        return Net(width + max)

    subject = factory_subject(factory, {}, HOSTILE)
    from lemma.counting.count import count

    account = count(subject, ["parameters"])
    source = account.emit("python")
    path = tmp_path / "costs.py"
    path.write_text(source, encoding="utf-8")
    assert "agree" in run_bare(path, cwd=tmp_path) and sorted(p.name for p in tmp_path.iterdir()) == ["costs.py"]
    called = {
        node.func.id
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert called <= {
        "check_sizes",
        "require",
        "divide",
        "isinstance",
        "ValueError",
        "SystemExit",
        "function",
        "print",
        "main",
        "len",
        "divmod",
    }
    assert not any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(ast.parse(source)))
    for form in ("latex", "markdown"):
        assert "\nimport os" not in account.emit(form)


def test_parts_without_a_formula_are_left_out_with_the_reason() -> None:
    account = lemma.count("torch-lstm", quantities=["parameters", "activations"], T=4)
    source = account.emit("python")
    assert "def parameters(" in source and "def activation_bytes(" not in source
    assert "activation bytes:" in source and "no polynomial" in " ".join(source.split())
    alone = Account(account.model, account.symbols, {"activations": account.quantities["activations"]})
    with pytest.raises(InputError, match="has no formula that can be written on its own"):
        alone.emit("python")
    with pytest.raises(InputError, match=r"unknown form 'pyton'\. Did you mean 'python'"):
        account.emit("pyton")
