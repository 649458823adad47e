"""A model counted by other tools, and their numbers judged by the exact ones."""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout

from lemma.errors import InputError, unknown
from lemma.ledger.against.comparison import Comparison, Row
from lemma.ledger.against.exact import Exact, exact_figures
from lemma.ledger.against.explain import why_operations, why_parameters
from lemma.ledger.against.plain import Plain
from lemma.ledger.against.tools import TOOLS
from lemma.ledger.subject import Subject

LARGEST_RUN = 2**32
"""Bytes of parameters up to which a model is really run, since these tools need real tensors."""


def against(subject: Subject, tools: Sequence[str] = tuple(TOOLS)) -> Comparison:
    """Count a subject with other tools, each on a fresh copy on the CPU, at the sizes asked for."""
    wrong = next((tool for tool in tools if tool not in TOOLS), None)
    if wrong is not None:
        raise InputError(unknown("tool", wrong, TOOLS))
    exact = exact_figures(subject)
    rows = tuple(_row(tool, subject, exact) for tool in tools)
    return Comparison(subject.name, exact.all_parameters, exact.all_operations, rows)


def _row(tool: str, subject: Subject, exact: Exact) -> Row:
    if 4 * exact.all_parameters > LARGEST_RUN:
        return Row(tool, reasons=(f"not run: it needs real tensors, more than {LARGEST_RUN // 2**30} GiB of them",))
    values = subject.sizes(running=True)
    try:
        with quiet():
            reading = TOOLS[tool](Plain(subject.build(values, "cpu"), subject.inputs(values, "cpu")))
    except ImportError as error:
        return Row(tool, reasons=(_not_installed(tool, error),))
    except Exception as error:  # a stranger's tool may fail in any way
        return Row(tool, reasons=(f"failed: {type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}",))
    reasons = {"parameters: ": why_parameters(reading, exact), "FLOPs: ": why_operations(reading, exact)}
    said = [about + reason for about, reason in reasons.items() if reason]
    said += [reading.remark] if reading.remark and reading.operations != exact.all_operations else []
    return Row(
        tool,
        reading.parameters,
        _ratio(reading.parameters, exact.all_parameters),
        reading.operations,
        _ratio(reading.operations, exact.all_operations),
        reading.convention,
        tuple(said),
    )


def _not_installed(tool: str, error: ImportError) -> str:
    missing = (error.name or tool).partition(".")[0]
    needed = "" if missing == tool else f" (it needs {missing})"
    return f"not installed{needed}: pip install {missing}"


def _ratio(theirs: float, exact: int) -> float | None:
    return theirs / exact if exact else None


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what tools print and warn about to themselves."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
