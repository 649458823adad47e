"""Child process that runs a function of a student's file: `python -m lemma.checking.code_child`.

It reads one request from stdin, with the file, the name of the function and the arguments of each call, and writes the
results. The parent sets limits on time; this process sets those on memory, files and processor time before the code
runs, in an empty temporary folder.
"""

import contextlib
import importlib.util
import inspect
import math
import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy

from lemma.processes import read_message, write_message

CPU_SECONDS, MAX_ADDRESS_BYTES, MAX_FILE_BYTES = 20, 8 << 30, 1 << 20
MAX_NUMBERS = 200_000  # of one result


class ForeignResult(Exception):
    """A result that is no number, text, array, or list of these."""


def encode(value: Any, depth: int = 0) -> Any:
    """Return a result or argument as JSON: arrays of NumPy, torch or JAX become lists."""
    if depth > 8:
        raise ForeignResult("its lists are nested too deeply")
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if hasattr(value, "tolist") and not isinstance(value, (bool, int, float, str)):
        size = getattr(value, "size", 0)
        if (size() if callable(size) else size) and math.prod(value.shape) > MAX_NUMBERS:
            raise ForeignResult(f"it has more than {MAX_NUMBERS:,} numbers")
        return {"array": encode(value.tolist(), depth + 1), "shape": list(value.shape)}
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 53 else float(min(max(value, -(10**300)), 10**300))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, (list, tuple)):
        if len(value) > MAX_NUMBERS:
            raise ForeignResult(f"it has more than {MAX_NUMBERS:,} items")
        items = [encode(item, depth + 1) for item in value]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {"items": [[encode(key, depth + 1), encode(item, depth + 1)] for key, item in value.items()]}
    raise ForeignResult(f"it is of type {type(value).__name__}")


def decode(value: Any, library: ModuleType | None) -> Any:
    """Return the value of encoded JSON; arrays are made with NumPy or torch, and are lists without a library."""
    if isinstance(value, list):
        return [decode(item, library) for item in value]
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(decode(item, library) for item in value["tuple"])
    if "items" in value:
        return {decode(key, library): decode(item, library) for key, item in value["items"]}
    if "float" in value:
        return float(value["float"])
    numbers = decode(value["array"], None)
    if library is None:
        return numbers
    if library.__name__ == "torch":
        is_float = value.get("dtype", "float64") == "float64"
        return library.tensor(numbers, dtype=library.float64 if is_float else None).reshape(value["shape"])
    return library.array(numbers, dtype=value.get("dtype", "float64")).reshape(value["shape"])


def set_limits() -> None:
    """Limit processor time, memory and the size of files of this process."""
    with contextlib.suppress(
        ImportError, ValueError, OSError
    ):  # a system without such limits; the parent has a timeout
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_BYTES, MAX_ADDRESS_BYTES))
        resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def load_function(path: str, name: str) -> tuple[Any, ModuleType]:
    """Run a Python file; return its function of this name, or its only function, and the module."""
    sys.path.insert(0, str(Path(path).parent))
    spec = importlib.util.spec_from_file_location("student", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["student"] = module
    spec.loader.exec_module(module)
    functions = {
        key: value
        for key, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == "student" and not key.startswith("_")
    }
    if callable(getattr(module, name, None)):
        return getattr(module, name), module
    if len(functions) == 1:
        return next(iter(functions.values())), module
    raise LookupError(f"it has no function {name}. Its functions: {', '.join(functions) or 'none'}.")


def describe_error(path: str) -> str:
    """Return the current exception as a sentence with the line of the student's file where it was raised."""
    kind, error, trace = sys.exc_info()
    lines = [frame.lineno for frame in traceback.extract_tb(trace) if frame.filename == path]
    if isinstance(error, SyntaxError) and error.filename == path:
        lines.append(error.lineno)
    location = f" in line {lines[-1]}" if lines and lines[-1] else ""
    message = " ".join(str(error).split())[:300]
    return f"{kind.__name__ if kind else 'Error'}{location}: {message}"


def call(function: Any, arguments: list[Any], library: ModuleType | None, num_accepted: int) -> dict[str, Any]:
    """Call a function; return its encoded result, and the indices of the arguments that it changed."""
    values = [decode(argument, library) for argument in arguments[:num_accepted]]
    before = [encode(value) for value in values]
    result = function(*values)
    changed = [index for index, value in enumerate(values) if encode(value) != before[index]]
    return {"result": encode(result), "changed": changed}


def count_accepted(function: Any) -> int:
    """Return how many positional arguments a function takes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 100
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return 100
    return sum(
        parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD) for parameter in parameters
    )


def answer_request(request: dict[str, Any]) -> dict[str, Any]:
    """Run the function of a request on the arguments of all calls; return the results, or why there are none."""
    path = request["path"]
    try:
        function, module = load_function(path, request["function"])
    except BaseException:  # whatever the student's code raises, SystemExit included
        return {"error": describe_error(path)}
    return call_function(function, request["calls"], path, vars(module).values())


def call_function(function: Any, calls: list[Any], path: str = "", values: Iterable[Any] = ()) -> dict[str, Any]:
    """Call a function with encoded arguments; return the encoded results and how many arguments it takes.

    Args:
        function: what is called.
        calls: the arguments of each call.
        path: the function's file, for the lines of errors.
        values: the values of its module, which show whether it uses torch or NumPy.
    """
    modules = {getattr(value, "__module__", "") or getattr(value, "__name__", "") for value in values}
    modules |= {getattr(value, "__name__", "") for value in values if isinstance(value, ModuleType)}
    libraries: list[ModuleType | None] = []
    if any(str(name).split(".")[0] == "torch" for name in modules):
        libraries.append(sys.modules["torch"])
    libraries += [numpy, None]
    accepted, results = count_accepted(function), []
    for arguments in calls:
        errors: list[str] = []
        for library in libraries:
            try:
                results.append(call(function, arguments, library, accepted))
                break
            except BaseException:  # whatever the student's code raises
                errors.append(describe_error(path))
        else:
            results.append({"error": errors[0]})
    return {"calls": results, "accepted": accepted}


def main() -> None:
    """Answer the request on stdin; what the student's code prints is dropped."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    request = read_message(sys.stdin.buffer)
    set_limits()
    try:
        reply = answer_request(request)
    except MemoryError:
        reply = {"error": f"it needs more than {MAX_ADDRESS_BYTES >> 30} GiB of memory"}
    write_message(output, reply)


if __name__ == "__main__":
    main()
