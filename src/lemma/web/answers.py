"""The JSON of answers, whole or in chunks, as OpenAI's clients read it."""

import json
import time
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from lemma.web.answering import Answer, Question


def spell(values: Any) -> bytes:
    """Plain values as JSON in ASCII: nothing in it can be half a character."""
    return json.dumps(values, allow_nan=False).encode("ascii")


class Answers:
    """The form of one request's answers: a completion's or a chat's."""

    def __init__(self, asking: Question) -> None:
        self._asking, self._chat = asking, asking.asked.object == "chat.completion"
        prefix = "chatcmpl" if self._chat else "cmpl"
        plain = {"id": f"{prefix}-{uuid4().hex}", "created": int(time.time()), "model": asking.served.name}
        self._head = {**plain, "seed": asking.seed} if asking.served.writes else plain

    def whole(self, texts: Sequence[str], answers: Sequence[Answer]) -> dict[str, Any]:
        """All texts in one answer."""
        choices = [self._choice(row, text, answers[row]) for row, text in enumerate(texts)]
        return {**self._head, "object": self._asking.asked.object, "choices": choices, "usage": self._usage(answers)}

    def _choice(self, row: int, text: str, answer: Answer) -> dict[str, Any]:
        said = {"message": {"role": "assistant", "content": text, "refusal": None}} if self._chat else {"text": text}
        return {"index": row, **said, "logprobs": None, "finish_reason": answer.reason, **answer.beside}

    def begin(self, rows: int) -> list[bytes]:
        """Of a chat, who speaks."""
        delta = {"role": "assistant", "content": ""}
        return [self._chunk([self._part(row, {"delta": delta})]) for row in range(rows)] if self._chat else []

    def piece(self, row: int, text: str) -> bytes:
        """The next piece of a text."""
        return self._chunk([self._part(row, {"delta": {"content": text}} if self._chat else {"text": text})])

    def end(self, answers: Sequence[Answer]) -> list[bytes]:
        """Why each text ended, and the tokens if they were asked for."""
        said: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
        parts = [self._part(row, said, one.reason) | one.beside for row, one in enumerate(answers)]
        ends = [self._chunk([part]) for part in parts]
        counted = [self._chunk([], self._usage(answers))] if self._asking.asked.tells_usage else []
        return [*ends, *counted, b"data: [DONE]\n\n"]

    def _part(self, row: int, said: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {"index": row, **said, "logprobs": None, "finish_reason": reason}

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        told = {"usage": usage} if self._asking.asked.tells_usage else {}
        return event({**self._head, "object": kind, "choices": choices, **told})

    def _usage(self, answers: Sequence[Answer]) -> dict[str, int]:
        read, written = self._asking.read, sum(answer.tokens for answer in answers)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def event(values: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + spell(values) + b"\n\n"
