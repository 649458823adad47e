"""Training: one loop, exact resume, any number of processes, and warnings that save a day."""

from lemma.training.feed import stretch_of
from lemma.training.heap import steady_heap
from lemma.training.loop import resume, take_step, train
from lemma.training.parallel import Team
from lemma.training.progress import Bar, Lines, Observer, Silent, observer, watched_reading
from lemma.training.result import TrainingResult
from lemma.training.session import Session

__all__ = [
    "Bar",
    "Lines",
    "Observer",
    "Session",
    "Silent",
    "Team",
    "TrainingResult",
    "observer",
    "resume",
    "steady_heap",
    "stretch_of",
    "take_step",
    "train",
    "watched_reading",
]
