"""A conversation as text, by a pretrained model's chat template: Jinja in a sandbox, as transformers renders it."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from lemma.errors import DataError


class ChatText(str):
    """A conversation as text. It has all special tokens that it needs: a tokenizer adds none to it."""


def chat_text(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    special_tokens: Mapping[str, str],
    *,
    add_generation_prompt: bool = True,
    **settings: Any,
) -> ChatText:
    """Write messages as the text that a model was trained on; at its end the assistant begins to answer.

    >>> chat_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>",
    ...           [{"role": "user", "content": "Hi!"}], {})
    '<user>Hi!<assistant>'
    """
    from jinja2 import TemplateError

    for message in messages:
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            raise DataError(
                f"the message {message!r} is not one of a conversation: "
                "a role and a content are expected, as in {'role': 'user', 'content': 'Hello'}."
            )
    known = {"tools": None, "documents": None, **special_tokens, **settings}
    try:
        written = _compiled(template).render(messages=messages, add_generation_prompt=add_generation_prompt, **known)
    except (TemplateError, TypeError, ArithmeticError, LookupError, ValueError) as error:
        raise DataError(f"the model's chat template cannot write this conversation: {error}.") from None
    return ChatText(written)


@lru_cache(maxsize=8)
def _compiled(template: str) -> Any:
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class AnswerBlocks(Extension):
        """`{% generation %}` marks the assistant's words for training; what it holds is written as it is."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: Any, indent: int | None = None, **others: Any) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent, **others)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[AnswerBlocks, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals |= {"raise_exception": refuse, "strftime_now": datetime.now().strftime}
    try:
        return environment.from_string(template)
    except TemplateError as error:
        raise DataError(f"the model's chat template is not one of Jinja: {error}.") from None
