"""The functions whose gradients can be checked: a TOML file each, and their values by autograd.

A file has a forward pass in the small language, a loss, the sizes and the inputs; it may hold the gradients to judge:

    forward = '''
    S = sigmoid(X @ W)
    '''
    loss = "sum(dS * S)"
    answers = "dW = X.T @ (dS * S * (1 - S))"

    [sizes]
    n = "rows"
    d = "width"
    c = "units"

    [inputs]
    X = "n d"
    W = "d c"
    dS = "n c incoming"

An input is drawn at random. After its shape (one size is a row, `number` has none) it may be called

    one-hot    each row, or the only column, has a single 1
    permutation    each row and each column has a single 1
    mask       0 or 1
    causal     0 up to the diagonal and -1e9 above it, to be added to scores
    positive   positive numbers
    columns    its columns are vectors, as u_w of U; otherwise x_i is a row of X
    fixed      nobody derives by it; so it is of one-hot, mask and causal inputs
    incoming   the gradient of a value that arrives from elsewhere
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain, product
from math import prod
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field
from torch import Generator, Tensor

from lemma.checking.expressions import (
    MAX_ELEMENTS,
    RESERVED_NAMES,
    Equation,
    Evaluator,
    Node,
    Shape,
    ShapeError,
    Vocabulary,
    WorkBudget,
    parse_equation,
    substitute_names,
    variable,
    variable_names,
    walk,
    walk_all,
)
from lemma.checking.read_formula import read_formula
from lemma.checking.tokens import SourceText, to_ascii_name
from lemma.counting.polynomial import Polynomial, as_polynomial
from lemma.errors import InputError, SpecError, describe_unknown
from lemma.spec.base import Spec, read_toml

FUNCTIONS_FOLDER = Path(__file__).parent / "functions"
CELL_NAMES = tuple(path.stem for path in sorted(FUNCTIONS_FOLDER.glob("*.toml")))  # functions that come with Lemma
FIXED_KINDS = frozenset({"one-hot", "permutation", "mask", "causal", "fixed", "incoming"})
INPUT_KINDS = (*sorted(FIXED_KINDS), "positive", "columns")
NUM_SAMPLES, MAX_SIZE_DRAWS, MIN_LENGTH = 3, 200, 3
MAX_FILE_BYTES, MAX_LENGTH = 1 << 18, 200
MAX_OPERATIONS = 15_000  # of the forward passes of all samples; the backward passes take twice as many more
ELEMENTWISE_ACTIVATIONS = frozenset(["sigmoid", "tanh", "relu", "silu", "gelu", "leaky_relu", "softplus", "normal_cdf"])
PART = "|"  # separates the name of a gradient from a part of it, as in dU|o
_NAME_PATTERN = re.compile(r"[A-Za-z]\w{0,39}")


def _split_lines(value: Any) -> Any:
    """Split a text, or each of several, into lines without comments and blank lines; return other values unchanged."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        return value
    lines = (line.partition("#")[0].strip() for text in texts for line in text.splitlines())
    return tuple(line for line in lines if line)


def _list_to_table(value: Any) -> Any:
    """Turn a list of names into a table with "" for each name; return any other value unchanged."""
    return dict.fromkeys(map(str, value), "") if isinstance(value, list | tuple) else value


TextLines = Annotated[tuple[str, ...], BeforeValidator(_split_lines), Field(max_length=100)]


def list_spellings(name: str) -> tuple[str, str, str]:
    """Return a name, the name without the time subscript `_t`, and the name with it.

    >>> list_spellings("a_t"), list_spellings("a")
    (('a_t', 'a', 'a_t_t'), ('a', 'a', 'a_t'))
    """
    return name, name.removesuffix("_t"), f"{name}_t"


class GradientCell(Spec):
    """A function whose gradients are to be derived: sizes, inputs, forward equations and, usually, a loss."""

    name: str = ""
    """How reports call it."""
    about: str = ""
    """What it computes."""
    forward: TextLines = ()
    """The forward pass, one `name = expression` a line."""
    loss: str = ""
    """The loss: an expression that is a number. A derivation may do without; then there are no gradients."""
    answers: TextLines = ()
    """Gradients derived by hand, one `name = expression` a line."""
    sizes: Annotated[dict[str, str], BeforeValidator(_list_to_table)] = Field(min_length=1, max_length=12)
    """The sizes with their meaning, such as n_a = "hidden units"; or a list of them."""
    inputs: dict[str, str] = Field(min_length=1, max_length=60)
    """Inputs and parameters with their sides, such as W_f = "n_a n_a+n_x", and what else is true of them."""
    aliases: dict[str, str] = Field(default_factory=dict)
    """Other spellings of names; each holds for the gradient too."""
    indices: dict[str, str] = Field(default_factory=dict, max_length=12)
    """Letters that stand for the position of the 1 in a one-hot input, such as o = "y" in u_o."""

    @cached_property
    def input_shapes(self) -> dict[str, tuple[str, ...]]:
        """The axes of every input as formulas of the sizes, such as {"W_f": ("n_a", "n_a+n_x")}; () for a number."""
        by_input: dict[str, tuple[str, ...]] = {}
        for name, text in self.inputs.items():
            shape = tuple(word for word in _split_words(text) if word not in INPUT_KINDS)
            by_input[to_ascii_name(name)] = () if shape == ("number",) else ("1", *shape) if len(shape) == 1 else shape
        return by_input

    @cached_property
    def input_kinds(self) -> dict[str, frozenset[str]]:
        """The words that describe every input besides its axes, such as {"y": {"one-hot"}}."""
        return {
            to_ascii_name(name): frozenset(INPUT_KINDS) & {*_split_words(text)} for name, text in self.inputs.items()
        }

    @cached_property
    def incoming(self) -> tuple[str, ...]:
        """Names of the inputs that stand for gradients arriving from outside the function."""
        return tuple(name for name, kinds in self.input_kinds.items() if "incoming" in kinds)

    @cached_property
    def equations(self) -> tuple[Equation, ...]:
        """The forward equations in order, in the cell's spelling of names; with a loss, the last one is `loss = …`."""
        loss = re.sub(r"^\s*\w+\s*=(?!=)", "", self.loss).strip()
        lines = (*self.forward, *([f"loss = {loss}"] if loss else []))
        defined, equations = {*self.sizes, *self.input_shapes}, list[Equation]()
        for number, line in enumerate(lines, 1):
            equation = parse_equation(line, number)
            names = variable_names(equation.expression)
            resolved = {
                name: variable(next((spelling for spelling in list_spellings(name) if spelling in defined), name))
                for name in names
            }
            equations.append(replace(equation, expression=substitute_names(equation.expression, resolved)))
            defined.add(equation.name)
        return tuple(equations)

    @cached_property
    def steps(self) -> tuple[str, ...]:
        """Names of the values that the forward pass computes, in order, without the loss."""
        return tuple(equation.name for equation in self.equations[: len(self.forward)])

    @cached_property
    def values(self) -> tuple[str, ...]:
        """Every name that has a value in the forward pass: sizes, then inputs, then computed steps."""
        return (*self.sizes, *self.input_shapes, *self.steps)

    @cached_property
    def gradients(self) -> tuple[str, ...]:
        """Names of the gradients, such as "dW", of inputs and steps that are not fixed; () without a loss."""
        if not self.loss:
            return ()
        fixed = {name for name, kinds in self.input_kinds.items() if kinds & FIXED_KINDS}
        differentiable = [name for name in self.input_shapes if name not in fixed]
        for equation in self.equations[:-1]:
            if variable_names(equation.expression) & {*differentiable}:
                differentiable.append(equation.name)
        return tuple(f"d{name}" for name in differentiable if f"d{name}" not in fixed)

    @cached_property
    def all_names(self) -> frozenset[str]:
        """Every name of the cell: sizes, inputs, steps and gradients."""
        return frozenset((*self.values, *self.gradients))

    def canonical(self, name: str, helpers: Collection[str] = ()) -> str:
        """Return the cell's spelling of a name, without alias and `_t`; unknown names and `helpers` stay unchanged.

        A name may also be written without underscores, as in xhat for x_hat, and a gradient in another case.
        """
        for spelling in list_spellings(name):
            if spelling in self.all_names or spelling in helpers:
                return spelling
            if spelling in self.aliases:
                return self.aliases[spelling]
            gradient = f"d{self.aliases.get(spelling[1:])}"
            if spelling.startswith("d") and gradient in self.all_names:
                return gradient
        prefix = re.match(r"(?:grad|gradient|nabla|delta|D)_?(?=.)", name)
        if (
            prefix
            and (gradient := f"d{self.aliases.get(name[prefix.end() :], name[prefix.end() :])}") in self.gradients
        ):
            return gradient
        if (match := self.similar_names.get(name.replace("_", ""))) and "_" in f"{name}{match}":
            return match
        if name.startswith("d") and (match := self.similar_names.get(name.replace("_", "").lower())):
            return match if match in self.gradients else name
        return name

    @cached_property
    def similar_names(self) -> dict[str, str]:
        """The cell's names by their letters without underscores, and in lower case where that is unambiguous."""
        names = {name: name for name in self.all_names} | dict(self.aliases)
        names |= {f"d{alias}": f"d{name}" for alias, name in self.aliases.items() if f"d{name}" in self.gradients}
        by_key: dict[str, set[str]] = {}
        for convert in (str, str.lower):
            added: dict[str, set[str]] = {}
            for spelling, name in names.items():
                added.setdefault(convert(spelling.replace("_", "")), set()).add(name)
            by_key |= {key: candidates for key, candidates in added.items() if key not in by_key}
        return {key: next(iter(candidates)) for key, candidates in by_key.items() if len(candidates) == 1}

    def resolve_name(self, name: str, helpers: Collection[str] = (), ignore_case: bool = True) -> Node | None:
        """Return the node that a name stands for: a value, or with its indices, as in y_hat_i; None if it is unknown.

        >>> print(find_cell("softmax-cross-entropy").resolve_name("Y_i"))
        Y_i
        """
        if name in helpers:
            return variable(name)
        canonical = self.canonical(name, helpers)
        if canonical in self.all_names or canonical in helpers:
            return variable(canonical)
        lower = name.replace("_", "").lower()
        if ignore_case and (match := self.similar_names.get(lower)):
            return variable(match)
        base, _, letters = name.rpartition("_")
        if not base or not re.fullmatch(r"[a-zA-Z]{1,2}", letters):
            return None
        if base in ("delta", "kronecker") and len(letters) == 2:
            return Node("equal", value=tuple(letters))
        inner = self.resolve_name(base, helpers, ignore_case)
        if inner is None or inner.op != "name" or inner.value in self.sizes:
            return None
        return Node("index", (inner,), f"{base}_{letters}")

    def vocabulary(self, helpers: Collection[str] = ()) -> Vocabulary:
        """Return the names that a derivation may use, and the function that f or σ stands for."""
        functions = {node.op for equation in self.equations for _, node in walk(equation.expression)}
        elementwise = sorted(functions & ELEMENTWISE_ACTIVATIONS)
        activation = elementwise[0] if len(elementwise) == 1 else ""

        def is_value(name: str) -> bool:
            return name in helpers or name in self._read_as_value or self.resolve_name(name, helpers) is not None

        return Vocabulary(is_value, activation, frozenset(functions))

    @cached_property
    def _read_as_value(self) -> frozenset[str]:
        """Names of values that the language itself has, as far as no input or step has them."""
        return frozenset({"I"}) - self.all_names

    def canonicalize(self, expression: Node, helpers: Collection[str], source: SourceText) -> Node:
        """Return an expression in the cell's spelling; raise an error at a name of neither the cell nor `helpers`."""
        names = [node for node in walk_all(expression) if node.op == "name"]
        canonical = dict[str, Node]()  # a name has the position of its first occurrence, where an error points
        for node in reversed(names):
            resolved = self.resolve_name(node.value, helpers)
            if resolved is None and node.value in self._read_as_value:
                resolved = Node("identity")
            resolved = resolved or variable(self.canonical(node.value, helpers))
            canonical[node.value] = replace(resolved, position=node.position)
        expression = substitute_names(expression, canonical)
        for node in walk_all(expression):
            if node.op == "name" and node.value not in self.all_names and node.value not in helpers:
                similar = self.gradients if node.value.startswith("d") and self.gradients else self.values
                message = describe_unknown("name", node.value, (*similar, *sorted({*helpers} - self.all_names)))
                raise source.error_at(node.position, message)
            for end in chain.from_iterable(node.value if node.op == "slice" else ()):
                if isinstance(end, str) and end not in self.sizes:
                    raise source.error_at(0, describe_unknown("size", end, self.sizes))
        return expression

    def step_index(self, name: str) -> int:
        """Return the index in `steps` of a step, also if its gradient is named; −1 for sizes and inputs."""
        value = name[1:] if name in self.gradients else name
        return self.steps.index(value) if value in self.steps else -1

    @cached_property
    def descendants(self) -> dict[str, frozenset[str]]:
        """For each input or step, by name, the steps that are computed from it, directly or indirectly."""
        descendants: dict[str, set[str]] = {name: set() for name in (*self.input_shapes, *self.steps)}
        for equation in self.equations[: len(self.forward)]:
            used = variable_names(equation.expression)
            for name, steps in descendants.items():
                if name in used or steps & used:
                    steps.add(equation.name)
        return {name: frozenset(steps) for name, steps in descendants.items()}

    def available_for(self, target: str) -> frozenset[str]:
        """Return the names that a line deriving `target` may use even if no earlier line derives them.

        A gradient may use every value of the forward pass and the gradients of what is computed from its value: those
        that backpropagation has when it arrives there. A step may use what is not computed from it.

        >>> sorted(find_cell("rnn").available_for("dh") - {*find_cell("rnn").values})
        ['dy_hat', 'dz2']
        """
        target = target.partition(PART)[0]
        if target not in self.gradients:
            return frozenset(self.values) - self.descendants.get(target, frozenset()) - {target}
        later = {f"d{name}" for name in self.descendants[target[1:]]}
        return frozenset(self.values) | (later & {*self.gradients})

    @cached_property
    def activations(self) -> tuple[tuple[str, str, Node], ...]:
        """The sigmoid, tanh and relu calls of the forward pass: (function name, input name, expression of the output).

        The output is a name if the step has no other operation.
        """
        activations = []
        for equation in self.equations:
            for path, node in walk(equation.expression):
                match node:
                    case Node("sigmoid" | "tanh" | "relu" as function, (Node("name", _, pre),)):
                        activations.append((function, pre, node if path else variable(equation.name)))
        return tuple(activations)

    @cached_property
    def samples(self) -> tuple["Sample", ...]:
        """The samples at which gradients are checked: random sizes and inputs with all values, always the same."""
        with WorkBudget(MAX_OPERATIONS):
            return tuple(draw_sample(self, seed) for seed in range(NUM_SAMPLES))


def _split_words(text: str) -> list[str]:
    """Split the text of an input, such as "n d one-hot" or "(n × d)", into its axes and kinds."""
    return [word for word in re.split(r"[\s,×()\[\]]+", text) if word]


CellLike = str | Path | Mapping[str, Any] | GradientCell
"""The name of a function, the path of a TOML file, the table of such a file, or a cell."""


@lru_cache
def _load_builtin(name: str) -> GradientCell:
    """Read the built-in function of that name, such as "rnn", from its TOML file."""
    return read_cell(read_toml(FUNCTIONS_FOLDER / f"{name}.toml"), name)


def find_cell(source: CellLike) -> GradientCell:
    """Return the built-in function of that name, or the function in a TOML file or in the table of such a file.

    >>> find_cell("rnn").steps
    ('x', 'z1', 'h', 'z2', 'y_hat')
    """
    if isinstance(source, GradientCell):
        return source
    if isinstance(source, Mapping):
        return read_cell(source, str(source.get("name") or "the function"))
    if source in CELL_NAMES:
        return _load_builtin(str(source))
    path = Path(source)
    if path.suffix != ".toml":
        raise InputError(
            f"{describe_unknown('function', str(source), CELL_NAMES)} Or give the path of a TOML file with your own."
        )
    if path.is_file() and path.stat().st_size > MAX_FILE_BYTES:
        raise InputError(f"{path}: {path.stat().st_size:,} bytes; at most {MAX_FILE_BYTES:,} are read.")
    return read_cell(read_toml(path), str(path), path.stem)


def read_cell(fields: Mapping[str, Any], source: str, name: str = "") -> GradientCell:
    """Validate the table of a function and evaluate it once; return the function.

    A SpecError names `source` and the input or line at fault; `name` is for a table without one.
    """
    for table, field in product(("sizes", "inputs", "aliases"), ("forward", "loss", "answers", "about")):
        table_fields = fields.get(table)  # below a table's heading, TOML takes a field for a part of it
        if isinstance(table_fields, Mapping) and field in table_fields and field not in fields:
            raise SpecError(f"{source}: {field} is inside the table [{table}]; move it above the tables.")
    cell = GradientCell.read({"name": name or source, **fields}, source)
    _check_names(cell, source)
    for alias, meaning in cell.aliases.items():
        if meaning not in cell.all_names:
            raise SpecError(f"{source}: the alias {alias}: {describe_unknown('name', meaning, sorted(cell.all_names))}")
    if cell.loss and not cell.gradients:
        raise SpecError(f"{source}: all inputs are fixed, so there is nothing to derive by.")
    try:
        cell.samples  # noqa: B018 — the forward pass, once
    except InputError as error:
        raise SpecError(f"{source}: {error}") from None
    return cell


def _check_names(cell: GradientCell, source: str) -> None:
    """Raise a SpecError if a name is unknown, used twice or not allowed, or an axis is not a formula of the sizes."""
    articles = {"size": "a size", "input": "an input", "step": "a step"}
    defined: dict[str, str] = {}  # the kind of each name

    def define(kind: str, name: str) -> None:
        if not _NAME_PATTERN.fullmatch(name) or "__" in name or name in (*RESERVED_NAMES, "loss"):
            reason = f"cannot be the name of {articles[kind]}; write letters, digits and single _"
            raise SpecError(f"{source}: '{name}' {reason}.")
        if name in defined:
            raise SpecError(f"{source}: the {kind} {name} has the name of {articles[defined[name]]}.")
        defined[name] = kind

    for name in cell.sizes:
        define("size", name)
    for name in cell.input_shapes:
        define("input", name)
    for name, shape in cell.input_shapes.items():
        for side in shape:
            try:
                side_polynomial(side, cell)
            except InputError as error:
                raise SpecError(f"{source}: the input {name}: {error}") from None
        if len(shape) > 4:
            raise SpecError(f"{source}: the input {name} has {len(shape)} sides; at most 4 are read.")
    try:
        for equation in cell.equations:
            for _, node in walk(equation.expression):
                if node.op == "name" and node.value not in defined:
                    label = f"forward, line {equation.number}, column" if equation.name != "loss" else "loss, column"
                    message = describe_unknown("name", node.value, [*defined])
                    raise SourceText(equation.text, label).error_at(node.position, message)
            if equation.name in cell.steps:
                define("step", equation.name)
    except InputError as error:
        raise SpecError(f"{source}: {error}") from None
    values = (*cell.input_shapes, *cell.steps)
    for name in values:
        if f"d{name}" in values and f"d{name}" in cell.gradients:
            raise SpecError(f"{source}: d{name} is a value and the gradient of {name}; rename one of them.")


def side_polynomial(side: str, cell: GradientCell) -> Polynomial:
    """Parse the text of an axis, such as "n_a+n_x", into a polynomial in the cell's sizes."""
    value = read_formula(side, list(cell.sizes)).to_polynomial()
    if value is None:
        raise InputError(f"'{side}' is not a whole number at all sizes.")
    return value


@dataclass(frozen=True)
class Sample:
    """A random draw of sizes and inputs, with the values of all names of a cell."""

    size_names: dict[int, str]
    values: dict[str, Tensor]

    def describe_shape(self, shape: Shape) -> str:
        """Return a shape as text in the names of the sizes, such as "(n, d)", or "a number" for a scalar."""
        if not shape:
            return "a number"
        return f"({', '.join(self.size_names.get(length, str(length)) for length in shape)})"


def add_values(samples: Sequence[Sample], name: str, values: Sequence[Tensor]) -> tuple[Sample, ...]:
    """Return the samples with one more named value: `values` holds its tensor in each sample, in the same order."""
    pairs = zip(samples, values, strict=True)
    return tuple(replace(sample, values={**sample.values, name: value}) for sample, value in pairs)


def draw_sample(cell: GradientCell, seed: int) -> Sample:
    """Draw random sizes and inputs, compute all values of the forward pass, and their gradients by autograd.

    All sizes, and all sums of them that the cell uses, have different lengths of at least 3: no wrong shape fits by
    chance and nothing is true of small sizes only.
    """
    generator = Generator().manual_seed(seed)
    lengths = draw_lengths(cell, generator)
    values = {name: torch.tensor(float(lengths[name]), dtype=torch.float64) for name in cell.sizes}
    for name, dimensions in cell.input_shapes.items():
        shape, kinds = tuple(lengths[side] for side in dimensions), cell.input_kinds[name]
        if prod(shape) > MAX_ELEMENTS:
            raise InputError(f"the input {name} is too large: at most {MAX_ELEMENTS:,} numbers are drawn.")
        value = torch.randn(shape, dtype=torch.float64, generator=generator)
        if "one-hot" in kinds and shape:
            axis = 0 if len(shape) == 2 and shape[1] == 1 else -1
            value = (value == value.amax(axis, keepdim=True)).double()
        elif "permutation" in kinds and len(shape) == 2 and shape[0] == shape[1]:
            value = torch.eye(shape[0], dtype=torch.float64)[torch.randperm(shape[0], generator=generator)]
        elif "mask" in kinds:
            value = (value > -0.5).double()
        elif "causal" in kinds and len(shape) > 1:
            value = torch.full(shape, -1e9, dtype=torch.float64).triu(1)
        elif "positive" in kinds:
            value = value.abs() + 0.1
        values[name] = value.requires_grad_(f"d{name}" in cell.gradients)
    sample = Sample({length: name for name, length in lengths.items()}, {})
    with torch.enable_grad():
        run_forward(cell, values, sample)
        sources = [values[gradient[1:]] for gradient in cell.gradients]
        gradients = torch.autograd.grad(values.pop("loss"), sources, allow_unused=True) if cell.loss else ()
    unused = [name[1:] for name, gradient in zip(cell.gradients, gradients, strict=True) if gradient is None]
    if unused:
        raise InputError(
            f"the loss does not depend on {unused[0]}. Use it there, leave it out, or call it fixed among the inputs."
        )
    detached = {name: value.detach() for name, value in values.items()}
    return Sample(sample.size_names, {**detached, **dict(zip(cell.gradients, gradients, strict=True))})


def draw_lengths(cell: GradientCell, generator: Generator) -> dict[str, int]:
    """Draw lengths for every size and every axis of an input, all different, by text, such as {"n": 5, "n+m": 12}."""
    dimensions = {side for dimensions in cell.input_shapes.values() for side in dimensions} | {*cell.sizes}
    formulas = {"1": as_polynomial(1)} | {side: side_polynomial(side, cell) for side in sorted(dimensions)}
    for _ in range(MAX_SIZE_DRAWS):
        numbers = (torch.randperm(max(8, 2 * len(cell.sizes)), generator=generator) + MIN_LENGTH).tolist()
        sizes = dict(zip(cell.sizes, numbers, strict=False))
        lengths = {formula: formula.at(sizes) for formula in formulas.values()}
        is_valid = all(
            length.denominator == 1 and (formula.constant is not None or 1 < length <= MAX_LENGTH) and length > 0
            for formula, length in lengths.items()
        )
        if is_valid and len({*lengths.values()}) == len(lengths):
            return {side: int(lengths[formula]) for side, formula in formulas.items()}
    raise InputError(
        "no sizes were found at which all sides are positive and differ; simplify the shapes of the inputs."
    )


def run_forward(
    cell: GradientCell,
    values: dict[str, Tensor],
    sample: Sample,
    constants: frozenset[str] = frozenset(),
    source: str = "",
) -> None:
    """Evaluate the equations of a cell and add the steps and `loss`, a scalar, to `values`.

    Steps in `constants` are detached, so that no gradient flows through them; the step `source` becomes a leaf, whose
    gradient can be taken. The names of sizes in `sample` are for error messages.
    """
    for equation in cell.equations:
        label = "loss" if equation.name == "loss" else f"forward, line {equation.number}"
        try:
            value = Evaluator(values)(equation.expression)
        except ShapeError as error:
            shapes = error.operation.format(*map(sample.describe_shape, error.shapes))
            raise InputError(f"{label}: {equation.text}\n    the shapes do not fit: {shapes}") from None
        if not value.isfinite().all():
            raise InputError(
                f"{label}: {equation.text}\n    has a value that is not finite at random inputs. A log or a root "
                'needs an input that is called positive, as in X = "n d positive".'
            )
        if equation.name in (*constants, source):
            value = value.detach().requires_grad_(equation.name == source)
        values[equation.name] = value
    if not cell.loss:
        return
    if values["loss"].numel() != 1:
        raise InputError(
            f"the loss is of the shape {sample.describe_shape(values['loss'].shape)}; sum it up to a number."
        )
    values["loss"] = values["loss"].sum()


def gradient_with_constants(
    cell: GradientCell, sample: Sample, target: str, constants: frozenset[str]
) -> Tensor | None:
    """Return the gradient `target` with the steps in `constants` detached; None if the loss no longer depends on it."""
    values, source = {name: sample.values[name].clone() for name in (*cell.sizes, *cell.input_shapes)}, target[1:]
    with torch.enable_grad():
        if source in values:
            values[source].requires_grad_()
        run_forward(cell, values, sample, constants, source)
        if not values["loss"].requires_grad:
            return None
        return torch.autograd.grad(values["loss"], [values[source]], allow_unused=True)[0]
