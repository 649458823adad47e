"""Requests as OpenAI's clients send them: read, checked, and refused with a reason."""

import json
import secrets
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lemma.errors import InputError, LemmaError, unknown

MOST_BYTES = 2**20  # of a request
MOST_TOKENS = 4096  # to generate
MOST_PROMPTS, MOST_CHOICES, MOST_STOPS = 64, 16, 4
MOST_ROWS = 64  # prompts times choices
TOKENS, CHAT_TOKENS = 16, 256  # to generate by default; 16 is OpenAI's own
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
"""Fields that ask for what is not supported, and the values that ask for nothing."""
WITHOUT_EFFECT = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}


class Refusal(Exception):
    """A request that is not answered: the HTTP status and the reason, in the form that OpenAI's clients expect."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def to_dict(self) -> dict[str, Any]:
        """The body of the response.

        >>> Refusal(404, "model = 'b' is unknown.", "model", "model_not_found").to_dict()["error"]["type"]
        'invalid_request_error'
        """
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def refusal_of(error: Exception) -> Refusal | None:
    """An error that was raised on purpose, as a refusal; None for any other."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, LemmaError):
        return Refusal(400 if isinstance(error, InputError) else 500, str(error))
    return None


Count = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
Name = Annotated[str, Field(max_length=256)]


class Strict(BaseModel):
    """A JSON object without unknown fields and without conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class StreamOptions(BaseModel):
    """What a stream holds besides the text."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)
    include_usage: bool | None = None


class GenerationRequest(Strict):
    """What both kinds of requests have in common."""

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
        """The number of texts per prompt."""
        return self.n or 1

    @property
    def stops(self) -> list[str]:
        """The strings before which the text ends."""
        stops = [self.stop] if isinstance(self.stop, str) else list(self.stop or ())
        if "" in stops:
            raise Refusal(400, "stop = '': an empty stop string would end the text at once. Leave it out.", "stop")
        return stops

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the count of tokens."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def seed_to_use(self) -> int:
        """The seed that was given, or a new one."""
        return secrets.randbelow(2**31) if self.seed is None else self.seed

    def sampling(self, tokens: int) -> dict[str, Any]:
        """The settings of `generate`, with OpenAI's defaults: temperature 1, every token."""
        given = {"top_p": self.top_p, "top_k": self.top_k}
        chosen = {name: value for name, value in given.items() if value is not None}
        temperature = 1.0 if self.temperature is None else self.temperature
        return {"tokens": self.max_tokens or tokens, "temperature": temperature, **chosen}


class CompletionRequest(GenerationRequest):
    """A request to continue texts."""

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=MOST_PROMPTS)] | None = None
    echo: bool | None = None
    object: Literal["text_completion"] = "text_completion"

    def prompts(self, alone: bool) -> list[str]:
        """The texts to continue."""
        return list(self.prompt) if isinstance(self.prompt, list) else [self.prompt or ""]

    def tokens(self) -> int:
        """The number of tokens to generate by default."""
        return TOKENS


class TextPart(Strict):
    """A part of a message; only text can be read."""

    type: Literal["text"]
    text: str


class ChatMessage(Strict):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None

    @property
    def text(self) -> str:
        """The text alone."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(GenerationRequest):
    """A request to continue a conversation.

    >>> messages = [{"role": "system", "content": "A play."}, {"role": "user", "content": "KING"}]
    >>> ChatRequest(messages=[ChatMessage(**message) for message in messages]).prompts(alone=False)
    ['A play.\\nKING']
    """

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=1024)]
    max_completion_tokens: Count | None = None
    object: Literal["chat.completion"] = "chat.completion"
    echo: None = None

    def prompts(self, alone: bool) -> list[str]:
        """All messages, one per line, without roles; a run that answers a single text is given the last one alone."""
        texts = [message.text for message in self.messages]
        return [texts[-1] if alone else "\n".join(texts)]

    def tokens(self) -> int:
        """The number of tokens to generate without `max_tokens`."""
        return self.max_completion_tokens or CHAT_TOKENS


AnyRequest = CompletionRequest | ChatRequest


def read_request(body: bytes, kind: type[AnyRequest]) -> AnyRequest:
    """Read a request; whatever does not fit is refused with the field that is wrong."""

    def not_json(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a JSON number")

    try:
        fields = json.loads(body, parse_constant=not_json)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not valid JSON ({error}).") from None
    if not isinstance(fields, Mapping):
        kind_of_body = type(fields).__name__
        raise Refusal(400, f'the body is a JSON {kind_of_body}; an object is expected, as in {{"prompt": …}}.')
    known, read = [name for name in kind.model_fields if name != "object"], {}
    for name, value in fields.items():
        if name in NEUTRAL:
            got = json.dumps(value)  # as JSON, in which 0 is not false
            if got not in map(json.dumps, NEUTRAL[name]):
                raise Refusal(400, f"{name} = {got[:80]}: this is not supported. Leave it out.", name)
        elif name in known:
            read[name] = value
        elif name not in WITHOUT_EFFECT:
            raise Refusal(400, unknown("the field", name[:80], known), name[:80])
    try:
        request = kind.model_validate(read)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[-1]  # of several forms that a value may have, the last that was tried
        name = str(wrong["loc"][0])
        got = f" = {json.dumps(wrong['input'], default=str)[:80]}" if wrong["type"] != "missing" else ""
        hint = " Give a text or a list of texts, not tokens." if name == "prompt" else ""
        why = wrong["msg"].lower().replace(" after validation", "")
        raise Refusal(400, f"{name}{got}: {why}.{hint}", name) from None
    rows = len(request.prompts(alone=False)) * request.choices
    if rows > MOST_ROWS:
        raise Refusal(
            400, f"n times the number of prompts is {rows} texts; at most {MOST_ROWS} are generated at once.", "n"
        )
    return request
