"""Built-in and custom functions: right gradients are accepted, typical mistakes are diagnosed."""

import tomllib
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import lemma
from lemma.checking.cells import CELL_NAMES, find_cell, read_cell
from lemma.checking.gradients import check_gradients
from lemma.errors import InputError, LemmaError, SpecError

RIGHT = {
    "layer-norm": """
        dN = dY * g
        dg = sum(dY * N, axis=0)
        db = sum(dY, axis=0)
        dX = (dN - mean(dN, axis=1) - N * mean(dN * N, axis=1)) / s
    """,
    "rms-norm": """
        dg = np.sum(dY * N, axis=0, keepdims=True)
        dX = dY * g / s - X * sum(dY * g * X, axis=1) / (d * s^3)
    """,
    "swiglu": """
        dH = dY @ W_d^T
        dW_d = H.T @ dY
        dU = dH * A
        dA = dH * U
        dG = dA * (S + G * S * (1 - S))
        dW_g = X.T @ dG
        dW_u = X.T @ dU
        dX = dG @ W_g.T + dU @ W_u.T
    """,
    "lora": """
        dB = P.T @ dY * alpha / r
        dA = X^{\\top} @ dY @ B^{\\top} * alpha / r
        dX = dY @ W.T + dY @ (A @ B).T * alpha / r
    """,
    "cross-attention": """
        dV = alpha.T @ dout
        dalpha = dout @ V.T
        dS = alpha * (dalpha - sum(alpha * dalpha, axis=1))
        dQ = dS @ K / sqrt(d_k)
        dK = dS.T @ Q / sqrt(d_k)
        dC = dK @ W_k.T + dV @ W_v.T
        dX = dQ @ W_q.T
        dW_k = C.T @ dK
    """,
    "multi-head-attention": """
        dW_o = O.T @ dY
        dO = dY @ W_o.T
        dA1 = dO[:, :k] @ V[:, :k].T
        dS1 = A1 * (dA1 - sum(A1 * dA1, axis=1))
        dQ = [dS1 @ K[:, :k], dS2 @ K[:, k:]] / sqrt(k)
        dV = [A1.T @ dO[:, :k], A2.T @ dO[:, k:]]
        dX = dQ @ W_q.T + dK @ W_k.T + dV @ W_v.T
    """,
    "embedding": """
        dZ = (Y_hat - Y) / n
        dW = X.T @ dZ
        dX = dZ @ W.T
        dP = dX
        dE = einsum("nv,nd->vd", O, dX)
    """,
    "dropout": """
        dD = dY @ U.T
        dH = dD * M / q
        dW = np.dot(X.T, dH)
        db = dH.sum(axis=0)
    """,
    "bptt": """
        a3 = dh3 * (1 - h3^2)
        a2 = dh2 * (1 - h2^2)
        a1 = dh1 * (1 - h1^2)
        dh3 = (y3 - t3) @ R.T
        dh2 = (y2 - t2) @ R.T + a3 @ U.T
        dh1 = (y1 - t1) @ R.T + a2 @ U.T
        dU = h0.T @ a1 + h1.T @ a2 + h2.T @ a3
        dW = x1.T @ a1 + x2.T @ a2 + x3.T @ a3
        db = sum(a1 + a2 + a3, axis=0)
        dR = h1.T @ (y1 - t1) + h2.T @ (y2 - t2) + h3.T @ (y3 - t3)
    """,
    "perceptron": """
        ∂L/∂Z2 = (Y_hat - Y) / B
        dL/dW2 = H^T @ dZ2
        db2 = dZ2.sum(axis=0, keepdims=True)
        dH = dZ2 @ W2.T
        dZ1 = dH * (Z1 > 0)
        dW1 = np.einsum("bi,bj->ij", X, dZ1)
        db1 = sum(dZ1, axis=0)
    """,
}
SLIPS = [
    ("layer-norm", "dX = dY * g / s", "mu and v are taken for constants; they depend on X too"),
    ("layer-norm", "dX = (dN - mean(dN, axis=1)) / s", "v is taken for a constant; it depends on X too"),
    ("layer-norm", "db = dY", "sum over the rows: axis=0"),
    ("rms-norm", "dX = dY * g / s", "v is taken for a constant; it depends on X too"),
    ("swiglu", "dG = dA * S", "S is taken for a constant; it depends on G too"),
    ("swiglu", "dX = dG @ W_g.T", "the term dU @ W_u.T is missing"),
    ("lora", "dB = P.T @ dY", "the factor alpha"),
    ("lora", "dX = dY @ W.T", "the term dP @ A.T is missing"),
    ("cross-attention", "dQ = dS @ K", "the factor 1/sqrt(d_k) is missing"),
    ("cross-attention", "dS = alpha * dalpha", "softmax couples all its elements"),
    ("multi-head-attention", "dX = dQ @ W_q.T + dV @ W_v.T", "the term dK @ W_k.T is missing"),
    ("embedding", "dE = O @ dX", "transpose O"),
    ("embedding", "dZ = Y_hat - Y", "the factor 1/n is missing"),
    ("dropout", "dH = dD * M", "the factor 1/q is missing"),
    ("dropout", "dH = dD / q", "the factor M is missing"),
    ("bptt", "dh2 = (y2 - t2) @ R.T", "h3 is taken for a constant; it depends on h2 too"),
    ("bptt", "dU = h2.T @ (dh3 * (1 - h3^2))", "h1 and h2 are taken for constants; they depend on U too"),
    ("perceptron", "dZ1 = dZ2 @ W2.T", "the factor (Z1 > 0) is missing"),
    ("perceptron", "db2 = dZ2", "sum over the rows: axis=0"),
]


@pytest.mark.parametrize("name", RIGHT)
def test_correct_derivation_of_each_function_is_right(name: str) -> None:
    report = check_gradients(name, [RIGHT[name]])
    assert report.right, str(report)


@pytest.mark.parametrize(("name", "line", "message"), SLIPS, ids=range(len(SLIPS)))
def test_typical_mistake_is_diagnosed(name: str, line: str, message: str) -> None:
    (verdict,) = check_gradients(name, [line]).lines
    assert verdict.outcome == "wrong" and message in verdict.reason, str(verdict)


def test_every_built_in_function_is_tested() -> None:
    answers = {*tomllib.loads((Path(__file__).parent / "gradient_answers.toml").read_text(encoding="utf-8"))}
    assert {*CELL_NAMES} == {*RIGHT} | answers == {name for name, *_ in SLIPS} | answers


def test_samples_have_nondegenerate_and_varied_sizes() -> None:
    for name in CELL_NAMES:
        sizes = [
            {size: int(sample.values[size]) for size in find_cell(name).sizes} for sample in find_cell(name).samples
        ]
        assert min(min(item.values()) for item in sizes) >= 3
        assert len({tuple(item.values()) for item in sizes}) > 1 or len(sizes[0]) == 1


def test_norms_attention_and_perceptron_match_torch() -> None:
    v = find_cell("layer-norm").samples[0].values
    torch.testing.assert_close(functional.layer_norm(v["X"], v["X"].shape[1:], v["g"][0], v["b"][0], 1e-5), v["Y"])
    v = find_cell("rms-norm").samples[0].values
    torch.testing.assert_close(functional.rms_norm(v["X"], v["X"].shape[1:], v["g"][0], 1e-5), v["Y"])
    v = find_cell("multi-head-attention").samples[0].values
    heads = [v[name].unflatten(1, (2, -1)).transpose(0, 1) for name in "QKV"]
    attended = functional.scaled_dot_product_attention(*heads).transpose(0, 1).flatten(1)
    torch.testing.assert_close(attended @ v["W_o"], v["Y"])
    v = find_cell("perceptron").samples[0].values
    logits = v["Z2"].clone().requires_grad_()
    functional.cross_entropy(logits, v["Y"].argmax(1)).backward()
    torch.testing.assert_close(logits.grad, v["dZ2"])


CUSTOM_CELL = {
    "forward": "Z = X @ W + b\nA = maximum(Z, 0)^2",
    "loss": "mean((A - T_y)^2)",
    "answers": "dA = 2 * (A - T_y) / (n * c)\ndZ = dA * 2 * relu(Z)\ndW = X.T @ dZ\ndb = dZ",
    "sizes": {"n": "rows", "d": "inputs", "c": "outputs"},
    "inputs": {"X": "n d", "W": "(d, c)", "b": "c", "T_y": "n × c, fixed"},
}


def test_custom_function_is_checked_from_python_and_file(tmp_path: Path) -> None:
    report = lemma.check.gradient(CUSTOM_CELL, "dX = dZ @ W.T")
    assert [verdict.outcome for verdict in report.lines] == ["right", "right", "right", "wrong", "right"]
    assert report.lines[3].repair == "db = sum(dZ, axis=0)"
    text = "".join(f'{word} = """\n{CUSTOM_CELL[word]}\n"""\n' for word in ("forward", "loss", "answers"))
    for table in ("sizes", "inputs"):
        text += f"[{table}]\n" + "".join(f'{name} = "{value}"\n' for name, value in CUSTOM_CELL[table].items())
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    same = lemma.check.gradient(tmp_path / "mine.toml", "dX = dZ @ W.T")
    assert (same.name, same.lines) == ("mine", report.lines)


def test_sequence_batches_may_have_three_axes() -> None:
    ours = {
        "forward": "S = einsum('bqd,bkd->bqk', Q, K)\nA = softmax(S)\nY = A @ V",
        "loss": "sum(dY * Y)",
        "sizes": ["B", "n", "d", "e"],
        "inputs": {"Q": "B n d", "K": "B n d", "V": "B n e", "dY": "B n e incoming", "b": "1 1 fixed"},
    }
    lines = ["dV = A.T @ dY", "dA = dY @ V.T", "dS = A * (dA - sum(A * dA, axis=-1))", "dQ = dS @ K", "dK = dS @ Q"]
    report = check_gradients(ours, lines)
    assert [verdict.outcome for verdict in report.lines] == ["right"] * 4 + ["wrong"]
    assert report.lines[4].repair == "dK = dS.T @ Q"


REFUSED = {
    "the loss does not depend on U": {"inputs": {**CUSTOM_CELL["inputs"], "U": "n d"}},
    "forward, line 1: Z = X @ W.T": {"forward": "Z = X @ W.T\nA = Z"},
    "the shapes do not fit: (n, d) @ (c, d)": {"forward": "Z = X @ W.T\nA = Z"},
    "unknown name 'Wx'. Did you mean 'W'": {"forward": "Z = X @ Wx\nA = Z"},
    "the loss is of the shape (n, c); sum it up": {"loss": "A"},
    "not finite at random inputs": {"loss": "sum(log(A - 5))"},
    "unknown symbol 'e'": {"inputs": {**CUSTOM_CELL["inputs"], "W": "d e"}},
    "the step X has the name of an input": {"forward": "X = X @ W\nA = X"},
    "'tanh' cannot be the name of an input": {"inputs": {**CUSTOM_CELL["inputs"], "tanh": "n d"}},
    "an operator before 'W'": {"forward": "Z = X W\nA = Z"},
    "forward is inside the table [sizes]; move it above": {
        "sizes": {**CUSTOM_CELL["sizes"], "forward": "Z = X"},
        "forward": None,
    },
    "all inputs are fixed": {"inputs": {name: f"{sides} fixed" for name, sides in CUSTOM_CELL["inputs"].items()}},
    "the setting": {"backward": "dX = 1"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_error_in_a_cell_file_reports_its_location(message: str) -> None:
    words = {word: value for word, value in {**CUSTOM_CELL, **REFUSED[message]}.items() if value is not None}
    with pytest.raises(SpecError) as refusal:
        read_cell(words, "mine.toml")
    assert str(refusal.value).startswith("mine.toml") and message.split("the setting")[0] in str(refusal.value)


def test_unknown_function_and_missing_loss_are_explained() -> None:
    with pytest.raises(InputError, match=r"Did you mean 'layer-norm'.*TOML file"):
        check_gradients("layernorm", ["dX = dY"])
    with pytest.raises(LemmaError, match="no such file"):
        check_gradients("missing.toml")
    with pytest.raises(InputError, match="no loss"):
        check_gradients({**CUSTOM_CELL, "loss": "", "answers": ""}, ["dX = X"])


def test_cell_file_code_is_never_executed() -> None:
    for code in ("__import__('os')", "Z.__class__", "exec('1')", "X.tofile('x')", "lambda: 0", "open('x')"):
        for index in ("forward", "loss", "answers"):
            with pytest.raises(LemmaError):
                check_gradients({**CUSTOM_CELL, index: f"Z = {code}"})
