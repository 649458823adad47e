"""Child process that renders one chat template: Jinja in a sandbox, as transformers renders it, with limits.

A template is a program that comes with a model. The sandbox keeps it from reaching anything outside, but not from
looping or from building strings of gigabytes, so `lemma.data.chat` runs it here: `python -m lemma.data.chat_render`
reads requests from stdin until stdin closes; the first one holds the template.
"""

import json
import sys
from contextlib import suppress
from datetime import datetime
from typing import IO, Any

from jinja2 import Template, TemplateError, TemplateRuntimeError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lemma.processes import read_message, write_message

CPU_SECONDS = 2  # processor time of one request, with compiling the template; the system counts in whole seconds
MAX_MEMORY = 512 << 20  # bytes of address space of this process
MAX_CHARACTERS = 16 << 20  # of the rendered text


class GenerationBlocks(Extension):
    """`{% generation %}` marks the assistant's tokens for training; its content is rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> nodes.Node:
        """Parse the block at which Jinja's parser stands up to `{% endgeneration %}`; return its content as a node."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class ConversationRefused(TemplateRuntimeError):
    """Call of `raise_exception`: the template works, and refuses this conversation."""


def raise_exception(message: Any) -> None:
    """Raise ConversationRefused with this message; chat templates call it for a conversation they reject."""
    raise ConversationRefused(str(message))


def to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return a value as JSON text, with options of `json.dumps`; the `tojson` filter of chat templates."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def compile_template(source: str) -> Template:
    """Compile a template's Jinja source, with the filters and functions that transformers offers."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlocks, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": lambda format_: datetime.now().strftime(format_),
    }
    return environment.from_string(source)


def render(template: Template, variables: dict[str, Any]) -> str:
    """Render a template with these variables; raise TemplateError if the text exceeds MAX_CHARACTERS."""
    parts: list[str] = []
    length = 0
    for part in template.generate(variables):
        length += len(part)
        if length > MAX_CHARACTERS:
            raise TemplateError(f"its text has more than {MAX_CHARACTERS:,} characters")
        parts.append(part)
    return "".join(parts)


def limit_memory() -> None:
    """Limit the address space of this process to MAX_MEMORY, and disable core files."""
    with suppress(ImportError, ValueError, OSError):  # a system without such limits; the parent still has its timeout
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))


def allow_cpu_time() -> None:
    """Let this process use CPU_SECONDS more of processor time, after which the system ends it."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        usage = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(usage.ru_utime + usage.ru_stime) + CPU_SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))


def serve(stdin: IO[bytes], stdout: IO[bytes]) -> None:
    """Read requests (template and variables) from `stdin` until it closes; write a JSON answer to each.

    The answer holds the rendered `text`, a `refusal` or an `error`. Only the first request's template is compiled.
    """
    limit_memory()
    template: Template | None = None
    while (request := read_message(stdin)) is not None:
        allow_cpu_time()
        try:
            template = template or compile_template(request["template"])
            answer = {"text": render(template, request["variables"])}
        except ConversationRefused as error:
            answer = {"refusal": str(error)[:1000]}
        except MemoryError:
            answer = {"error": f"it needs more than {MAX_MEMORY >> 20} MiB of memory"}
        except RecursionError:
            answer = {"error": "it is nested too deeply"}
        except Exception as error:  # the template is a program: whatever it raises is its author's mistake
            answer = {"error": (str(error) or type(error).__name__)[:1000]}
        write_message(stdout, answer)


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        serve(sys.stdin.buffer, sys.stdout.buffer)
