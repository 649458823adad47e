"""From the body of a request to what is asked: whatever does not fit is refused with the word that is wrong."""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from pydantic import ValidationError

from lemma.errors import unknown
from lemma.web.asked import AnyAsked
from lemma.web.refusal import Refusal

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
