"""Requests in the format of OpenAI's API: parsed, checked, and refused with a reason."""

import asyncio
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Self

from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, create_model, model_validator
from pydantic_core import PydanticCustomError
from starlette.requests import ClientDisconnect

from lemma.errors import InputError, LemmaError, describe_unknown

JSON_TYPE = "application/json"
MAX_BYTES = 2**20  # of a request
MAX_NESTING = 16  # objects and lists inside each other
MAX_PROMPTS, MAX_CHOICES, MAX_STOPS, MAX_LOGPROBS = 64, 16, 4, 20
MAX_ROWS = 64  # prompts times choices
MAX_PROMPT_TOKENS = 32_768
DEFAULT_TOKENS, DEFAULT_CHAT_TOKENS = 16, 256  # to generate; 16 is OpenAI's default
SECONDS_FOR_BODY = 30


@dataclass(frozen=True)
class Limits:
    """The limits of one server."""

    tokens: int = 4096  # that a request may generate
    batch: int = 32  # texts that a run generates at once
    waiting: int = 256  # requests of each run that wait for their turn
    seconds: float = 600.0  # duration of a request, its waiting included
    grace: float = 10.0  # seconds for requests under way when the server is stopped

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError(f"{name} = {value!r}: a number is expected.")
            if name in ("tokens", "batch", "waiting") and value < 1:
                raise InputError(f"{name} (--max-{name}) = {value} is less than 1.")
        if not 0 < self.seconds < float("inf") or not 0 <= self.grace < float("inf"):
            raise InputError(f"timeout = {self.seconds:g}, grace = {self.grace:g}: give numbers of seconds.")


class ApiError(HTTPException):
    """A request that is refused: HTTP status and reason, in the format of OpenAI's API."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.status, self.message, self.param, self.code = status, message, param, code

    def to_dict(self) -> dict[str, Any]:
        """Return the body of the response.

        >>> ApiError(404, "unknown model 'b'.", "model", "model_not_found").to_dict()["error"]["type"]
        'invalid_request_error'
        """
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def to_api_error(error: Exception) -> ApiError | None:
    """Return an error with a message for the user as API error; None for an unexpected error."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InputError):
        name = re.split(r"\W", str(error), maxsplit=1)[0]  # messages begin with the setting that is wrong
        is_field = any(name in request.model_fields for request in REQUESTS)
        return ApiError(400, str(error), name if is_field else None)
    return ApiError(500, str(error)) if isinstance(error, LemmaError) else None


Name = Annotated[str, Field(max_length=256)]
Token = Annotated[int, Field(ge=0, lt=2**31)]
Prompts = Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
TokenPrompt = Annotated[list[Token], Field(min_length=1)]
TokenPrompts = Annotated[list[TokenPrompt], Field(min_length=1, max_length=MAX_PROMPTS)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Bias = Annotated[float, Field(ge=-100, le=100)]


def check_api_key(key: str | None) -> None:
    """Raise InputError if an API key is empty, or has characters that a header cannot hold; None is no key."""
    if key is None:
        return
    if not isinstance(key, str) or not key or not key.isascii() or not key.isprintable() or " " in key:
        problem = "it is empty" if isinstance(key, str) and not key.strip() else "this one has others"
        raise InputError(
            f"api_key (LEMMA_API_KEY): a key of ASCII characters without spaces is expected, but {problem}. "
            "To serve without a key, leave it out (unset LEMMA_API_KEY)."
        )


class StrictModel(BaseModel):
    """A JSON object without unknown fields and without conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)

    @classmethod
    def used_fields(cls) -> list[str]:
        """Return the names of the fields that have an effect, without those accepted but ignored."""
        return [name for name, field in cls.model_fields.items() if UNREAD not in field.metadata]


class RequestBody(StrictModel):
    """The body of a request; an unknown field is reported with the names of all."""

    @model_validator(mode="before")
    @classmethod
    def check_names(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields; raise an `ApiError` for an unknown one."""
        if unknown := next((name[:80] for name in fields if name not in cls.model_fields), None):
            raise ApiError(400, describe_unknown("field", unknown, cls.used_fields()), unknown)
        return fields


UNREAD = "accepted without being read"


def _define_unread(base: type[StrictModel], *ignored: str, **noop_values: tuple[Any, ...]) -> type[StrictModel]:
    """Return a model with fields that are accepted without being read.

    Args:
        base: Class that the model extends.
        ignored: Names of fields that may have any value, without effect.
        noop_values: Unsupported fields with their accepted values, which ask for nothing.
    """

    def check(accepted: set[str], value: Any) -> None:
        if json.dumps(value) not in accepted:  # compared as JSON, in which 0 is not false
            raise PydanticCustomError("not_supported", "this is not supported. Leave it out")

    fields: dict[str, Any] = {}
    for name, values in noop_values.items():
        validator = BeforeValidator(partial(check, {json.dumps(value) for value in values}))
        about = {"enum": [*values], "description": "Not supported; accepted where it asks for nothing."}
        fields[name] = (Annotated[None, validator, WithJsonSchema(about), UNREAD], None)
    for name in ignored:
        about = {"description": "Accepted without effect."}
        fields[name] = (Annotated[None, BeforeValidator(lambda _: None), WithJsonSchema(about), UNREAD], None)
    return create_model("UnreadFields", __base__=base, **fields)


UnreadFields = _define_unread(
    RequestBody,
    *("user", "metadata", "store", "service_tier", "safety_identifier"),
    *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
    *("prediction", "reasoning_effort", "verbosity"),  # hints, not promises about the answer
    best_of=(1, None),
    suffix=("", None),
    tools=([], None),
    tool_choice=("none", "auto", None),
    parallel_tool_calls=(True, False, None),
    functions=([], None),
    function_call=("none", "auto", None),
    response_format=({"type": "text"}, None),
    modalities=(["text"], None),
    audio=(None,),
    moderation=(None,),
    web_search_options=(None,),
    dimensions=(None,),
)
UnreadMessageFields = _define_unread(
    StrictModel, "annotations", tool_calls=([], None), function_call=(None,), audio=(None,), refusal=(None,)
)


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)
    include_usage: bool | None = None


class GenerationRequest(UnreadFields):
    """The fields that completions and chats have in common."""

    default_tokens: ClassVar[int]
    token_fields: ClassVar[tuple[str, ...]] = ("max_tokens",)  # those that limit the tokens, the stronger first

    model: Name | None = None
    """The name of a run; may be left out where only one is served."""
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    """Tokens to write at most."""
    temperature: Annotated[float, Field(ge=0, le=1e6)] | None = None
    """0 always takes the most likely token; 1 where neither the request nor the model says otherwise."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    logit_bias: dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Bias] | None = None
    """What is added to the logits of tokens, by their ids."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    """Texts for each prompt."""
    stop: Name | Annotated[list[Name], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    """Of a longer prompt, read only this many tokens at its end; −1: as many as the model's context."""

    def resolve_max_tokens(self, limit: int) -> int:
        """Return the number of tokens to generate; raise an `ApiError` for more than `limit`."""
        for name in self.token_fields:
            requested = getattr(self, name)
            if requested is None:
                continue
            if requested > limit:
                raise ApiError(400, f"{name} = {requested}: this server writes at most {limit} tokens a text.", name)
            return requested
        return min(self.default_tokens, limit)

    @property
    def prompts(self) -> list[str | list[int]]:
        """Prompts to continue, as text or as token ids."""
        raise NotImplementedError

    @property
    def num_choices(self) -> int:
        """Number of texts to generate for each prompt."""
        return self.n or 1

    @property
    def wants_usage(self) -> bool:
        """True if a stream is to end with the numbers of tokens."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling_settings(self) -> dict[str, Any]:
        """Return the set sampling options, under their names in `lemma.generate`."""
        names = ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty")
        settings = {name: getattr(self, name) for name in (*names, "repetition_penalty")}
        settings["logit_bias"] = {int(token): value for token, value in (self.logit_bias or {}).items()} or None
        stops = [self.stop] if isinstance(self.stop, str) else list(self.stop or ())
        if "" in stops:
            raise ApiError(400, "stop = '': an empty stop string would end the text at once. Leave it out.", "stop")
        return {name: value for name, value in settings.items() if value is not None} | {"stop": stops}

    @model_validator(mode="after")
    def check_rows(self) -> Self:
        """Return the request; raise an `ApiError` if it asks for too many texts at once."""
        rows = len(self.prompts) * self.num_choices
        if rows > MAX_ROWS:
            message = f"n times the number of prompts is {rows} texts; at most {MAX_ROWS} are generated at once."
            raise ApiError(400, message, "n")
        return self


class CompletionRequest(GenerationRequest):
    """A request to continue texts."""

    prompt: str | Prompts | TokenPrompt | TokenPrompts | None = None
    """A text or several, or their token ids."""
    echo: bool | None = None
    """Whether the prompt comes before the text; with `logprobs`, its tokens have theirs too."""
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    """The log-probability of each token, and those of this many most likely ones."""
    object: ClassVar = "text_completion"
    default_tokens = DEFAULT_TOKENS

    @property
    def prompts(self) -> list[str | list[int]]:
        """Prompts to continue, as text or as token ids."""
        if isinstance(self.prompt, list) and not isinstance(self.prompt[0], int):
            return list(self.prompt)  # pyright: ignore[reportReturnType]
        return [self.prompt or ""]  # pyright: ignore[reportReturnType]

    @property
    def num_top_logprobs(self) -> int | None:
        """Number of most likely tokens at each position; None without log-probabilities."""
        return self.logprobs


class TextPart(StrictModel):
    """A part of a message; only text can be read."""

    type: Literal["text"]
    text: str


class ChatMessage(UnreadMessageFields):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] | None = None
    """May be left out or null in the assistant's messages only."""
    name: str | None = None

    @property
    def text(self) -> str:
        """Text of the message, its parts joined."""
        content = self.content or ""
        return content if isinstance(content, str) else "".join(part.text for part in content)


class ChatRequest(GenerationRequest):
    """A request to continue a conversation.

    >>> messages = [{"role": "system", "content": "A play."}, {"role": "user", "content": "KING"}]
    >>> ChatRequest(messages=[ChatMessage(**message) for message in messages]).prompts
    ['A play.\\nKING']
    """

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=1024)]
    max_completion_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    object: ClassVar = "chat.completion"
    echo: ClassVar = None
    default_tokens = DEFAULT_CHAT_TOKENS
    token_fields = ("max_completion_tokens", "max_tokens")

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompt for a model without a chat template: all messages, one per line, without roles."""
        return ["\n".join(message.text for message in self.messages)]

    @property
    def num_top_logprobs(self) -> int | None:
        """Number of most likely tokens at each position; None without log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @model_validator(mode="after")
    def check_messages(self) -> Self:
        """Return the request; raise an `ApiError` for top_logprobs without logprobs, or a message without text."""
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, f"top_logprobs = {self.top_logprobs} needs logprobs = true.", "top_logprobs")
        for index, message in enumerate(self.messages):
            if message.content is None and message.role != "assistant":
                reason = f"a message of the role {message.role} needs a text"
                raise ApiError(400, f"messages.{index}.content: {reason}.", "messages")
        return self


class EmbeddingRequest(UnreadFields):
    """A request for the vectors of texts."""

    model: Name | None = None
    input: str | Prompts | TokenPrompt | TokenPrompts
    """A text or several, or their token ids."""
    encoding_format: Literal["float", "base64"] | None = None
    """Numbers, or their bytes as float32, little-endian, in base64."""

    @property
    def inputs(self) -> list[str | list[int]]:
        """Texts to embed, or their token ids."""
        single = isinstance(self.input, str) or isinstance(self.input[0], int)
        return [self.input] if single else list(self.input)  # pyright: ignore[reportReturnType]


AnyRequest = CompletionRequest | ChatRequest
REQUESTS = (CompletionRequest, ChatRequest, EmbeddingRequest)


class JsonRequest(Request):
    """An HTTP request whose body must be JSON of bounded size and depth that arrives in bounded time."""

    async def body(self) -> bytes:
        """Return the body; raise an `ApiError` if it is no JSON, compressed, too large or too slow."""
        content_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != JSON_TYPE:
            raise ApiError(415, "the body must be JSON: send the header 'Content-Type: application/json'.")
        encoding = self.headers.get("content-encoding", "identity").lower()
        if encoding != "identity":
            raise ApiError(415, f"the body is packed ('Content-Encoding: {encoding[:80]}'). Send it as it is.")
        body = bytearray()
        try:
            async with asyncio.timeout(SECONDS_FOR_BODY):
                async for chunk in self.stream():
                    body += chunk
                    if len(body) > MAX_BYTES:
                        raise ApiError(413, f"the request has more than {MAX_BYTES:,} bytes. Send a shorter one.")
        except TimeoutError:
            message = f"the request's body did not come within {SECONDS_FOR_BODY} s."
            raise ApiError(408, message, headers={"connection": "close"}) from None
        except ClientDisconnect:
            raise ApiError(499, "the client has left.") from None
        self.fields = _parse_json(bytes(body))
        return bytes(body)

    async def json(self) -> dict[str, Any]:
        """Return the JSON object that `body` has read."""
        return self.fields


def _parse_json(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body; raise an `ApiError` for other JSON, NaN, infinity or deep nesting."""

    def reject_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a JSON number")

    try:
        fields = json.loads(body, parse_constant=reject_constant)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON ({error}).") from None
    if not isinstance(fields, dict):
        kind = type(fields).__name__
        raise ApiError(400, f'the body is a JSON {kind}; an object is expected, as in {{"prompt": …}}.')
    level: list[Any] = [fields]
    for _ in range(MAX_NESTING):
        children = [child for parent in level for child in (parent.values() if isinstance(parent, dict) else parent)]
        level = [child for child in children if isinstance(child, dict | list)]
        if not level:
            return fields
    raise ApiError(400, f"the body has more than {MAX_NESTING} JSON objects and lists inside each other.")


def to_field_error(error: RequestValidationError) -> ApiError:
    """Return the API error about the first wrong field of a request's query or body.

    For a union of types, it is the error of the type that fits best.
    """
    errors = error.errors()
    same_field = [details for details in errors if details["loc"][1] == errors[0]["loc"][1]]
    details = max(same_field, key=lambda details: (not details["type"].endswith("_type"), len(details["loc"])))
    name, is_missing = str(details["loc"][1]), details["type"] == "missing"
    path: list[str] = []
    value: Any = error.body
    for step in details["loc"][1:]:  # fields and indices; between them are the names of alternatives
        with suppress(KeyError, IndexError, TypeError):
            value = value[step]
            path.append(str(step))
    if is_missing:
        path.append(str(details["loc"][-1]))
    actual = "" if is_missing else f" = {json.dumps(details['input'], default=str)[:80]}"
    reason = details["msg"].replace(" after validation", "")
    return ApiError(400, f"{'.'.join(path) or name}{actual}: {reason[0].lower()}{reason[1:]}.", name)
