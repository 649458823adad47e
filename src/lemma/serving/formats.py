"""Answers as JSON in the format of OpenAI's API: one response, or a stream of events."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fastapi import Response

from lemma.generation.sampling import INCOMPLETE, TokenLogprob
from lemma.serving.requests import JSON_TYPE, ApiError

if TYPE_CHECKING:
    from lemma.serving.jobs import GenerationJob

MAX_PARTIAL_TOKENS = 8  # tokens of an incomplete character that are decoded again
PieceLogprobs = Sequence[TokenLogprob | None]


@dataclass(frozen=True)
class TextPiece:
    """The next piece of a text, with the log-probabilities of its tokens if they were requested."""

    row: int
    text: str
    logprobs: PieceLogprobs = ()


@dataclass(frozen=True)
class FinishedText:
    """The end of a text; `extra` holds Lemma's own fields: its loop, a remark, probabilities of classes."""

    row: int
    reason: str
    tokens: int
    extra: dict[str, Any] = field(default_factory=dict)


AnswerItems = Sequence[TextPiece | FinishedText]


def json_bytes(values: Any) -> bytes:
    """Return a JSON value as bytes of ASCII, which cannot be cut inside a character."""
    return json.dumps(values, allow_nan=False).encode("ascii")


def event_bytes(values: Any) -> bytes:
    """Return one server-sent event whose data are a value as JSON."""
    return b"data: " + json_bytes(values) + b"\n\n"


def json_response(values: Any, status: int = 200, headers: Any = None) -> Response:
    """Return an HTTP response with a value as JSON."""
    return Response(json_bytes(values), status, headers, JSON_TYPE)


def error_response(error: ApiError) -> Response:
    """Return an HTTP response with the status and the JSON of an error."""
    return json_response(error.to_dict(), error.status, error.headers)


class CompletionFormat:
    """Formatter of the texts of one request as OpenAI's JSON, in one response or in a stream of chunks."""

    def __init__(self, job: "GenerationJob") -> None:
        self._job, self._is_chat = job, job.request.object == "chat.completion"
        prefix = "chatcmpl" if self._is_chat else "cmpl"
        self._head = {"id": f"{prefix}-{uuid4().hex}", "created": int(time.time()), "model": job.served.name}
        if job.served.generates_text:
            self._head["seed"] = job.seed
        if job.num_cut_tokens:
            self._head["prompt_tokens_cut"] = job.num_cut_tokens
        self._offsets = [TokenOffsets(job, row) for row in range(job.rows)]

    def full_response(self, items: AnswerItems) -> dict[str, Any]:
        """Return the response body of a request that is not streamed, from all pieces and ends of its texts."""
        choices: list[dict[str, Any]] = []
        for row in range(self._job.rows):
            pieces = [item for item in items if item.row == row and isinstance(item, TextPiece)]
            [end] = [item for item in items if item.row == row and isinstance(item, FinishedText)]
            text, logprobs = "".join(piece.text for piece in pieces), [piece.logprobs for piece in pieces]
            message = {"message": {"role": "assistant", "content": text, "refusal": None}}
            content = message if self._is_chat else {"text": text}
            choices.append(self._choice(row, content, logprobs, end.reason) | end.extra)
        ends = [item for item in items if isinstance(item, FinishedText)]
        return {**self._head, "object": self._job.request.object, "choices": choices, "usage": self._usage(ends)}

    def start_events(self) -> bytes:
        """Return the first events of a stream: for a chat the role of each text's author, otherwise none."""
        delta = {"delta": {"role": "assistant", "content": ""}}
        rows = range(self._job.rows if self._is_chat else 0)
        return b"".join(self._chunk([self._choice(row, delta)]) for row in rows)

    def events(self, items: AnswerItems) -> bytes:
        """Return a server-sent event for each item: the next piece of a text, or its end with the reason."""
        choices: list[dict[str, Any]] = []
        for item in items:
            if isinstance(item, FinishedText):
                content = {"delta": {}} if self._is_chat else {"text": ""}
                choices.append(self._choice(item.row, content, (), item.reason) | item.extra)
            else:
                content = {"delta": {"content": item.text}} if self._is_chat else {"text": item.text}
                choices.append(self._choice(item.row, content, [item.logprobs] if item.logprobs else ()))
        return b"".join(self._chunk([choice]) for choice in choices)

    def end_events(self, ends: Sequence[FinishedText]) -> bytes:
        """Return the last events of a stream: token counts, if the client asked for them, and [DONE]."""
        usage = self._chunk([], self._usage(ends)) if self._job.request.wants_usage else b""
        return usage + b"data: [DONE]\n\n"

    def _choice(
        self, row: int, content: dict[str, Any], pieces: Sequence[PieceLogprobs] = (), reason: str | None = None
    ) -> dict[str, Any]:
        """Return the entry of text `row` in the field `choices`, with `content` as its text or message."""
        logprobs = None
        if self._job.request.num_top_logprobs is not None and (pieces or reason):
            logprobs = self._chat_logprobs(pieces) if self._is_chat else self._logprobs(row, pieces)
        return {"index": row, **content, "logprobs": logprobs, "finish_reason": reason}

    def _chat_logprobs(self, pieces: Sequence[PieceLogprobs]) -> dict[str, Any]:
        """Return the field `logprobs` of the chat API: log-probabilities of the tokens in `pieces`."""

        def format_token(token: TokenLogprob) -> dict[str, Any]:
            is_complete = INCOMPLETE not in token.text
            values = {"token": token.text, "logprob": token.logprob}
            return values | {"bytes": list(token.text.encode()) if is_complete else None}

        tokens = [token for piece in pieces for token in piece if token is not None]
        content = [format_token(token) | {"top_logprobs": list(map(format_token, token.top))} for token in tokens]
        return {"content": content, "refusal": None}

    def _logprobs(self, row: int, pieces: Sequence[PieceLogprobs]) -> dict[str, Any]:
        """Return the field `logprobs` of the completions API for text `row`; the first token of a prompt has none."""
        columns: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        offsets = self._offsets[row]
        for piece in pieces:
            for entry in piece:
                top: dict[str, float] | None = None
                if entry is None:
                    (token, text), logprob = self._job.first_token(row), None
                else:
                    token, text, logprob, top = entry.token, entry.text, entry.logprob, {}
                    for other in (*entry.top, entry):
                        top.setdefault(other.text, other.logprob)  # of tokens with one text, the more likely
                columns["tokens"].append(text)
                columns["token_logprobs"].append(logprob)
                columns["top_logprobs"].append(top)
                columns["text_offset"].append(offsets.add(token, text))
            if piece and piece[0] is None:
                offsets.end_prompt()
        return columns

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        """Return the server-sent event of a stream with these choices."""
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        usage_field = {"usage": usage} if self._job.request.wants_usage else {}
        return event_bytes({**self._head, "object": kind, "choices": choices, **usage_field})

    def _usage(self, ends: Sequence[FinishedText]) -> dict[str, int]:
        """Return the field `usage`: the numbers of prompt and generated tokens of all finished texts, `ends`."""
        num_read, num_generated = self._job.prompt_tokens, sum(end.tokens for end in ends)
        return {
            "prompt_tokens": num_read,
            "completion_tokens": num_generated,
            "total_tokens": num_read + num_generated,
        }


class TokenOffsets:
    """Counter of the offset of each token in the characters of a text; several tokens may form one character.

    Attributes:
        offset: where the next token begins, if it is not part of a character.
        partial: tokens of a character that is not complete yet.
    """

    def __init__(self, job: "GenerationJob", row: int) -> None:
        self._job, self._prompt_length = job, len(job.prompts[row // job.request.num_choices])
        self.offset = 0 if job.request.echo else self._prompt_length
        self.partial: list[int] = []

    def add(self, token: int, text: str) -> int:
        """Return the character offset of the next token, with text `text`; for a part of a character, that of it."""
        decoded = ""
        if self.partial:
            decoded = self._job.decode_partial(self.partial, self.offset == self._prompt_length)
        if len(self.partial) > MAX_PARTIAL_TOKENS:  # bytes that are no characters: only the last may become one
            self.partial = self.partial[-4:]
            tail = self._job.decode_partial(self.partial, False)
            self.offset, decoded = self.offset + len(decoded) - len(tail), tail
        if INCOMPLETE in text:
            self.partial.append(token)
            return self.offset + max(len(decoded.rstrip(INCOMPLETE)), len(decoded) - 3)
        self.partial.clear()
        start = self.offset + len(decoded)
        self.offset = start + len(text)
        return start

    def end_prompt(self) -> None:
        """Set the next offset to the length of the echoed prompt, after which the generated text starts."""
        self.offset, self.partial = self._prompt_length, []
