"""What is measured of a trained model: its score, what it says, the loop it falls into."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from lemma.data import Dataset, Tokenizer
from lemma.errors import RunError, TrainingError
from lemma.evaluation import Score, Source, perplexity
from lemma.generation import Generation, Sampling, generate_text
from lemma.models import LanguageModel
from lemma.runs import Run, RunFolder, load
from lemma.spec import Recipe, StudySpec
from lemma.studies.more import measure_more
from lemma.studies.outcome import CurvePoint, Loop, Measures, Talk
from lemma.studies.plan import Plan

TEMPERATURE = 0.8
SPLIT = "validation"


class Judge:
    """Gives a model its score, a full pass over the validation text, and remembers those that it gave."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.given: dict[float, Score] = {}

    def __call__(self, model: LanguageModel) -> Score:
        """Read the whole validation text."""
        source = Source(self.dataset.tokenizer.about, self.dataset.hash, SPLIT)
        tokens, size = self.dataset.tokens(SPLIT), self.dataset.bytes(SPLIT)
        score = perplexity(model, tokens, bytes=size, source=source)
        self.given[score.loss] = score
        return score

    def of(self, run: Run) -> Score:
        """The score of a finished run: the one that training ended with, if it was given here, or else a new pass."""
        summary = run.summary or {}
        ended_with = summary["best_loss"] if run.recipe.keep == "best" else summary["validation_loss"]
        return self.given.get(ended_with) or self(run.model)


def measure(plan: Plan, study: StudySpec, judge: Judge) -> Measures:
    """Load a finished run and measure all that the report shows."""
    run = load(plan.path, device_of(plan.recipe))
    if run.note:  # the weights are not those that the run ended with
        raise RunError(run.note)
    scored = judge.of(run)
    if not math.isfinite(scored.perplexity):
        raise TrainingError(f"{plan.path}: the validation loss is {scored.loss}, so that there is no perplexity.")
    summary: Mapping[str, Any] = run.summary or {}
    return Measures(
        model=plan.model.to_dict(),
        recipe=plan.recipe.to_dict(),
        parameters=summary["parameters"],
        tokens=summary["tokens"],
        seconds=summary["seconds"],
        tokens_per_second=summary["tokens_per_second"],
        loss=scored.loss,
        perplexity=scored.perplexity,
        bits_per_byte=scored.bits_per_byte,
        protocol=scored.protocol.to_dict(),
        curve=read_curve(RunFolder.open(plan.path)),
        sample=talk(run.model, run.tokenizer, study, TEMPERATURE),
        greedy=talk(run.model, run.tokenizer, study, 0.0),
        trial_speed=plan.trial_speed,
        more=measure_more(run, plan, study, judge.dataset),
    )


def device_of(recipe: Recipe) -> str:
    """Where a run of this recipe is measured: where it was trained."""
    return device_named(recipe.device)


def device_named(name: str) -> str:
    """The device that a spec's `device` means here."""
    return "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"


def read_curve(folder: RunFolder) -> tuple[CurvePoint, ...]:
    """The validations of a run on its way."""
    rows = [row for row in folder.metrics.rows() if "validation_loss" in row]
    return tuple(CurvePoint(row["tokens"], row["seconds"], row["validation_loss"]) for row in rows)


def talk(model: LanguageModel, tokenizer: Tokenizer, study: StudySpec, temperature: float) -> Talk:
    """Let a model go on from the study's prompt; an `<eos>` does not end it, since loops may lead through it."""
    settings = Sampling(tokens=study.sample_tokens, temperature=temperature, stop_at_eos=False)
    [said] = generate_text(model, tokenizer, [study.prompt], settings)
    return Talk(said.prompt, said.text, cut_loop(said, tokenizer))


def cut_loop(said: Generation, tokenizer: Tokenizer) -> Loop | None:
    """Find where in the text the first round of a loop begins and ends.

    A token may be a part of a character, or bring a space with it only behind another: so the places are where the
    text of the first tokens parts from the text of them all.
    """
    if said.loop is None:
        return None
    last = tokenizer.encode(said.prompt).tolist()[-1:]
    lead = len(tokenizer.decode(last))
    ends = (
        _shared(said.text, tokenizer.decode([*last, *said.tokens[:count]])[lead:])
        for count in (said.loop.onset, said.loop.onset + said.loop.period)
    )
    return Loop(said.loop.onset, said.loop.period, said.loop.proved, said.loop.state, *ends)


def _shared(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
