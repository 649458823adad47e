"""Generated hostile inputs: only errors of Lemma's own, within two seconds, in bounded memory."""

import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import lemma
from faults import Row, failure_of, home
from lemma.checking.derivation import check_derivation
from lemma.checking.gradients import check_gradients
from lemma.checking.marking import mark_answers
from lemma.counting.subject import resolve_subject
from lemma.data.images import decode_images
from lemma.data.tables import open_table
from lemma.data.tokenizers import Tokenizer, train_tokenizer
from lemma.data.treebanks import read_conllu
from lemma.runs.checkpoint import read_tensors, write_tensors
from lemma.spec.base import parse_settings, read_toml
from lemma.spec.choose import choose
from lemma.spec.data import Words

INPUTS = 10_000  # of each kind
PIECES = [
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ".",
    "=",
    "+",
    "-",
    "*",
    "/",
    "^",
    "_",
    "|",
    "\\",
    "'",
    '"',
    "\n",
    "\t",
    " ",
]
PIECES += [
    "0",
    "1",
    "9" * 50,
    "1e999",
    "-0",
    "nan",
    "inf",
    "true",
    "null",
    "é",
    "😀",
    "\u202e",
    "\x00",
    "\ufeff",
    "\ud800",
]
PIECES += [
    "d",
    "V",
    "L",
    "d_h",
    "sum",
    "log",
    "frac",
    "W",
    "h.T",
    "@",
    "lambda",
    "__import__",
    "import os",
    "%s",
    "{0}",
]


def mutated(text: str, chance: random.Random) -> str:
    """A text with a few pieces put in, taken out, doubled or nested."""
    for _ in range(chance.randrange(1, 6)):
        offset = chance.randrange(len(text) + 1)
        act = chance.randrange(6)
        if act == 0:
            text = text[:offset] + chance.choice(PIECES) + text[offset:]
        elif act == 1:
            text = text[:offset] + text[offset + chance.randrange(1, 10) :]
        elif act == 2:
            text = text[:offset] + chance.choice(PIECES) * chance.choice([2, 10, 100, 3000]) + text[offset:]
        elif act == 3:
            piece = text[offset : offset + chance.randrange(1, 30)]
            text = text[:offset] + piece * chance.choice([2, 5, 50]) + text[offset:]
        elif act == 4:
            text = "".join(chance.choices(PIECES, k=chance.randrange(1, 40)))
        else:
            opened, closed = chance.choice(["()", "[]", "{}", "||"])
            count = chance.choice([1, 20, 2000])
            text = text[:offset] + opened * count + text[offset:] + closed * count
    return text[:200_000]


def expression(chance: random.Random, symbols: list[str], depth: int) -> str:
    """Return a formula that can be read: nested sums, powers, quotients and sums over an index."""
    act = chance.randrange(10) if depth else chance.randrange(2)
    if act == 0:
        return chance.choice(symbols)
    if act == 1:
        return str(chance.choice([1, 2, 3, 7, 12, 99_999]))

    def inner() -> str:
        return expression(chance, symbols, depth - 1)

    if act in (2, 3):
        return f"({' + '.join(inner() for _ in range(chance.randrange(2, 7)))})"
    if act == 4:
        return f"({inner()} - {inner()})"
    if act == 5:
        return f"{inner()}*{inner()}"
    if act in (6, 7):
        return f"({inner()})^{chance.choice([2, 3, 5, 8, 12])}"
    if act == 8:
        return f"({inner()})/({inner()})"
    return f"\\sum_{{i=1}}^{{{chance.choice(symbols)}}} ({inner()} + i^{chance.choice([1, 2, 5])})"


def expensive(kind: str, chance: random.Random) -> str:
    """Return formulas, a derivation, or answers to a sheet, which can be read and take much work."""
    depth = chance.choice([2, 3, 4])
    if kind == "expensive sheets":
        symbols = ["R", "W_in", "W_out"]
        lines = {name: expression(chance, symbols, depth) for name in ("Q1", "Q2", "Q3")}
        value = f"16*Q1 + {expression(chance, ['Q1', 'R'], 2)}"
        return json.dumps({"answers": lines, "value": value})
    symbols = ["V", "d", "L", "h", "T", "d_ff", "d_h"]
    if kind == "expensive formulas":
        return " = ".join(expression(chance, symbols, depth) for _ in range(chance.choice([1, 1, 2, 3])))
    steps = [expression(chance, symbols, depth) for _ in range(chance.randrange(2, 6))]
    head = [f"let V = {expression(chance, symbols[1:], depth)}"] if chance.random() < 0.3 else []
    return "\n".join([*head, steps[0], *(f"= {step}" for step in steps[1:])])


def hostile(folder: Path, fraction: float, seed: int = 1) -> Iterator[Row]:
    """Formulas, gradients, sheets, settings, TOML, CSV, CoNLL-U, tokenizer.json, config.json, images and weights.

    Then formulas, derivations and sheets that can be read and take much work.
    """
    chance = random.Random(seed)
    scratch = folder / "scratch"
    scratch.mkdir(parents=True)
    sheet = '[[questions]]\nid = "Q1"\nkind = "parameters"\nmodel = "rnn"\nsettings = { L = 1 }\n'
    tokenizer = train_tokenizer(Words(), ["the cat sat"]).json
    config = json.dumps(
        {"model_type": "gpt2", "n_embd": 8, "n_layer": 2, "n_head": 2, "vocab_size": 50, "n_positions": 16}
    )
    Image.new("RGB", (4, 4), (200, 100, 50)).save(scratch / "good.png")
    write_tensors(scratch / "good.safetensors", {"a": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(1)})
    png, tensors = ((scratch / f"good.{kind}").read_bytes().decode("latin-1") for kind in ("png", "safetensors"))
    conllu = "1\tI\tI\tPRON\t_\t_\t2\tnsubj\t_\t_\n2\tsleep\tsleep\tVERB\t_\t_\t0\troot\t_\t_\n\n"

    def write_file(name: str, text: str, binary: bool = False) -> Path:
        path = scratch / name
        path.write_bytes(text.encode("latin-1", "replace") if binary else text.encode("utf-8", "surrogatepass"))
        return path

    def marked(text: str) -> Any:
        answers = write_file("answers.toml", '[answers]\nQ1 = "V*d + D*(d + D) + D + V*D + V"\n')
        return mark_answers(write_file("sheet.toml", text), answers)

    def read_table(text: str) -> Any:
        return list(open_table(write_file("a.csv", text))[1])

    def encoded(text: str) -> Any:
        return Tokenizer.load(write_file("tokenizer.json", text)).encode_lossy("a cat")

    def decoded(text: str) -> Any:
        return list(decode_images([write_file("a.ppm", text)], 8))

    def imported(text: str) -> Any:
        return resolve_subject(str(write_file("model/config.json", text).parent))

    def marked_answers(text: str) -> Any:
        table = json.loads(text)
        formulas = [{"id": "Q2", "kind": "formula", "value": table["value"]}]
        formulas.append({"id": "Q3", "kind": "formula", "value": "Q1*Q2/(Q2 + Q1)"})
        questions = [{"id": "Q1", "kind": "parameters", "model": "lora"}, *formulas]
        return mark_answers({"questions": questions}, table["answers"])

    (scratch / "model").mkdir()
    kinds: dict[str, tuple[str, Callable[[str], Any], float]] = {
        "formulas": ("V*d + D*(d + D) + D + V*D + V", lambda text: lemma.check.parameters("rnn", text, L=1), 1),
        "gradients": ("dU = h.T @ (y_hat - y)", lambda text: check_gradients("rnn", [text]), 1),
        "sheets": (sheet, marked, 0.2),
        "settings": ("width=128", lambda text: choose("lstm", parse_settings([text])), 1),
        "TOML": (
            'family = "lstm"\nwidth = 8\n[recipe]\nsteps = 3\n',
            lambda text: read_toml(write_file("a.toml", text)),
            1,
        ),
        "CSV": ("text,label\na b,x\nc,y\n", read_table, 1),
        "CoNLL-U": (conllu, lambda text: read_conllu(write_file("a.conllu", text)), 1),
        "tokenizer.json": (
            tokenizer,
            encoded,
            1,
        ),
        "config.json": (config, imported, 1),
        "images": (
            "P3\n2 2\n255\n1 2 3 4 5 6 7 8 9 10 11 12\n",
            decoded,
            1,
        ),
        "PNG": (png, lambda text: list(decode_images([write_file("a.png", text, binary=True)], 8)), 1),
        "safetensors": (tensors, lambda text: read_tensors(write_file("a.safetensors", text, binary=True)), 1),
        "expensive formulas": (
            "V*d + L",
            lambda text: lemma.check.parameters("decoder", text),
            0.1,
        ),
        "expensive derivations": ("V*d\n= d*V", check_derivation, 0.1),
        "expensive sheets": (
            json.dumps({"answers": {"Q1": "R", "Q2": "16*R", "Q3": "R"}, "value": "16*Q1"}),
            marked_answers,
            0.05,
        ),
    }
    with home(folder / "home"):
        for kind, (good, use, weight) in kinds.items():
            use(good)
            row = Row("hostile", kind)
            for _ in range(max(1, round(INPUTS * fraction * weight))):
                text = expensive(kind, chance) if kind.startswith("expensive") else mutated(good, chance)
                description = f"{text[:60]!r} ({len(text):,} characters)"
                row.add(failure_of(partial(use, text), description))
            yield row
