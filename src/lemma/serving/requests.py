"""Requests: checked, parsed, refused with a reason."""

import json
import secrets
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lemma.errors import InputError, LemmaError, unknown

# Errors in the form that OpenAI's clients expect, with the status that tells them apart.


class Refusal(Exception):
    """A request that is not answered: the HTTP status, and why."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def to_dict(self) -> dict[str, Any]:
        """The body of the answer.

        >>> Refusal(404, "model = 'b' is unknown.", "model", "model_not_found").to_dict()["error"]["type"]
        'invalid_request_error'
        """
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        told = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": told}


def refusal_of(error: Exception) -> Refusal | None:
    """An error that was raised on purpose, as a refusal; None for any other."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, LemmaError):
        return Refusal(400 if isinstance(error, InputError) else 500, str(error))
    return None


# What a client may ask: the words of OpenAI's requests that a base model can follow.


MOST_TOKENS = 4096  # to write
MOST_PROMPTS, MOST_CHOICES, MOST_STOPS = 64, 16, 4
TOKENS, CHAT_TOKENS = 16, 256  # to write where nothing is said; 16 is OpenAI's own

Count = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
Name = Annotated[str, Field(max_length=256)]


class StreamOptions(BaseModel):
    """What a stream tells beside the text."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)
    include_usage: bool | None = None


class Asked(BaseModel):
    """What both kinds of requests have in common."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: Name | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    stop: Name | Annotated[list[Name], Field(max_length=MOST_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def choices(self) -> int:
        """How many texts for each prompt."""
        return self.n or 1

    @property
    def stops(self) -> list[str]:
        """The strings before which the text ends."""
        stops = [self.stop] if isinstance(self.stop, str) else list(self.stop or ())
        if "" in stops:
            raise Refusal(400, "stop = '': the text would end before it begins. Leave it out.", "stop")
        return stops

    @property
    def tells_usage(self) -> bool:
        """Whether a stream ends with the count of tokens."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def seed_to_use(self) -> int:
        """The seed that was given, or a new one."""
        return secrets.randbelow(2**31) if self.seed is None else self.seed

    def sampling(self, tokens: int) -> dict[str, Any]:
        """The settings of `generate`, OpenAI's where nothing is said: temperature 1, every token."""
        given = {"top_p": self.top_p, "top_k": self.top_k}
        chosen = {name: value for name, value in given.items() if value is not None}
        temperature = 1.0 if self.temperature is None else self.temperature
        return {"tokens": self.max_tokens or tokens, "temperature": temperature, **chosen}


class Completion(Asked):
    """A request to continue texts."""

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=MOST_PROMPTS)] | None = None
    echo: bool | None = None
    object: Literal["text_completion"] = "text_completion"

    def prompts(self, alone: bool) -> list[str]:
        """The texts to continue."""
        return list(self.prompt) if isinstance(self.prompt, list) else [self.prompt or ""]

    def tokens(self) -> int:
        """How many tokens to write where nothing is said."""
        return TOKENS


class Part(BaseModel):
    """A part of a message; only text can be read."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """What somebody said."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part]
    name: str | None = None

    @property
    def text(self) -> str:
        """The words alone."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class Chat(Asked):
    """A request to continue a conversation.

    >>> said = [{"role": "system", "content": "A play."}, {"role": "user", "content": "KING"}]
    >>> Chat(messages=[Message(**one) for one in said]).prompts(alone=False)
    ['A play.\\nKING']
    """

    messages: Annotated[list[Message], Field(min_length=1, max_length=1024)]
    max_completion_tokens: Count | None = None
    object: Literal["chat.completion"] = "chat.completion"
    echo: None = None

    def prompts(self, alone: bool) -> list[str]:
        """All that was said, a message a line, without roles; what answers one text is given the last message alone."""
        said = [message.text for message in self.messages]
        return [said[-1] if alone else "\n".join(said)]

    def tokens(self) -> int:
        """How many tokens to write where `max_tokens` says nothing."""
        return self.max_completion_tokens or CHAT_TOKENS


AnyAsked = Completion | Chat


# From the body of a request to what is asked: whatever does not fit is refused with the word that is wrong.


MOST_BYTES = 2**20  # of a request
MOST_ROWS = 64  # prompts times choices

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0, 0.0, None),
    "frequency_penalty": (0, 0.0, None),
    "logit_bias": ({}, None),
    "logprobs": (False, None),
    "top_logprobs": (0, None),
    "best_of": (1, None),
    "suffix": ("", None),
    "tools": ([], None),
    "tool_choice": ("none", "auto", None),
    "functions": ([], None),
    "response_format": ({"type": "text"}, None),
    "modalities": (["text"], None),
}
"""Words that ask for what is not done here, and the values that ask for nothing."""
WITHOUT_EFFECT = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}


def read_request(body: bytes, kind: type[AnyAsked]) -> AnyAsked:
    """Read a request; whatever does not fit is refused with the word that is wrong."""
    words = _words(body)
    for name in WITHOUT_EFFECT & words.keys():
        del words[name]
    for name in NEUTRAL.keys() & words.keys():
        _refuse_unless_neutral(name, words.pop(name))
    known = [name for name in kind.model_fields if name != "object"]
    for name in words:
        if name not in known:
            raise Refusal(400, unknown("the word", name[:80], known), name[:80])
    try:
        asked = kind.model_validate(words)
    except ValidationError as error:
        _refuse(error)
    _refuse_too_many(asked)
    return asked


def _words(body: bytes) -> dict[str, Any]:
    try:
        words = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is no JSON ({error}).") from None
    if not isinstance(words, Mapping):
        raise Refusal(400, f'the body is a JSON {type(words).__name__}; an object is expected, as in {{"prompt": …}}.')
    return dict(words)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON's")


def _refuse_unless_neutral(name: str, value: Any) -> None:
    got = json.dumps(value)  # as JSON, in which 0 is not false
    if got not in map(json.dumps, NEUTRAL[name]):
        raise Refusal(400, f"{name} = {got[:80]}: this is not done here. Leave it out.", name)


def _refuse(error: ValidationError) -> NoReturn:
    """What does not fit, in words: of several forms a value may have, the last that was tried."""
    wrong = error.errors(include_url=False)[-1]
    name = str(wrong["loc"][0])
    got = f" = {json.dumps(wrong['input'], default=str)[:80]}" if wrong["type"] != "missing" else ""
    hint = " Give a text or a list of texts, no tokens." if name == "prompt" else ""
    why = wrong["msg"].lower().replace(" after validation", "")
    raise Refusal(400, f"{name}{got}: {why}.{hint}", name) from None


def _refuse_too_many(asked: AnyAsked) -> None:
    rows = len(asked.prompts(alone=False)) * asked.choices
    if rows > MOST_ROWS:
        raise Refusal(400, f"n times the prompts are {rows} texts; at most {MOST_ROWS} are written at once.", "n")
