"""Exercises that ask for code: right functions in several libraries, mistakes by name, limits of the child process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lemma
from lemma.checking.code_references import REFERENCES
from lemma.checking.exercises.registry import read_exercise
from lemma.cli.main import main
from lemma.errors import InputError, SpecError

OVERFLOWING = """
import numpy as np
def softmax(x, axis=-1):
    e = np.exp(x)
    return e / e.sum(axis, keepdims=True)
"""
NUMPY_SOFTMAX = """
import numpy as np
def soft(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
"""
LIST_SOFTMAX = """
import math
def softmax(x):
    if hasattr(x[0], '__len__'):
        return [softmax(row) for row in x]
    e = [math.exp(v - max(x)) for v in x]
    return [v / sum(e) for v in e]
"""
RANDOM = np.random.default_rng(1)


def run(code: str, function: str, folder: Path, name: str = "mine.py") -> Any:
    """Check the code of a file."""
    (folder / name).write_text(code, encoding="utf-8")
    return lemma.check.exercise("code", str(folder / name), function=function)


def torch_adamw(theta: Any, gradient: Any, m: Any, v: Any, t: int, *settings: float) -> Any:
    """Return a step of torch's AdamW from a given state."""
    lr, beta1, beta2, eps, decay = settings
    parameter = torch.nn.Parameter(torch.tensor(theta))
    optimizer = torch.optim.AdamW([parameter], lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay)
    state = {"step": torch.tensor(float(t - 1)), "exp_avg": torch.tensor(m), "exp_avg_sq": torch.tensor(v)}
    optimizer.state[parameter] = state
    parameter.grad = torch.tensor(gradient)
    optimizer.step()
    return parameter.detach(), state["exp_avg"], state["exp_avg_sq"]


def torch_attention(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """Return torch's own attention."""
    queries, keys, values = (torch.tensor(array) for array in (q, k, v))
    visible = None if mask is None else torch.tensor(mask)
    return torch.nn.functional.scaled_dot_product_attention(queries, keys, values, visible)


def torch_multi_head(x: Any, w_q: Any, w_k: Any, w_v: Any, w_o: Any, num_heads: int) -> Any:
    """Return torch's own multi-head attention."""
    module = torch.nn.MultiheadAttention(x.shape[-1], num_heads, bias=False, dtype=torch.float64)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.tensor(np.concatenate([w_q.T, w_k.T, w_v.T])))
        module.out_proj.weight.copy_(torch.tensor(w_o.T))
        rows = torch.tensor(x)
        return module(rows, rows, rows)[0]


def torch_norm(x: Any, gamma: Any, beta: Any, eps: float = 1e-5) -> Any:
    """Return torch's own layer normalization."""
    arrays = [torch.tensor(array) for array in (x, gamma, beta)]
    return torch.nn.functional.layer_norm(arrays[0], (x.shape[-1],), arrays[1], arrays[2], eps)


PEERS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x, axis=-1: torch.softmax(torch.tensor(x), axis),
    "log-softmax": lambda x, axis=-1: torch.log_softmax(torch.tensor(x), axis),
    "cross-entropy": lambda x, y: torch.nn.functional.cross_entropy(torch.tensor(x), torch.tensor(y)),
    "attention": torch_attention,
    "causal-attention": lambda q, k, v: torch_attention(q, k, v, np.tril(np.ones((q.shape[-2],) * 2, dtype=bool))),
    "multi-head-attention": torch_multi_head,
    "layer-norm": torch_norm,
    "rms-norm": lambda x, gamma, eps=1e-6: torch.nn.functional.rms_norm(
        torch.tensor(x), (x.shape[-1],), torch.tensor(gamma), eps
    ),
    "adamw": torch_adamw,
    "gelu": lambda x: torch.nn.functional.gelu(torch.tensor(x)),
    "perplexity": lambda x: torch.exp(-torch.tensor(x).mean()),
}


@pytest.mark.parametrize("name", PEERS)
def test_references_equal_torch(name: str) -> None:
    for trial in REFERENCES[name].make_trials(np.random.default_rng(3)):
        expected, result = PEERS[name](*trial.arguments), REFERENCES[name].compute(*trial.arguments)
        for first, second in zip(*([expected], [result]) if name != "adamw" else (expected, result), strict=True):
            np.testing.assert_allclose(np.asarray(first), second, rtol=1e-9, atol=1e-12)


def test_rotary_reference_equals_complex_rotation() -> None:
    x = RANDOM.normal(size=(5, 6))
    angles = np.outer(np.arange(5), 10000.0 ** (-np.arange(0, 6, 2) / 6))
    rotated = (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * angles)
    result = REFERENCES["rotary"].compute(x)
    np.testing.assert_allclose(result[:, 0::2] + 1j * result[:, 1::2], rotated)


@pytest.mark.parametrize("name", REFERENCES)
def test_every_mistake_of_a_reference_is_named(name: str) -> None:
    reference = REFERENCES[name]
    assert lemma.check.exercise("code", reference.compute, function=name)
    for alternative in reference.alternatives.values():
        assert lemma.check.exercise("code", alternative, function=name)
    for mistake, function in reference.mistakes.items():
        with np.errstate(all="ignore"):
            report = lemma.check.exercise("code", function, function=name)
        assert not report and report.mistake, (mistake, str(report))
        assert report.mistake.casefold() == f"{mistake}.".casefold(), (mistake, report.mistake)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (
            OVERFLOWING,
            "overflows",
        ),
        (
            "import numpy as np\ndef softmax(x):\n    e = np.exp(x - x.max())\n    return e / e.sum()",
            "all entries together",
        ),
        ("def softmax(x):\n    return x.foo()", "AttributeError in line 2"),
        (
            "def softmax(x):\n    x -= x.max()\n    return __import__('scipy.special').special.softmax(x, -1)",
            "changes its argument x",
        ),
        ("def softmax(x):\n    print(x)", "returns nothing"),
        ("def softmax(x):\n    return 'a'", "returns"),
        ("def softmax(x):\n    return [[1]]", "shape is (1, 1)"),
    ],
)
def test_faults_of_a_file_are_named(code: str, says: str, tmp_path: Path) -> None:
    report = run(code, "softmax", tmp_path)
    assert not report and says.casefold() in " ".join(str(report).split()).casefold()


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ndef softmax(x, axis=-1):\n    return torch.softmax(x, axis)",
        "from torch.nn import functional as F\ndef softmax(x, dim=-1):\n    return F.softmax(x.float(), dim)",
        NUMPY_SOFTMAX,
        LIST_SOFTMAX,
    ],
)
def test_right_functions_in_several_libraries_are_accepted(code: str, tmp_path: Path) -> None:
    assert run(code, "softmax", tmp_path)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def softmax(x):\n    while True: pass", "10 seconds"),
        ("import os\nos._exit(3)", "ended its process"),
        ("raise SystemExit", "SystemExit in line 1"),
        ("def softmax(x:", "SyntaxError in line 1"),
        ("a = 1", "no function softmax"),
        ("def softmax():\n    pass", "takes 0 arguments"),
        ("def f(x): pass\ndef g(x): pass", "Its functions: f, g"),
    ],
)
def test_files_that_cannot_be_checked_are_named(code: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        run(code, "softmax", tmp_path)


def test_code_cannot_take_all_memory_or_write_large_files(tmp_path: Path) -> None:
    report = run("def softmax(x):\n    return [0.0] * 10**10", "softmax", tmp_path)
    assert not report and "MemoryError" in str(report)
    large = f"def softmax(x):\n    open({str(tmp_path / 'big')!r}, 'wb').write(bytes(10**7))"
    assert not run(large, "softmax", tmp_path)
    assert (tmp_path / "big").stat().st_size <= 1 << 20


def test_custom_reference_is_run_only_where_a_person_names_it(tmp_path: Path) -> None:
    (tmp_path / "solution.py").write_text("def scale(x, k):\n    return x * k", encoding="utf-8")
    (tmp_path / "mine.py").write_text("def scale(x, k):\n    return x + k", encoding="utf-8")
    reference, inputs = f"{tmp_path}/solution.py:scale", ["x 3 4", "k"]
    report = lemma.check.exercise("code", f"{tmp_path}/mine.py", reference=reference, inputs=inputs)
    assert not report
    assert lemma.check.exercise("code", f"{tmp_path}/solution.py", reference=reference, inputs=inputs)
    file = tmp_path / "exercise.toml"
    file.write_text(f'kind = "code"\nreference = "{reference}"\ninputs = ["x 3"]', encoding="utf-8")
    with pytest.raises(SpecError, match="names code to run"):
        read_exercise(file)


@pytest.mark.parametrize("inputs", ["x 0", "x a b c d", "x 99999", "mask causal"])
def test_wrong_inputs_of_a_custom_reference_are_explained(inputs: str, tmp_path: Path) -> None:
    (tmp_path / "solution.py").write_text("def f(x):\n    return x", encoding="utf-8")
    with pytest.raises(InputError, match="is not an argument"):
        lemma.check.exercise("code", f"{tmp_path}/solution.py", reference=f"{tmp_path}/solution.py", inputs=inputs)


def test_help_of_code_exercises() -> None:
    assert "softmax(x, axis=-1)" in str(lemma.check.help_with("hint", "code", function="softmax"))
    assert "def softmax" in str(lemma.check.help_with("solution", "code", function="softmax"))


def test_code_of_answers_to_a_sheet_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')", encoding="utf-8")
    for fields in ({"kind": "code", "function": "softmax"}, {"exercise": "code-softmax"}):
        with pytest.raises((SpecError, InputError), match="never run"):
            lemma.check.sheet({"questions": [{"id": "Q1", **fields}]}, {"Q1": f"{tmp_path}/evil.py"})
    assert not (tmp_path / "trace").exists()


def test_file_of_lines_does_not_name_code_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')", encoding="utf-8")
    (tmp_path / "lines.txt").write_text(f"{tmp_path}/evil.py", encoding="utf-8")
    with pytest.raises(SystemExit) as exit_info:
        main(["check", "code", "softmax", "--file", str(tmp_path / "lines.txt")])
    assert exit_info.value.code == 2 and "name the Python file itself" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "trace").exists()
