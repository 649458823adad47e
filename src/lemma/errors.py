"""All errors that Lemma raises on purpose.

    LemmaError
    ├── InputError            user input is invalid; the command line exits with 2
    │   ├── SpecError         a setting, value, preset or spec file
    │   ├── DataError         a text, corpus or tokenizer
    │   ├── RunError          a run folder: missing, damaged or of another kind
    │   └── CountingError     a module whose quantities cannot be counted
    ├── PackageError          another installed package is broken; exits with 2
    ├── StorageError          the disk refuses: full, no permission, too many open files; exits with 1
    ├── MemoryLimitError      the machine has too little memory for the request; exits with 1
    └── TrainingError         training itself failed (a loss that is no number); exits with 1

A message says where, what was given, what was expected and the next step.
"""

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

MAX_MESSAGE_LENGTH = 8000  # characters; longer messages are cut in the middle
MAX_CHOICES, NUM_CLOSEST = 120, 8  # of more choices a message lists the closest only


class LemmaError(Exception):
    """Base class of all errors that Lemma raises on purpose."""

    exit_status = 1

    def __str__(self) -> str:
        message = super().__str__()  # may quote a value of any length
        return message if len(message) <= MAX_MESSAGE_LENGTH else f"{message[:1000]} … {message[-1000:]}"


class InputError(LemmaError, ValueError):
    """Invalid user input."""

    exit_status = 2


class SpecError(InputError):
    """A setting, value, preset or spec file that does not describe a model, a recipe or a study."""


class DataError(InputError):
    """A text, corpus or tokenizer that cannot be used."""


class RunError(InputError):
    """A run folder that is missing, damaged or of another kind than expected."""


class CountingError(InputError):
    """A module that cannot be built or run at the requested sizes, or a quantity of it that follows no formula."""


class PackageError(LemmaError):
    """Another installed package that cannot be used; not a ValueError, because no input is wrong."""

    exit_status = 2


class StorageError(LemmaError, OSError):
    """A file that cannot be written or read because of the disk, not because of its content."""


class MemoryLimitError(LemmaError):
    """Too little memory on this machine for the request."""


class TrainingError(LemmaError):
    """Training that failed although every input was valid."""


def describe_unknown(kind: str, name: str, choices: Iterable[str], suggestion: str | None = None) -> str:
    """Return the message for an unknown name, with the choices and a suggestion, by default the closest spelling.

    Args:
        kind: what the name is of, such as "positions"; its file may come first: "sheet.md: question Q1: setting".

    >>> describe_unknown("positions", "rotory", ["none", "rotary"])
    "unknown positions 'rotory'. Did you mean 'rotary'? Choices: none, rotary."
    """
    names = list(choices)
    guess = suggestion if suggestion in names else closest_name(name, names)
    short = name if len(name) <= 64 else f"{name[:60]}…"
    question = f" Did you mean '{guess}'?" if guess else ""
    location, _, noun = kind.rpartition(": ")
    start = f"{location}: unknown" if location else "unknown"
    listed = f"Choices: {', '.join(names)}."
    if len(names) > MAX_CHOICES:
        closest = get_close_matches(name[:64], names, NUM_CLOSEST, cutoff=0)
        listed = f"The closest of {len(names)} choices: {', '.join(closest)}."
    return f"{start} {noun} '{short}'.{question} {listed}"


def describe_error(error: Exception) -> str:
    """Return the reason of an error of another library in one line, without the lines that some add to it.

    >>> describe_error(KeyError("foo")), describe_error(ValueError("the list is too short.\\nExpected: 3"))
    ("KeyError: 'foo'", 'the list is too short')
    """
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error  # what validators wrap says more
    text = str(cause).strip().partition("\n")[0].strip().rstrip(".")
    if isinstance(cause, (KeyError, AttributeError)) or not text:
        return f"{type(cause).__name__}: {text}".removesuffix(": ")
    return text


def closest_name(typed: str, choices: Iterable[str]) -> str | None:
    """Return the choice most similar to a typed name; None unless it differs by a typo or two or a missing end.

    >>> closest_name("learning_rat", ["learning_rate"]), closest_name("heds", ["heads", "seed"])
    ('learning_rate', 'heads')
    >>> closest_name("gpt", ["gru"]), closest_name("lr", ["clip"])
    (None, None)
    """
    word = typed.lower()
    if not 1 <= len(word) <= 64:
        return None
    originals = {choice.lower(): choice for choice in choices}
    for name in get_close_matches(word, originals, n=3, cutoff=0.5):
        matching = sum(block.size for block in SequenceMatcher(None, word, name).get_matching_blocks())
        typos = max(len(word), len(name)) - matching
        same_end = word[0] == name[0] or word[-3:] == name[-3:]
        if (typos <= max(1, len(word) // 4) and same_end) or name.startswith(word) or word.startswith(name):
            return originals[name]
    return None
