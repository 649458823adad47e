"""What a generation gives: tokens, and their text."""

from dataclasses import asdict, dataclass
from html import escape
from typing import Any, Literal

from lemma.generation.loops import Loop
from lemma.typeset import fit

Stopped = Literal["length", "eos", "loop", "told"]
"""`told`: whoever was reading along had read enough."""


@dataclass(frozen=True)
class Generated:
    """The tokens generated after a prompt, `<eos>` left out, and why they end."""

    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    loop: Loop | None
    stopped: Stopped
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        lists = {"prompt_tokens": list(self.prompt_tokens), "tokens": list(self.tokens)}
        return {**asdict(self), **lists}


@dataclass(frozen=True)
class Generation:
    """The text generated after a prompt."""

    prompt: str
    text: str
    tokens: tuple[int, ...]
    loop: Loop | None
    stopped: Stopped
    tokens_per_second: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "tokens": list(self.tokens)}

    @property
    def remark(self) -> str:
        """One line about the loop; empty if there is none."""
        return f"loop: {self.loop}" if self.loop else ""

    def __str__(self) -> str:
        return f"{self.prompt}{self.text}\n{fit(self.remark)}".rstrip("\n")

    def _repr_html_(self) -> str:
        remark = f"<p><small>{escape(self.remark)}</small></p>" if self.loop else ""
        return f'<pre style="white-space: pre-wrap"><b>{escape(self.prompt)}</b>{escape(self.text)}</pre>{remark}'
