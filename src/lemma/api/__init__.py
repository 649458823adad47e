"""The verbs, a few lines each. Rooms are imported when a verb is used, so that help and lists need no torch."""

from lemma.api.asking import evaluate, generate, search
from lemma.api.comparing import corpora, study
from lemma.api.learning import adapt, resume, train
from lemma.api.mathematics import against, check, count, describe_cell, describe_worked, draw, solve
from lemma.api.seeing import look
from lemma.api.serving import application, serve
from lemma.api.shared import load
from lemma.spec import choose

__all__ = [
    "adapt",
    "against",
    "application",
    "check",
    "choose",
    "corpora",
    "count",
    "describe_cell",
    "describe_worked",
    "draw",
    "evaluate",
    "generate",
    "load",
    "look",
    "resume",
    "search",
    "serve",
    "solve",
    "study",
    "train",
]
