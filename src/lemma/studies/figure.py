"""The one figure that a score is told by where methods are compared."""

from dataclasses import dataclass

from lemma.evaluation import ClassificationScore, TranslationScore
from lemma.studies.judged import AnyScore

NONE = "–"


@dataclass(frozen=True)
class Figure:
    """A figure with its interval, if it has one, and whether more of it is better."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    more_is_better: bool = True
    guessed: float | None = None
    """What always naming the commonest class gives."""

    @property
    def guess(self) -> str:
        """What guessing gives, as a person reads it."""
        return NONE if self.guessed is None else f"{self.guessed:.3f}"

    @property
    def guesses(self) -> bool:
        """Whether it cannot be told from guessing."""
        return self.guessed is not None and (self.value if self.low is None else self.low) <= self.guessed

    @property
    def goodness(self) -> float:
        """The figure, turned so that more is better."""
        return self.value if self.more_is_better else -self.value

    @property
    def shown(self) -> str:
        """The figure as a person reads it."""
        return f"{self.value:.3f}" if self.value <= 1 else f"{self.value:,.2f}"

    @property
    def interval(self) -> str:
        """Its interval, or a dash."""
        if self.low is None or self.high is None:
            return NONE
        places = 3 if self.value <= 1 else 1
        return f"{self.low:.{places}f}–{self.high:.{places}f}"

    def reaches(self, best: "Figure") -> bool:
        """Whether it may be as good as another: the intervals overlap, or without any it is within two per cent."""
        if self.low is None or self.high is None or best.low is None or best.high is None:
            return self.goodness >= best.goodness - 0.02 * abs(best.value)
        return self.high >= best.low if self.more_is_better else self.low <= best.high


def figure_of(score: AnyScore) -> Figure:
    """Accuracy of classes, BLEU of translations, perplexity of all else."""
    match score:
        case ClassificationScore():
            accuracy, (_, commonest) = score.accuracy, score.majority
            return Figure("accuracy", accuracy.value, accuracy.low, accuracy.high, guessed=commonest)
        case TranslationScore():
            return Figure("BLEU", score.bleu.value, score.bleu.low, score.bleu.high)
    return Figure("perplexity", float(score.perplexity), more_is_better=False)  # pyright: ignore[reportAttributeAccessIssue]
