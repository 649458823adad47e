"""Files that other programs wrote: whatever goes wrong in reading one is an error that names it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from lemma.errors import LemmaError, MemoryLimitError, RunError
from lemma.files import unreadable_error

MAX_REASON_LENGTH = 300  # characters of another library's message that are quoted


@contextmanager
def reading_foreign_file(path: Path | str) -> Iterator[None]:
    """Turn any exception that reading a file raises into a RunError that names the file.

    Readers check what they can explain. This is for the rest: a size of the wrong type, a division by a size of 0, a
    library that rejects a value. The exception is chained, to tell a mistake in a reader from a damaged file.

    >>> with reading_foreign_file("model.gguf"):
    ...     1 // 0
    Traceback (most recent call last):
    lemma.errors.RunError: model.gguf is damaged or of an unknown form (ZeroDivisionError: ...). Download it again.
    """
    try:
        yield
    except LemmaError as error:
        if isinstance(error, OSError) or str(error).startswith(str(path)):
            raise
        raise type(error)(f"{path}: {error}") from error
    except OSError as error:
        raise unreadable_error(Path(path), error) from None
    except Exception as error:
        if isinstance(error, MemoryError) or "not enough memory" in str(error) or "out of memory" in str(error):
            raise MemoryLimitError(f"{path} needs more memory than there is here.") from error
        reason = str(error)[:MAX_REASON_LENGTH] or "no reason"
        raise RunError(
            f"{path} is damaged or of an unknown form ({type(error).__name__}: {reason}). Download it again."
        ) from error


class ForeignFields(BaseModel):
    """Fields of a foreign configuration that Lemma reads, with their types; others are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=False)

    @classmethod
    def read(cls, values: Mapping[str, Any], source: Path | str) -> Self:
        """Validate the fields of a configuration and return them as an instance of this class.

        The first field of a wrong type is a RunError with the file `source` and the field.

        >>> class Options(ForeignFields):
        ...     r: int = 8
        >>> Options.read({"r": "8"}, "adapter_config.json")
        Traceback (most recent call last):
        lemma.errors.RunError: adapter_config.json: r = '8': input should be a valid integer.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            name = ".".join(map(str, first["loc"]))
            value = repr(first["input"])[:MAX_REASON_LENGTH]
            raise RunError(f"{source}: {name} = {value}: {first['msg'][:1].lower()}{first['msg'][1:]}.") from None
