"""What a study of pretraining came to, shown: the gain at each number of labels, the table, the curves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lemma.ledger.lines import Curve, Plot
from lemma.spec import PretrainingStudy
from lemma.studies.classifiers_shown import caption_of, curve_of
from lemma.studies.label_claims import points
from lemma.studies.label_outcome import LabelOutcome, LabelRow, gather, over_texts, paired, percent
from lemma.studies.label_result import LabelResult, LabelTable
from lemma.studies.pretraining_base import Base
from lemma.studies.statistics import Estimate
from lemma.studies.table import NONE

SCRATCH, PRETRAINED = ARMS = ("scratch", "pretrained")
SHOWN = ("batch", "learning_rate", "weight_decay", "dropout", "keep")
FIGURES = {"accuracy": "accuracy", "f1": "F1"}
PROTOCOL = {
    "arms": "the same body, tokenizer (that of pretraining), labels, recipe and steps for both; only the first weights "
    "of the body differ",
    "pretraining": "no text of validation or test is among the texts without labels, nor any that shares ten words in "
    "a row with one",
    "labels": "fewer labels are always among more; validation and test texts are the same at every number",
    "scores": "on the test texts; F1 is the mean over the classes",
    "intervals": "mean ± half the 95 % interval over the seeds (Student's t): what training anew changes, on these "
    "test texts; gains are taken seed by seed, since a seed fixes the batches of both arms alike",
}


@dataclass(frozen=True)
class Gain:
    """What pretraining brought at one number of labels."""

    labels: int
    scratch: LabelRow
    pretrained: LabelRow

    def of(self, name: str) -> Estimate | None:
        """The gain in some score, seed by seed."""
        return paired(self.pretrained, self.scratch, name)

    @property
    def verdict(self) -> str:
        """Whether the gain in accuracy is beyond the noise of the seeds."""
        return beyond(self.of("accuracy"))

    def __str__(self) -> str:
        found = self.of("accuracy")
        said = "nothing yet" if found is None else points(found)
        return f"{said} at {self.labels:,} labels ({self.verdict})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        plain: dict[str, Any] = {"labels": self.labels}
        for name in FIGURES:
            for arm, row in ((SCRATCH, self.scratch), (PRETRAINED, self.pretrained)):
                found = row.estimate(name)
                plain |= {f"{arm}_{name}": found and found.mean, f"{arm}_{name}_margin": found and found.margin}
            gap = self.of(name)
            plain |= {f"{name}_gain": gap and gap.mean, f"{name}_gain_margin": gap and gap.margin}
        texts = over_texts(self.pretrained, self.scratch)
        plain["accuracy_gain_margin_over_texts"] = texts and texts.margin
        seeds = {f"{row.contender}_seeds": len(row.measured) for row in (self.scratch, self.pretrained)}
        return {**plain, **seeds, "verdict": self.verdict}


def beyond(gap: Estimate | None) -> str:
    """Say what an interval says of a gain.

    >>> [beyond(Estimate(mean, 0.02, 3)) for mean in (0.05, 0.01, -0.05)]
    ['beyond the noise', 'within the noise', 'a loss, beyond the noise']
    """
    if gap is None:
        return "no seed has both arms"
    if gap.margin is None:
        return "one seed, so that the noise is unknown"
    if gap.low <= 0 <= gap.high:
        return "within the noise"
    return "beyond the noise" if gap.low > 0 else "a loss, beyond the noise"


def show_pretraining(
    spec: PretrainingStudy,
    outcomes: tuple[LabelOutcome, ...],
    bases: Sequence[Base],
    data: Mapping[str, str],
    hardware: Mapping[str, str],
    out: Path,
    interrupted: bool,
) -> LabelResult:
    """Put the findings together."""
    rows = gather(outcomes)
    gains = gains_of(rows)
    return LabelResult(
        spec=spec,
        data={**data, "seeds": ", ".join(map(str, spec.seeds)), "pretraining": "; ".join(map(base_in_words, bases))},
        hardware=hardware,
        protocol={**PROTOCOL, **how(spec), "classifiers": recipes_in_words(rows)},
        table=make_table(gains),
        conclusion=conclude(gains),
        plots=tuple(plots_of(gains)),
        runs=outcomes,
        out=out,
        interrupted=interrupted,
        more={"gains": [gain.to_dict() for gain in gains], "pretraining": [summary_of(base) for base in bases]},
    )


def gains_of(rows: Sequence[LabelRow]) -> list[Gain]:
    """The two arms at each number of labels, fewest first."""
    by_place = {(row.contender, row.point["labels"]): row for row in rows}
    counts = sorted({row.point["labels"] for row in rows})
    return [Gain(count, *(by_place[arm, count] for arm in ARMS)) for count in counts]


def conclude(gains: Sequence[Gain]) -> tuple[str, ...]:
    """One sentence that states the gain at each number of labels, and whether it is beyond the noise."""
    if not any(gain.of("accuracy") for gain in gains):
        return ("No number of labels has both arms yet, so that there is no gain to state.",)
    return (f"Pretraining without labels changes accuracy by {'; '.join(map(str, gains))}.",)


def make_table(gains: Sequence[Gain]) -> LabelTable:
    """One row a number of labels."""
    header = ["labels", *(f"{name} %: {part}" for name in FIGURES.values() for part in (*ARMS, "gain"))]
    rows = [row for gain in gains for row in (gain.scratch, gain.pretrained)]
    notes = tuple(f"{row.title}, {note}" for row in rows for note in row.missing)
    cells = tuple(_cells(gain) for gain in gains)
    return LabelTable(
        tuple(header), cells, tuple(gain.to_dict() for gain in gains), caption_of(rows, "F1 is the mean"), notes
    )


def _cells(gain: Gain) -> tuple[str, ...]:
    cells = [f"{gain.labels:,}"]
    for name in FIGURES:
        gap = gain.of(name)
        scores = [percent(row.estimate(name)) for row in (gain.scratch, gain.pretrained)]
        cells += [*scores, NONE if gap is None else points(gap).removesuffix(" points")]
    return tuple(cells)


def how(spec: PretrainingStudy) -> dict[str, str]:
    """What depends on the study's words."""
    noise = "one base a seed" if spec.base_a_seed else "one base for all seeds, so that its own noise is not counted"
    words = {"full": "every weight learns", "frozen": "only the head learns"}
    means = words.get(spec.method.kind, "the body is frozen but for what the method adds")
    return {
        "method": f"{spec.method.kind}: in the pretrained arm {means}; from scratch every weight learns",
        "bases": noise,
    }


def recipes_in_words(rows: Sequence[LabelRow]) -> str:
    """The recipe that both arms share, and the steps at each number of labels."""
    found = {row.point["labels"]: one for row in rows for one in list(row.measured.values())[:1]}
    steps = ", ".join(f"{one.steps:,} at {count:,} labels" for count, one in sorted(found.items()))
    words = [(word, one.recipe[word]) for one in list(found.values())[:1] for word in SHOWN]
    said = ", ".join(f"{word.replace('_', ' ')} {value}" for word, value in words)
    return f"{said}; steps: {steps}" if steps else "none yet"


def summary_of(base: Base) -> dict[str, Any] | None:
    """What pretraining came to; None if it is not finished."""
    found = base.folder().summary() if base.finished else None
    names = ("steps", "tokens", "seconds", "parameters", "best_loss", "best_perplexity")
    return found and {"seed": base.seed, **{name: found.get(name) for name in names}}


def base_in_words(base: Base) -> str:
    """The pretrained body, in words."""
    found = summary_of(base)
    if found is None:
        return f"seed {base.seed} is not finished"
    score = "" if found["best_perplexity"] is None else f", validation perplexity {found['best_perplexity']:,.2f}"
    size = f"{base.model.family}, {found['parameters']:,} parameters"
    return f"{size}, {found['steps']:,} steps, {found['tokens']:,} tokens, {found['seconds']:,.0f} s{score}"


def plots_of(gains: Sequence[Gain]) -> list[Plot]:
    """Each score against the number of labels, both arms with their intervals."""
    plots = [_plot(gains, name, title) for name, title in FIGURES.items()]
    return [plot for plot in plots if plot]


def _plot(gains: Sequence[Gain], name: str, title: str) -> Plot | None:
    curves = [_curve(arm, [getattr(gain, arm) for gain in gains], name) for arm in ARMS]
    drawn = tuple(curve for curve in curves if curve)
    named = f"{title[0].upper()}{title[1:]}"
    caption = f"{named} on the test texts against the number of labels: means over the seeds, 95 % intervals."
    return Plot("labels", f"{title}, per cent", drawn, log_x=True, caption=caption) if drawn else None


def _curve(arm: str, rows: Sequence[LabelRow], name: str) -> Curve | None:
    found = [(row.point["labels"], one) for row in rows if (one := row.estimate(name))]
    if len(found) < 2:
        return None
    return curve_of(arm, [float(count) for count, _ in found], [one for _, one in found])
