"""Answers as students write them: right ones count however they are wrapped, and nothing is marked wrong in doubt."""

from typing import Any

import pytest

from lemma.checking.marking import Marker
from lemma.checking.sheets import read_answers, read_sheet
from lemma.checking.written_answers import clean_answer, split_unit

F = "R*(W_in + W_out) + W_in*W_out"  # the parameters of lora: 11,250
TEX = r"R \cdot (W_{in} + W_{out}) + W_{in} \cdot W_{out}"
SHEET: dict[str, Any] = {
    "questions": [
        {"id": "Q1", "kind": "parameters", "model": "lora"},
        {"id": "N", "kind": "number", "model": "lora"},
        {"id": "M", "kind": "number", "value": "16*N", "text": "How many bytes does training need?"},
        {"id": "P", "kind": "number", "value": "12.5", "unit": "%"},
        {"id": "T", "kind": "number", "value": 1500, "unit": "ms"},
        {"id": "K", "kind": "number", "value": 4096, "unit": "bytes"},
        {"id": "E", "kind": "formula", "value": "n^2 + 3n"},
        {"id": "G", "kind": "gradient", "cell": "softmax-cross-entropy", "lines": ["dz"]},
        {"id": "V", "kind": "position", "width": 4, "position": 3, "asks": ["PE"]},
        {"id": "W", "kind": "worked", "case": "e9", "asks": ["c_t", "h_t"]},
        {"id": "H", "kind": "identity", "identity": "d4"},
        {"id": "D", "kind": "derivation", "start": "(a + b)^2", "value": "a^2 + 2ab + b^2"},
        {"id": "S", "kind": "shape", "model": "self-attention", "asks": ["Q", "scores"]},
        {"id": "R", "kind": "trainable", "model": "lora"},
    ]
}
RIGHT: dict[str, list[str]] = {
    "Q1": [
        F,
        f"{F} parameters",
        f"{F} parameters in total",
        f"{F} = 11250",
        f"{F} = 11,250 parameters.",
        f"${F}$",
        f"$${TEX}$$",
        rf"\[ P = {TEX} \]",
        rf"\( {TEX} \)",
        rf"$\boxed{{{TEX}}}$",
        rf"$$\text{{Answer: }} {TEX}$$",
        rf"\text{{params}} = {TEX}",
        rf"${TEX}$ parameters",
        f"The answer is ${F}$.",
        f"Answer: {F}",
        f"Answer: ${F}$",
        f"ANSWER = {F}",
        f"Ans. {F}",
        f"Antwort: {F}",
        f"=> {F}",
        f"⇒ {F}",
        f"→ {F}",
        f"∴ {F}",
        f"= {F}",
        f"Q1: {F}",
        f"Q1) {F}",
        f"Q1. {F}",
        f"**Q1:** {F}",
        f"(a) {F}",
        f"1. {F}",
        f"* {F}",
        f"P = {F}",
        f"P(LoRA) = {F}",
        f"#params = {F}",
        f"N_params = {F}",
        f"|θ| = {F}",
        f"Number of parameters: {F}",
        f"Number of parameters = {F}",
        f"total parameters = {F}",
        f"I get {F}",
        f"We obtain P = {F}.",
        f"So P = {F}",
        f"Therefore: {F}",
        f"Thus, the total is {F}",
        f"**{F}**",
        f"`{F}`",
        f"```\n{F}\n```",
        f"{F} (no biases)",
        f"{F}, since there are no biases",
        f"{F} ✓",
        f"{F};",
        f"{F} # total",
        F.replace("*", "·"),
        F.replace("*", " × "),
        f"- (-{F.replace(' + W_in*', ' - W_in*').replace('R*', 'R*')})".replace("- (-R", "-(-R"),
        "R*W_in + R*W_out + W_in*W_out\n= R*(W_in + W_out) + W_in*W_out",
        "R*W_in + R*W_out + W_in*W_out\n=> R*(W_in + W_out) + W_in*W_out",
        "R*W_in + R*W_out + W_in*W_out\nR*(W_in + W_out) + W_in*W_out",
        "W_in*W_out\nR*(W_in + W_out)",
        "base: W_in*W_out\nupdate: R*(W_in + W_out)",
        "base = W_in*W_out\nupdate = R*(W_in + W_out)\nW_in*W_out + R*(W_in + W_out)",
        "A = R*W_in\nB = R*W_out\nP = A + B + W_in*W_out",
        "A: R*W_in, B: R*W_out, W: W_in*W_out",
        "W: W_in*W_out\nA and B: R*(W_in + W_out)\ntotal: W_in*W_out + R*(W_in + W_out)",
        "W has W_in*W_out parameters, A and B have R*(W_in+W_out), so the total is R*(W_in + W_out) + W_in*W_out",
        "\\begin{align}\nP &= R W_{in} + R W_{out} + W_{in}W_{out} \\\\\n"
        " &= R(W_{in}+W_{out}) + W_{in}W_{out}\n\\end{align}",
    ],
    "N": [
        "11250",
        "11,250 parameters",
        "11,250 trainable parameters in total",
        "= 11250",
        "=> 11250",
        "Answer: 11250",
        "N: 11250",
        "(b) 11250",
        "P = 11250",
        "N = 11,250 params",
        "**11250**",
        "$11250$",
        "$11{,}250$",
        r"$11\,250$",
        "11 250",
        "11_250",
        "11'250",
        "11.25K",
        "11.25 thousand",
        "≈ 11,250",
        "11250.",
        "11250.0",
        "1.125e4",
        r"$1.125 \times 10^{4}$",
        r"1.125 \cdot 10^4",
        "1.125 x 10^4",
        "11250 weights in total",
        "2250 + 9000 = 11250",
        "9000+2250=11250 parameters",
        "15*(75+75)+75*120",
        "11250 = 9000 + 2250",
        "2250\n9000\n11250",
        "A and B: 2250\nW: 9000\ntotal: 11250",
        "The answer is 11250.",
        "The LoRA model has 11,250 parameters.",
        "11,250 parameters (without biases)",
        "\ufeff11250 \u200b",
        r"\boxed{11250}",
    ],
    "M": ["180000", "180,000 bytes", "180 KB", "180.0 kB", "16*11250 = 180,000 bytes", "16 · 11250 = 180000 B"],
    "P": ["12.5", "12.5 %", "12.5%", "12.5 percent", "12.5 per cent", r"$12.5\%$"],
    "T": ["1500", "1500 ms", "1.5 s", "1.5 seconds", "1,500 ms", "1.5e3 ms"],
    "K": ["4096", "4096 bytes", "4 KiB", "32768 bits", "4,096 B", "2^12", "2**12 bytes"],
    "E": ["n^2 + 3n", "n(n+3)", "$n^2 + 3n$", "f(n) = n^2 + 3n", "T = n² + 3n", r"\frac{2n^2 + 6n}{2}", "3*n + n**2"],
    "G": [
        "dz = y_hat - y",
        "y_hat - y",
        r"$dz = \hat{y} - y$",
        r"\frac{\partial L}{\partial z} = \hat{y} - y",
        "dz: y_hat - y",
        "Answer: dz = y_hat - y",
        "∂L/∂z = ŷ − y",
        "G: dz = ŷ - y.",
        "=> dz = y_hat - y",
        "dz = -(y - y_hat) = y_hat - y",
    ],
    "V": [
        "[0.141, -0.990, 0.030, 1.000]",
        "PE = [0.141, −0.990, 0.030, 1.000]",
        "PE=(0.141, -0.990, 0.030, 1.000).",
        "$PE = [0.141, -0.990, 0.030, 1.000]$",
        "angles = [3, 0.03]\nPE = [0.141, -0.990, 0.030, 1.000]",
        "first the angles:\nangles = [3, 0.03]\nPE = [0.141, -0.990, 0.030, 1.000]",
        "PE = [sin 3, cos 3, sin 0.03, cos 0.03] = [0.141, -0.990, 0.030, 1.000]",
        "angles = [3, 0.03]; PE = [0.141, -0.990, 0.030, 1.000]",
        "PE[1] = 0.141\nPE[2] = -0.990\nPE[3] = 0.030\nPE[4] = 1.000",
        r"\begin{bmatrix} 0.141 & -0.990 & 0.030 & 1.000 \end{bmatrix}",
        "V: PE = [0.141, -0.990, 0.030, 1.000]",
        "So PE = [0.141, -0.990, 0.030, 1.000]",
    ],
    "W": [
        "c_t = [0.52, -0.34]\nh_t = [0.334, -0.262]",
        "c_t = [0.52, -0.34], h_t = [0.334, -0.262]",
        "a) c_t = [0.52, -0.34]\nb) h_t = [0.334, -0.262]",
        "$c_t = [0.52, -0.34]$; $h_t = [0.334, -0.262]$",
    ],
    "H": ["no", "No.", "false", "It does not hold.", "holds = no", "Answer: no"],
    "D": ["= a^2 + ab + ba + b^2\n= a^2 + 2ab + b^2", "$(a+b)^2 = a^2 + 2ab + b^2$", "(a + b)(a + b)\nb^2 + a^2 + 2ba"],
    "S": ["Q = H×S×M_QK\nscores = H×S×S", "Q: (H, S, M_QK)\nscores: (H, S, S)", "Q = H×S×M_QK; scores = H×S×S"],
    "R": ["R*(W_in + W_out)", "Answer: R*W_in + R*W_out trainable parameters"],
}
DOUBTFUL: dict[str, list[str]] = {
    "Q1": [
        f"- {F}",
        f"{F} per layer",
        f"{F} times 2",
        f"half of {F}",
        f"at most {F}",
        f"{F}?? or W_in",
        "see the sheet",
    ],
    "N": [
        "11.250",
        "11250 bytes",
        "11.25 KB",
        "11250 or 45000",
        "less than 11250",
        "not 11250",
        "N ≠ 11250",
        "11250 per layer",
        "9000\n2250",
        "total = 11250, d = 8",
        "eleven thousand",
        "> 11250",
    ],
    "P": ["0.125"],
    "T": ["1.5 MB", "1500 ms per token"],
    "K": ["4096 parameters"],
    "V": ["PE = [0.141, -0.990, 0.030, one]", "[0.141, -0.990", "PE = sin and cos"],
    "H": ["perhaps"],
    "D": ["= a(a + b) + b(a + b)"],
    "W": ["[0.52, -0.34]\n[0.334, -0.262]"],
}
WRONG: dict[str, list[str]] = {
    "Q1": [
        "Answer: W_in*W_out",
        "$R(W_{in}+W_{out})$ parameters",
        f"{F}\nW_in*W_out",
        f"{F} = W_in*W_out",
        f"{F}\n= R*(W_in + W_out)",
        "11250",
    ],
    "N": ["Answer: 11251", "2250 + 9000 = 11350", "11250 + 1", "9000 parameters", "11250\n9000", "112.5K", "-11250"],
    "M": ["180", "11250 bytes", "180 MB", "180 bytes"],
    "P": ["12.6", "0.125 %", "1250 %"],
    "T": ["1.5", "1500 s", "1.5 ms"],
    "K": ["4 KB", "4096 bits", "4"],
    "E": ["n^2 + 3", "n^2", "4"],
    "G": ["dz = y - y_hat", "y - y_hat", "Answer: dz = y"],
    "V": ["PE = [0.141, 0.990, 0.030, 1.000]", "[0.14, -0.99, 0.03]", "PE[1] = 0.141\nPE[2] = 0.990", "PE[1] = 0.141"],
    "W": ["c_t = [0.52, -0.34]", "c_t = [0.52, 0.34]\nh_t = [0.334, -0.262]"],
    "H": ["yes", "It holds."],
    "D": ["= a^2 + b^2", "(a + b)^2", "= a^2 + 2ab + b^2 + 1", "= a^2 + b^2\n= a^2 + 2ab + b^2"],
    "S": ["Q = S×M_QK\nscores = H×S×S", "Q = H×S×M_QK"],
    "R": [F],
}


@pytest.fixture(scope="module")
def marker() -> Marker:
    return Marker(read_sheet(SHEET))


def list_cases(answers: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(id, text) for id, texts in answers.items() for text in texts]


def mark(marker: Marker, id: str, text: str) -> Any:
    return marker.mark(read_answers({"N": "11250", id: text}))[id]


def test_there_are_enough_writings() -> None:
    assert len(list_cases(RIGHT)) >= 150 and len(list_cases(WRONG)) >= 40


@pytest.mark.parametrize(("id", "text"), list_cases(RIGHT))
def test_right_answers_are_right_however_they_are_written(marker: Marker, id: str, text: str) -> None:
    result = mark(marker, id, text)
    assert result.verdict == "right", result.reason


@pytest.mark.parametrize(("id", "text"), list_cases(DOUBTFUL))
def test_doubtful_answers_are_left_to_the_teacher(marker: Marker, id: str, text: str) -> None:
    result = mark(marker, id, text)
    assert (result.verdict, result.points) == ("unreadable", 0), result.reason


@pytest.mark.parametrize(("id", "text"), list_cases(WRONG))
def test_wrong_answers_stay_wrong_however_they_are_written(marker: Marker, id: str, text: str) -> None:
    result = mark(marker, id, text)
    assert (result.verdict, result.points) == ("wrong", 0), result.reason


def test_wrong_steps_of_the_working_are_named(marker: Marker) -> None:
    result = mark(marker, "Q1", f"R*W_in + W_in*W_out\n= {F}")
    assert "Step 1" in result.reason or "is wrong" in result.reason or result.verdict == "right"
    assert "'9000 + 2249' is another number" in mark(marker, "N", "9000 + 2249 = 11250").reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("Answer:", "Answer:"),
        ("=>", "=>"),
        ("so", "so"),
        (r"\boxed{" * 50, None),
        ("$" * 3000, None),
        ("x" * 50_000, "x" * 50_000),
    ],
)
def test_cleaning_never_fails(text: str, expected: str | None) -> None:
    result = clean_answer(text, "Q1")
    assert expected is None or result == expected


def test_units_are_split_from_numbers() -> None:
    assert split_unit("12 h", "min") == ("12", "h") and split_unit("12 h") == ("12 h", "")
    assert split_unit("12.5 per cent") == ("12.5 %", "") and split_unit("1.5 GB") == ("1.5", "gb")
