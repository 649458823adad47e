"""Exercises on optimizers: steps of SGD, momentum, AdaGrad, RMSprop and Adam, clipping and learning-rate schedules."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from math import cos, floor, pi, radians
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, PrivateAttr, model_validator

from lemma.checking.exercises.statements import (
    ConventionExercise,
    Matrix,
    StatementText,
    Vector,
    expect,
    show,
)
from lemma.checking.expected_values import Array, ExpectedValue
from lemma.errors import InputError

MAX_STEPS, MAX_PARAMETERS = 20, 12
MAX_WORK = 6_000  # steps of all mistaken rules, times the parts of the loss
NEGLIGIBLE_EPS = 1e-6  # an ε that people leave out of hand computations
ADAPTIVE = ("adagrad", "rmsprop", "adam", "adamw")
WITH_VELOCITY = ("momentum", "nesterov")


@dataclass(frozen=True)
class Rule:
    """An update rule and its settings; the fields after `epsilon` are switched by mistakes and conventions."""

    optimizer: str
    learning_rate: float
    momentum: float
    beta1: float
    beta2: float
    decay: float
    eps: float
    weight_decay: float
    max_norm: float
    form: str = "pytorch"
    epsilon: str = "outside"
    sign: float = -1.0
    corrects_m: bool = True
    corrects_v: bool = True
    correction: str = "power"  # of β in the bias correction: "power" t, "next" t + 1, "same" 1
    has_root: bool = True
    has_square: bool = True
    has_rate: bool = True
    has_numerator: bool = True  # whether Adam's numerator is m, not the gradient
    has_denominator: bool = True
    decays: str = ""  # "", "gradient", "unscaled" or "none"; "" for that of the optimizer
    weights: str = "right"  # of moving averages: "right", "exchanged" or "sum"
    starts_from_gradient: bool = False
    forgets_state: str = ""  # "restart": every step is a first one; "state": m and v are forgotten, t goes on
    repeats_gradient: bool = False
    clipping: str = "norm"  # "norm", "value", "always", "squared", "l1", "unit" or "none"


State = dict[str, Array]


def clip(gradient: Array, limit: float, mode: str) -> Array:
    """Return a gradient clipped to a norm, or by a mistaken rule."""
    norm = float(np.linalg.norm(gradient))
    match mode:
        case "none":
            return gradient
        case "value":
            return np.clip(gradient, -limit, limit)
        case "squared":
            norm = norm**2
        case "l1":
            norm = float(np.abs(gradient).sum())
        case "always":
            return gradient * limit / norm if norm else gradient
        case "unit":
            return gradient / norm if norm > limit else gradient
        case "divided":
            return gradient / limit if norm > limit else gradient
    return gradient * limit / norm if norm > limit else gradient


class OptimizerExercise(ConventionExercise):
    """Steps of an optimizer computed by hand."""

    kind: ClassVar[str] = "optimizer"
    first_field: ClassVar[str] = "optimizer"
    renamed: ClassVar[Mapping[str, str]] = {
        "lr": "learning_rate",
        "eta": "learning_rate",
        "alpha": "learning_rate",
        "theta": "start",
        "theta0": "start",
        "w0": "start",
        "x0": "start",
        "gradient": "gradients",
        "grads": "gradients",
        "grad": "gradients",
        "mu": "momentum",
        "beta": "momentum",
        "rho": "decay",
        "wd": "weight_decay",
        "max_norm": "clip_norm",
        "warmup_steps": "warmup",
        "T": "total_steps",
        "min_lr": "min_rate",
        "lr_min": "min_rate",
        "t": "step",
        "d_model": "width",
    }

    optimizer: Literal["sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adam", "adamw", "clipping"] = "sgd"
    """Update rule; clipping is that of one gradient alone."""
    start: Vector = (0.0,)
    """Parameters before the first step: a number or a vector."""
    gradients: Matrix = ()
    """Gradient of each step: numbers, or vectors as in "1 2; 3 4"."""
    loss: StatementText = ""
    """Loss whose gradient is taken at each step, instead of gradients, as in "(w - 3)^2" or "w1^2 + 3*w1*w2"."""
    steps: Annotated[int, Field(ge=0, le=MAX_STEPS)] = 0
    """Number of steps; by default one for each gradient, or 1 with a loss."""
    learning_rate: Annotated[float, Field(ge=0, le=1e6)] = 0.1
    """Learning rate; of a schedule, its highest."""
    momentum: Annotated[float, Field(ge=0, le=1)] = 0.9
    """Momentum μ."""
    form: Literal["", "pytorch", "classic", "ema"] = ""
    """Momentum: v = μv + g (pytorch), v = μv − ηg (classic) or v = μv + (1−μ)g (ema); by default any."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """β1 of Adam."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """β2 of Adam."""
    decay: Annotated[float, Field(ge=0, le=1)] = 0.9
    """Decay of RMSprop's mean of squares."""
    eps: Annotated[float, Field(ge=0, le=1e3)] = 1e-8
    """ε of the denominator."""
    epsilon: Literal["", "outside", "inside"] = ""
    """ε outside the root, √v + ε, or inside, √(v + ε); by default any, and the report says which."""
    weight_decay: Annotated[float, Field(ge=0, le=1e3)] = 0.0
    """Weight decay λ: decoupled for AdamW, added to the gradient for the others."""
    clip_norm: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Largest norm of a gradient; 0 for no clipping."""
    schedule: Literal[
        "", "constant", "linear", "cosine", "wsd", "exponential", "step-decay", "inverse-sqrt", "noam"
    ] = ""
    """Schedule whose learning rate at `step` is asked for."""
    step: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Step of the schedule, counted from 0."""
    warmup: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Steps of warm-up, from 0 to the learning rate."""
    total_steps: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Steps in all."""
    decay_steps: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Steps of decay at the end, for wsd."""
    min_rate: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Learning rate at the end."""
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Factor of exponential and step decay."""
    every: Annotated[int, Field(ge=1, le=10**9)] = 1
    """Steps between the factors of step decay."""
    width: Annotated[int, Field(ge=1, le=10**6)] = 512
    """Width of the model, for noam."""

    _values: list[ExpectedValue] | None = PrivateAttr(None)
    _explains: bool = PrivateAttr(True)

    @classmethod
    def setting_names(cls) -> list[str]:
        """Return the names of the fields, and other names of them."""
        return [*super().setting_names(), *cls.renamed]

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        """Raise an error for fields that are missing or do not fit each other."""
        if self.schedule:
            if self.schedule in ("linear", "cosine", "wsd") and self.total_steps <= max(self.warmup, self.decay_steps):
                raise ValueError(f"{self.schedule}: total_steps is needed, and larger than warmup and decay_steps.")
            if self.schedule == "wsd" and self.warmup + self.decay_steps > self.total_steps:
                raise ValueError("wsd: warmup and decay_steps are together longer than total_steps.")
            if self.schedule in ("inverse-sqrt", "noam") and not self.warmup:
                raise ValueError(f"{self.schedule}: warmup is needed, as in warmup=4000.")
            return self
        if self.optimizer == "clipping":
            if not self.gradients or not self.clip_norm:
                raise ValueError("clipping: gradients and clip_norm are needed, as in gradients='3 4' clip_norm=1.")
            return self
        if not self.start or len(self.start) > MAX_PARAMETERS:
            raise ValueError(f"start: from 1 to {MAX_PARAMETERS} parameters are expected, as in start=1.0.")
        if bool(self.gradients) == bool(self.loss):
            raise ValueError("give gradients, as in gradients='0.5 0.2', or a loss, as in loss='(w - 3)^2'.")
        if self.gradients:
            rows = self.gradient_rows()
            if any(len(row) != len(self.start) for row in rows):
                message = f"each gradient needs {len(self.start)} numbers, as start has"
                raise ValueError(f"gradients: {message}; steps are separated by semicolons.")
            if len(rows) > MAX_STEPS:
                raise ValueError(f"at most {MAX_STEPS} steps are computed.")
            if self.steps > len(rows) > 1:
                raise ValueError(f"steps = {self.steps}, but there are {len(rows)} gradients.")
        else:
            self.loss_gradient(np.array(self.start))
        return self

    # Gradients

    def gradient_rows(self) -> list[Array]:
        """Return the gradient of each step."""
        table = np.array(self.gradients, dtype=np.float64)
        if len(self.start) == 1 and self.optimizer != "clipping":
            table = table.reshape(-1, 1)
        return list(table)

    def loss_names(self) -> list[str]:
        """Return the names of the parameters in the loss, in their order of appearance."""
        from lemma.checking.expressions import walk

        nodes = (node for _, node in walk(_parse_loss(self.loss)))
        return list(dict.fromkeys(node.value for node in nodes if node.op == "name"))

    def loss_gradient(self, theta: Array) -> Array:
        """Return the gradient of the loss at a point; raise a ValueError for a loss that cannot be read."""
        import torch

        from lemma.checking.expressions import Evaluator, ShapeError, limited_work

        try:
            node = _parse_loss(self.loss)
            names = self.loss_names()
            if len(self.start) > 1 and len(names) == len(self.start):
                values = {
                    name: torch.tensor(value, dtype=torch.float64, requires_grad=True)
                    for name, value in zip(names, theta.tolist(), strict=True)
                }
            elif len(names) == 1:
                shape = () if len(self.start) == 1 else (len(self.start), 1)
                tensor = torch.tensor(theta, dtype=torch.float64).reshape(shape).requires_grad_()
                values = {names[0]: tensor}
            else:
                raise InputError(
                    f"the names {', '.join(names) or '(none)'} do not fit {len(self.start)} numbers in start"
                )
            with limited_work(5_000):
                result = Evaluator(values)(node)
            if result.numel() != 1:
                raise InputError("the loss is not a single number; add it up with sum(…)")
            gradients = torch.autograd.grad(result.sum(), list(values.values()), allow_unused=True)
        except (InputError, ShapeError) as error:
            raise ValueError(f"loss: {error}") from None
        parts = [np.zeros(1) if part is None else part.detach().numpy().reshape(-1) for part in gradients]
        return np.concatenate(parts)

    # Steps

    def rule(self, **changes: Any) -> Rule:
        """Return the update rule of the statement, with changes."""
        right = Rule(
            self.optimizer,
            self.learning_rate,
            self.momentum,
            self.beta1,
            self.beta2,
            self.decay,
            self.eps,
            self.weight_decay,
            self.clip_norm,
            self.form or "pytorch",
            self.epsilon or "outside",
        )
        return replace(right, **changes)

    def num_steps(self) -> int:
        """Return the number of steps."""
        return self.steps or (len(self.gradient_rows()) if self.gradients else 1)

    def run(self, rule: Rule) -> State:
        """Return all quantities of all steps under an update rule by name, such as g1, m1, v1 and theta1."""
        theta, values = np.array(self.start, dtype=np.float64), State()
        zeros = np.zeros_like(theta)
        state = {"m": zeros, "v": zeros}
        rows = self.gradient_rows() if self.gradients else []
        first: Array | None = None
        with np.errstate(all="ignore"):
            for step in range(1, self.num_steps() + 1):
                if rows:
                    gradient = rows[min(step, len(rows)) - 1]
                else:
                    is_nesterov = rule.optimizer == "nesterov" and rule.form == "classic"
                    point = theta + rule.momentum * state["v"] if is_nesterov else theta
                    if not np.isfinite(point).all():
                        break
                    gradient = self.loss_gradient(point)
                first = gradient if first is None else first
                gradient = first if rule.repeats_gradient else gradient
                values[f"g{step}"] = gradient
                if rule.max_norm:
                    gradient = clip(gradient, rule.max_norm, rule.clipping)
                    values[f"clipped{step}"] = gradient
                if rule.forgets_state:
                    state = {"m": zeros, "v": zeros}
                count = 1 if rule.forgets_state == "restart" else step
                theta = self._update(rule, theta, gradient, state, values, step, count)
                values[f"theta{step}"] = theta
        return values

    def _update(
        self, rule: Rule, theta: Array, gradient: Array, state: State, values: State, step: int, count: int
    ) -> Array:
        """Return the parameters after a step; write the quantities of the step to `values`, and the state.

        `count` is the exponent of β in the bias correction.
        """
        name, rate = rule.optimizer, rule.learning_rate if rule.has_rate else 1.0
        decays = rule.decays or ("decoupled" if name == "adamw" else "gradient")
        shrink = 0.0
        if rule.weight_decay and decays == "gradient":
            gradient = gradient + rule.weight_decay * theta
        elif rule.weight_decay and decays in ("decoupled", "unscaled"):
            shrink = rule.weight_decay * (rate if decays == "decoupled" else 1.0)
        squares = gradient**2 if rule.has_square else gradient

        def average(old: Array, new: Array, weight: float) -> Array:
            if step == 1 and rule.starts_from_gradient:
                return new
            match rule.weights:
                case "exchanged":
                    return (1 - weight) * old + weight * new
                case "sum":
                    return weight * old + new
            return weight * old + (1 - weight) * new

        update = gradient
        if name in WITH_VELOCITY:
            mu, old = rule.momentum, state["v"]
            match rule.form:
                case "ema":
                    velocity = average(old, gradient, mu)
                case "classic":
                    velocity = mu * old - rate * gradient
                case _:
                    velocity = mu * old + gradient
            state["v"] = values[f"v{step}"] = velocity
            if rule.form == "classic":
                moved = velocity if rule.sign < 0 else -velocity
                if name == "nesterov" and self.gradients:
                    moved = mu * moved + rule.sign * rate * gradient
                return theta * (1 - shrink) + moved
            update = gradient + mu * velocity if name == "nesterov" else velocity
        elif name in ADAPTIVE:
            if name == "adagrad":
                state["v"] = squares if rule.weights == "exchanged" else state["v"] + squares
            else:
                state["v"] = average(state["v"], squares, rule.decay if name == "rmsprop" else rule.beta2)
            second = state["v"]
            if name in ("adam", "adamw"):
                first_moment = average(state["m"], gradient, rule.beta1)
                state["m"] = values[f"m{step}"] = first_moment
                values[f"v{step}"] = second
                power = {"power": count, "next": count + 1, "same": 1}[rule.correction]
                if rule.corrects_m:
                    first_moment = first_moment / np.float64(1 - rule.beta1**power)
                if rule.corrects_v:
                    second = second / np.float64(1 - rule.beta2**power)
                values[f"m_hat{step}"], values[f"v_hat{step}"] = first_moment, second
                update = first_moment if rule.has_numerator else gradient
            else:
                values[f"v{step}"] = second
            if rule.has_denominator:
                if not rule.has_root:
                    denominator = second + rule.eps
                elif rule.epsilon == "inside":
                    denominator = np.sqrt(second + rule.eps)
                else:
                    denominator = np.sqrt(second) + rule.eps
                # nothing moves where the gradient is 0 and no ε is added
                update = np.where((denominator == 0) & (update == 0), 0.0, update / denominator)
        values[f"update{step}"] = np.asarray(rule.sign * rate * update)
        return theta * (1 - shrink) + rule.sign * rate * update

    def mistaken_rules(self) -> dict[str, Rule]:
        """Return the update rules that mistakes follow, by description."""
        name, rules = self.optimizer, {}

        def add(text: str, **changes: Any) -> None:
            rules[text] = self.rule(**changes)

        add("the sign of the update is wrong: it goes uphill", sign=1.0)
        if name in ("adam", "adamw"):
            add("the bias correction is left out", corrects_m=False, corrects_v=False)
            add("β1 and β2 are exchanged", beta1=self.beta2, beta2=self.beta1)
            add("only m is corrected for its bias, not v", corrects_v=False)
            add("only v is corrected for its bias, not m", corrects_m=False)
            add("the numerator is the gradient instead of m", has_numerator=False)
            add("the division by √v is left out", has_denominator=False)
        if name in ADAPTIVE:
            add("the square root is left out", has_root=False)
            add("the gradient is not squared in v", has_square=False)
            epsilon_in_root = self.epsilon == "inside"
            text = (
                "ε is outside the root; here it is inside"
                if epsilon_in_root
                else "ε is inside the root; here it is outside"
            )
            add(text, epsilon="outside" if epsilon_in_root else "inside")
        if name in ("rmsprop", "adam", "adamw"):
            add("the weights β and 1 − β are exchanged", weights="exchanged")
            add("the factor 1 − β is left out", weights="sum")
        if name == "adagrad":
            add("the squares are not accumulated: only the last one counts", weights="exchanged")
            add("the squares are averaged as in RMSprop instead of added", optimizer="rmsprop")
        if name == "rmsprop":
            add("the squares are added as in AdaGrad instead of averaged", optimizer="adagrad")
            add("v begins with the first square instead of 0", starts_from_gradient=True)
            add("the mean of squares is corrected for its bias; RMSprop has no correction", **_corrected_rmsprop(self))
        if name == "rmsprop" or name == "adagrad":
            add("the division by √v is left out: that is plain SGD", has_denominator=False)
        if name in WITH_VELOCITY:
            convention_texts = {
                "ema": "the gradient is weighted with 1 − μ",
                "classic": "the velocity holds −η·g, as in v = μv − ηg",
                "pytorch": "the gradient is not weighted: v = μv + g",
            }
            for convention, text in convention_texts.items():
                if convention != (self.form or "pytorch"):
                    add(text, form=convention)
            add("the momentum is left out: that is plain SGD", optimizer="sgd")
            if self.form == "ema":
                add("the weights μ and 1 − μ are exchanged", weights="exchanged")
                add("v begins with the first gradient instead of 0", starts_from_gradient=True)
        if name == "momentum":
            add("the look-ahead of Nesterov is taken", optimizer="nesterov")
            add("the momentum is 1 − μ", momentum=1 - self.momentum)
            add("the velocity is added without μ", momentum=1.0)
        if name == "nesterov":
            add("the look-ahead is left out: that is plain momentum", optimizer="momentum")
        if self.weight_decay:
            if name == "adamw":
                add("the weight decay is added to the gradient (L2); AdamW decouples it", decays="gradient")
                add("the weight decay is not scaled with the learning rate", decays="unscaled")
            else:
                add("the weight decay is decoupled; here it is added to the gradient (L2)", decays="decoupled")
            add("the weight decay is left out", decays="none")
            add("the weight decay has the wrong sign", weight_decay=-self.weight_decay)
        if self.clip_norm:
            for mode, text in CLIPPING_MISTAKES.items():
                add(text, clipping=mode)
        add("the learning rate is left out", has_rate=False)
        if name in ("adam", "adamw"):
            add("the bias correction takes β instead of β^t", correction="same")
            add("the bias correction takes β^(t+1) instead of β^t", correction="next")
            add("m and v begin with the first gradient instead of 0", starts_from_gradient=True)
        if self.num_steps() > 1:
            if name != "sgd":
                add("the state of the last step is forgotten: every step is a first one", forgets_state="restart")
                add("the state of the last step is forgotten: m and v begin at 0 in every step", forgets_state="state")
            add("the gradient of the first step is used in every step", repeats_gradient=True)
        return rules

    # Values

    def expected_values(self) -> Sequence[ExpectedValue]:
        """Return gradients, state and parameters of all steps, or the learning rate of a schedule."""
        if self.schedule:
            return self._expect_schedule()
        if self.optimizer == "clipping":
            return self._expect_clipping()
        if self._values is None:
            object.__setattr__(self, "_values", self._expect_steps())
        return self._values or ()

    def change(self, **fields: Any) -> Self:
        """Return a copy with other fields and without mistakes."""
        changed = self.model_copy(update=fields)
        object.__setattr__(changed, "_values", None)
        object.__setattr__(changed, "_explains", False)
        return changed

    def _expect_steps(self) -> list[ExpectedValue]:
        """Return gradients, state and parameters of all steps."""
        right = self.run(self.rule())
        if self.eps <= NEGLIGIBLE_EPS:  # 1.5 is right where ε makes it 1.50000001
            if self._explains:
                without = self.run(self.rule(eps=0.0))
                right = {
                    name: without[name] if _is_close(without[name], right[name]) else right[name] for name in right
                }
            rules = {text: replace(rule, eps=0.0) for text, rule in self.mistaken_rules().items()}
        else:
            rules = self.mistaken_rules()
        if self.loss:  # its gradients take time: only the first mistakes of a large loss are computed
            work = max(10, len(self.loss) // 2) * self.num_steps()
            rules = dict(islice(rules.items(), MAX_WORK // work))
        wrong = {text: self.run(rule) for text, rule in rules.items()} if self._explains else {}
        names = self.loss_names() if self.loss else []
        values: list[ExpectedValue] = []
        for name, value in right.items():
            stem = name.rstrip("0123456789")
            step = int(name.removeprefix(stem))
            formula, work = self._explain(stem, step, right)
            mistakes = {text: state[name] for text, state in wrong.items() if name in state}
            if stem == "theta" and step > 1 and f"update{step}" in right:
                previous = np.array(self.start)
                text = "the step begins at the start again instead of at the last parameters"
                mistakes[text] = previous + right[f"update{step}"]
            if not np.isfinite(value).all() or np.abs(value).max() > 1e15:
                break
            scalar = len(self.start) == 1
            values.append(
                expect(
                    self._aliases(stem, step, names),
                    float(value[0]) if scalar else value,
                    MEANINGS.get(stem, "") + f" in step {step}",
                    formula,
                    work,
                    {text: float(array[0]) if scalar else array for text, array in mistakes.items()},
                )
            )
            if stem == "theta" and len(names) == len(self.start) > 1:
                for index, parameter in enumerate(names):
                    entries = {text: float(array[index]) for text, array in mistakes.items()}
                    extra_names = [f"{parameter}^{step}", f"{parameter}^({step})", f"{parameter}({step})"]
                    if not parameter[-1].isdigit():
                        extra_names = [f"{parameter}_{step}", *extra_names]
                    values.append(
                        expect(extra_names, float(value[index]), f"{parameter} after step {step}", mistakes=entries)
                    )
        if not values:
            raise InputError("the parameters become too large: take a smaller learning rate.")
        return values

    def main_names(self) -> tuple[str, ...]:
        """Return the last parameters, the clipped gradient or the learning rate."""
        values = self.expected_values()
        names = [value.name for value in values if value.name.startswith("theta")]
        return (names[-1] if names else values[-1].name,)

    def _aliases(self, stem: str, step: int, names: Sequence[str]) -> list[str]:
        """Return the names of a quantity at a step."""
        extra_names = [f"{stem}{step}", *(f"{other}{step}" for other in ALIASES.get(stem, ()))]
        if stem == "theta" and len(names) == 1 and names[0].isalpha():
            extra_names += [f"{names[0]}{step}"]
        if stem == "theta":
            extra_names += [f"theta({step})", f"theta^({step})", f"theta^{step}"]
        if stem == "v" and self.optimizer in ("adagrad", "rmsprop"):
            extra_names += [f"G_{step}", f"s{step}", f"r{step}", f"E_{step}"]
        if stem == "v" and self.optimizer in WITH_VELOCITY:
            extra_names += [f"velocity{step}", f"b{step}", f"u{step}", f"m{step}"]
        return list(dict.fromkeys(extra_names))

    def _explain(self, stem: str, step: int, values: State) -> tuple[str, str]:
        """Return the formula of a quantity and its computation with numbers."""
        name, previous = self.optimizer, step - 1

        def text(key: str) -> str:
            value = values.get(key, np.array(self.start) if key == "theta0" else np.zeros(len(self.start)))
            return show(float(value[0]) if len(self.start) == 1 else value, 6)

        gradient = text(f"clipped{step}" if self.clip_norm else f"g{step}")
        beta1, beta2, rate = show(self.beta1), show(self.beta2), show(self.learning_rate, 6)
        if self.weight_decay and name != "adamw":
            gradient = f"({gradient} + {show(self.weight_decay)}·{text(f'theta{previous}')})"
        match stem:
            case "m":
                return "m = β1·m + (1 − β1)·g", f"{beta1}·{text(f'm{previous}')} + {show(1 - self.beta1)}·{gradient}"
            case "m_hat":
                return "m̂ = m / (1 − β1^t)", f"{text(f'm{step}')} / (1 − {beta1}^{step})"
            case "v_hat":
                return "v̂ = v / (1 − β2^t)", f"{text(f'v{step}')} / (1 − {beta2}^{step})"
            case "v":
                old = text(f"v{previous}")
                if name in ("adam", "adamw"):
                    return "v = β2·v + (1 − β2)·g²", f"{beta2}·{old} + {show(1 - self.beta2)}·{gradient}²"
                if name == "adagrad":
                    return "v = v + g²", f"{old} + {gradient}²"
                if name == "rmsprop":
                    decay = show(self.decay)
                    return "v = ρ·v + (1 − ρ)·g²", f"{decay}·{old} + {show(1 - self.decay)}·{gradient}²"
                mu = show(self.momentum)
                match self.form or "pytorch":
                    case "ema":
                        return "v = μ·v + (1 − μ)·g", f"{mu}·{old} + {show(1 - self.momentum)}·{gradient}"
                    case "classic":
                        return "v = μ·v − η·g", f"{mu}·{old} − {rate}·{gradient}"
                return "v = μ·v + g", f"{mu}·{old} + {gradient}"
            case "update":
                epsilon_in_root = self.epsilon == "inside"
                root = "√(v + ε)" if epsilon_in_root else "(√v + ε)"
                if name in ("adam", "adamw"):
                    root = root.replace("v", "v̂")
                    top, bottom = text(f"m_hat{step}"), text(f"v_hat{step}")
                    return f"−η·m̂ / {root}", f"−{rate}·{top} / √{bottom}"
                if name in ADAPTIVE:
                    return f"−η·g / {root}", f"−{rate}·{gradient} / √{text(f'v{step}')}"
                if name == "momentum":
                    return "−η·v", f"−{rate}·{text(f'v{step}')}"
                if name == "nesterov":
                    return "−η·(g + μ·v)", f"−{rate}·({gradient} + {show(self.momentum)}·{text(f'v{step}')})"
                return "−η·g", f"−{rate}·{gradient}"
            case "theta":
                start = text(f"theta{previous}")
                if f"update{step}" not in values:
                    return "θ = θ + v", f"{start} + ({text(f'v{step}')})"
                if name == "adamw" and self.weight_decay:
                    shrink = f"{rate}·{show(self.weight_decay)}·{start}"
                    return "θ = θ − η·λ·θ − η·m̂/(√v̂ + ε)", f"{start} − {shrink} + ({text(f'update{step}')})"
                return "θ = θ + update", f"{start} + ({text(f'update{step}')})"
            case "clipped":
                norm = show(float(np.linalg.norm(values[f"g{step}"])), 6)
                return "g·c/‖g‖ if ‖g‖ > c, else g", f"‖g‖ = {norm}, c = {show(self.clip_norm)}"
        if self.loss:
            return "gradient of the loss at the parameters", f"at {text(f'theta{previous}')}"
        return "", ""

    def conventions(self) -> Iterable[tuple[str, Self]]:
        """Yield the other forms of momentum, and ε inside the root, where the statement leaves them open."""
        if self.schedule or self.optimizer == "clipping":
            return
        if self.optimizer in WITH_VELOCITY and not self.form:
            yield "Read with v = μv − ηg and θ = θ + v.", self.change(form="classic")
            yield "Read with v = μv + (1−μ)g, a moving average.", self.change(form="ema")
        if self.optimizer in ADAPTIVE and 0 < self.eps <= NEGLIGIBLE_EPS:
            yield f"Read with ε = {self.eps:g} to the last decimal.", self.change()
        if self.optimizer in ADAPTIVE and not self.epsilon:
            yield "Read with ε inside the root.", self.change(epsilon="inside")

    # Clipping

    def _expect_clipping(self) -> list[ExpectedValue]:
        """Return norm, factor and clipped gradient."""
        gradient, limit = np.array(self.gradients, dtype=np.float64), self.clip_norm
        gradient = gradient[0] if len(gradient) == 1 else gradient
        norm = float(np.linalg.norm(gradient))
        factor = min(1.0, limit / norm) if norm else 1.0
        squares = " + ".join(f"({show(value)})²" for value in gradient.ravel()[:8])
        return [
            expect(
                "norm global_norm ||g|| ‖g‖",
                norm,
                "norm of the gradient",
                "√(Σ g²)",
                f"√({squares})",
                {
                    "the square root is left out": norm**2,
                    "the absolute values are added: the L1 norm": float(np.abs(gradient).sum()),
                    "the largest entry is taken": float(np.abs(gradient).max()),
                    "the mean of the squares is taken instead of their sum": norm / np.sqrt(gradient.size),
                },
            ),
            expect(
                "factor scale coefficient",
                factor,
                "factor of the gradient",
                "min(1, c/‖g‖)",
                f"min(1, {show(limit)}/{show(norm)})",
                {
                    "the fraction is inverted": norm / limit,
                    "the gradient is scaled though its norm is below the limit": limit / norm if norm else 1.0,
                    "the limit is left out: 1/‖g‖": 1 / norm if norm else 1.0,
                },
            ),
            expect(
                "clipped g_clipped clipped_gradient g",
                gradient * factor,
                "gradient after clipping",
                "g·c/‖g‖ if ‖g‖ > c, else g",
                f"{show(gradient)} · {show(factor)}",
                {text: clip(gradient, limit, mode) for mode, text in CLIPPING_MISTAKES.items()},
            ),
        ]

    # Schedules

    def _expect_schedule(self) -> list[ExpectedValue]:
        """Return the progress and the learning rate at the step."""
        step, warmup, total = self.step, self.warmup, self.total_steps
        rate = self._rate_at(step)
        mistakes: dict[str, float] = {
            "the step is off by one: one too large": self._rate_at(step + 1),
            "the step is off by one: one too small": self._rate_at(max(step - 1, 0)),
            "the lowest rate is left out": self._rate_at(step, low=0.0),
            "the lowest rate is added to the highest": self._rate_at(step, low=0.0) + self.min_rate,
            "the warm-up is left out": self._rate_at(step, warmup=0)
            if self.schedule not in ("inverse-sqrt", "noam")
            else np.nan,
        }
        values: list[ExpectedValue] = []
        span = total - warmup
        formula, work = "peak", show(self.learning_rate, 6)
        peak, low = self.learning_rate, self.min_rate
        if self.schedule in ("linear", "cosine", "wsd", "constant") and step < warmup:
            formula, work = "peak · step / warmup", f"{show(peak, 8)}·{step}/{warmup}"
            mistakes |= {
                "the warm-up is divided by all steps": peak * step / total if total else np.nan,
                "the highest rate is given; the warm-up is not over": peak,
                "the warm-up starts at the lowest rate; here it starts at 0": low + (peak - low) * step / warmup,
            }
        elif self.schedule in ("linear", "cosine"):
            progress = min(1.0, (step - warmup) / span)
            fractions = {
                "the warm-up is counted: step / total": step / total,
                "the divisor is total": (step - warmup) / total,
            }
            fractions["the numerator is step: the warm-up is not subtracted"] = step / span
            fractions["that is the remaining part"] = 1 - progress
            values.append(
                expect(
                    "progress fraction",
                    progress,
                    "part of the decay that is done",
                    "(step − warmup) / (total − warmup)",
                    f"({step} − {warmup}) / ({total} − {warmup})",
                    fractions,
                    scales={100.0: "in per cent"},
                )
            )
            if self.schedule == "cosine":
                formula = "min + ½(peak − min)(1 + cos(π·progress))"
                work = f"{show(low, 8)} + ½·{show(peak - low, 8)}·(1 + cos(π·{show(progress)}))"

                def curve(part: float) -> float:
                    return low + 0.5 * (peak - low) * (1 + cos(pi * part))

                mistakes |= {
                    "the cosine is taken of degrees": low + 0.5 * (peak - low) * (1 + cos(radians(pi * progress))),
                    "the factor ½ is left out": low + (peak - low) * (1 + cos(pi * progress)),
                    "1 is not added to the cosine": low + 0.5 * (peak - low) * cos(pi * progress),
                    "π is left out of the cosine": low + 0.5 * (peak - low) * (1 + cos(progress)),
                    "2π stands for π: a whole wave": low + 0.5 * (peak - low) * (1 + cos(2 * pi * progress)),
                    "the cosine is subtracted: the rate rises": low + 0.5 * (peak - low) * (1 - cos(pi * progress)),
                    "the difference peak − min is not taken: ½·peak·(1 + cos) + min": low
                    + 0.5 * peak * (1 + cos(pi * progress)),
                    "the decay is linear; here it is a cosine": low + (peak - low) * (1 - progress),
                    "the cosine falls to 0 in a quarter of a wave": low + (peak - low) * cos(pi * progress / 2),
                }
            else:
                formula = "min + (peak − min)(1 − progress)"
                work = f"{show(low, 8)} + {show(peak - low, 8)}·(1 − {show(progress)})"

                def curve(part: float) -> float:
                    return low + (peak - low) * (1 - part)

                cosine = low + 0.5 * (peak - low) * (1 + cos(pi * progress))
                mistakes["the decay is a cosine; here it is linear"] = cosine
                mistakes["the rate rises: that is progress instead of 1 − progress"] = low + (peak - low) * progress
            mistakes |= {f"progress: {text}": curve(part) for text, part in fractions.items() if 0 <= part <= 1}
        elif self.schedule == "wsd" and step > total - self.decay_steps:
            decay_start = total - self.decay_steps
            formula = "min + (peak − min)(total − step) / decay_steps"
            work = f"{show(low, 8)} + {show(peak - low, 8)}·({total} − {step}) / {self.decay_steps}"
            part = min(1.0, (step - decay_start) / self.decay_steps)
            mistakes |= {
                "the stable phase is not over: the highest rate is given": peak,
                "the rate rises: that is the part that is done": low + (peak - low) * part,
                "the decay is taken over all steps": low + (peak - low) * (total - step) / total,
                "the decay is taken over the steps after the warm-up": low + (peak - low) * (total - step) / span,
            }
        elif self.schedule == "wsd":
            mistakes["the rate decays already; it is constant until the last decay_steps"] = (
                low + (peak - low) * (total - step) / span
            )
        elif self.schedule in ("exponential", "step-decay"):
            count = step if self.schedule == "exponential" else step // self.every
            formula = "peak · γ^step" if self.schedule == "exponential" else "peak · γ^⌊step/every⌋"
            work = f"{show(peak, 8)}·{show(self.gamma)}^{count}"
            mistakes |= {
                "γ is multiplied with the number of factors instead of raised": peak * self.gamma * count,
                "the exponent is not rounded down": peak * self.gamma ** (step / self.every),
                "the exponent is rounded up": peak * self.gamma ** (-floor(-step / self.every)),
                "the rate is divided by γ": peak / self.gamma**count if self.gamma**count else np.nan,
                "1 − γ is the factor": peak * (1 - self.gamma) ** count,
            }
        elif self.schedule == "inverse-sqrt":
            formula = "peak · min(step/warmup, √(warmup/step))"
            work = f"{show(peak, 8)}·min({step}/{warmup}, √({warmup}/{max(step, 1)}))"
            mistakes |= {
                "the square root is left out": peak * min(step / warmup, warmup / max(step, 1)),
                "the maximum is taken instead of the minimum": peak
                * max(step / warmup, (warmup / max(step, 1)) ** 0.5),
            }
        elif self.schedule == "noam":
            number = max(step, 1)
            formula = "d^(−½) · min(step^(−½), step · warmup^(−3/2))"
            work = f"{self.width}^(−½)·min({number}^(−½), {number}·{warmup}^(−3/2))"
            mistakes |= {
                "the factor d^(−½) is left out": rate * self.width**0.5,
                "d is not rooted: 1/d": rate / self.width**0.5,
                "the maximum is taken instead of the minimum": self.width**-0.5
                * max(number**-0.5, number * warmup**-1.5),
                "the exponent of warmup is −½ instead of −3/2": self.width**-0.5
                * min(number**-0.5, number * warmup**-0.5),
            }
        names = [
            "rate",
            "lr",
            "eta",
            "alpha",
            "learning_rate",
            f"alpha_{step}",
            "alpha_t",
            "eta_t",
            f"lr({step})",
            f"lr_{step}",
            f"eta_{step}",
            f"eta({step})",
            "lr_t",
        ]
        values.append(expect(names, rate, f"learning rate at step {step}", formula, work, mistakes))
        return values

    def _rate_at(self, step: int, warmup: int | None = None, low: float | None = None) -> float:
        """Return the learning rate at a step, with another warm-up or lowest rate if not None."""
        warmup = self.warmup if warmup is None else warmup
        low = self.min_rate if low is None else low
        peak, total, name = self.learning_rate, self.total_steps, self.schedule
        number = max(step, 1)
        if name == "noam":
            return self.width**-0.5 * min(number**-0.5, step * warmup**-1.5)
        if name == "inverse-sqrt":
            return peak * min(step / warmup, (warmup / number) ** 0.5)
        if name in ("exponential", "step-decay"):
            return peak * self.gamma ** (step if name == "exponential" else step // self.every)
        if step < warmup:
            return peak * step / warmup
        if name == "constant":
            return peak
        if name == "wsd":
            remaining = min(1.0, max(0.0, (total - step) / self.decay_steps)) if self.decay_steps else 1.0
            return low + (peak - low) * remaining
        progress = min(1.0, (step - warmup) / max(1, total - warmup))
        if name == "cosine":
            return low + 0.5 * (peak - low) * (1 + cos(pi * progress))
        return low + (peak - low) * (1 - progress)


def _is_close(first: Array, second: Array) -> bool:
    """Return whether two arrays differ by no more than a negligible ε can make them."""
    return bool(np.allclose(first, second, rtol=1e-6, atol=1e-7))


@lru_cache(64)
def _parse_loss(text: str) -> Any:
    """Return the expression of a loss, which may begin with a name, as in "L = w^2"."""
    from lemma.checking.expressions import parse_steps

    _, (node, *_) = parse_steps(text.partition("=")[2] or text)
    return node


def _corrected_rmsprop(exercise: OptimizerExercise) -> dict[str, Any]:
    """Return the changes that turn RMSprop into one with a bias correction."""
    return {"optimizer": "adam", "beta1": 0.0, "beta2": min(exercise.decay, 0.999999), "corrects_m": False}


CLIPPING_MISTAKES = {
    "value": "the entries are clipped one by one instead of the norm",
    "none": "the gradient is not clipped",
    "always": "the gradient is scaled though its norm is below the limit",
    "squared": "the square root of the norm is left out",
    "l1": "the absolute values are added: the L1 norm",
    "unit": "the gradient is scaled to the norm 1 instead of the limit",
    "divided": "the gradient is divided by the limit",
}
MEANINGS = {
    "g": "gradient",
    "clipped": "gradient after clipping",
    "m": "mean of gradients",
    "v": "mean of squares or velocity",
    "m_hat": "m corrected for its bias",
    "v_hat": "v corrected for its bias",
    "update": "change of the parameters",
    "theta": "parameters after the update",
}
ALIASES = {
    "theta": ("w", "x", "p", "parameters"),
    "g": ("grad", "gradient", "g_"),
    "update": ("delta", "Delta", "Δθ", "Δ", "step"),
    "clipped": ("g_clipped", "clipped_gradient"),
}
