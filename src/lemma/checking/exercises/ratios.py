"""Exercises on shares, ratios, thresholds, inequalities and optima of formulas, or of the parts of a model."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from lemma.checking.check_values import ValueLine
from lemma.checking.exercises.quantities import (
    AnswerChecker,
    Evaluator,
    ExpectedQuantity,
    Letters,
    Point,
    QuantityExercise,
    as_float,
    format_operand,
    format_quantity,
    parse_letters,
    pretty,
)
from lemma.checking.exercises.quantity_expressions import (
    FUNCTIONS,
    QuantityNode,
    Value,
    evaluate,
    read_quantity_field,
    read_readings,
    replace_latex,
)
from lemma.counting.polynomial import (
    Calculator,
    Polynomial,
    Rational,
    as_polynomial,
    divide_exactly,
    symbol,
    work_limit,
)
from lemma.counting.writing import write_formula
from lemma.errors import InputError, describe_unknown
from lemma.report.numbers import shorten

UNKNOWN_FUNCTIONS = {"sin", "cos", "tan", "tanh", "sigmoid", "softmax", "erf", "gamma", "abs", "sum", "prod"}
MAX_LETTERS, MAX_WORK = 24, 20_000
MAX_PARAMETERS = 20_000  # tensors of a model
GRID = [10.0 ** (power / 8) for power in range(-48, 121)]  # values of the variable at which inequalities are compared
ROOT_GAP = 1e-6
COARSE_GRID = [10.0 ** (power / 8) for power in range(-96, 161)]  # where an optimum is looked for
PARTS = {  # names of parts of models, by what the path of a tensor holds; the first that matches counts
    "norm": r"(?:^|[._])(?:\w*norm\w*|ln_?\w*)(?:\.|$)",
    "attention": r"attention|attn",
    "feed-forward": r"feed_?forward|mlp|ffn|(?:^|\.)(?:fc\d|intermediate)",
    "positions": r"position|wpe",
    "embedding": r"embed|wte|shared",
    "output": r"output|lm_head|head|decoder$",
}
_PART_NAMES = {
    "ffn": "feed-forward",
    "mlp": "feed-forward",
    "feedforward": "feed-forward",
    "feed_forward": "feed-forward",
    "attn": "attention",
    "self-attention": "attention",
    "embeddings": "embedding",
    "token embedding": "embedding",
    "tokens": "embedding",
    "lm_head": "output",
    "head": "output",
    "unembedding": "output",
    "norms": "norm",
    "layer norm": "norm",
    "layernorm": "norm",
    "position": "positions",
    "all": "all",
    "total": "all",
    "model": "all",
    "everything": "all",
    "parameters": "all",
    "biases": "bias",
}
GREEK = {
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "eta",
    "theta",
    "kappa",
    "lambda",
    "mu",
    "nu",
    "rho",
    "sigma",
    "tau",
    "phi",
    "psi",
    "omega",
}


def read_values(value: Any) -> Any:
    """Return letters with their values from a text such as "d=768, T=1024"; other values unchanged."""
    if isinstance(value, Mapping):
        return {str(name): read_quantity_field(item) for name, item in value.items()}
    if not isinstance(value, str):
        return value
    letters: dict[str, Any] = {}
    for part in re.split(r"[,;\n]\s*|\s+(?=[^\W\d]\w*\s*=)", value.strip()):
        name, sign, number = part.partition("=")
        if part.strip():
            if not sign:
                raise ValueError(f"values: '{part[:40]}': letters with values are expected, as in d=768, T=1024.")
            letters[name.strip()] = read_quantity_field(number.strip())
    return letters


Values = Annotated[
    dict[str, Annotated[float, Field(gt=0, le=10**30)]], BeforeValidator(read_values), Field(max_length=MAX_LETTERS)
]
Expression = Annotated[
    str, BeforeValidator(lambda value: str(value) if isinstance(value, (int, float)) else value), Field(max_length=500)
]


class RatioExercise(QuantityExercise):
    """A share, a ratio, a threshold, an inequality or an optimum."""

    kind: ClassVar[str] = "ratio"
    has_single_question: ClassVar[bool] = True
    first_field: ClassVar[str] = "model"

    model: str = ""
    """Model whose parts are compared: a preset, spec, config.json or type of transformers model."""
    part: Expression = ""
    """The part: of a model by path or name (attention, feed-forward, embedding, trainable …); or an expression."""
    whole: Expression = ""
    """What the part is divided by. Default: all parameters of the model."""
    left: Expression = ""
    """Left side of the comparison, in letters, such as "4 T d^2"."""
    right: Expression = ""
    """Right side of the comparison, such as "2 T^2 d"."""
    variable: Annotated[str, Field(max_length=20)] = ""
    """Letter that the threshold or the optimum is about, such as T."""
    relation: Literal["", ">", "<", ">=", "<="] = ""
    """Relation that shall hold between left and right; then the answer is an inequality for the variable."""
    objective: Expression = ""
    """Expression whose minimum or maximum is looked for."""
    goal: Literal["minimum", "maximum"] = "minimum"
    """Whether the objective is as small or as large as possible."""
    values: Values = Field(default_factory=dict)
    """Values of letters, such as "d=768, h=12"; without them answers are formulas."""
    whole_numbers: bool = False
    """Whether the variable is a whole number, so that T > 5 and T ≥ 6 are the same."""

    def missing_hint(self) -> str:
        """Return a sentence on the fields that are missing."""
        return (
            "Give model and part; part and whole; left, right and variable; or objective and variable, as in "
            'left="4 T d^2" right="2 T^2 d" variable=T.'
        )

    @cached_property
    def letter_names(self) -> tuple[str, ...]:
        """The letters of the expressions."""
        texts = [self.left, self.right, self.objective, *((self.part, self.whole) if not self.model else ())]
        names: dict[str, None] = dict.fromkeys(self.values)
        for text in texts:
            if unknown := next((name for name in re.findall(r"([a-z]+)\s*\(", text) if name in UNKNOWN_FUNCTIONS), ""):
                raise InputError(f"{self.name}: {unknown} is not known. Functions: {', '.join(FUNCTIONS)}.")
            for name in re.findall(r"[^\W\d]\w*", re.sub(r"(?<=\d)[eE](?=[+-]?\d)", "_", replace_latex(text))):
                if name in FUNCTIONS or name in names or name == "_":
                    continue
                is_run = (
                    name.isalpha() and 2 <= len(name) <= 4 and name.casefold() not in GREEK and name != self.variable
                )
                names |= dict.fromkeys(name if is_run else [name])
        if self.variable:
            names.setdefault(self.variable)
        if len(names) > MAX_LETTERS:
            raise InputError(f"{self.name}: the expressions have more than {MAX_LETTERS} letters.")
        return tuple(name for name in names if name.strip("_"))

    @cached_property
    def free_letters(self) -> frozenset[str]:
        """The letters without values."""
        return frozenset(self.letter_names) - self.values.keys()

    def make_letters(self) -> Letters:
        """Return the letters with their values; letters without one get a value that no answer has by accident."""
        values: dict[str, Value] = {}
        for index, name in enumerate(self.letter_names):
            stated = self.values.get(name)
            values[name] = Fraction(7919 + 631 * index * index, 977) if stated is None else Fraction(str(stated))
        aliases = {"n": "N", "t": "T", "D": "d"} if not self.model else {}
        aliases = {alias: letter for alias, letter in aliases.items() if alias not in values}
        return Letters(values, aliases, unknown=self.free_letters)

    def main_names(self) -> tuple[str, ...]:
        """Return the condition, the optimum, the threshold, the share or the ratio: what the fields ask for."""
        names = [each.name for each in self.quantities]
        order = ("condition", "optimum", "threshold", "share", "ratio")
        if self.part and self.whole and not self.model:
            order = ("share",)
        return (next((name for name in order if name in names), names[-1]),)

    def expected_quantities(self) -> Sequence[ExpectedQuantity]:
        """Return the shares, ratios, thresholds and optima that follow from what is given."""
        if self.model:
            return self._model_quantities()
        quantities: list[ExpectedQuantity] = []
        if self.part and self.whole:
            quantities += _fraction_quantities(f"({self.part})", f"({self.whole})")
        if self.left and self.right:
            quantities += self._comparison_quantities()
        if self.objective and self.variable:
            quantities += self._optimum_quantities()
        for quantity in quantities:
            if not quantity.words and not quantity.function:
                quantity.evaluator(self.symbols)(self.symbols.values)
        return quantities

    # Parts of a model

    def _model_quantities(self) -> list[ExpectedQuantity]:
        """Return the share of a part of a model among its parameters, with other parts as mistakes."""
        tensors = _list_parameters(self.model, self.values)
        part, denominator = _select(tensors, self.part or "attention"), _select(tensors, self.whole or "all")
        total = _select(tensors, "all")
        if not denominator:
            raise InputError(f"{self.name}: '{self.whole}' has no parameters.")
        mistakes: dict[str, str] = {"the ratio is inverted": f"{denominator}/{part}" if part else "0"}
        if denominator > part:
            mistakes["the part is divided by the rest, not by the whole"] = f"{part}/{denominator - part}"
            mistakes["that is the share of everything else"] = f"{denominator - part}/{denominator}"
        bias_part = sum(size for name, size, _ in tensors if name in _names(tensors, self.part) and "bias" in name)
        bias = sum(size for name, size, _ in tensors if "bias" in name)
        if bias and not self.whole:
            mistakes["biases are left out of both"] = f"{part - bias_part}/{denominator - bias}"
            mistakes["the biases of the part are left out"] = f"{part - bias_part}/{denominator}"
            mistakes["biases are left out of the whole"] = f"{part}/{denominator - bias}"
        if not self.whole:
            part_sizes = {
                name: _select(tensors, name) for name in PARTS if any(_category(path) == name for path, _, _ in tensors)
            }
            for name, size in part_sizes.items():
                if size != part:
                    mistakes[f"that is the share of {name}"] = f"{size}/{denominator}"
            embedding = part_sizes.get("embedding", 0)
            for text, left_out in (
                ("the embedding is left out of the whole", embedding),
                ("embedding and positions are left out of the whole", embedding + part_sizes.get("positions", 0)),
                ("the norms are left out of the whole", part_sizes.get("norm", 0)),
                ("the tied embedding is counted twice", -embedding),
            ):
                if left_out and denominator - left_out > 0 and _normal_part(self.part) not in ("embedding", "norm"):
                    mistakes[text] = f"{part}/{denominator - left_out}"
            if "output" not in part_sizes and _normal_part(self.part) == "embedding":
                mistakes["the tied embedding is counted twice"] = f"{part}/{denominator + part}"
        fraction = ExpectedQuantity(
            "share",
            f"{part}/{denominator}",
            "%",
            f"parameters of {self.part or 'attention'} among those of {self.whole or 'the model'}",
            ("fraction", "percentage", "proportion", "ratio", "part/whole", self.part or "attention"),
            mistakes,
        )
        quantities = [
            ExpectedQuantity(
                "part_size",
                str(part),
                "parameters",
                f"parameters of {self.part or 'attention'}",
                ("size of the part",),
                {"biases are left out": str(part - bias_part)} if bias_part else {},
                exact=False,
            ),
            ExpectedQuantity(
                "whole_size",
                str(denominator),
                "parameters",
                f"parameters of {self.whole or 'the model'}",
                ("size of the whole", "total"),
                {"biases are left out": str(total - bias)} if bias and not self.whole else {},
            ),
        ]
        if part:
            inverse = {"the ratio is inverted": f"{part}/{denominator}"}
            quantities.append(
                ExpectedQuantity(
                    "factor", f"{denominator}/{part}", "x", "whole over part", ("whole/part", "times"), inverse
                )
            )
        return [*quantities, fraction]

    # Two expressions

    def _comparison_quantities(self) -> list[ExpectedQuantity]:
        """Return the sides, their ratio and share, and where they are equal."""
        left, right = f"({self.left})", f"({self.right})"
        quantities = [
            ExpectedQuantity(
                "ratio",
                f"{left}/{right}",
                "x",
                "left over right",
                ("left/right", "factor", "quotient", "times"),
                {
                    "the ratio is inverted": f"{right}/{left}",
                    "the difference is divided by the right side": f"({left} - {right})/{right}",
                },
            ),
            ExpectedQuantity(
                "left_share",
                f"{left}/({left} + {right})",
                "%",
                "left among both",
                ("share", "share of left", "fraction"),
                {
                    "left is divided by right, not by the sum": f"{left}/{right}",
                    "that is the share of the right side": f"{right}/({left} + {right})",
                },
            ),
        ]
        if self.variable:
            threshold = self._threshold_quantity()
            quantities.append(threshold)
            if self.whole_numbers and not self.free_letters - {self.variable}:
                root = as_float(self.threshold(self.symbols.values))
                nearest = round(root)
                smallest = nearest + 1 if abs(root - nearest) < 1e-9 * max(1, root) else math.floor(root) + 1
                quantities.append(
                    ExpectedQuantity(
                        "smallest",
                        str(smallest),
                        "",
                        f"smallest whole {self.variable} above the threshold",
                        ("smallest whole number", "minimum whole"),
                        {"rounded down: there the other side is still ahead, or both are equal": str(smallest - 1)},
                        exact=True,
                    )
                )
            if self.relation:
                quantities.append(
                    ExpectedQuantity(
                        "condition",
                        f"{self.left} {self.relation} {self.right}",
                        "",
                        f"inequality for {self.variable}",
                        ("inequality", "when", "holds when"),
                        words=(self._write_condition(),),
                        work=f"both sides are equal at {self.variable} = {threshold.formula}",
                    )
                )
        return quantities

    def _threshold_quantity(self) -> ExpectedQuantity:
        """Return the value of the variable at which both sides are equal."""
        solution = self.exact_threshold
        text = (
            pretty(write_formula(solution))
            if solution is not None
            else f"{self.left} = {self.right}, solved for {self.variable}"
        )
        values = {**self.symbols.values}
        missing = self.free_letters - {self.variable}
        number = "" if missing else f"{self.variable} = {format_operand(self.threshold(values))}"
        target = self.threshold
        mistakes: dict[str, Evaluator] = {
            "it is 1 too small: a term of 1 is missing": lambda point: target(point) - 1,
            "it is 1 too large": lambda point: target(point) + 1,
            "the quotient is inverted": lambda point: 1 / target(point),
            "the root is forgotten": lambda point: target(point) * target(point),
            "a root too many": lambda point: math.sqrt(target(point)),
        }
        return ExpectedQuantity(
            "threshold",
            text,
            "",
            f"{self.variable} at which left = right",
            (
                self.variable,
                f"{self.variable}*",
                "crossover",
                "crossover point",
                "break-even",
                f"{self.variable}_c",
                "intersection",
            ),
            mistakes,
            function=self.threshold,
            work=number,
        )

    @cached_property
    def difference(self) -> Evaluator:
        """A function for left − right."""
        return self.symbols.evaluator(f"({self.left}) - ({self.right})")

    @cached_property
    def exact_difference(self) -> Rational | None:
        """left − right as a quotient of polynomials; None if it has roots or logarithms."""
        node = read_readings(f"({self.left}) - ({self.right})", self.symbols.names)[0].node
        return to_rational(node)

    @cached_property
    def exact_threshold(self) -> Rational | None:
        """The only positive root of left − right as a quotient of polynomials; None if there is no such formula."""
        exact = self.exact_difference
        if exact is None:
            return None
        parts = collect(exact.numerator, self.variable)
        powers = sorted(parts)
        if len(powers) != 2 or powers[1] - powers[0] != 1:
            return None
        low, high = parts[powers[0]], parts[powers[1]]
        quotient = Rational(-low, high)
        return (
            Rational(quotient.to_polynomial() or quotient.numerator)
            if quotient.to_polynomial() is not None
            else quotient
        )

    def threshold(self, point: Point) -> Value:
        """Return the variable at which both sides are equal at a point, exactly if it is rational."""
        remaining_values = {letter: value for letter, value in point.items() if letter != self.variable}
        if self.exact_threshold is not None and all(isinstance(value, Fraction) for value in remaining_values.values()):
            value = self.exact_threshold.at(remaining_values)  # type: ignore[arg-type]
            if value > 0:
                return value
        roots = self.roots(point)
        if len(roots) != 1:
            count = "no" if not roots else "more than one"
            raise InputError(f"{self.name}: left = right has {count} positive solution for {self.variable}.")
        return roots[0]

    def roots(self, point: Point) -> list[float]:
        """Return the positive values of the variable at which left − right changes its sign, by bisection."""
        floats = {letter: as_float(value) for letter, value in point.items()}

        def sign_at(value: float) -> float:
            try:
                return as_float(self.difference({**floats, self.variable: value}))
            except InputError:
                return math.nan

        roots: list[float] = []
        results = [sign_at(value) for value in COARSE_GRID]
        for low, high, first, second in zip(COARSE_GRID, COARSE_GRID[1:], results, results[1:], strict=False):
            if first == 0:
                roots.append(low)
            elif first * second < 0:
                for _ in range(80):
                    middle = math.sqrt(low * high)
                    if sign_at(middle) * first > 0:
                        low = middle
                    else:
                        high = middle
                roots.append(math.sqrt(low * high))
        return roots

    def _write_condition(self) -> str:
        """Return the inequality for the variable as a text."""
        try:
            root = self.threshold(self.symbols.values)
        except InputError:
            return f"{self.left} {self.relation} {self.right}"
        is_rising = as_float(self.difference({**self.symbols.values, self.variable: as_float(root) * 2})) > 0
        sign = (">" if is_rising else "<") if self.relation.startswith(">") else ("<" if is_rising else ">")
        text = pretty(write_formula(self.exact_threshold)) if self.exact_threshold is not None else format_operand(root)
        missing = self.free_letters - {self.variable}
        number = "" if missing or text == format_operand(root) else f" = {format_operand(root)}"
        return f"{self.variable} {sign} {text}{number}"

    def check_special(self, quantity: ExpectedQuantity, line: str, text: str) -> ValueLine | None:
        """Check an inequality."""
        normalized = replace_latex(text)
        signs = re.findall(r"[<>≤≥]", normalized)
        if quantity.name != "condition":
            if signs and (condition := self.find("condition")):
                return self.check_special(condition, line, text)
            if quantity.name in ("threshold", "optimum") and "=" in text:
                return self._check_equation(quantity, line, text)
            return None
        if signs:
            return InequalityChecker(self, quantity, normalized).check(line)
        threshold = self.find("threshold")
        assert threshold is not None
        solution = f"{quantity.name}: {quantity.words[0]}"
        checker = AnswerChecker(self, threshold, re.sub(rf"^\s*{re.escape(self.variable)}\s*=", "", normalized))
        if checker.match(checker.members[-1], checker.target) is not None:
            mistake = (
                f"the threshold is right, but on which side of it? Write {self.variable} > … or {self.variable} < …."
            )
            return ValueLine(line, False, solution, (), mistake)
        return ValueLine(
            line, False, solution, (), f"an inequality is expected: {self.variable} > … or {self.variable} < …."
        )

    def write_value(self, quantity: ExpectedQuantity) -> str:
        """Return the value of a quantity; "" if it depends on letters without values."""
        if quantity.words:
            return ""
        letters = parse_letters(quantity, self.symbols) - ({self.variable} if quantity.function else set())
        target, unknown = quantity.evaluator(self.symbols), letters & self.free_letters
        value = target(self.symbols.values)
        if unknown:
            point_values = (
                target(point) for points in self.symbols.comparison_points(frozenset(unknown)) for point in points
            )
            if any(abs(as_float(other) - as_float(value)) > 1e-9 * abs(as_float(value)) for other in point_values):
                return ""
        return format_quantity(value, quantity)

    def _split_name(self, line: str, default: ExpectedQuantity | None) -> tuple[ExpectedQuantity, str]:
        """Return the quantity of a line and the text after its name; T = 2d does not answer for which T."""
        quantity, text = super()._split_name(line, default)
        is_bare = re.fullmatch(rf"\s*{re.escape(self.variable or '?')}\s*=.*", line, re.DOTALL)
        if default and default.name == "condition" and quantity.name == "threshold" and is_bare:
            return default, text
        return quantity, text

    def _check_equation(self, quantity: ExpectedQuantity, line: str, text: str) -> ValueLine | None:
        """Check an equation that is not solved for the variable, such as N^2 = C/6; None for other answers."""
        parts = replace_latex(text).split("=")
        if len(parts) != 2 or self.variable not in self.letter_names:
            return None
        try:
            operands = [read_readings(part, self.symbols.names)[0].node for part in parts]
        except InputError:
            return None
        node = QuantityNode("-", (operands[0], operands[1]))
        used = node.letters()
        if self.variable not in operands[0].letters():
            return None
        target = quantity.evaluator(self.symbols)
        for points in self.symbols.comparison_points(used - {self.variable}):
            for point in points or [self.symbols.values]:
                root = as_float(target(point))
                at, shifted_point = ({**point, self.variable: value} for value in (root, 1.03 * root))
                size = abs(as_float(evaluate(operands[0], at).value)) + 1e-300
                if abs(as_float(evaluate(node, at).value)) > 1e-5 * size:
                    return None
                if abs(as_float(evaluate(node, shifted_point).value)) <= 1e-4 * size:
                    return None
        return ValueLine(
            line, True, f"{quantity.name}: {pretty(quantity.formula)}", reading=f"an equation for {self.variable}"
        )

    # Optima

    def _optimum_quantities(self) -> list[ExpectedQuantity]:
        """Return where the objective is least or largest, and its value there."""
        sign = 1 if self.goal == "minimum" else -1
        evaluator = self.symbols.evaluator(self.objective)
        cache: dict[tuple[tuple[str, float], ...], float] = {}

        def optimum(point: Point) -> Value:
            floats = {letter: as_float(value) for letter, value in point.items() if letter != self.variable}
            key = tuple(floats.items())
            if key not in cache:
                cache[key] = find_minimum(
                    lambda value: sign * as_float(evaluator({**floats, self.variable: value})), self.variable
                )
            return cache[key]

        def best(point: Point) -> Value:
            floats = {letter: as_float(value) for letter, value in point.items()}
            return as_float(evaluator({**floats, self.variable: as_float(optimum(point))}))

        optimum(self.symbols.values)
        name = self.variable
        work = "" if self.free_letters - {name} else f"{name} = {format_operand(optimum(self.symbols.values))}"
        least = "" if self.free_letters - {name} else f"{format_operand(best(self.symbols.values))}"
        return [
            ExpectedQuantity(
                "optimum",
                f"d/d{name} ({self.objective}) = 0",
                "",
                f"{name} at the {self.goal}",
                (name, f"{name}*", f"{name}_opt", f"{name}opt", "argmin", "argmax", f"optimal {name}", f"best {name}"),
                {
                    "the root is forgotten": lambda point: optimum(point) * optimum(point),
                    "a root too many": lambda point: math.sqrt(optimum(point)),
                    "the quotient is inverted": lambda point: 1 / optimum(point),
                },
                function=optimum,
                work=work,
            ),
            ExpectedQuantity(
                "optimal_value",
                f"{self.objective} at the optimum",
                "",
                f"{self.goal} of the objective",
                ("minimum", "maximum", "f*", "optimal objective", "value at the optimum"),
                function=best,
                work=least,
            ),
        ]


def find_minimum(function: Callable[[float], float], name: str) -> float:
    """Return the positive argument of the only minimum of a function, by a grid and golden sections.

    >>> round(find_minimum(lambda x: x + 16 / x, "x"), 6)
    4.0
    """

    def value(argument: float) -> float:
        try:
            return function(argument)
        except InputError:
            return math.inf

    results = [value(argument) for argument in COARSE_GRID]
    best = min(range(len(results)), key=results.__getitem__)
    if best in (0, len(results) - 1) or not math.isfinite(results[best]):
        raise InputError(f"the objective has no optimum at a positive {name}.")
    low, high = math.log(COARSE_GRID[best - 1]), math.log(COARSE_GRID[best + 1])
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(60):
        first, second = high - ratio * (high - low), low + ratio * (high - low)
        if value(math.exp(first)) < value(math.exp(second)):
            high = second
        else:
            low = first
    center = (low + high) / 2
    step = 1e-4  # a parabola through three points is more precise than the section
    before, at, after = (value(math.exp(center + shift)) for shift in (-step, 0.0, step))
    curvature = before - 2 * at + after
    shift = 0.5 * step * (before - after) / curvature if curvature > 0 else 0.0
    return math.exp(center + (shift if abs(shift) < step else 0.0))


# Inequalities


def to_rational(node: QuantityNode) -> Rational | None:
    """Return an expression as a quotient of polynomials; None if it is not one, or too large."""
    try:
        with work_limit(MAX_WORK):
            return _to_rational(node, Calculator())
    except (InputError, ZeroDivisionError, NotImplementedError):
        return None


def _to_rational(node: QuantityNode, calculator: Calculator) -> Rational:
    if node.op in ("number", "unit"):
        if not isinstance(node.measure.value, Fraction):
            raise NotImplementedError
        return Rational(as_polynomial(node.measure.value))
    if node.op == "letter":
        return Rational(symbol(node.name))
    children = [_to_rational(child, calculator) for child in node.children]
    match node.op:
        case "neg":
            return -children[0]
        case "+":
            return calculator.add(children)
        case "-":
            return calculator.add([children[0], -children[1]])
        case "*":
            return calculator.multiply(*children)
        case "/":
            return calculator.divide(*children)
        case "^":
            return calculator.power(*children)
        case _:
            raise NotImplementedError


def collect(polynomial: Polynomial, name: str) -> dict[int, Polynomial]:
    """Return the coefficients of the powers of a symbol."""
    terms: dict[int, dict[Any, Fraction]] = {}
    for monomial, number in polynomial.terms.items():
        power = dict(monomial).get(name, 0)
        cofactor = tuple(pair for pair in monomial if pair[0] != name)
        terms.setdefault(power, {})[cofactor] = number
    return {power: Polynomial(part) for power, part in terms.items()}


def definite_sign(polynomial: Polynomial) -> int:
    """Return 1 or −1 if all coefficients have this sign, so that it has it at all positive letters; else 0."""
    signs = {1 if number > 0 else -1 for number in polynomial.terms.values()}
    return signs.pop() if len(signs) == 1 else 0


def compare_signs(first: Rational, second: Rational) -> int:
    """Return 1 if two quotients have the same sign at all positive letters, −1 if opposite signs, 0 if undecided.

    >>> d, T = symbol("d"), symbol("T")
    >>> compare_signs(Rational(2 * T * T * d - 4 * T * d * d), Rational(T - 2 * d))
    1
    """
    try:
        with work_limit(MAX_WORK):
            denominators = definite_sign(first.denominator) * definite_sign(second.denominator)
            a, b = first.numerator, second.numerator
            if not denominators or not a or not b:
                return 0
            for dividend, divisor in ((a, b), (b, a)):
                quotient = divide_exactly(dividend, divisor)
                if quotient is not None and quotient:
                    return definite_sign(quotient) * denominators
    except (InputError, ZeroDivisionError):
        return 0
    return 0


@dataclass(frozen=True)
class Inequality:
    """A reading of `left SIGN right`, turned so that it states that `node` is positive, or at least zero."""

    node: QuantityNode
    includes_zero: bool

    def holds(self, point: Point) -> bool:
        """Return whether it holds at a point."""
        value = as_float(evaluate(self.node, point).value)
        return value >= 0 if self.includes_zero else value > 0


class InequalityChecker:
    """The comparison of an inequality with that of an exercise."""

    def __init__(self, exercise: RatioExercise, quantity: ExpectedQuantity, text: str) -> None:
        self.exercise, self.quantity, self.letters = exercise, quantity, exercise.symbols
        self.text = re.sub(r"(?i)^\s*(?:when|if|for|holds? (?:when|if|for))\s+", "", text)
        self.operands = re.split(r"[<>≤≥]", self.text)
        self.signs = re.findall(r"[<>≤≥]", self.text)
        if len(self.signs) > 2 or not all(side.strip() for side in self.operands):
            raise InputError(f"'{shorten(text, 50)}': one inequality is expected, as in {exercise.variable} > ….")
        self.solution = f"{quantity.name}: {quantity.words[0]}"

    def check(self, line: str) -> ValueLine:
        """Return the line with its outcome."""
        if len(self.signs) == 1 and (simple := self._check_simple(line)):
            return simple
        if len(self.signs) == 1 and "=" in self.text:
            self.operands = [side.split("=")[0] for side in self.operands]
        readings = self._readings()
        for parts in readings:
            note = self._equivalence(parts)
            if note is not None:
                return ValueLine(line, True, self.solution, reading=note)
        for parts in readings:
            if len(parts) == 1:
                reversed_inequality = [Inequality(QuantityNode("neg", (parts[0].node,)), not parts[0].includes_zero)]
                if self._equivalence(reversed_inequality) is not None:
                    return ValueLine(line, False, self.solution, (), "the direction of the inequality is exchanged.")
        return ValueLine(line, False, self.solution)

    def _check_simple(self, line: str) -> ValueLine | None:
        """Return the outcome of `variable > value` from the threshold; None for other inequalities."""
        exercise = self.exercise
        variable, sign = exercise.variable, self.signs[0]
        left, right = (side.strip() for side in self.operands)
        if right == variable:
            left, right, sign = right, left, {">": "<", "<": ">", "≥": "≤", "≤": "≥"}[sign]
        if left != variable:
            return None
        threshold = exercise.find("threshold")
        assert threshold is not None
        try:
            root = exercise.threshold(self.letters.values)
        except InputError:
            return None
        is_rising = as_float(exercise.difference({**self.letters.values, variable: as_float(root) * 2})) > 0
        expected = ">" if is_rising == exercise.relation.startswith(">") else "<"
        has_direction = (sign in ">≥") == (expected == ">")
        checker = AnswerChecker(exercise, threshold, right)
        if any(variable in reading.node.letters() for member in checker.members for reading in member.readings):
            return None
        last = checker.members[-1]
        is_root = checker.match(last, checker.target) is not None
        reading = last.readings[0]
        if not is_root and exercise.whole_numbers and reading.node.literal:
            value = evaluate(reading.node, {}).value
            exact = as_float(root)
            floor = round(exact) if abs(exact - round(exact)) < 1e-9 * max(1, exact) else math.floor(exact)
            first = floor + 1 if expected == ">" else (floor if floor < exact - 1e-9 else floor - 1)
            strict = sign in "<>"
            boundary = first if not strict else (first - 1 if expected == ">" else first + 1)
            is_root = value == boundary
            if not is_root and has_direction and abs(as_float(value) - boundary) <= 1:
                return ValueLine(
                    line, False, self.solution, (), "off by one: look at the whole numbers next to the threshold."
                )
        elif is_root and exercise.whole_numbers and reading.node.literal and evaluate(reading.node, {}).value != root:
            is_root = as_float(evaluate(reading.node, {}).value) == as_float(root) or "." in right
        if is_root and has_direction:
            wrong = checker._find_wrong_step(checker.members[:-1])
            note = f"the result; but the step '{shorten(wrong, 60)}' does not have this value" if wrong else ""
            return ValueLine(line, True, self.solution, reading=note)
        if is_root:
            return ValueLine(line, False, self.solution, (), "the direction of the inequality is exchanged.")
        return ValueLine(line, False, self.solution, (), next(checker.diagnose(checker.members), ""))

    def _readings(self) -> list[list[Inequality]]:
        """Return the inequalities of the text, in each of its readings: two for a < x < b."""
        operands = [[reading.node for reading in read_readings(side, self.letters.names)] for side in self.operands]
        result = []
        for choice in range(max(map(len, operands))):
            nodes = [side[min(choice, len(side) - 1)] for side in operands]
            parts = []
            for sign, left, right in zip(self.signs, nodes, nodes[1:], strict=False):
                first, second = (left, right) if sign in ">≥" else (right, left)
                parts.append(Inequality(QuantityNode("-", (first, second)), sign in "≥≤"))
            result.append(parts)
        return result

    def _equivalence(self, parts: Sequence[Inequality]) -> str | None:
        """Return a note if the inequalities hold exactly where that of the exercise does; None if they do not."""
        exercise = self.exercise
        sign = 1 if exercise.relation.startswith(">") else -1
        if len(parts) == 1 and exercise.exact_difference is not None:
            answer = to_rational(parts[0].node)
            if answer is not None and (same := compare_signs(exercise.exact_difference, answer)):
                return "" if same == sign else None
        used = frozenset().union(*(part.node.letters() for part in parts))
        if exercise.variable not in used:
            return None
        count = 0
        for points in self.letters.comparison_points(used - {exercise.variable}):
            for point in points or [self.letters.values]:
                floats = {letter: as_float(value) for letter, value in point.items()}
                roots = exercise.roots(floats)
                root_neighbors = [root * factor for root in roots for factor in (1 - ROOT_GAP, 1 + ROOT_GAP)]
                for value in [*GRID, *root_neighbors]:
                    at = {**floats, exercise.variable: value}
                    try:
                        difference = sign * as_float(exercise.difference(at))
                        holds = all(part.holds(at) for part in parts)
                    except InputError:
                        continue
                    if abs(difference) < 1e-300:
                        continue
                    count += 1
                    if holds != (difference > 0):
                        return None
        return f"equivalent at {count:,} sizes that were tried" if count else None


# Shares


def _fraction_quantities(part: str, denominator: str) -> list[ExpectedQuantity]:
    """Return the share of an expression in another."""
    return [
        ExpectedQuantity(
            "factor",
            f"{denominator}/{part}",
            "x",
            "whole over part",
            ("whole/part", "times"),
            {"the ratio is inverted": f"{part}/{denominator}"},
        ),
        ExpectedQuantity(
            "share",
            f"{part}/{denominator}",
            "%",
            "part over whole",
            ("fraction", "percentage", "ratio", "part/whole", "proportion", "percent"),
            {
                "the ratio is inverted": f"{denominator}/{part}",
                "the part is divided by the rest, not by the whole": f"{part}/({denominator} - {part})",
                "that is the share of everything else": f"({denominator} - {part})/{denominator}",
                "the part is added to the whole once more": f"{part}/({denominator} + {part})",
            },
        ),
    ]


def _list_parameters(model: str, values: Mapping[str, float]) -> list[tuple[str, int, bool]]:
    """Return the path, size and trainability of each tensor of a model, built without memory."""
    from lemma.counting.subject import resolve_subject

    settings = {name: int(value) if value == int(value) else value for name, value in values.items()}
    subject = resolve_subject(model, settings)
    module = subject.build(subject.sizes(True))
    tensors = [(name, parameter.numel(), parameter.requires_grad) for name, parameter in module.named_parameters()]
    if len(tensors) > MAX_PARAMETERS:
        raise InputError(f"{model} has more than {MAX_PARAMETERS:,} tensors.")
    return tensors


def _category(path: str) -> str:
    """Return the name of the part to which a tensor belongs; "other" if none is known.

    >>> _category("layers.0.attention.output.weight"), _category("lm_head.weight"), _category("norm.bias")
    ('attention', 'output', 'norm')
    """
    return next((name for name, pattern in PARTS.items() if re.search(pattern, path, re.IGNORECASE)), "other")


def _normal_part(name: str) -> str:
    """Return the usual name of a part."""
    normalized = " ".join(name.casefold().split())
    return _PART_NAMES.get(normalized, normalized)


def _names(tensors: Sequence[tuple[str, int, bool]], part: str) -> set[str]:
    """Return the paths of the tensors of a part: by its name, or by a path with stars; a sum joins several."""
    names: set[str] = set()
    for item in re.split(r"\s*\+\s*", part or "attention"):
        part_name = _normal_part(item)
        if part_name == "all":
            paths = {name for name, _, _ in tensors}
        elif part_name in ("trainable", "frozen"):
            paths = {name for name, _, trains in tensors if trains == (part_name == "trainable")}
        elif part_name in PARTS:
            paths = {name for name, _, _ in tensors if _category(name) == part_name}
        elif part_name == "bias":
            paths = {name for name, _, _ in tensors if "bias" in name}
        else:
            pattern = re.escape(item.strip()).replace(r"\*", r"[^.]*")
            paths = {name for name, _, _ in tensors if re.match(rf"(?:.*\.)?{pattern}(?:\.|$)", name)}
        if not paths:
            choices = dict.fromkeys(
                [*(_category(name) for name, _, _ in tensors), *(name.split(".")[0] for name, _, _ in tensors)]
            )
            raise InputError(describe_unknown("part", item.strip(), [name for name in choices if name != "other"]))
        names |= paths
    return names


def _select(tensors: Sequence[tuple[str, int, bool]], part: str) -> int:
    """Return the number of parameters of a part."""
    names = _names(tensors, part)
    return sum(size for name, size, _ in tensors if name in names)
