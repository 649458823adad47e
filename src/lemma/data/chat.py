"""Conversations as text, by a pretrained model's chat template, which is rendered in a child process with limits."""

import atexit
import json
import os
import subprocess
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from lemma.errors import DataError
from lemma.processes import read_message, start_child

SECONDS = 20.0  # wall-clock time of one rendering, with the start of the child; its processor time is limited to less
MAX_REQUEST_BYTES = 64 << 20  # of a conversation as JSON
MAX_RENDERERS = 8  # child processes, one per template; the least recently used one is closed first


class ChatText(str):
    """Text of a conversation that already holds its special tokens, so that a tokenizer adds none."""


class ChatTemplateError(DataError):
    """A chat template that cannot be rendered, whatever the conversation."""


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    special_tokens: Mapping[str, str],
    *,
    add_generation_prompt: bool = True,
    **settings: Any,
) -> ChatText:
    """Return the text of a conversation as the model saw it in training, up to where the assistant answers.

    The template runs in a child process with limits of time and memory. Any thread may call this; it blocks for the
    fraction of a millisecond that rendering takes, so an event loop calls it in a worker thread.

    Args:
        template: Jinja source of the chat template, from the model's tokenizer configuration.
        messages: mappings with a `role` and a `content`.
        special_tokens: variables of the template, such as `bos_token`, and their text.
        add_generation_prompt: whether the text ends with the start of an assistant's message.
        settings: further variables of the template.

    >>> render_chat("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>",
    ...             [{"role": "user", "content": "Hi!"}], {})
    '<user>Hi!<assistant>'
    """
    for message in messages:
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            raise DataError(
                f"the message {message!r} is not one of a conversation: "
                "a role and a content are expected, as in {'role': 'user', 'content': 'Hello'}."
            )
    variables = {"tools": None, "documents": None, **special_tokens, **settings}
    variables |= {"messages": messages, "add_generation_prompt": add_generation_prompt}
    try:
        request = json.dumps({"template": template, "variables": variables}, default=_to_json_value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"the conversation is not plain data that a chat template can read: {error}.") from None
    if len(request) > MAX_REQUEST_BYTES:
        raise DataError(f"the conversation has {len(request):,} bytes; a chat template gets {MAX_REQUEST_BYTES:,}.")
    answer = _get_renderer(template).render(request)
    if answer is None:
        from lemma.data.chat_render import CPU_SECONDS, MAX_MEMORY

        limits = f"{CPU_SECONDS} s of processor time, {MAX_MEMORY >> 20} MiB of memory"
        raise ChatTemplateError(f"the model's chat template was stopped: it passed a limit ({limits}), or crashed.")
    if "refusal" in answer:
        raise DataError(f"the model's chat template cannot write this conversation: {answer['refusal']}.")
    if "error" in answer:
        raise ChatTemplateError(f"the model's chat template cannot be rendered: {answer['error']}.")
    return ChatText(answer["text"])


def _to_json_value(value: Any) -> Any:
    """Convert a mapping or sequence to a dictionary or list for `json.dumps(default=…)`; else raise a TypeError."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"a {type(value).__name__} is neither text, a number, a list nor a dictionary")


class TemplateRenderer:
    """Child process that renders one chat template; it starts at the first call, and again if a limit ended it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None

    def render(self, request: bytes) -> dict[str, Any] | None:
        """Send a request (JSON as bytes) to the child; return its answer, or None if it crashed or passed a limit."""
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                process = self._process = start_child("lemma.data.chat_render", subprocess.DEVNULL)
            timer = threading.Timer(SECONDS, process.kill)
            timer.start()
            answer = None
            try:
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(len(request).to_bytes(8) + request)
                process.stdin.flush()
                answer = read_message(process.stdout)
            except (OSError, ValueError):
                pass  # the child has ended: a limit of the system, or the timer
            finally:
                timer.cancel()
                if answer is None:  # also after Ctrl-C, when the answer to this request may still come
                    self.close()
            return answer

    def close(self) -> None:
        """End the child process, if there is any."""
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._process.communicate()
                self._process = None


_renderers: OrderedDict[str, TemplateRenderer] = OrderedDict()
_renderers_lock = threading.Lock()


def _get_renderer(template: str) -> TemplateRenderer:
    """Return the cached or a new renderer of a template; of more than MAX_RENDERERS close the least recently used."""
    with _renderers_lock:
        renderer = _renderers.setdefault(template, TemplateRenderer())
        _renderers.move_to_end(template)
        unused = _renderers.popitem(last=False)[1] if len(_renderers) > MAX_RENDERERS else None
    if unused is not None:
        unused.close()
    return renderer


def close_renderers() -> None:
    """End all child processes that render chat templates."""
    while _renderers:
        _renderers.popitem()[1].close()


def _forget_after_fork() -> None:
    """Forget the children in a forked process: two processes cannot use the pipes of one child."""
    global _renderers_lock
    _renderers_lock = threading.Lock()
    _renderers.clear()


atexit.register(close_renderers)
os.register_at_fork(after_in_child=_forget_after_fork)
