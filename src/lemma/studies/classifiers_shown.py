"""What a study of classifiers' bodies came to, shown: the table, the verdict, the plots."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from lemma.ledger.lines import Curve, Plot
from lemma.spec import ClassifiersStudy
from lemma.studies.label_claims import Compared, compare, sentences
from lemma.studies.label_outcome import SCORES, LabelMeasures, LabelOutcome, LabelRow, gather, percent
from lemma.studies.label_result import LabelResult, LabelTable
from lemma.studies.statistics import Estimate, estimate
from lemma.studies.table import NONE

Seconds = Mapping[str, Sequence[float]]
APART = 0.08  # between the marks of two rows at one tick
NAMES = {"accuracy": "accuracy", "precision": "precision", "recall": "recall", "f1": "F1"}
PROTOCOL = {
    "recipe": "the same for every body, and the same steps; presets' own recipes are not used",
    "scores": "on the test texts, which neither trained nor chose the weights; precision, recall and F1 are means over "
    "the classes",
    "intervals": "mean ± half the 95 % interval over the seeds (Student's t): what training anew changes, on these "
    "test texts; differences are taken seed by seed, since a seed fixes the batches of all bodies alike",
    "training seconds": "of the training steps alone; bodies take turns, seed by seed",
    "inference": "one run of each body classifies all test texts, tokens ready, in turns; medians and quartiles",
}


def show_classifiers(
    spec: ClassifiersStudy,
    outcomes: tuple[LabelOutcome, ...],
    seconds: Seconds,
    data: Mapping[str, str],
    hardware: Mapping[str, str],
    out: Path,
    interrupted: bool,
) -> LabelResult:
    """Put the findings together."""
    rows = gather(outcomes)
    compared = [compare(row, rows[0], spec.tolerance, seconds) for row in rows[1:]]
    return LabelResult(
        spec=spec,
        data={**data, "seeds": ", ".join(map(str, spec.seeds))},
        hardware=hardware,
        protocol={**PROTOCOL, "one run alone": alone_in_words(rows), "models": models_in_words(rows)},
        table=make_table(rows, seconds),
        conclusion=conclude(rows, compared),
        plots=tuple(plots_of(rows)),
        runs=outcomes,
        out=out,
        interrupted=interrupted,
        more={"claims": [one.to_dict() for one in compared], "inference_seconds": dict(seconds)},
    )


def conclude(rows: Sequence[LabelRow], compared: Sequence[Compared]) -> tuple[str, ...]:
    """The verdict on each body against the first; of one body alone, what it reached."""
    said = [sentence for one in compared for sentence in sentences(one)]
    alone = [f"{row.title}: accuracy {percent(row.estimate('accuracy'))} %." for row in rows if row.measured]
    return tuple(said or alone or ["No run came to its end, so that there is nothing to compare."])


def make_table(rows: Sequence[LabelRow], seconds: Seconds) -> LabelTable:
    """One row a body: scores in per cent, then costs."""
    header = ("body", *(f"{name} %" for name in NAMES.values()), "parameters", "of layers", "train s", "texts/s")
    plain = [{**row.to_dict(), "texts_per_second": texts_a_second(row, seconds)} for row in rows]
    notes = tuple(f"{row.title}, {note}" for row in rows for note in row.missing)
    return LabelTable(header, tuple(_cells(row, seconds) for row in rows), tuple(plain), caption_of(rows), notes)


def _cells(row: LabelRow, seconds: Seconds) -> tuple[str, ...]:
    scores = [percent(row.estimate(name)) for name in SCORES]
    counts = [_count(row.count(name)) for name in ("parameters", "layers")]
    trained = row.estimate("seconds")
    speed = texts_a_second(row, seconds)
    return (row.title, *scores, *counts, str(trained) if trained else NONE, _count(speed))


def caption_of(rows: Sequence[LabelRow], means: str = "precision, recall and F1 are means") -> str:
    """What the figures are."""
    counts = {len(row.measured) for row in rows if row.measured}
    if not counts:
        return "No run has come to its end."
    words = f"On the test texts; {means} over the classes."
    if max(counts) > 1:
        seeds = f"{max(counts)} seeds" if len(counts) == 1 else f"up to {max(counts)} seeds"
        words += f" Mean ± half the 95 % interval over {seeds} (Student's t)."
    return words + (" A figure without ± comes from one seed, which has no interval." if min(counts) == 1 else "")


def texts_a_second(row: LabelRow, seconds: Seconds) -> float | None:
    """Test texts classified a second: the median of the rounds."""
    taken = seconds.get(row.title)
    one = next(iter(row.measured.values()), None)
    return len(one.right) / median(taken) if taken and one else None


def _count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def models_in_words(rows: Sequence[LabelRow]) -> str:
    """What each body is, and how it was trained."""
    return "; ".join(_in_words(row.title, next(iter(row.measured.values()))) for row in rows if row.measured)


def alone_in_words(rows: Sequence[LabelRow]) -> str:
    """What other test texts might change: the bootstrap's interval of the first run of each row."""
    firsts = [(row, *next(iter(row.measured.items()))) for row in rows if row.measured]
    said = [
        f"{row.title}, seed {seed}: accuracy {100 * one.accuracy:.1f} % ({100 * one.low:.1f} to {100 * one.high:.1f})"
        for row, seed, one in firsts
        if one.low is not None and one.high is not None
    ]
    return "; ".join(["95 % intervals over the test texts (bootstrap): " + said[0], *said[1:]]) if said else "none yet"


def _in_words(title: str, one: LabelMeasures) -> str:
    body: Mapping[str, Any] = one.model["body"]
    sizes = ", ".join(f"{word} {value:,}" for word, value in body.items() if type(value) is int)
    recipe = ", ".join(f"{word.replace('_', ' ')} {one.recipe[word]:,}" for word in ("steps", "batch", "learning_rate"))
    return f"{title} ({sizes}; {recipe})"


def plots_of(rows: Sequence[LabelRow]) -> list[Plot]:
    """The scores side by side, and accuracy as training goes on."""
    measured = [row for row in rows if row.measured]
    if not measured:
        return []
    learning = [_learning(measured, "step", "steps"), _learning(measured, "seconds", "training seconds")]
    return [_scores(measured), *(plot for plot in learning if plot)]


def _scores(rows: Sequence[LabelRow]) -> Plot:
    curves = []
    for place, row in enumerate(rows):
        found = [one for name in SCORES if (one := row.estimate(name))]
        shift = APART * (place - (len(rows) - 1) / 2)
        curves.append(curve_of(row.title, [tick + shift for tick in range(len(found))], found))
    caption = "Scores on the test texts: means over the seeds (dots) with their 95 % intervals (bars)."
    return Plot("", "per cent", tuple(curves), caption=caption, bars=True, ticks=tuple(NAMES.values()), joined=False)


def _learning(rows: Sequence[LabelRow], axis: str, title: str) -> Plot | None:
    curves = tuple(curve for row in rows if (curve := learning_curve(row, axis)))
    caption = f"Accuracy on the validation texts against {title}: means over the seeds with their 95 % intervals."
    return Plot(title, "validation accuracy, per cent", curves, caption=caption) if curves else None


def learning_curve(row: LabelRow, axis: str) -> Curve | None:
    """The mean over the seeds, as far as all of them go."""
    points = list(zip(*(one.curve for one in row.measured.values()), strict=False))
    if len(points) < 2:
        return None
    found = [estimate([point.accuracy for point in several]) for several in points]
    return curve_of(row.title, [fmean(getattr(point, axis) for point in several) for several in points], found)


def curve_of(title: str, x: Sequence[float], found: Sequence[Estimate]) -> Curve:
    """Shares in per cent over some axis, with their intervals."""
    low, mean, high = (tuple(100 * getattr(one, end) for one in found) for end in ("low", "mean", "high"))
    return Curve(title, tuple(x), mean, low, high, dots=True)
