"""Exercises that ask for a function: a student's code is compared with a reference in a process of its own.

Only code that a person names on the command line or in Python is run, never code that a file names.
"""

import inspect
import io
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import BeforeValidator, field_validator, model_validator

from lemma.checking.checked_lines import CheckedLine, CheckedLines
from lemma.checking.code_child import call_function, decode, encode
from lemma.checking.code_references import REFERENCES, CodeReference, Trial
from lemma.checking.exercises.base import Exercise, ExerciseHelp, HelpLevel
from lemma.errors import InputError, describe_unknown
from lemma.processes import child_environment, python_command, read_message, write_message
from lemma.report.numbers import format_short, pluralize

SECONDS = 10  # of wall time for all calls
NUM_TRIALS, MAX_SIZE = 4, 256
MAX_CODE_BYTES = 1 << 20
RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE = 1e-4, 1e-6  # code in float32 is right too
LARGE = "large numbers"


def _split_inputs(value: Any) -> Any:
    """Split text such as "x 3 4; mask causal 4" into the arguments; return any other value unchanged."""
    return tuple(part.strip() for part in value.split(";") if part.strip()) if isinstance(value, str) else value


class CodeExercise(Exercise):
    """A function to write, such as softmax or attention; the answer is a Python file."""

    kind: ClassVar[str] = "code"
    first_field: ClassVar[str] = "function"
    typed_fields: ClassVar[tuple[str, ...]] = ("reference",)
    runs_code: ClassVar[bool] = True

    function: str = ""
    """Function to write, such as softmax."""
    reference: str = ""
    """Your own right function, as file.py:function, instead of one of Lemma's."""
    inputs: Annotated[tuple[str, ...], BeforeValidator(_split_inputs)] = ()
    """Arguments of your own function, such as "x 3 4", "k 2" or "mask causal 4": random numbers of that shape."""
    seed: int = 0
    """Seed of the random inputs."""

    @field_validator("function")
    @classmethod
    def _check_function(cls, value: str) -> str:
        """Return the name of a reference, with hyphens; raise a ValueError for an unknown one."""
        name = value.replace("_", "-")
        if value and name not in REFERENCES:
            raise ValueError(describe_unknown("function", value, REFERENCES))
        return name

    @model_validator(mode="after")
    def _check_reference(self) -> Self:
        """Return the exercise; raise a ValueError if it does not say which function is asked for."""
        if bool(self.function) == bool(self.reference):
            raise ValueError(f"function: name one of {', '.join(REFERENCES)}; or set reference=file.py:function.")
        if self.reference and not self.inputs:
            raise ValueError('inputs: state the arguments of your function, as in inputs="x 3 4; mask causal 4".')
        return self

    def load_reference(self) -> CodeReference:
        """Return the reference function and its inputs."""
        if self.function:
            return REFERENCES[self.function]
        file, name = find_file(self.reference)
        names = [text.split()[0] for text in self.inputs]
        random = np.random.default_rng(self.seed)
        trials = [Trial(tuple(make_argument(text, random) for text in self.inputs)) for _ in range(NUM_TRIALS)]
        reply = run_code(file, name, trials)
        errors = [reply["error"]] if "error" in reply else [call["error"] for call in reply["calls"] if "error" in call]
        if errors:
            raise InputError(f"{self.reference}: {errors[0]}")
        results = {str(trial.arguments): call["result"] for trial, call in zip(trials, reply["calls"], strict=True)}
        return CodeReference(
            f"{name or file.stem}({', '.join(names)})",
            "your own function",
            lambda *arguments: to_value(results[str(arguments)]),
            lambda random: trials,
            required=len(names),
        )

    def check(self, answers: Sequence[Any], show_solution: bool = False) -> "CodeReport":
        """Run a function on random inputs, and compare its results with those of the reference.

        Args:
            answers: one item: a Python file, `file.py:name` for one of several functions in it, or a Python function.
            show_solution: whether wrong results are shown next to the right ones.
        """
        if len(answers) != 1:
            raise InputError(f"check code: expected one Python file, as in: lemma check code {self.function} mine.py")
        reference, (answer,) = self.load_reference(), answers
        trials = reference.make_trials(np.random.default_rng(self.seed))
        if callable(answer):
            calls = [[encode_argument(argument) for argument in trial.arguments] for trial in trials]
            reply = call_function(answer, calls)
        else:
            file, name = find_file(answer)
            reply = run_code(file, name or reference.signature.partition("(")[0], trials)
        if "error" in reply:
            raise InputError(f"{answer}: {reply['error']}")
        accepted = reply["accepted"]
        if accepted < reference.required:
            raise InputError(
                f"{answer}: the function takes {pluralize(accepted, 'argument')}; expected {reference.signature}."
            )
        return compare_results(reference, trials, reply["calls"], accepted, show_solution)

    def describe(self) -> str:
        """Return the signature and a sentence on the function."""
        reference = self.load_reference()
        return f"{reference.signature}: {reference.summary}."

    def help_with(self, level: HelpLevel, answers: Sequence[str] = ()) -> ExerciseHelp:
        """Return the signature and its meaning, the input on which code fails first, or the code of the reference."""
        if level == "hint":
            lines = (self.hint or self.describe(),)
        elif level == "where" and answers:
            wrong = next((line for line in self.check(answers).lines if line.outcome == "wrong"), None)
            lines = (str(wrong) if wrong else "All results are right.",)
        elif level == "where":
            lines = (f"Try small inputs first, and compare shapes: {self.load_reference().signature}.",)
        elif self.reference:
            lines = (f"The solution is {self.reference}.",)
        else:
            lines = tuple(inspect.getsource(REFERENCES[self.function].compute).rstrip().splitlines())
        return ExerciseHelp(self.name, level, lines)


def find_file(answer: str) -> tuple[Path, str]:
    """Return the Python file and the name of the function, or "", that `file.py` or `file.py:function` names."""
    stem, separator, name = str(answer).partition(".py:")
    file = Path(f"{stem}.py" if separator else stem).expanduser()
    if file.suffix != ".py" or not file.is_file():
        raise InputError(
            f"{answer}: there is no such Python file. Expected one with a function, as in: lemma check code softmax "
            "mine.py"
        )
    if file.stat().st_size > MAX_CODE_BYTES:
        raise InputError(f"{file}: the file has more than {MAX_CODE_BYTES:,} bytes.")
    return file.resolve(), name


def make_argument(text: str, random: np.random.Generator) -> Any:
    """Return a random argument: "x 3 4" an array, "x" a number, "n integer 5" one below 5, "m causal 4" a mask."""
    _, *words = text.split()
    try:
        kind = words[0] if words and not words[0].isdigit() else ""
        sizes = [int(word) for word in (words[1:] if kind else words)]
        if any(not 0 < size <= MAX_SIZE for size in sizes):
            raise ValueError
        if kind == "integer":
            return int(random.integers(0, sizes[0]))
        if kind == "integers":
            return random.integers(0, sizes[0], sizes[1:])
        if kind == "causal":
            return np.tril(np.ones((sizes[0], sizes[0]), dtype=bool))
        if not kind:
            return random.normal(size=sizes) if sizes else float(random.normal())
    except (ValueError, IndexError):
        pass
    raise InputError(
        f"inputs: '{text}' is not an argument. Expected a name and a shape of sizes up to {MAX_SIZE}, as in 'x 3 4', "
        "'k' (a number), 'n integer 5', 'y integers 5 3' (three below 5) or 'mask causal 4'."
    )


def run_code(path: Path, function: str, trials: Sequence[Trial]) -> dict[str, Any]:
    """Call a function of a Python file in a child process; return its encoded results, or an error."""
    calls = [[encode_argument(argument) for argument in trial.arguments] for trial in trials]
    request = {"path": str(path), "function": function, "calls": calls}
    with TemporaryDirectory() as folder:
        child = subprocess.Popen(
            python_command("-m", "lemma.checking.code_child"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(OMP_NUM_THREADS="1"),
            cwd=folder,
            start_new_session=True,
        )
        assert child.stdin and child.stdout
        try:
            with suppress(BrokenPipeError):
                write_message(child.stdin, request)
            output, _ = child.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            return {"error": f"it ran for more than {SECONDS} seconds. Is there a loop that does not end?"}
    with suppress(ValueError):
        if reply := read_message(io.BytesIO(output)):
            return reply
    return {"error": "it ended its process, or needed too much time or memory."}


def encode_argument(value: Any) -> Any:
    """Return an argument as JSON; arrays have their type."""
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "shape": list(value.shape), "dtype": str(value.dtype)}
    if isinstance(value, tuple):
        return {"tuple": [encode_argument(item) for item in value]}
    return value.item() if isinstance(value, np.generic) else value


@dataclass(frozen=True)
class CodeLine(CheckedLine):
    """The result of a function for one input.

    Attributes:
        text: the shapes of the arguments, or the arguments.
        remarks: what is wrong.
    """

    text: str
    outcome: str
    remarks: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """The faults of the result."""
        return self.remarks


@dataclass(frozen=True)
class CodeReport(CheckedLines[CodeLine]):
    """A function of a student, compared with a reference on several inputs."""

    topic = "code"
    mistake: str = ""  # a sentence that explains all wrong results

    def to_dict(self) -> dict[str, Any]:
        """Return the report, its notes and the mistake as plain values for JSON."""
        return super().to_dict() | {"notes": list(self.notes), "mistake": self.mistake}


def compare_results(
    reference: CodeReference, trials: Sequence[Trial], calls: Sequence[Any], accepted: int, show_solution: bool
) -> CodeReport:
    """Compare the results of a function with the reference, and find the mistake that explains all wrong results.

    Args:
        calls: the encoded result of each trial, or its error.
        accepted: how many arguments the function takes; trials with more are left out.
        show_solution: whether wrong results are shown next to the right ones.
    """
    pairs = [(trial, call) for trial, call in zip(trials, calls, strict=True) if len(trial.arguments) <= accepted]
    results = [None if "error" in call else to_value(call["result"]) for _, call in pairs]
    compute, convention = reference.compute, ""
    for name, alternative in reference.alternatives.items():
        count = sum(is_equal(alternative, trial, result) for (trial, _), result in zip(pairs, results, strict=True))
        if count > sum(is_equal(compute, trial, result) for (trial, _), result in zip(pairs, results, strict=True)):
            compute, convention = alternative, name
    lines: list[CodeLine] = []
    wrong: list[tuple[Trial, Any]] = []
    for (trial, call), result in zip(pairs, results, strict=True):
        faults = list_faults(compute, trial, call, result, reference.signature, show_solution)
        topic = f" ({trial.topic})" if trial.topic else ""
        lines.append(CodeLine(describe_arguments(trial) + topic, "wrong" if faults else "right", tuple(faults)))
        if faults and not is_equal(compute, trial, result):
            wrong.append((trial, result))
    skipped = len(trials) - len(pairs)
    notes = [f"Convention: {convention}."] if convention else []
    notes += [f"{pluralize(skipped, 'input')} with more arguments than the function takes left out."] if skipped else []
    mistake = explain_results(reference, wrong, pairs, results)
    notes += [mistake] if mistake else []
    return CodeReport(reference.signature, tuple(lines), tuple(notes), mistake)


def explain_results(
    reference: CodeReference, wrong: Sequence[tuple[Trial, Any]], pairs: Sequence[Any], results: Sequence[Any]
) -> str:
    """Return a sentence on the mistake that gives all results, also those that are right by chance; "" if none does."""
    if not wrong:
        return ""
    if all(trial.topic == LARGE for trial, _ in wrong):
        return "It overflows for large numbers. Subtract the largest entry before the exponential."
    ordinary = [(trial, result) for (trial, _), result in zip(pairs, results, strict=True) if trial.topic != LARGE]
    for name, function in reference.mistakes.items():
        if all(is_equal(function, trial, result) for trial, result in ordinary):
            return f"{name[:1].upper()}{name[1:]}."
    topics = {trial.topic for trial, _ in wrong}
    if len(topics) == 1 and all(topics) and len(wrong) < len(pairs):
        partial = [(trial, result) for trial, result in wrong if result is not None]
        for name, function in reference.mistakes.items():
            if partial and all(is_equal(function, trial, result) for trial, result in partial):
                return f"{name[:1].upper()}{name[1:]}."
        return f"Only inputs of this type go wrong: {topics.pop()}."
    return ""


def list_faults(
    compute: Callable[..., Any], trial: Trial, call: Mapping[str, Any], result: Any, signature: str, show_solution: bool
) -> list[str]:
    """Return what is wrong with the result of one call: an error, a changed argument, a shape, or numbers."""
    if "error" in call:
        return [call["error"]]
    names = [name.strip().partition("=")[0] for name in signature.partition("(")[2].rstrip(")").split(",")]
    changed = [f"it changes its argument {names[index]} in place" for index in call["changed"]]
    if is_equal(compute, trial, result):
        return changed
    expected = compute_quietly(compute, trial)
    return [*changed, describe_difference(expected, result, show_solution)]


def compute_quietly(compute: Callable[..., Any], trial: Trial) -> Any:
    """Return what a reference gives for a trial; None if it does not work for these arguments."""
    with np.errstate(all="ignore"), suppress(Exception):
        return to_value(encode(compute(*trial.arguments)))
    return None


def to_value(encoded: Any) -> Any:
    """Return an encoded result with its numbers in arrays."""
    return decode(encoded, np) if not isinstance(encoded, (int, float)) else encoded  # pyright: ignore[reportArgumentType]


def is_equal(compute: Callable[..., Any], trial: Trial, result: Any) -> bool:
    """Return whether a result is what a function gives for a trial; both may be errors, None."""
    expected = compute_quietly(compute, trial)
    return result is None if expected is None else values_match(expected, result)


def values_match(expected: Any, result: Any) -> bool:
    """Return whether two results are equal up to rounding; lists, tuples and arrays of the same numbers are."""
    if isinstance(expected, tuple) and isinstance(expected[0], np.ndarray) and isinstance(result, np.ndarray):
        return values_match(expected[0], result)  # theta without the moments
    if isinstance(expected, (list, tuple)) and isinstance(result, (list, tuple)):
        return len(expected) == len(result) and all(map(values_match, expected, result))
    if isinstance(expected, dict):
        return isinstance(result, dict) and {key: value for key, value in result.items() if value} == expected
    if isinstance(expected, str) or isinstance(result, (str, dict)) or result is None or expected is None:
        return type(expected) is type(result) and expected == result
    try:
        first, second = np.asarray(expected, dtype=float), np.asarray(result, dtype=float)
    except (TypeError, ValueError):
        return False
    if first.shape != second.shape and not first.size == second.size == 1:
        return False
    close = np.isclose(first.ravel(), second.ravel(), RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE, equal_nan=True)
    return bool(close.all())


def describe_difference(expected: Any, result: Any, show_solution: bool) -> str:
    """Return a sentence on how a result differs: its type, its shape, or the largest difference."""
    if isinstance(expected, np.ndarray) and isinstance(result, list):
        with suppress(TypeError, ValueError):
            result = np.asarray(result, dtype=float)
    if isinstance(result, np.ndarray) and isinstance(expected, np.ndarray):
        if result.shape != expected.shape:
            return f"the shape is {result.shape}, expected {expected.shape}"
        numbers = result.astype(float)
        if not np.isfinite(numbers).all():
            return f"it gives {pluralize(int((~np.isfinite(numbers)).sum()), 'number')} that are NaN or infinite"
        errors = np.abs(numbers - expected)
        index = np.unravel_index(errors.argmax(), errors.shape)
        text = f"largest difference {float(errors.max()):.2g} at {[int(i) for i in index]}"
        values = f": {format_short(float(numbers[index]), 4)} instead of {format_short(float(expected[index]), 4)}"
        return text + (values if show_solution else "")
    if type(result) is not type(expected) and not isinstance(result, (int, float, np.ndarray)):
        return f"it returns {'nothing' if result is None else f'a {type(result).__name__}'}, expected {_noun(expected)}"
    return f"it returns {_short(result)}" + (f", expected {_short(expected)}" if show_solution else "")


def _noun(value: Any) -> str:
    """Return the type of a right result in words."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return "a number" if isinstance(value, (int, float)) else f"a {type(value).__name__}"


def _short(value: Any) -> str:
    """Return a value as text of at most 60 characters."""
    if isinstance(value, float):
        return format_short(value, 4)
    text = repr(value.tolist() if isinstance(value, np.ndarray) else value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def describe_arguments(trial: Trial) -> str:
    """Return the arguments of a call as text: shapes of arrays, other values as they are."""
    texts: list[str] = []
    for argument in trial.arguments:
        if isinstance(argument, np.ndarray):
            texts.append("×".join(map(str, argument.shape)))
        else:
            texts.append(_short(argument))
    return ", ".join(texts)
