"""Trainings cut to a few steps and one validation, so that every page can be run; nothing else is changed."""

import re
import shlex
from dataclasses import replace

from pages.blocks import Block, commands

STEPS = 4
LEARNING = {"train", "adapt"}
NOT_LEARNING = {"--settings", "--resume", "--from-peft", "--help"}


def is_training(words: list[str]) -> bool:
    """Return True if a command trains a model.

    >>> learns(["lemma", "train", "rnn"]), learns(["lemma", "train", "rnn", "--settings"])
    (True, False)
    """
    return words[1] in LEARNING and not NOT_LEARNING & set(words)


def shorten(words: list[str]) -> list[str]:
    """A training with few steps and one validation.

    >>> shorten(["lemma", "train", "rnn", "steps=900"])
    ['lemma', 'train', 'rnn', 'steps=4', 'evaluate_every=4']
    """
    if not is_training(words):
        return words
    remaining = [word for word in words if not word.startswith(("steps=", "evaluate_every="))]
    return [*remaining, f"steps={STEPS}", f"evaluate_every={STEPS}"]


def shortened(block: Block) -> Block:
    """A block whose trainings are short."""
    if block.kind == "console":
        lines = [f"$ {shlex.join(shorten(words))}\n" for words in commands(block.body)]
        return replace(block, body="".join(lines))
    return replace(block, body=re.sub(r"\bsteps=\d+", f"steps={STEPS}, evaluate_every={STEPS}", block.body))
