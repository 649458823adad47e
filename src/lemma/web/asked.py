"""What a client may ask: the words of OpenAI's requests that a base model can follow."""

import secrets
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from lemma.web.refusal import Refusal

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
