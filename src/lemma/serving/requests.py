"""Requests as OpenAI's clients send them: read, checked, and refused with a reason."""

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lemma.errors import InputError, LemmaError, unknown

MOST_BYTES = 2**20  # of a request
DEEPEST = 16  # objects and lists inside each other
MOST_PROMPTS, MOST_CHOICES, MOST_STOPS, MOST_LOGPROBS = 64, 16, 4, 20
MOST_ROWS = 64  # prompts times choices
MOST_READ = 32_768  # tokens of a prompt
TOKENS, CHAT_TOKENS = 16, 256  # to generate by default; 16 is OpenAI's own
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1, None),
    "suffix": ("", None),
    "tools": ([], None),
    "tool_choice": ("none", "auto", None),
    "functions": ([], None),
    "response_format": ({"type": "text"}, None),
    "modalities": (["text"], None),
    "dimensions": (None,),
}
"""Fields that ask for what is not supported, and the values that ask for nothing."""
WITHOUT_EFFECT = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}


@dataclass(frozen=True)
class Limits:
    """What one server gives at most."""

    tokens: int = 4096
    """The most tokens that a request may ask for."""
    batch: int = 32
    """The most texts that a run writes at once."""
    waiting: int = 256
    """The most requests that wait for their turn, of each run."""
    seconds: float = 600.0
    """How long a request may take, its waiting included."""
    grace: float = 10.0
    """Seconds for requests under way when the server is stopped."""

    def __post_init__(self) -> None:
        for name in ("tokens", "batch", "waiting"):
            if getattr(self, name) < 1:
                raise InputError(f"max_{name} = {getattr(self, name)} is less than 1.")
        if not 0 < self.seconds < float("inf") or not 0 <= self.grace < float("inf"):
            raise InputError(f"timeout = {self.seconds:g}, grace = {self.grace:g}: give numbers of seconds.")


class Refusal(Exception):
    """A request that is not answered: the HTTP status and the reason, in the form that OpenAI's clients expect."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

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
    if isinstance(error, InputError):
        name = re.split(r"\W", str(error), maxsplit=1)[0]  # messages begin with the setting that is wrong
        fields = CompletionRequest.model_fields | ChatRequest.model_fields | EmbeddingRequest.model_fields
        return Refusal(400, str(error), name if name in fields else None)
    return Refusal(500, str(error)) if isinstance(error, LemmaError) else None


Name = Annotated[str, Field(max_length=256)]
Token = Annotated[int, Field(ge=0, lt=2**31)]
Prompts = Annotated[list[str], Field(min_length=1, max_length=MOST_PROMPTS)]
TokenPrompt = Annotated[list[Token], Field(min_length=1)]
TokenPrompts = Annotated[list[TokenPrompt], Field(min_length=1, max_length=MOST_PROMPTS)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Bias = Annotated[float, Field(ge=-100, le=100)]


class Strict(BaseModel):
    """A JSON object without unknown fields and without conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


class StreamOptions(BaseModel):
    """What a stream holds besides the text."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)
    include_usage: bool | None = None


class GenerationRequest(Strict):
    """What both kinds of requests have in common."""

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
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    """Texts for each prompt."""
    stop: Name | Annotated[list[Name], Field(max_length=MOST_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    """Of a longer prompt, read only this many tokens at its end; −1: as many as the model's context."""

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

    def sampling(self) -> dict[str, Any]:
        """The settings of `generate` that were given."""
        names = ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty")
        given = {name: getattr(self, name) for name in (*names, "repetition_penalty")}
        given["logit_bias"] = {int(token): value for token, value in (self.logit_bias or {}).items()} or None
        return {name: value for name, value in given.items() if value is not None} | {"stop": self.stops}


class CompletionRequest(GenerationRequest):
    """A request to continue texts."""

    prompt: str | Prompts | TokenPrompt | TokenPrompts | None = None
    """A text or several, or their token ids."""
    echo: bool | None = None
    """Whether the prompt comes before the text; with `logprobs`, its tokens have theirs too."""
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    """The log-probability of each token, and those of this many most likely ones."""
    object: Literal["text_completion"] = "text_completion"

    @property
    def prompts(self) -> list[str | list[int]]:
        """The texts to continue, or their ids."""
        if isinstance(self.prompt, list) and not isinstance(self.prompt[0], int):
            return list(self.prompt)  # pyright: ignore[reportReturnType]
        return [self.prompt or ""]  # pyright: ignore[reportReturnType]

    @property
    def tokens(self) -> int:
        """The number of tokens to generate."""
        return TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def top(self) -> int | None:
        """How many most likely tokens are wanted at each place; None without log-probabilities."""
        return self.logprobs


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
    >>> ChatRequest(messages=[ChatMessage(**message) for message in messages]).prompts
    ['A play.\\nKING']
    """

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=1024)]
    max_completion_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    object: Literal["chat.completion"] = "chat.completion"
    echo: None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """All messages, one per line, without roles: what a model without a chat template reads."""
        return ["\n".join(message.text for message in self.messages)]

    @property
    def tokens(self) -> int:
        """The number of tokens to generate."""
        given = (self.max_completion_tokens, self.max_tokens, CHAT_TOKENS)
        return next(value for value in given if value is not None)

    @property
    def top(self) -> int | None:
        """How many most likely tokens are wanted at each place; None without log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


class EmbeddingRequest(Strict):
    """A request for the vectors of texts."""

    model: Name | None = None
    input: str | Prompts | TokenPrompt | TokenPrompts
    """A text or several, or their token ids."""
    encoding_format: Literal["float", "base64"] | None = None
    """Numbers, or their bytes as float32, little-endian, in base64."""
    object: Literal["list"] = "list"

    @property
    def inputs(self) -> list[str | list[int]]:
        """The texts, or their ids."""
        single = isinstance(self.input, str) or isinstance(self.input[0], int)
        return [self.input] if single else list(self.input)  # pyright: ignore[reportReturnType]


AnyRequest = CompletionRequest | ChatRequest
Kind = TypeVar("Kind", CompletionRequest, ChatRequest, EmbeddingRequest)


def read_request(body: bytes, kind: type[Kind]) -> Kind:
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
    level, depth = [fields], 0
    while level:
        depth += 1
        if depth > DEEPEST:
            raise Refusal(400, f"the body has more than {DEEPEST} JSON objects and lists inside each other.")
        inside = [value for one in level for value in (one.values() if isinstance(one, Mapping) else one)]
        level = [value for value in inside if isinstance(value, dict | list)]
    known, read = [name for name in kind.model_fields if name != "object"], {}
    for name, value in fields.items():
        if name in NEUTRAL and name not in known:
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
        wrong = _most_fitting(error)
        name, value, places = str(wrong["loc"][0]), read, []
        for step in wrong["loc"]:  # through fields and lists; then come the kinds that were tried
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                places += [str(step)] if wrong["type"] == "missing" else []
                break
            places.append(str(step))
        got = f" = {json.dumps(wrong['input'], default=str)[:80]}" if wrong["type"] != "missing" else ""
        why = wrong["msg"].lower().replace(" after validation", "")
        raise Refusal(400, f"{'.'.join(places) or name}{got}: {why}.", name) from None
    if isinstance(request, ChatRequest) and request.top_logprobs and not request.logprobs:
        raise Refusal(400, f"top_logprobs = {request.top_logprobs} needs logprobs = true.", "top_logprobs")
    if not isinstance(request, EmbeddingRequest):
        rows = len(request.prompts) * request.choices
        if rows > MOST_ROWS:
            message = f"n times the number of prompts is {rows} texts; at most {MOST_ROWS} are generated at once."
            raise Refusal(400, message, "n")
    return request


def _most_fitting(error: ValidationError) -> Any:
    """Of several forms that a value may have, the error of the one that it comes nearest to."""
    errors = error.errors(include_url=False)
    first = [one for one in errors if one["loc"][0] == errors[0]["loc"][0]]
    return max(first, key=lambda one: (not one["type"].endswith("_type"), len(one["loc"])))
