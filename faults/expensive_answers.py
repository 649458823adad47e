"""Grammar-valid answers that are expensive to judge: gradients and hand computations, within two seconds each."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from faults import Row, failure_of, home
from lemma.checking.cells import CELL_NAMES, find_cell
from lemma.checking.gradients import check_gradients
from lemma.checking.shapes import check_shapes
from lemma.checking.worked.check import check_worked
from lemma.errors import LemmaError

ANSWERS = 150  # of each kind
Answer = tuple[Any, list[str]]  # a cell or case, and the lines of the answer


def expensive_answers(folder: Path, fraction: float, seed: int = 1) -> Iterator[Row]:
    """Yield a row for gradients and a row for hand computations, each answer judged or refused within the limits."""
    chance = random.Random(seed)
    kinds: dict[str, tuple[Callable[[random.Random], Answer], Callable[..., Any]]] = {
        "expensive gradients": (expensive_gradients, check_gradients),
        "expensive hand computations": (expensive_computation, check_worked),
        "expensive shapes": (expensive_shapes, check_shapes),
    }
    with home(folder / "home"):
        check_shapes("self-attention", ["Q = H×S×M_QK"])  # so that the drawing is cached
        for kind, (generate, check) in kinds.items():
            row = Row("answers", kind)
            for _ in range(max(1, round(ANSWERS * fraction))):
                case, lines = generate(chance)
                description = f"{str(case)[:40]!r}, {len(lines)} lines, {lines[0][:60]!r} … {lines[-1][:60]!r}"
                row.add(failure_of(partial(_check_and_print, check, case, lines), description))
            yield row


def _check_and_print(check: Callable[..., Any], case: Any, lines: list[str]) -> str:
    return str(check(case, lines))


def expensive_gradients(chance: random.Random) -> Answer:
    """Generate a derivation with large values, long lines, deep brackets or many helpers."""
    cell = random_cell(chance) if chance.random() < 0.2 else chance.choice(CELL_NAMES)
    try:
        described = find_cell(cell)
    except LemmaError:  # too large a function: judging it is refused the same way
        return cell, ["dX = dY"]
    sample = described.samples[0].values
    vectors = [name for name, value in sample.items() if value.ndim == 2 and 1 in value.shape and value.numel() > 1]
    matrices = [name for name, value in sample.items() if value.ndim == 2 and 1 not in value.shape]
    lines: list[str] = []
    names = [*described.input_shapes, *described.steps]
    start = chance.choice(vectors or matrices)
    for number in range(chance.choice([0, 2, 3, 4])):  # stacked until it is as large as a value may be
        lines.append(f"big{number} = [{'; '.join([start] * chance.choice([2, 4, 8]))}]")
        start = f"big{number}"
        names.append(start)
    if vectors and chance.random() < 0.5:
        lines.append(f"square = outer({chance.choice(vectors)}, {start if chance.random() < 0.3 else vectors[0]})")
        matrices.append("square")
        names.append("square")
    for number in range(chance.choice([0, 3, 80])):
        lines.append(f"e{number} = {_expensive_expression(start, names, matrices, chance)}")
    target = chance.choice(described.gradients)
    for _ in range(chance.choice([1, 1, 10])):
        expression = _expensive_expression(chance.choice([start, target[1:]]), names, matrices, chance)
        lines.append(
            f"{target} = {target[1:]} * sum({expression})" if chance.random() < 0.5 else f"{target} = {expression}"
        )
    return cell, lines


def _expensive_expression(name: str, names: list[str], matrices: list[str], chance: random.Random) -> str:
    matrix = chance.choice(matrices or names)
    function = chance.choice(["exp", "tanh", "sigmoid", "softmax", "silu", "log", "sqrt"])
    kinds = [
        " + ".join([f"{function}({name})"] * 60),
        " * ".join([f"({name} - {name})"] * 45),
        f"{function}(" * 38 + name + ")" * 38,
        " + ".join([f"einsum('ij,kj,lj->il', {matrix}, {matrix}, {matrix})"] * 35),
        " @ ".join([f"{matrix}.T @ {matrix}"] * 35),
        "(" * 35 + name + f" * {name})^6" * 35,
        " + ".join(chance.choice(names) for _ in range(95)),
        " + ".join([f"{matrix} @ {matrix}.T @ {matrix}"] * 25),
    ]
    return chance.choice(kinds)


def random_cell(chance: random.Random) -> dict[str, Any]:
    """Generate a function with a long forward pass over large inputs."""
    steps, size = chance.choice([2, 20, 90]), chance.choice(["n", "10*n", "n*n", "100+n"])
    function = chance.choice(["tanh", "sigmoid", "exp", "softmax", "silu"])
    forward = [f"H0 = {function}(X)"]
    for step in range(1, steps):
        forward.append(f"H{step} = " + " + ".join([f"{function}(H{step - 1}) * H{max(0, step - 2)}"] * 20))
    return {
        "forward": forward,
        "loss": f"sum(dY * H{steps - 1})",
        "sizes": ["n"],
        "inputs": {"X": f"{size} {size}", "dY": f"{size} {size} incoming"},
        "answers": [f"dX = dY * H{steps - 1}", "dH0 = " + " * ".join(["(1 - H0)"] * 50)],
    }


def expensive_computation(chance: random.Random) -> Answer:
    """Generate a case worked by hand at its largest sizes, or a text with many ties, and wrong claims of it."""
    kind = chance.randrange(5)
    size = chance.choice([20, 60, 100])
    if kind == 0:
        alphabet = "abcdefghijklmnopqrstuvwxyz"[: chance.choice([2, 5, 26])]
        length = chance.choice([1, 2, 5, 40])
        words = ["".join(chance.choices(alphabet, k=length)) for _ in range(960 // (length + 1))]
        merges = ", ".join(chance.choice(words)[:2] or "ab" for _ in range(chance.choice([3, 300])))
        steps = chance.sample(range(1, 400), k=chance.choice([1, 20, 190]))
        claims = [f"{chance.choice(['merge', 'count', 'counts'])}{step} = {chance.choice(words)[:2]}" for step in steps]
        return "bpe:" + " ".join(words), [f"merges = [{merges}]", *claims, "segmentation = {a: b}"][: 200 - 2]

    def matrix(rows: int, columns: int) -> list[list[float]]:
        return [[round(chance.uniform(-1, 1), 2) for _ in range(columns)] for _ in range(rows)]

    if kind == 1:
        words = [f"w{number}" for number in range(size)]
        width = chance.choice([2, 30])
        case: dict[str, Any] = {
            "sentences": [" ".join(words)] * chance.choice([1, 10]),
            "passes": chance.choice([1, 10, 50]),
            **{name: matrix(width, width) for name in ("W_Q", "W_K", "W_V")},
            "vectors": dict(zip(words, matrix(size, width), strict=True)),
        }
        names = ["alpha1", "qk1", "exp1", "output1", "score1"]
    elif kind == 2:
        size //= 2
        case = {"c_prev": matrix(1, size)[0], "a_prev": matrix(1, size)[0], "x": matrix(1, size)[0]}
        case |= {name: matrix(size, 2 * size) for name in ("W_u", "W_f", "W_o", "W_c")}
        case |= {name: matrix(1, size)[0] for name in ("b_u", "b_f", "b_o", "b_c")}
        names = ["c_t", "h_t", "gamma_u", "gamma_f"]
    elif kind == 3:
        case = {"I": matrix(size, size), "T": matrix(size, size), "W_i": matrix(size, size), "W_t": matrix(size, size)}
        names = ["P", "Q", "S", "best"]
    else:
        nodes = [f"n{number}" for number in range(4 * size)]
        edges = [chance.sample(nodes, 2) for _ in range(20 * size)]
        case = {"edges": edges, "powers": 50}
        names = ["A", "A_hat", "sum_A_hat", "norm_A_hat"]
    count = chance.choice([1, 3, 200])
    shape = chance.choice([(size, size), (1, size), (size, 1), (60, 60)])
    value = matrix(*shape) if count < 200 else matrix(1, 40)
    return case, [f"{chance.choice(names)} = {value if shape[0] > 1 else value[0]}" for _ in range(count)]


def expensive_shapes(chance: random.Random) -> Answer:
    """Generate shapes whose axes are large formulas."""
    sum_of_sizes = "(E + H + M_QK + M_V + S + 1)"
    axes = [
        f"{sum_of_sizes}^{chance.randrange(1, 13)}",
        "*".join([sum_of_sizes] * chance.randrange(1, 20)),
        f"{sum_of_sizes}^6/{sum_of_sizes}^5 + 1/({sum_of_sizes}^2 + 1)",
        "(" * 50 + "E" + ")" * 50,
        "+".join(["H*S"] * 200),
        "E",
    ]
    lines = [
        "Q = " + "×".join(chance.choice(axes) for _ in range(chance.choice([1, 3, 8])))
        for _ in range(chance.choice([1, 20, 100]))
    ]
    return "self-attention", lines
