"""Memory, ratios and scaling next to brute force: tensors that are listed, schedules and rings that are simulated."""

import math
import random
import re
import time
from fractions import Fraction

import numpy as np
import pytest

import lemma
from lemma.checking.exercises.quantities import format_quantity, parse_formula, write_node
from lemma.checking.exercises.quantity_expressions import as_float, evaluate, read_quantity_field, read_readings
from lemma.checking.exercises.registry import list_library, read_exercise
from lemma.counting.count import DEFAULT_CONVENTIONS, count
from lemma.counting.subject import resolve_subject
from lemma.errors import InputError, LemmaError

KINDS = ("memory", "ratio", "scaling")
CACHE = {"layers": 5, "heads": 8, "kv_heads": 2, "head_dim": 16, "context": 100, "batch": 3}
CROSSOVER = {"left": "4 T d^2", "right": "2 T^2 d", "variable": "T", "relation": "<"}


def value_of(kind: str, name: str, **fields) -> float:
    """Return the right value of a quantity."""
    exercise = read_exercise(fields, kind)
    quantity = exercise.find(name)  # pyright: ignore[reportAttributeAccessIssue]
    return as_float(quantity.evaluator(exercise.symbols)(exercise.symbols.values))  # pyright: ignore[reportAttributeAccessIssue]


# Reading


def test_arithmetic_is_that_of_python() -> None:
    generator = random.Random(1)
    for _ in range(200):
        text = "".join(
            f"{generator.randint(1, 99)}{generator.choice(['+', '-', '*', '/'])}({generator.randint(1, 9)}+"
            for _ in range(generator.randint(1, 4))
        )
        text += "1" + ")" * text.count("(")
        expected = eval(re_fraction(text))
        assert evaluate(read_readings(text, {})[0].node, {}).value == expected, text


def re_fraction(text: str) -> str:
    """Return Python code that computes an expression exactly."""
    return re.sub(r"\d+", r"Fraction(\g<0>)", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7B", 7e9),
        ("124e6", 124e6),
        ("1.4T", 1.4e12),
        ("312 TFLOPs", 312e12),
        ("312 TFLOP/s", 312e12),
        ("2 TB/s", 2e12),
        ("50 %", 0.5),
        ("80 GB", 80e9),
        ("80 GiB", 80 * 2**30),
        ("400 Gb/s", 50e9),
        ("3 days", 3 * 86400),
        ("2.5 million", 2.5e6),
        ("1,000,000", 1e6),
        ("10^12", 1e12),
        ("2 * 10^12", 2e12),
        ("900 GB/s", 9e11),
        ("1.5 hours", 5400),
        ("1e22 FLOPs", 1e22),
    ],
)
def test_fields_are_read_with_units(text: str, expected: float) -> None:
    assert read_quantity_field(text) == pytest.approx(expected, rel=1e-12)


def test_a_formula_is_written_as_it_is_computed() -> None:
    letters = frozenset("abcd")
    generator = random.Random(2)
    for text in (
        "a - (b - c)",
        "a/(b/c)",
        "(a/b)/c",
        "a^(b + 1)",
        "(a + b)^2*c",
        "-(a + b)*c",
        "a/b*c",
        "2*a/(3*b)",
        "(a^2)^2",
    ):
        node = parse_formula(text, letters)
        plain = write_node(node).replace("·", "*").replace("−", "-").replace("²", "^2")
        point = {letter: Fraction(generator.randint(2, 5)) for letter in letters}
        assert evaluate(parse_formula(plain, letters), point).value == evaluate(node, point).value, (text, plain)


# Memory


@pytest.mark.parametrize("window", [0, 40, 100, 200])
@pytest.mark.parametrize("full_layers", [0, 2])
def test_the_cache_is_that_of_its_tensors(window: int, full_layers: int) -> None:
    total = 0
    for layer in range(5):
        length = 100 if not window or layer < full_layers else min(window, 100)
        keys, values = np.zeros((3, 2, length, 16), np.float16), np.zeros((3, 2, length, 16), np.float16)
        total += keys.nbytes + values.nbytes
    assert value_of("memory", "kv_cache", **CACHE, window=window, full_layers=full_layers if window else 0) == total


def test_sizes_of_a_model_give_its_own_cache_and_parameters() -> None:
    sizes = {"d": 64, "L": 3, "h": 4, "h_kv": 2, "T": 32, "B": 2}
    account = count(resolve_subject("decoder", sizes), ("parameters", "cache"), DEFAULT_CONVENTIONS)
    cache, parameters = (account.quantities[name].at(account.symbols) for name in ("cache", "parameters"))
    assert cache
    assert parameters
    fields = {"model": "decoder", "width": 64, "layers": 3, "heads": 4, "kv_heads": 2, "context": 32, "batch": 2}
    # the account is of float32
    assert value_of("memory", "kv_cache", **fields, precision="float32") == cache
    assert value_of("memory", "weights", **fields, precision="float32") == 4 * parameters


def test_training_states_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(30, 20)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(2, 30)).sum().backward()
    optimizer.step()
    count = sum(parameter.numel() for parameter in module.parameters())
    moments = sum(
        tensor.nbytes
        for state in optimizer.state.values()
        for name, tensor in state.items()
        if name.startswith("exp_avg")
    )
    gradients = sum(parameter.grad.nbytes for parameter in module.parameters() if parameter.grad is not None)
    fields = {"parameters": count, "precision": "float32"}
    assert value_of("memory", "moments", **fields) == moments
    assert value_of("memory", "model_states", **fields) == 4 * count + gradients + moments


def test_the_largest_batch_and_context_fit_and_the_next_do_not() -> None:
    fields = {
        "parameters": 1e8,
        "phase": "training",
        "layers": 6,
        "heads": 8,
        "width": 512,
        "context": 256,
        "activations": "10 B T d, 3 B h T T",
        "memory": "12 GB",
    }
    batch, context = (int(value_of("memory", name, **fields)) for name in ("largest_batch", "largest_context"))
    for name, size in (("batch", batch), ("context", context)):
        assert value_of("memory", "total", **{**fields, name: size}) <= 12e9
        assert value_of("memory", "total", **{**fields, name: size + 1}) > 12e9


def test_formulas_with_other_letters_for_the_same_sizes_are_right() -> None:
    fields = {"layers": 6, "heads": 8, "width": 512, "context": 256}
    for text in (
        "2 L d T 2",
        "2 L h d_h T 2",
        "2 L h (d/h) T 2",
        "4 L d_model n",
        "2*6*512*256*2",
        "2 L 512 T 2",
        "4 L 8 d_h T",
    ):
        assert lemma.check.exercise("memory", fields, text), text
    # right at these sizes only
    for text in ("2 h d T 2 * 6/8", "L d^2 T 4/512", "2 L d T^2 2/256"):
        assert not lemma.check.exercise("memory", fields, text), text


def test_the_unit_of_plain_numbers_can_be_stated() -> None:
    fields = {"layers": 32, "heads": 32, "kv_heads": 8, "head_dim": 128, "context": 8192}
    assert lemma.check.exercise("memory", {**fields, "unit": "GB"}, "1.07")
    assert not lemma.check.exercise("memory", {**fields, "unit": "GB"}, "1.00")
    assert lemma.check.exercise("memory", {**fields, "unit": "GiB"}, "1")


def test_the_form_of_the_answer_can_be_stated() -> None:
    formula, number = {**CACHE, "form": "formula"}, {**CACHE, "form": "number"}
    assert lemma.check.exercise("memory", formula, "4 L h_kv d_h T B")
    assert "a formula in letters" in str(lemma.check.exercise("memory", formula, "192 kB")).lower()
    assert "a number is asked" in str(lemma.check.exercise("memory", number, "4 L h_kv d_h T B")).lower()


# Scaling


def test_the_ring_sends_as_much_as_its_simulation() -> None:
    devices, parts = 6, 6
    chunk = 1000 // parts
    sent = np.zeros(devices, dtype=int)
    for _phase in ("reduce-scatter", "all-gather"):
        for _step in range(devices - 1):
            sent += chunk  # each device sends one chunk to its neighbour
    assert value_of("scaling", "allreduce_bytes", message=chunk * parts, gpus=devices) == sent[0]


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 3), (4, 16), (8, 8), (5, 1)])
def test_the_bubble_is_that_of_a_schedule(stages: int, micro_batches: int) -> None:
    finished = np.zeros((stages, micro_batches))
    for stage in range(stages):
        for batch in range(micro_batches):
            before = finished[stage - 1, batch] if stage else 0
            previous = finished[stage, batch - 1] if batch else 0
            finished[stage, batch] = max(before, previous) + 1
    idle = 1 - micro_batches / finished[-1, -1]
    assert value_of("scaling", "bubble", stages=stages, micro_batches=micro_batches) == pytest.approx(idle)


def test_the_parametric_optimum_is_the_least_loss_on_a_grid() -> None:
    budget = 3e21
    parameters = np.geomspace(1e7, 1e12, 200_001)
    loss = 1.69 + 406.4 / parameters**0.34 + 410.7 / (budget / 6 / parameters) ** 0.28
    fields = {"compute": budget, "law": "parametric"}
    assert value_of("scaling", "N_opt", **fields) == pytest.approx(parameters[loss.argmin()], rel=1e-3)
    assert value_of("scaling", "loss", **fields) == pytest.approx(loss.min(), rel=1e-9)
    product = 6 * value_of("scaling", "N_opt", **fields) * value_of("scaling", "D_opt", **fields)
    assert product == pytest.approx(budget)


def test_time_is_compute_over_speed() -> None:
    fields = {"parameters": "3B", "tokens": "100B", "flops": "100 TFLOPs", "gpus": 10, "mfu": 0.5, "price": 1.5}
    seconds = sum(6 * 3e9 * 1e9 / (10 * 50e12) for _ in range(100))
    assert value_of("scaling", "training_time", **fields) == pytest.approx(seconds)
    assert value_of("scaling", "cost", **fields) == pytest.approx(10 * seconds / 3600 * 1.5)


def test_intensity_counts_every_number_once() -> None:
    m, k, n = 3, 5, 7
    moved = 4 * len(
        {("a", i, j) for i in range(m) for j in range(k)} | {("b", i, j) for i in range(k) for j in range(n)}
    )
    moved += 4 * m * n
    work = sum(2 for _ in range(m) for _ in range(k) for _ in range(n))
    actual = value_of("scaling", "intensity_of_kernel", rows=m, inner=k, columns=n, precision="float32")
    assert actual == pytest.approx(work / moved)


# Ratios


def test_inequalities_are_compared_by_their_solutions() -> None:
    generator = random.Random(3)
    for _ in range(60):
        a, b, c = (generator.randint(1, 9) for _ in range(3))
        fields = {"left": f"{a} x", "right": f"{b} y + {c}", "variable": "x", "relation": ">"}
        right = [f"x > ({b} y + {c})/{a}", f"{a} x - {b} y > {c}", f"{b} y + {c} < {a} x", f"x/({b} y + {c}) > 1/{a}"]
        wrong = [
            f"x < ({b} y + {c})/{a}",
            f"x > ({b} y + {c + 1})/{a}",
            f"{a} x - {b} y < {c}",
            f"x > {b} y + {c * (a + 1)}",
        ]
        for text in right:
            assert lemma.check.exercise("ratio", fields, text), (fields, text)
        for text in wrong:
            assert not lemma.check.exercise("ratio", fields, text), (fields, text)


def test_an_inequality_without_a_polynomial_says_how_it_was_compared() -> None:
    report = lemma.check.exercise("ratio", CROSSOVER, "sqrt(T) > sqrt(2d)")
    assert report
    assert "sizes that were tried" in str(report)


@pytest.mark.parametrize(
    ("objective", "optimum"),
    [("x + 9/x", 3.0), ("a/x^2 + b x", (2 * 5 / 3) ** (1 / 3)), ("x*ln(x)", math.exp(-1)), ("(x - 7)^2 + 1", 7.0)],
)
def test_an_optimum_is_where_the_derivative_vanishes(objective: str, optimum: float) -> None:
    actual = value_of("ratio", "optimum", objective=objective, variable="x", values={"a": 5, "b": 3})
    assert actual == pytest.approx(optimum, rel=1e-6)


def test_a_maximum() -> None:
    assert value_of("ratio", "optimum", objective="x/(x^2 + 4)", variable="x", goal="maximum") == pytest.approx(
        2, rel=1e-6
    )


def test_a_threshold_of_second_degree() -> None:
    fields = {"left": "2 n^2", "right": "100 n + 5000", "variable": "n"}
    assert value_of("ratio", "threshold", **fields) == pytest.approx(25 + math.sqrt(3125))


def test_shares_of_a_model_are_those_of_its_modules() -> None:
    from lemma.models.build import build
    from lemma.spec.choose import resolve_choice

    module = build(resolve_choice("decoder").model)
    parts = {name: sum(parameter.numel() for parameter in layer.parameters()) for name, layer in module.named_modules()}
    attention = sum(parts[f"layers.{number}.attention"] for number in range(4))
    total = sum(parameter.numel() for parameter in module.parameters())
    assert value_of("ratio", "share", model="decoder", part="attention") == pytest.approx(attention / total)
    assert value_of("ratio", "share", model="decoder", part="layers.0") == pytest.approx(parts["layers.0"] / total)


# Limits, help and files

STRANGE = [
    "=",
    "NAME",
    "????",
    "日本語",
    "9" * 3000,
    "9" * 240 + "^" + "9" * 200,
    "1e999999999",
    "2^" * 50 + "2",
    "(" * 300,
    "-" * 1500,
    "a" * 1900,
    "1/0",
    "0^-1",
    "(-1)^0.5",
    "sqrt(-1)",
    "log(0)",
    "exp(1e9)",
    "10^240*10^240*10^240",
    "(L+h+T)^250",
    "T > ",
    "T > T",
    "T > 1 < 2 > 3",
    "\\frac{1}{",
    "\\frac{1}{0}",
    "$$",
    "%",
    "x",
    "GB",
    "nan",
    "inf",
    "\x00\x01",
    "🙂",
    "L" * 60,
    "1,0,0,0",
    "1..2",
    "min()",
    "[1,2]",
    "_",
    "floor(1e250)",
    "⌊",
    "0",
    "-1",
    "0 GB",
    "1e-240",
    "5 " * 200,
    "+" * 40 + "1",
    "T^200 < 0",
]


@pytest.mark.parametrize("text", STRANGE, ids=range(len(STRANGE)))
def test_strange_answers_are_refused_or_wrong_in_a_moment(text: str) -> None:
    scaling = {"parameters": "7B", "tokens": "2T", "flops": "312 TFLOPs", "gpus": 512}
    exercises = (
        ("memory", CACHE),
        ("scaling", scaling),
        ("ratio", CROSSOVER),
        ("ratio", {"objective": "a/x + b x", "variable": "x"}),
    )
    for kind, fields in exercises:
        start = time.perf_counter()
        try:
            assert not lemma.check.exercise(kind, fields, text), (kind, text)
        except LemmaError as error:
            assert len(str(error)) < 1000
        assert time.perf_counter() - start < 2


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        ("memory", {}, "too little is given"),
        ("memory", {"parameters": "many"}, "parameters = 'many': a number is expected"),
        ("memory", {"layers": 2, "activations": "Q Q"}, "unknown letter or unit 'Q'"),
        ("memory", {"layers": -1}, "greater than or equal to 0"),
        ("memory", {"layers": 2**40}, "at most 1,000,000,000"),
        ("memory", {"parameters": 1, "asks": ["cash"]}, "unknown name 'cash'"),
        ("scaling", {"bandwidth": "fast"}, 'such as "2 TB/s"'),
        ("ratio", {"left": "T", "right": "T", "variable": "T"}, "more than one positive solution"),
        ("ratio", {"left": "sin(T)", "right": "1", "variable": "T"}, "sin is not known"),
        ("ratio", {"objective": "x", "variable": "x"}, "no optimum"),
        ("ratio", {"values": "d"}, "as in d=768"),
        ("ratio", {"model": "decoder", "part": "heart"}, "unknown part 'heart'"),
    ],
)
def test_wrong_fields_are_explained(kind: str, fields: dict, words: str) -> None:
    with pytest.raises(LemmaError, match=words.replace("(", r"\(")):
        lemma.check.exercise(kind, fields, "5")


def test_letters_with_blanks_are_answers() -> None:
    assert lemma.check.exercise("scaling", "C=1e22", "N = 9.13e9", "D = 1.83e11")
    with pytest.raises(InputError, match="with blanks around the sign"):
        lemma.check.exercise("scaling", "C=1e22", "N=9.13e9")


def test_other_quantities_and_wrong_units_are_not_accepted() -> None:
    for text in ("192 kB/s", "192 days", "$192"):
        assert not lemma.check.exercise("memory", CACHE, text), text


@pytest.mark.parametrize("name", [name for name, path in list_library().items() if 'kind = "' in path.read_text()])
def test_exercises_of_the_library_are_answered_by_their_solutions(name: str) -> None:
    exercise = read_exercise(name)
    if exercise.kind not in KINDS:
        return
    lines = []
    for quantity in exercise.requested_quantities():  # pyright: ignore[reportAttributeAccessIssue]
        if quantity.words:
            answer = quantity.words[0]
        else:
            value = quantity.evaluator(exercise.symbols)(exercise.symbols.values)  # pyright: ignore[reportAttributeAccessIssue]
            answer = format_quantity(value, quantity)
        lines.append(f"{quantity.name} = {answer}")
    assert exercise.check(lines), str(exercise.check(lines))
    for level in ("hint", "where", "solution"):
        assert str(exercise.help_with(level))
    assert exercise.describe()
    assert len(list_library()[name].read_text().splitlines()) <= 15


def test_fields_with_blanks_are_answers_where_names_are_the_same() -> None:
    assert lemma.check.exercise("scaling", "compute=1e22", "N_opt = 9.13e9", "tokens = 1.83e11")
    assert lemma.check.exercise(
        "memory", "parameters=1e9", "layers=10", "width=64", "heads=2", "context=100", "memory=3e9", "B = 3906"
    )


@pytest.mark.parametrize("factor", [2, 0.5, 1.06, 0.94, 1.01, 0.99, 10, 1.024, -1])
def test_other_numbers_are_wrong_in_every_notation(factor: float) -> None:
    exercise = read_exercise("training-states")
    for name, value in (("optimizer", 32.4e9), ("model_states", 43.2e9)):
        for unit, size in (("GB", 1e9), ("GiB", 2**30), ("MB", 1e6), ("bytes", 1)):
            for text in (
                f"{value * factor / size:.4g} {unit}",
                f"{value * factor / size:.3e} {unit}",
                f"2*{value * factor / size / 2:.5g} {unit}",
            ):
                assert not exercise.check([f"{name} = {text}"]), text
