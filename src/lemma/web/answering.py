"""From what was asked to texts, in the run's own thread, told piece by piece."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lemma.web.asked import AnyAsked
from lemma.web.refusal import Refusal
from lemma.web.served import Served
from lemma.web.stopping import Ending

MOST_READ = 32_768  # tokens of a prompt
Tell = Callable[[int, str], bool]
"""Is called with a text's number and its next piece; True means that nobody listens any more."""


@dataclass(frozen=True)
class Answer:
    """How one text ended."""

    reason: str
    tokens: int
    beside: dict[str, Any] = field(default_factory=dict)
    """What is Lemma's own: the loop of a text at temperature 0, a remark, a class's chances."""


@dataclass(frozen=True)
class Question:
    """A request with all that was left open filled in."""

    served: Served
    asked: AnyAsked
    prompts: list[str]
    read: int
    """Tokens of all prompts, each counted once."""
    seed: int


def question(served: Served, asked: AnyAsked) -> Question:
    """Count a request's tokens, and refuse what this run cannot do."""
    prompts = asked.prompts(alone=not served.writes)
    if not served.writes:
        _refuse_chance(served, asked)
    counts = served.count_tokens(prompts)
    if max(counts) > MOST_READ:
        raise Refusal(
            400,
            f"a prompt has {max(counts):,} tokens; at most {MOST_READ:,} are read.",
            None,
            "context_length_exceeded",
        )
    return Question(served, asked, prompts, sum(counts), asked.seed_to_use())


def _refuse_chance(served: Served, asked: AnyAsked) -> None:
    """A translator and a classifier leave nothing to chance: what only chance has a use for is refused."""
    neutral = {"temperature": (None, 0.0), "top_p": (None, 1.0), "top_k": (None,), "n": (None, 1), "stop": (None,)}
    for name, values in neutral.items():
        if getattr(asked, name) not in values:
            raise Refusal(400, f"{name}: {served.name} gives the {served.answers} of a text. Leave it out.", name)


def answer(asking: Question, tell: Tell) -> list[Answer]:
    """Write all texts of a request, telling each piece as it comes."""
    if asking.asked.echo:
        for row in range(len(asking.prompts) * asking.asked.choices):
            tell(row, asking.prompts[row // asking.asked.choices])
    return _write(asking, tell) if asking.served.writes else _answer_sources(asking, tell)


def _write(asking: Question, tell: Tell) -> list[Answer]:
    """Continue each prompt, as often as choices are asked for; text i is row i of one call of `generate`."""
    asked, served = asking.asked, asking.served
    prompts = [prompt for prompt in asking.prompts for _ in range(asked.choices)]
    endings = [Ending(asked.stops) for _ in prompts]

    def on_text(row: int, piece: str) -> bool:
        told = endings[row].add(piece)
        gone = tell(row, told)
        return gone or endings[row].found

    settings = {**asked.sampling(asked.tokens()), "seed": asking.seed}
    written = served.verbs.generate(served.run, prompts, on_text=on_text, **settings)
    for row, ending in enumerate(endings):
        tell(row, ending.rest())
    return [_written(*one) for one in zip(written, endings, strict=True)]


def _written(result: Any, ending: Ending) -> Answer:
    loop = {"loop": {**result.loop.to_dict(), "remark": result.remark}} if result.loop else {}
    return Answer("length" if result.stopped == "length" and not ending.found else "stop", len(result.tokens), loop)


def _answer_sources(asking: Question, tell: Tell) -> list[Answer]:
    served, asked = asking.served, asking.asked
    limit = {"tokens": asked.max_tokens} if served.answers == "translation" and asked.max_tokens else {}
    results = served.verbs.generate(served.run, source=asking.prompts, **limit)
    return [_answered(row, result, tell) for row, result in enumerate(results)]


def _answered(row: int, result: Any, tell: Tell) -> Answer:
    beside = {"remark": result.remark} if result.remark else {}
    if hasattr(result, "chances"):
        tell(row, result.label)
        return Answer("stop", 0, {"chances": result.chances, **beside})
    tell(row, result.text)
    return Answer("stop" if result.finished else "length", len(result.tokens), beside)
