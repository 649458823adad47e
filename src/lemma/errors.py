"""Every error Lemma raises on purpose.

    LemmaError
    ├── InputError            something a person gave does not fit; the command line exits with 2
    │   ├── SpecError         a word, value, preset or spec file
    │   ├── DataError         a text, corpus or tokenizer
    │   ├── RunError          a run folder: missing, damaged or of another shape
    │   └── LedgerError       a module whose account cannot be read off it
    ├── PackageError          what another installed package brings is broken; exits with 2
    ├── StorageError          a disk that refuses: full, no permission, too many open files; exits with 1
    ├── MemoryLimitError      the machine has too little memory for what was asked; exits with 1
    └── TrainingError         training itself went wrong (a loss that is no number); exits with 1

A message says where, what was got, what was expected and the next step.
"""

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

MAX_MESSAGE_LENGTH = 8000
"""Characters of the longest message that is printed whole."""


class LemmaError(Exception):
    """The root of all errors that Lemma raises on purpose."""

    exit_status = 1

    def __str__(self) -> str:
        said = super().__str__()  # which may quote a value of any length
        return said if len(said) <= MAX_MESSAGE_LENGTH else f"{said[:1000]} … {said[-1000:]}"


class InputError(LemmaError, ValueError):
    """Something a person gave does not fit."""

    exit_status = 2


class SpecError(InputError):
    """A word, value, preset or spec file does not describe a model, a recipe or a study."""


class DataError(InputError):
    """A text, corpus or tokenizer cannot be used."""


class RunError(InputError):
    """A run folder is missing, damaged or holds something else than asked for."""


class CountingError(InputError):
    """A module cannot be built or run at the sizes asked for, or a quantity of it follows no formula."""


class PackageError(LemmaError):
    """What another installed package brings cannot be used; no ValueError, so that nobody takes it for bad input."""

    exit_status = 2


class StorageError(LemmaError, OSError):
    """The disk, and not what is on it, is the reason why a file cannot be written or read."""


class MemoryLimitError(LemmaError):
    """The machine has too little memory for what was asked."""


class TrainingError(LemmaError):
    """Training went wrong although every input was fine."""


def describe_unknown(kind: str, name: str, choices: Iterable[str], suggestion: str | None = None) -> str:
    """Say that a name is unknown, guess what was meant and list what is known; `meant` is a guess by its meaning.

    >>> unknown("positions", "rotory", ["none", "rotary"])
    "positions = 'rotory' is unknown. Did you mean 'rotary'? Known: none, rotary."
    """
    names = list(choices)
    guess = suggestion if suggestion in names else closest_name(name, names)
    shown = name if len(name) <= 64 else f"{name[:60]}…"
    asked = f" Did you mean '{guess}'?" if guess else ""
    return f"{kind} = '{shown}' is unknown.{asked} Known: {', '.join(names)}."


def closest_name(typed: str, choices: Iterable[str]) -> str | None:
    """The name that a person may have meant: a slip or two away, or the same but for its end. Never merely alike.

    >>> closest("learning_rat", ["learning_rate"]), closest("lstmm", ["lstm"]), closest("heds", ["heads", "seed"])
    ('learning_rate', 'lstm', 'heads')
    >>> closest("gpt", ["gru"]), closest("lr", ["clip"])
    (None, None)
    """
    word = typed.lower()
    if not 1 <= len(word) <= 64:
        return None
    lowered = {name.lower(): name for name in choices}
    for name in get_close_matches(word, lowered, n=3, cutoff=0.5):
        same = sum(block.size for block in SequenceMatcher(None, word, name).get_matching_blocks())
        slips = max(len(word), len(name)) - same
        ends = word[0] == name[0] or word[-3:] == name[-3:]
        if (slips <= max(1, len(word) // 4) and ends) or name.startswith(word) or word.startswith(name):
            return lowered[name]
    return None
