"""The verbs of Lemma. Packages are imported when a verb is used: help and lists need no torch."""

from __future__ import annotations

import inspect
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from lemma.errors import InputError, LemmaError, SpecError, describe_unknown
from lemma.random_state import unchanged_random_state
from lemma.spec.base import exists
from lemma.spec.choose import Choice, choose
from lemma.spec.models import ModelSpec

if TYPE_CHECKING:
    from fastapi import FastAPI

    from lemma.checking.audit import Audit
    from lemma.checking.cells import CellLike
    from lemma.checking.check_values import ValueReport
    from lemma.checking.compare_formula import Verdict
    from lemma.checking.derivation import DerivationReport
    from lemma.checking.exercises.base import ExerciseHelp
    from lemma.checking.exercises.registry import ExerciseList
    from lemma.checking.gradients import GradientReport
    from lemma.checking.grading import ClassMarks
    from lemma.checking.identities import IdentityList
    from lemma.checking.identities.base import IdentityReport
    from lemma.checking.marking import StudentMarks
    from lemma.checking.shapes import ShapeReport
    from lemma.checking.worked.attention import WorkedAttention, WorkedCross
    from lemma.checking.worked.bpe import BytePairTrace
    from lemma.checking.worked.case import CaseExamples, CaseLike
    from lemma.checking.worked.graph import WorkedGraph
    from lemma.checking.worked.lstm import WorkedLstm
    from lemma.checking.worked.matching import WorkedMatching
    from lemma.counting.account import Account
    from lemma.counting.against import ToolComparison
    from lemma.counting.compare import ModelComparison
    from lemma.counting.drawing import Drawing
    from lemma.counting.plan import Plan
    from lemma.counting.solve import BoundSolution, Solutions
    from lemma.data.corpora import CorpusRow
    from lemma.generation.beam import TranslatedText
    from lemma.generation.sequences import Generation
    from lemma.inspection.heads import HeadMeans, Heads
    from lemma.inspection.trees import ParsedText
    from lemma.report.progress import Observer
    from lemma.report.result import Result
    from lemma.retrieval.result import SearchResult
    from lemma.runs.export import ExportResult
    from lemma.runs.load import Run
    from lemma.runs.verify import Verification
    from lemma.serving.server import Ready
    from lemma.spec.base import Spec
    from lemma.spec.keywords import (  # pyright: ignore[reportMissingModuleSource]
        AdaptSettings,
        EvaluateSettings,
        RecipeSettings,
        SamplingSettings,
        TrainSettings,
    )
    from lemma.studies.compare_methods import UnfinishedComparison
    from lemma.studies.result import StudyResult
    from lemma.tasks.base import Score
    from lemma.tasks.classification import Classification
    from lemma.tasks.harness import HarnessScore
    from lemma.tasks.registry import DataArgs
    from lemma.training.adapt import AdaptResult
    from lemma.training.loop import TrainingResult
    from lemma.training.session import Session


Texts = str | Path | Sequence[str | Path]


def load(run: Path | str, device: str = "auto") -> Run:
    """Load a run: its spec, recipe, tokenizer and model.

    A Hugging Face folder, a `.gguf` file and a pretrained model's name ("smollm2-135m", "stories15m") are accepted
    wherever a run is.

    >>> lemma.load("smollm2-135m").tokenizer  # doctest: +SKIP
    """
    import torch

    from lemma.runs.load import load as load_run

    return load_run(run_folder(run), ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)


def watch(progress: bool) -> Observer:
    """Return an observer that prints progress, or a silent one if `progress` is false or RANK is not 0."""
    from lemma.report.progress import SilentObserver, make_observer

    is_first = os.environ.get("RANK", "0") == "0"
    return make_observer() if progress and is_first else SilentObserver()


def open_run(run: Path | str | Run, device: str = "auto") -> Run:
    """Return a run, loaded from its folder if it is not loaded yet."""
    return load(Path(run), device) if isinstance(run, (str, os.PathLike)) else require_run(run)


def require_run(run: Any) -> Run:
    """Return a loaded run; for anything else raise an error that says what is accepted."""
    from lemma.runs.load import Run

    if isinstance(run, Run):
        return run
    raise SpecError(
        f"a {type(run).__name__} is not a run: give the folder of a run, a Hugging Face folder, a .gguf file, or what "
        "lemma.load returns. A model of Lemma's becomes a run by lemma.runs.save; of any other torch module, "
        "lemma.count counts it and lemma.inspection.heads.look_at shows its attention."
    )


def run_folder(run: Path | str | Run) -> Path:
    """Return the path of a run's folder; a loaded run knows its own."""
    return Path(run) if isinstance(run, (str, os.PathLike)) else require_run(run).path


def check_settings(settings: Mapping[str, Any], allowed: Iterable[str], verb: str) -> None:
    """Raise SpecError for a setting that is not in `allowed`; `verb` is the command, for the message."""
    for name in settings:
        if name not in allowed:
            raise SpecError(describe_unknown(f"{verb}: setting", name, allowed))


def train(
    model: str | Path | ModelSpec | Choice,
    *,
    text: Texts | None = None,
    treebank: str | Path | None = None,
    dev: str | Path | None = None,
    pairs: str | Path | None = None,
    labels: str | Path | None = None,
    images: str | Path | None = None,
    graph: str | Path | None = None,
    limit: int | None = None,
    epochs: float | None = None,
    out: Path | str,
    overwrite: bool = False,
    progress: bool = True,
    on_step: Callable[[Session], object] | None = None,
    **settings: Unpack[TrainSettings],
) -> TrainingResult:
    """Train a model into the run folder `out`.

    Args:
        model: A preset ("lstm", "decoder", …), a spec file, a spec, or a choice.
        text: Corpora by name, UTF-8 files, or shards (.jsonl, .parquet, packed as .gz or .zst) by name or by a pattern
            such as "shard-*.txt.gz", for language models and encoders.
        treebank: A treebank by name or CoNLL-U files, for a parser; `dev` is the validation file.
        pairs: Pairs of texts by name or in a table, for an encoder–decoder.
        labels: Labelled texts by name or in a table: the model becomes the backbone of a classifier. `limit` is the
            maximum number of training examples, `parser` the run that provides their trees.
        images: Images with captions by name or in a folder, for a dual encoder.
        graph: A graph by name or in tables, for a graph model; `nodes` is its table of nodes.
        epochs: Number of epochs, instead of steps=.
        settings: Settings of the model, the recipe, the tokenizer and the data, such as width=64 or steps=300;
            validation= and test= are files of these splits. Default: a held-out fraction of the data.
            `lemma train MODEL --settings` lists them. optimizer= may be a function that makes a
            `torch.optim.Optimizer` for the model, and schedule= one that gives the learning rate of a step, counted
            from 1, as a fraction of the peak.
        on_step: Called after each step with the session (`state.step`, `model`, `optimizer`, `latest`, its loss);
            returning True stops training.

    Returns:
        Results of the run: losses, perplexity, time, warnings, samples.

    >>> lemma.train("lstm", text="shakespeare", out="runs/a", steps=300)  # doctest: +SKIP
    """
    from lemma.tasks.base import LoadContext, epochs_to_steps
    from lemma.tasks.registry import check_epochs, data_args, task_for
    from lemma.training.loop import fit_recipe
    from lemma.training.loop import train as train_model
    from lemma.training.session import TrainingHooks

    hooks = TrainingHooks(**_custom_functions(settings), on_step=on_step)
    kinds = {"text": text, "treebank": treebank, "pairs": pairs, "labels": labels, "images": images, "graph": graph}
    model_settings: dict[str, Any] = {**settings}
    args = data_args({**kinds, "dev": dev, "limit": limit, **pop_data_settings(model_settings)})
    check_epochs(epochs, model_settings)
    choice = choose(model, model_settings, classify=labels is not None)
    recipe, data_spec, observer = choice.recipe, args.spec(choice), watch(progress)
    task = task_for(choice.model)
    data = task.load(data_spec, LoadContext(choice.model, recipe, observer))
    if epochs is not None:
        recipe = recipe.replace(steps=epochs_to_steps(epochs, task, choice.model, data, recipe, observer))
    max_steps = recipe.steps if choice.has_own_warm_up else None
    recipe = fit_recipe(recipe, observer, choice.reference_recipe, max_steps)
    options = {"task": task, "observer": observer, "overwrite": overwrite, "hooks": hooks}
    return train_model(choice.model, recipe, data_spec, data, Path(out), **options)


def _custom_functions(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings whose values are functions, which a recipe records as custom."""
    if isinstance(getattr(settings.get("optimizer"), "param_groups", None), list):
        from lemma.training.optimizer import CUSTOM_OPTIMIZER_HINT

        raise SpecError(f"optimizer: the model that it is to move does not exist yet. {CUSTOM_OPTIMIZER_HINT}")
    return {name: settings[name] for name in ("optimizer", "schedule") if callable(settings.get(name))}


def pop_data_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Remove the settings of data, such as column names, from `settings` in place and return them."""
    from lemma.tasks.registry import DATA_SETTINGS

    return {name: settings.pop(name) for name in list(settings) if name in DATA_SETTINGS}


def data_option(model: ModelSpec) -> tuple[str, str]:
    """Return the option that names the data of a model, and an example: ("text", "shakespeare")."""
    from lemma.tasks.registry import task_info

    info = task_info(model)
    return info.option, info.example


def resume(
    run: Path | str,
    *,
    progress: bool = True,
    on_step: Callable[[Session], object] | None = None,
    **settings: Unpack[RecipeSettings],
) -> TrainingResult:
    """Resume an interrupted run from its last good checkpoint; on a CPU, bit for bit.

    `steps` is the new total. Pass `on_step`, and settings that are functions, again if the run was trained with them.

    >>> lemma.resume("runs/a", steps=500)  # doctest: +SKIP
    """
    from lemma.runs.folder import RunFolder
    from lemma.spec.base import assign_settings
    from lemma.spec.data import PretrainedData
    from lemma.spec.recipe import Recipe
    from lemma.tasks.base import LoadContext
    from lemma.tasks.registry import task_for
    from lemma.training.loop import resume as resume_training
    from lemma.training.session import TrainingHooks

    changes, observer = assign_settings(dict(settings), {"recipe": Recipe})["recipe"], watch(progress)
    path = run_folder(run)
    folder = RunFolder.open(path, overrides=changes)
    if isinstance(folder.data, PretrainedData):
        raise SpecError(
            f"{run} was not trained here, so there is nothing to resume. To train it further: lemma adapt {run} "
            "--text FILE --method full --out RUN"
        )
    folder.check_resumable()  # before the data are read
    task = task_for(folder.spec)
    context = LoadContext(folder.spec, folder.recipe, observer, folder.vocabulary(), folder.labels())
    data = task.load(folder.data, context)
    hooks = TrainingHooks(**_custom_functions(settings), on_step=on_step)
    return resume_training(path, data, task=task, observer=observer, changes=changes, hooks=hooks)


def register(kind: type[Spec], **parts: Any) -> type[Spec]:
    """Register a custom family, position encoding or objective by name in this process, as in a notebook.

    Args:
        kind: A subclass of `NewFamily`, `NewPositions` or `NewObjective`.
        parts: Parts of the implementation: model= of a family, loss= of an objective, adds=, rotates= or biases= of
            positions. Parts that the class names as package.module:attribute can be left out.

    A run stores the name. To open it elsewhere, register the class again, or make a package of it with an entry point.

    >>> lemma.register(Bag, model=BagModel)  # doctest: +SKIP
    >>> lemma.train("bag", text="shakespeare", out="runs/bag")  # doctest: +SKIP
    """
    from lemma.spec.models import PLUGIN_FAMILIES
    from lemma.spec.positions import PLUGIN_POSITIONS
    from lemma.spec.recipe import PLUGIN_OBJECTIVES

    for group in (PLUGIN_FAMILIES, PLUGIN_POSITIONS, PLUGIN_OBJECTIVES):
        if isinstance(kind, type) and issubclass(kind, group.base_class):
            group.register(kind, parts)  # pyright: ignore[reportArgumentType] (of the group's kind)
            return kind
    raise SpecError(
        f"register: a subclass of NewFamily, NewPositions or NewObjective is expected, got {kind!r}. "
        "See lemma.spec.models.NewFamily."
    )


class Adapt:
    """Adapt a run to new data, `lemma.adapt(run, labels=…)`, or compare the methods, `lemma.adapt.compare(…)`."""

    def __call__(
        self,
        run: Path | str,
        *,
        labels: str | Path | None = None,
        text: Texts | None = None,
        pairs: str | Path | None = None,
        images: str | Path | None = None,
        rerank: bool = False,
        limit: int | None = None,
        method: str | None = None,
        epochs: float | None = None,
        out: Path | str,
        overwrite: bool = False,
        progress: bool = True,
        **settings: Unpack[AdaptSettings],
    ) -> AdaptResult | TrainingResult:
        """Adapt a finished run to your labels, text, pairs or images; the new run stores only what changed.

        Args:
            run: Finished run to start from, the base.
            labels, text, pairs, images, limit: The new data, as in `train`; validation= and test= too.
            rerank: Turn a dual encoder into a cross-attention re-ranker (candidates=10).
            method: frozen, full, adapters (bottleneck, placement) or lora (rank, alpha, lora_dropout, targets).
                Default: lora; frozen for a re-ranker.
            epochs: Number of epochs, instead of steps=.
            settings: Settings of the method and of the recipe.

        Returns:
            Summary of the trained and stored weights and the test score; the training result if interrupted.

        >>> lemma.adapt("runs/a", labels="tweets", method="lora", rank=4, out="runs/b")  # doctest: +SKIP
        """
        from lemma.counting.count import trainable_formula
        from lemma.runs.folder import check_run_target
        from lemma.training.adapt import adapt_run, is_main_process, plan_adaptation

        data, method_settings = _adaptation_data(labels, text, pairs, images, limit, {"epochs": epochs, **settings})
        method = method or ("frozen" if rerank else "lora")
        if method == "all":
            raise SpecError("adapt: method='all' compares the methods. Call lemma.adapt.compare(...).")
        if is_main_process():
            check_run_target(Path(out), overwrite)  # before the data is read
        observer = watch(progress)
        plan = plan_adaptation(run_folder(run), data, method, method_settings, observer, rerank=rerank)
        return adapt_run(plan, Path(out), observer, trainable_formula, overwrite)

    def compare(
        self,
        run: Path | str,
        *,
        labels: str | Path | None = None,
        text: Texts | None = None,
        pairs: str | Path | None = None,
        images: str | Path | None = None,
        limit: int | None = None,
        epochs: float | None = None,
        out: Path | str,
        overwrite: bool = False,
        progress: bool = True,
        **settings: Unpack[AdaptSettings],
    ) -> StudyResult | UnfinishedComparison:
        """Adapt a run by every method, and compare their costs and gains (problem E5).

        >>> lemma.adapt.compare("runs/a", labels="tweets", out="runs/methods")  # doctest: +SKIP
        """
        from lemma.studies.compare_methods import compare_methods

        data, method_settings = _adaptation_data(labels, text, pairs, images, limit, {"epochs": epochs, **settings})
        return compare_methods(run_folder(run), data, method_settings, Path(out), watch(progress), overwrite)

    def from_peft(
        self, run: Path | str, folder: Path | str, *, out: Path | str, overwrite: bool = False
    ) -> ExportResult:
        """Add LoRA weights that the peft library wrote to a run, as a new run.

        >>> lemma.adapt.from_peft("runs/a", "adapter", out="runs/b")  # doctest: +SKIP
        """
        from lemma.runs.export import import_run

        return import_run(run_folder(run), Path(folder), Path(out), overwrite)


adapt = Adapt()


def _adaptation_data(
    labels: Any, text: Any, pairs: Any, images: Any, limit: int | None, settings: Mapping[str, Any]
) -> tuple[DataArgs, dict[str, Any]]:
    """Return the data arguments of an adaptation, and the settings that remain."""
    from lemma.tasks.registry import data_args

    remaining = {name: value for name, value in settings.items() if name != "epochs" or value is not None}
    kinds = {"text": text, "pairs": pairs, "labels": labels, "images": images, "limit": limit}
    return data_args({**kinds, **pop_data_settings(remaining)}), remaining


def export(
    run: Path | str,
    *,
    to: Literal["merged", "huggingface", "gguf", "peft"],
    out: Path | str,
    overwrite: bool = False,
) -> ExportResult:
    """Export a run to another format, with equal outputs.

    Args:
        run: A run; for "merged" and "peft" an adapted one.
        to: "huggingface" writes a folder that transformers loads with its own class, "gguf" a file for llama.cpp; an
            adapted run is merged for both. "merged" folds LoRA weights into a plain run without a base, "peft" writes
            them as a folder that peft loads.
        out: Output folder; for "gguf" the output file.
        overwrite: Overwrite existing output, if it was written by Lemma.

    >>> lemma.export("runs/b", to="huggingface", out="folder")  # doctest: +SKIP
    """
    from lemma.runs.export import export_run

    return export_run(run_folder(run), to, Path(out), overwrite)


class Look:
    """See what a model does, or work a small case by hand, every step shown.

    `lemma.look(run, text=…)` shows every attention head; `lemma.look.parse`, `.attention`, `.cross`, `.bpe`, `.graph`
    and `.lstm` the rest. `lemma.look("bpe", "abbc abb")` is the same as `lemma.look.bpe("abbc abb")`.
    """

    VIEWS = ("attention", "bpe", "cross", "graph", "lstm", "parse")

    def __call__(self, what: Path | str | Run, *args: Any, **settings: Any) -> Result:
        """Look at the heads of a run, or at one of the views by its name.

        >>> lemma.look("runs/a", text="the cat sat")  # doctest: +SKIP
        """
        if isinstance(what, str) and what in self.VIEWS:
            return call_view(getattr(self, what), args, settings)
        if isinstance(what, (str, Path)) and not exists(Path(what)) and str(what) not in pretrained_names():
            raise SpecError(describe_unknown("view", str(what), self.VIEWS) + " Or give the folder of a run.")
        return call_view(self.heads, (what, *args), settings)

    def heads(
        self,
        run: Path | str | Run,
        text: str | None = None,
        *,
        repeated: int | None = None,
        layer: int | None = None,
        head: int | None = None,
    ) -> Heads:
        """Show every attention head of a run on a text, or those of one `layer`, or one `head` of it.

        `repeated` replaces the text with that many random tokens, twice, to reveal induction heads.

        >>> lemma.look.heads("runs/a", text="the cat sat", layer=0)  # doctest: +SKIP
        """
        from lemma.inspection.heads import look_at_run

        return look_at_run(open_run(run), text, repeated=repeated, layer=layer, head=head)

    def corpus(self, run: Path | str | Run, corpus: str) -> HeadMeans:
        """Measure entropy and distance of every attention head over a whole text.

        Args:
            run: A run folder, or a model by name.
            corpus: A text file, or a corpus by name, of which the test split is read.

        >>> lemma.look.corpus("runs/a", "shakespeare")  # doctest: +SKIP
        """
        from lemma.inspection.heads import look_at_corpus

        return look_at_corpus(open_run(run), corpus)

    def parse(
        self,
        run: Path | str | Run | None = None,
        text: str | None = None,
        *,
        layer: int | None = None,
        head: int | None = None,
        relation: str | None = None,
    ) -> ParsedText:
        """Draw the dependency trees of a text: a parser's, or those of a language model's attention.

        >>> lemma.look.parse("runs/parser", text="I prefer the morning flight")  # doctest: +SKIP
        """
        from lemma.inspection.trees import parse_text

        if run is None or text is None:
            raise SpecError("look parse: give a run and a text, as in look.parse('runs/parser', text='I sleep').")
        return parse_text(open_run(run), text, layer=layer, head=head, relation=relation)

    def attention(
        self,
        case: CaseLike | None = None,
        *,
        words: Sequence[str] | None = None,
        passes: int | None = None,
        scaled: bool | None = None,
        mask: str | None = None,
        full: bool = False,
        decimals: int = 3,
    ) -> WorkedAttention | CaseExamples:
        """Work self-attention by hand, for an example, a TOML file or a dictionary; without a case, list the examples.

        >>> lemma.look.attention("e1", words=["they"])  # doctest: +SKIP
        """
        from lemma.checking.worked.attention import work_attention
        from lemma.checking.worked.case import list_examples

        if case is None:
            return list_examples("attention")
        return work_attention(case, words=words, passes=passes, scaled=scaled, mask=mask, full=full, decimals=decimals)

    def cross(
        self,
        case: CaseLike | None = None,
        *,
        words: Sequence[str] | None = None,
        scaled: bool | None = None,
        full: bool = False,
        decimals: int = 4,
    ) -> WorkedCross | CaseExamples:
        """Work cross-attention by hand; without a case, list the examples.

        >>> lemma.look.cross("e8")  # doctest: +SKIP
        """
        from lemma.checking.worked.attention import work_cross_attention
        from lemma.checking.worked.case import list_examples

        if case is None:
            return list_examples("cross")
        return work_cross_attention(case, words=words, scaled=scaled, full=full, decimals=decimals)

    def graph(
        self,
        case: CaseLike | None = None,
        *,
        nodes: Sequence[str] | None = None,
        powers: int | None = None,
        full: bool = False,
        decimals: int = 4,
    ) -> WorkedGraph | CaseExamples:
        """Work graph convolution by hand; without a case, list the examples.

        >>> lemma.look.graph("karate")  # doctest: +SKIP
        """
        from lemma.checking.worked.case import list_examples
        from lemma.checking.worked.graph import work_graph

        if case is None:
            return list_examples("graph")
        return work_graph(case, nodes=nodes, powers=powers, full=full, decimals=decimals)

    def lstm(
        self, case: CaseLike | None = None, *, backward: bool = False, full: bool = False, decimals: int = 4
    ) -> WorkedLstm | CaseExamples:
        """Work one LSTM step by hand, with `backward` its gradients too; without a case, list the examples.

        >>> lemma.look.lstm("c1", backward=True)  # doctest: +SKIP
        """
        from lemma.checking.worked.case import list_examples
        from lemma.checking.worked.lstm import work_lstm

        if case is None:
            return list_examples("lstm")
        return work_lstm(case, backward=backward, full=full, decimals=decimals)

    def bpe(
        self,
        string: str | None = None,
        *,
        text: Texts | None = None,
        merges: int | None = None,
        minimum: int = 2,
        end_of_word: str = r"\w",
        show: int | None = None,
        library: bool = False,
    ) -> BytePairTrace:
        """Trace byte-pair encoding of a string, or of corpora or files, step by step.

        >>> lemma.look.bpe("abbc abb abc abb")  # doctest: +SKIP
        """
        from lemma.checking.worked.bpe import trace_byte_pairs

        return trace_byte_pairs(
            string, text=text, merges=merges, minimum=minimum, end_of_word=end_of_word, show=show, library=library
        )


look = Look()


def call_view(view: Callable[..., Any], args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
    """Return view(*args, **settings); raise SpecError for arguments that do not fit its signature."""
    try:
        inspect.signature(view).bind(*args, **settings)
    except TypeError as error:
        raise SpecError(f"look: {error}. As in: look('runs/a', text='the cat sat')") from None
    return view(*args, **settings)


@overload
def evaluate(
    run: Path | str | Run, *, harness: str | Path | Sequence[str | Path], limit: int | None = None
) -> HarnessScore: ...
@overload
def evaluate(
    run: Path | str | Run,
    text: Texts | None = None,
    *,
    treebank: str | Path | None = None,
    pairs: str | Path | None = None,
    labels: str | Path | None = None,
    images: str | Path | None = None,
    graph: str | Path | None = None,
    split: str | None = None,
    progress: bool = True,
    **settings: Unpack[EvaluateSettings],
) -> Score: ...
def evaluate(
    run: Path | str | Run,
    text: Texts | None = None,
    *,
    treebank: str | Path | None = None,
    pairs: str | Path | None = None,
    labels: str | Path | None = None,
    images: str | Path | None = None,
    graph: str | Path | None = None,
    split: str | None = None,
    harness: str | Path | Sequence[str | Path] | None = None,
    progress: bool = True,
    **settings: Any,
) -> Score | HarnessScore:
    """Evaluate a run on its own test (or validation) split, or on other data.

    Args:
        run: A run folder, or a loaded run.
        text, treebank, pairs, labels, images: Other data of the kind that the run was trained on; with a `treebank` a
            language model's attention is compared with the trees.
        split: Split of the run's own data: train, validation or test.
        harness: One or more task files (YAML) to evaluate a language model with lm_eval instead, on the first `limit`
            examples if set. lm_eval imports the code that a task file names.
        settings: context and stride (language models); layer, head and limit (attention as trees); beam,
            length_penalty and limit (translators); columns of files as in `train`.

    Returns:
        The score with its protocol: perplexity, loss on masked tokens, UAS and LAS, BLEU and chrF, accuracy and F1, or
        recall, by the kind of the run.

    >>> lemma.evaluate("runs/a").perplexity  # doctest: +SKIP
    """
    from lemma.tasks.base import evaluate_run
    from lemma.tasks.registry import LANGUAGE, data_args, task_info

    loaded, observer = open_run(run), watch(progress)
    kinds = {"text": text, "treebank": treebank, "pairs": pairs, "labels": labels, "images": images, "graph": graph}
    remaining_settings: dict[str, Any] = {**settings}
    if harness is not None:
        extra = {
            name: value for name, value in {**kinds, "split": split, **remaining_settings}.items() if value is not None
        }
        limit = extra.pop("limit", None)
        if extra:
            raise SpecError(f"evaluate: {', '.join(extra)}: not with harness, whose tasks bring their own data.")
        _require_packages("evaluate with a harness", "lm_eval", extra="harness")
        from lemma.tasks.harness import evaluate_tasks

        return evaluate_tasks(loaded, [harness] if isinstance(harness, str | Path) else harness, limit)
    data = data_args({**kinds, **pop_data_settings(remaining_settings)})
    options = {name: value for name, value in remaining_settings.items() if value is not None}
    if treebank is not None and task_info(loaded.spec) is LANGUAGE:
        from lemma.inspection.attention_trees import evaluate_attention

        return evaluate_attention(loaded, data, split, options, observer)
    return evaluate_run(loaded, data, split, options, observer)


OnText = Callable[[int, str], object]


@overload
def generate(
    run: Path | str | Run, *, source: str, **settings: Unpack[SamplingSettings]
) -> TranslatedText | Classification: ...
@overload
def generate(
    run: Path | str | Run, *, source: list[str], **settings: Unpack[SamplingSettings]
) -> list[TranslatedText] | list[Classification]: ...
@overload
def generate(
    run: Path | str | Run,
    prompt: str | Sequence[str] = "",
    *,
    samples: int | None = None,
    stream: Literal[True],
    **settings: Unpack[SamplingSettings],
) -> Iterator[str] | Iterator[tuple[int, str]]: ...
@overload
def generate(
    run: Path | str | Run,
    prompt: str = "",
    *,
    chat: str | Sequence[Mapping[str, Any]] | None = None,
    on_text: OnText | None = None,
    defaults: Mapping[str, Any] | None = None,
    **settings: Unpack[SamplingSettings],
) -> Generation: ...
@overload
def generate(
    run: Path | str | Run,
    prompt: str | Sequence[str] = "",
    *,
    samples: int | None = None,
    on_text: OnText | None = None,
    defaults: Mapping[str, Any] | None = None,
    **settings: Unpack[SamplingSettings],
) -> list[Generation]: ...
def generate(
    run: Path | str | Run,
    prompt: str | Sequence[str] = "",
    *,
    source: str | Sequence[str] | None = None,
    chat: str | Sequence[Mapping[str, Any]] | None = None,
    samples: int | None = None,
    stream: bool = False,
    on_text: OnText | None = None,
    defaults: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Result | Iterable[object]:
    """Generate text from a prompt, or from each of several; at temperature 0 detect and prove its loop.

    Args:
        run: A run folder, or a loaded run.
        prompt: One prompt, or several.
        source: A text to translate (translators) or to classify (classifiers), or several.
        chat: User message for a pretrained chat model, or a conversation: messages with `role` and `content`.
        samples: Number of samples per prompt, in one batch. If set, or with several prompts, the result is a list,
            ordered by prompt.
        stream: Return an iterator over the pieces of the text as they are generated, whole characters only; for
            several texts, over pairs of a text's index and a piece.
        on_text: Called with the index of a text and each new piece of it; returning True stops that text.
        defaults: Settings to use unless the call or the model sets them.
        settings: tokens, temperature, top_k, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty,
            no_repeat_ngram, logit_bias, stop, stop_tokens, logprobs, seed, stop_at_loop, stop_at_eos, precision
            (documented in `lemma.generation.sampling.Sampling`); for translators beam, length_penalty, tokens.
            Defaults come from a pretrained model's generation_config.json; the seed is chosen at random and reported
            in the result.

    >>> lemma.generate("runs/a", prompt="The", temperature=0.0).loop  # doctest: +SKIP
    >>> for piece in lemma.generate("runs/a", prompt="The", stream=True):  # doctest: +SKIP
    ...     print(piece, end="", flush=True)
    """
    from lemma.generation.beam import Beam
    from lemma.generation.engine import generate_text, stream_text
    from lemma.generation.sampling import Sampling

    loaded = open_run(run)
    if chat is not None and prompt:
        raise SpecError("generate: chat is the prompt, as the model's template writes it. Leave out the one.")
    if chat is not None:
        prompt = loaded.tokenizer.chat([{"role": "user", "content": chat}] if isinstance(chat, str) else chat)
    if source is not None:
        options = {"prompt": prompt or None, "samples": samples, "stream": stream or None, "on_text": on_text}
        settings |= {name: value for name, value in options.items() if value is not None}
        return _answer_sources(loaded, source, settings)
    if beams := [name for name in settings if name in Beam.__dataclass_fields__.keys() - {"tokens"}]:
        raise SpecError(f"generate: {', '.join(beams)}: for translations, which need source. Leave out the one.")
    if stream and on_text is not None:
        raise SpecError("generate: stream returns the pieces that on_text would be called with. Leave out the one.")
    model = loaded.merge_lora().model  # refuses a run that generates nothing
    names = Sampling.__dataclass_fields__
    check_settings(settings, names, "generate")
    model_defaults = {name: value for name, value in loaded.tokenizer.sampling.items() if name in names}
    options = {**(defaults or {}), **model_defaults, **settings, **({} if samples is None else {"samples": samples})}
    seed = None if "seed" in options or options.get("temperature") == 0 else secrets.randbelow(10**6)
    sampling = Sampling(**(options if seed is None else {**options, "seed": seed}))
    is_single = isinstance(prompt, str) and samples is None
    prompts: list[Any] = list(prompt) if isinstance(prompt, list | tuple) else [prompt]

    if stream:
        pieces = stream_text(model, loaded.tokenizer, prompts, sampling)
        return (piece if is_single else (number, piece) for number, piece in pieces)
    generations = generate_text(model, loaded.tokenizer, prompts, sampling, on_text)
    generations = [replace(generation, seed=seed) for generation in generations]
    return generations[0] if is_single else generations


def _answer_sources(run: Run, source: str | Sequence[str], settings: dict[str, Any]) -> Any:
    """Return the translation or the class of each source, by the kind of the run; a list if `source` is one."""
    from lemma.generation.beam import Beam, translate_texts
    from lemma.generation.sampling import Sampling
    from lemma.models.encoder_decoder import EncoderDecoderModel
    from lemma.tasks.classification import classify_texts
    from lemma.tasks.registry import task_info

    sources, answers = [source] if isinstance(source, str) else list(source), list[Any]()
    if task_info(run.spec).answers == "class":
        if settings:
            raise SpecError(f"generate: a classifier has no use for {', '.join(settings)}: it names a source's class.")
        answers += classify_texts(run, sources)
    else:
        beam_settings = Beam.__dataclass_fields__
        prompt_settings = {*Sampling.__dataclass_fields__, "prompt", "stream", "on_text"} - {*beam_settings}
        if sampling := [name for name in settings if name in prompt_settings]:
            raise SpecError(
                f"generate: {', '.join(sampling)}: for text after a prompt. A source is translated by beam search, "
                f"which knows {', '.join(beam_settings)}. Leave out the one or the other."
            )
        check_settings(settings, beam_settings, "generate")
        model = run.merge_lora().require(EncoderDecoderModel, "a translator, which answers a source")
        answers += translate_texts(model, run.tokenizer, sources, Beam(**settings))
    return answers[0] if isinstance(source, str) else answers


def search(
    run: Path | str | Run | None = None,
    *,
    images: str | Path | None = None,
    query: str | Sequence[str] | None = None,
    image: str | Path | None = None,
    texts: str | Path | Sequence[str] | None = None,
    text_column: str | None = None,
    k: int = 10,
    index: str | Path | None = None,
    faiss: bool | None = None,
    matrices: Any = None,
    out: str | Path | None = None,
    progress: bool = True,
    **settings: Any,
) -> SearchResult | WorkedMatching:
    """Retrieve the `k` images nearest to a `query` or an `image`, or the `texts` nearest to an `image`.

    Args:
        run: A dual encoder, or a re-ranker.
        images: A folder of images, or a set by name. Its index is built once, in `index` or in the data home, and
            updated. Without `images`, `index` is searched as it is.
        query: One text or several.
        image: An image file.
        texts: A list of texts, a file, or the captions of a set.
        faiss: Use approximate search. Default: exact up to 1M images.
        matrices: An example or a TOML file: a small search worked by hand (settings: words, full, decimals).
        out: A file to write the result to.

    >>> lemma.search("runs/emoji", images="emoji", query="a red heart")  # doctest: +SKIP
    """
    from lemma.checking.worked.matching import work_matching
    from lemma.report.progress import reading_progress
    from lemma.report.result import check_save_path
    from lemma.retrieval.result import FILE_SUFFIXES
    from lemma.retrieval.search import SearchRequest, search_run

    if matrices is not None:
        matching = call_view(work_matching, (matrices,), settings)
        if out is not None:
            matching.save(out)
        return matching
    check_settings(settings, ("images", "query", "image", "texts", "k", "index"), "search")
    if run is None:
        raise SpecError("search: a run is expected, as in search('runs/a', images='emoji', query='a red heart').")
    if out is not None:
        check_save_path(out, FILE_SUFFIXES)
    request = SearchRequest(images, query, image, texts, text_column, k, index, faiss)
    result = search_run(open_run(run), request, reading_progress(watch(progress), {"embedding images": "images"}))
    if out is not None:
        result.save(out)
    return result


class Count:
    """Count a model as formulas: `lemma.count(model)`.

    `.compare` two models, `.solve` for sizes, `.plan` a training, `.against` other tools, `.draw`.
    """

    @unchanged_random_state()
    def __call__(
        self,
        model: Any,
        *,
        quantities: Sequence[str] | None = None,
        multiply_add: int = 2,
        causal: str = "full",
        elementwise: bool = False,
        time_limit: float = 120.0,
        memory_limit: float = 256.0,
        progress: bool = False,
        **sizes: Any,
    ) -> Account:
        """Count parameters, FLOPs and bytes of a model as formulas in its sizes, proved against the module.

        Args:
            model: A preset, a spec, a spec file, a run folder, an example's name, "package.module:factory", or a
                factory of modules.
            quantities: Any of parameters, active, flops, backward, activations, cache, optimizer. Default: all.
            multiply_add, causal, elementwise: Conventions for counting FLOPs.
            time_limit: CPU seconds for all formulas; beyond it, the remaining quantities are measured without one.
            memory_limit: Maximum MiB of the weights of a run on real tensors; beyond it, runs use the meta device.
            progress: Whether to show how far a count is that takes longer than two seconds.
            sizes: Sizes by name or letter, such as d=512.

        Returns:
            The account; `breakdown()` gives the share of each part, `emit("python")` a module with the formulas.

        >>> lemma.count("feed-forward", N=3).parameters.formula
        'V*(d + d_h) + d_h*((N-1)*d + 1)'
        """
        from lemma.counting.count import QUANTITIES, Conventions, CountLimits
        from lemma.counting.count import count as account_for
        from lemma.counting.subject import import_model, resolve_subject

        conventions = Conventions(multiply_add, causal, elementwise)  # pyright: ignore[reportArgumentType]
        limits = CountLimits(time_limit, int(memory_limit * 2**20))
        subject, names = resolve_subject(import_model(model), sizes), quantities or QUANTITIES
        if not progress:
            return account_for(subject, names, conventions, limits)
        from lemma.report.progress import DelayedObserver

        observer = DelayedObserver(watch(progress), seconds=2)
        try:
            return account_for(subject, names, conventions, limits, observer)
        finally:
            observer.finish()

    @unchanged_random_state()
    def compare(
        self,
        first: Any,
        second: Any,
        *,
        first_sizes: Mapping[str, Any] | None = None,
        second_sizes: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> ModelComparison:
        """Count two models and compare them: their quantities, and the difference of each as a formula, part by part.

        Args:
            first, second: Models as for `count`, or accounts that it returned.
            first_sizes, second_sizes: Sizes of one of the two models only.
            options: As for `count`: quantities, conventions and limits, and sizes of both models.

        >>> lemma.count.compare("lstm", "gru", quantities=["parameters"], V=50).quantities[0].write("plain")
        '-D*(d + D*(2*L - 1) + L)'
        """
        from lemma.counting.account import Account
        from lemma.counting.compare import compare_accounts

        accounts: list[Account] = []
        for name, model, sizes in (("first", first, first_sizes or {}), ("second", second, second_sizes or {})):
            if isinstance(model, Account):
                if options or sizes:
                    raise InputError(f"The {name} model is counted already. Give sizes and options to lemma.count.")
                accounts.append(model)
                continue
            accounts.append(self(model, **{**options, **sizes}))
        return compare_accounts(*accounts)

    @unchanged_random_state()
    def solve(
        self,
        model: Any,
        unknown: Sequence[str] | str,
        totals: Sequence[int | str] = (),
        *,
        quantity: str = "parameters",
        ranges: Sequence[str] = (),
        **sizes: Any,
    ) -> Solutions | BoundSolution:
        """Find the sizes that give printed totals, or the largest size that keeps a quantity below a bound.

        `unknown` has the symbols, or a bound such as "parameters <= 1e9 for d". A total is a number, or "L=2:9721596"
        for the total at L = 2. A range is "d=64..4096" or, in steps, "d=64..4096..64".

        >>> lemma.count.solve("table-a5", ["V", "d_e"], ["L=2:9721596", "L=4:14980860"])  # doctest: +SKIP
        >>> lemma.count.solve("decoder", "parameters <= 1e9 for d").size
        4560
        """
        from lemma.counting.count import count as account_for
        from lemma.counting.solve import read_bound, read_range, read_total, solve_bound, solve_for
        from lemma.counting.subject import import_model, resolve_subject

        subject = resolve_subject(import_model(model), sizes)
        if isinstance(unknown, str):
            if (bound := read_bound(unknown)) is not None:
                return solve_bound(subject, bound, dict(read_range(text) for text in ranges))
            unknown = [name.strip() for name in unknown.split(",")]
        figure = account_for(subject, [quantity]).quantities[quantity]
        expected = [read_total(str(total)) for total in totals]
        return solve_for(subject, figure, unknown, expected, dict(read_range(text) for text in ranges))

    @unchanged_random_state()
    def plan(
        self,
        model: Any,
        *,
        gpu: str | None = None,
        batch: int | None = None,
        precision: str | None = None,
        optimizer: str = "adamw",
        recompute: str = "none",
        devices: int | None = None,
        data: int | None = None,
        shards: int | None = None,
        tensor: int | None = None,
        pipeline: int | None = None,
        accumulate: int | None = None,
        memory: float | str | None = None,
        flops: float | str | None = None,
        bandwidth: float | str | None = None,
        link: float | str | None = None,
        network: float | str | None = None,
        node: int | None = None,
        efficiency: float | None = None,
        reserve: float | None = None,
        **sizes: Any,
    ) -> Plan:
        """Plan a training run: memory and time on a device, the largest batch and context, and generation.

        Args:
            model: As for `count`.
            gpu: A name as drivers and clouds write it, such as H200 or NVIDIA A100-SXM4-80GB, or cpu. Default: the GPU
                here, else H100.
            batch: Sequences per step, over all devices. Default: 32.
            precision: bfloat16 or float32. Default: bfloat16 where the device has it.
            optimizer, recompute: adamw or muon; none or layers.
            data, shards, tensor, pipeline: Replicas that average gradients (DDP); devices that share weights, gradients
                and optimizer (FSDP); devices that share each split linear layer; stages that share the layers. Their
                product is the number of devices. Default: 1.
            accumulate: Number of micro-batches. Default: 1.
            devices: Number of devices; the plan chooses the fastest split that fits, with what is set above as it is.
            memory, flops, bandwidth: Custom figures of the device, in bytes, FLOPs per second and bytes per second, or
                with units: 80GB, 312T, 2TB/s.
            link, network, node: Bytes per second that a device sends to others of its node, and to other nodes, or
                text such as NVLink4 or 400Gb/s; number of devices in a node.
            efficiency: Fraction of the roofline that is reached.
            reserve: Fraction of the memory to leave free.
            sizes: Sizes by name or letter, such as d=512.

        >>> lemma.count.plan("decoder", gpu="H200", batch=8).fits
        True
        >>> [transfer.formula for transfer in lemma.count.plan("decoder", gpu="H200", data=8).parallel.transfers]
        ['2·(N−1)/N·4·P_d']
        """
        from lemma.counting.devices import get_device
        from lemma.counting.plan import PlanSettings
        from lemma.counting.plan import plan as plan_for
        from lemma.counting.plan_search import choose_split
        from lemma.counting.subject import BATCH, import_model, resolve_subject

        device = get_device(gpu, memory, flops, bandwidth, link, network, node)
        batch_size = sizes.pop(BATCH, None)
        has_bfloat16 = device.gpu and (not device.flops or "bfloat16" in device.flops)
        fractions = {"efficiency": efficiency, "reserve": reserve}
        splits = {"data": data, "shards": shards, "tensor": tensor, "pipeline": pipeline, "accumulate": accumulate}
        fixed: dict[str, Any] = {name: number for name, number in splits.items() if number is not None}
        options: dict[str, Any] = {
            "batch": next((size for size in (batch, batch_size) if size is not None), 32),
            "precision": precision or ("bfloat16" if has_bfloat16 else "float32"),
            "optimizer": optimizer,
            "recompute": recompute,
            **{name: fraction for name, fraction in fractions.items() if fraction is not None},
        }
        subject = resolve_subject(import_model(model), sizes)
        if devices is None:
            return plan_for(subject, PlanSettings(device, **options, **fixed))
        return choose_split(subject, PlanSettings(device, **options), devices, fixed)

    @unchanged_random_state()
    def against(self, model: Any, tools: Sequence[str], **sizes: Any) -> ToolComparison:
        """Compare the figures of other tools with the exact ones, and name the module that explains a difference.

        >>> lemma.count.against("decoder", ["torchinfo"])  # doctest: +SKIP
        """
        from lemma.counting.against import compare_tools
        from lemma.counting.subject import import_model, resolve_subject

        return compare_tools(resolve_subject(import_model(model), sizes), tools)

    @unchanged_random_state()
    def draw(self, model: Any = "self-attention", **sizes: Any) -> Drawing:
        """Draw the data flow of a module, with the symbolic shape of everything in it.

        >>> lemma.count.draw("self-attention").save("attention.svg")  # doctest: +SKIP
        """
        from lemma.counting.drawing import draw
        from lemma.counting.subject import import_model, resolve_subject

        return draw(resolve_subject(import_model(model), sizes))


count = Count()


class Check:
    """Check your own derivations: `lemma.check.parameters(model, formula)`, `lemma.check.gradient(cell, *lines)`.

    `lemma.check("parameters", model, formula)` is the same as `lemma.check.parameters(model, formula)`. The result
    of a check is true exactly if the answer is right: `assert lemma.check.parameters(model, formula)`.
    """

    def __call__(self, what: str, model: Any = None, *answers: Any, **sizes: Any) -> Result:
        """Check answers by the name of the check.

        >>> lemma.check("parameters", "rnn", "V*d + D*(d + D) + D + V*D + V", L=1).equal
        True
        """
        if what == "sources":
            rows = [row for row in (model, *answers) if row is not None]
            check_settings(sizes, ("progress",), "check sources")
            return self.sources(*rows, **sizes)
        return self._check(what, model, answers, sizes)

    def parameters(self, model: Any, formula: str, **sizes: Any) -> Verdict:
        """Check a formula for the number of a model's parameters.

        >>> lemma.check.parameters("rnn", "V*d + D*(d + D) + D + V*D + V", L=1).equal
        True
        """
        return self._check("parameters", model, (formula,), sizes)

    def flops(self, model: Any, formula: str, **sizes: Any) -> Verdict:
        """Check a formula for a model's FLOPs.

        >>> lemma.check.flops("decoder", "2BTdV + 4LBT(2d d_h + d d_ff + T d_h)")  # doctest: +SKIP
        """
        return self._check("flops", model, (formula,), sizes)

    def trainable(self, model: Any, formula: str, **sizes: Any) -> Verdict:
        """Check a formula for the number of a model's trainable parameters.

        >>> lemma.check.trainable("lora", "R(W_in + W_out)").equal
        True
        """
        return self._check("trainable", model, (formula,), sizes)

    def number(self, model: Any, quantity: str, value: str | float, **sizes: Any) -> Verdict:
        """Check a number: a quantity, a quantity of a part, a ratio, or a change in per cent.

        >>> lemma.check.number("table-a5", "parameters", "9,721,596", L=2).equal
        True
        """
        return self._check("number", model, (quantity, str(value)), sizes)

    def shape(self, model: Any, *lines: str, **sizes: Any) -> ShapeReport:
        """Check the shapes of a module's tensors.

        >>> lemma.check.shape("self-attention", "Q = H×S×M_QK").right
        True
        """
        return self._check("shape", model, lines, sizes)

    def gradient(self, function: CellLike, *lines: str) -> GradientReport:
        """Check gradients derived by hand; each line is compared with autograd.

        Args:
            function: a name such as "lstm" or "layer-norm", a TOML file with your own function, or its contents.
            lines: `name = expression`; the file can hold lines too.

        >>> lemma.check.gradient("rnn", "dU = h.T @ (y_hat - y)").right
        True
        """
        return self._check("gradient", function, lines)

    def derivation(self, file: Path | str | Mapping[str, Any]) -> DerivationReport:
        """Check each step of a derivation against the one before: a text file of formulas, a TOML file, or the text.

        >>> lemma.check.derivation("(a + b)^2 = a^2 + 2ab + b^2").right
        True
        """
        return self._check("derivation", file)

    def worked(self, case: Any, *lines: str, solution: bool = False) -> ValueReport:
        """Check a hand computation against a worked case.

        >>> lemma.check.worked("e9", "c_t = [0.52, -0.34]").right
        True
        """
        from lemma.checking.worked.check import check_worked

        return check_worked(case, lines, solution)

    def sheet(
        self,
        questions: Path | str | Mapping[str, Any],
        *answers: Path | str | Mapping[str, Any],
        overrides: Path | str | None = None,
        previous: Path | str | None = None,
        queue: Path | str | None = None,
        undiagnosed: bool = False,
    ) -> StudentMarks | ClassMarks:
        """Grade the answers of a student or a class to a sheet of questions.

        Args:
            questions: A TOML or Markdown file, or a mapping of the same shape.
            answers: For a student, one file or one mapping from question to answer. For a class, several files, a
                folder, or a CSV file with one row per student.
            overrides: A TOML file of marks changed by hand.
            previous: The marks.json of an earlier grading, to report the marks that changed.
            queue: A TOML file of answers to look at, which is written; decisions in it are applied.
            undiagnosed: Whether the queue has wrong answers without an explanation too.

        >>> lemma.check.sheet("week3.toml", "ada.toml")["Q1"].points  # doctest: +SKIP
        2.0
        >>> lemma.check.sheet("week3.toml", "answers/").save("marks.csv")  # doctest: +SKIP
        """
        from lemma.checking.grading import TeacherFiles, check_sheet

        return check_sheet(questions, answers, TeacherFiles(overrides, previous, queue, undiagnosed))

    def write_sheet(
        self,
        questions: Path | str | Mapping[str, Any],
        *answers: Path | str,
        format: str,
        out: Path | str,
        overrides: Path | str | None = None,
        previous: Path | str | None = None,
        queue: Path | str | None = None,
        undiagnosed: bool = False,
    ) -> Path:
        """Write a sheet, or the marks of answers to it, for another tool.

        Args:
            questions: A TOML or Markdown file, or a mapping of the same shape.
            answers: As for `sheet`; "otter" and "nbgrader" take none, since these tools collect the answers.
            format: "gradescope" (results.json of a student, or a folder with one for each), "lti" (score objects),
                "otter" (a folder of tests) or "nbgrader" (a notebook).
            out: The file or folder to write.
            overrides: As for `sheet`, like the next three.
            previous: As for `sheet`.
            queue: As for `sheet`.
            undiagnosed: As for `sheet`.

        >>> lemma.check.write_sheet("week3.toml", format="otter", out="tests")  # doctest: +SKIP
        """
        from lemma.checking.formats import write_sheet_as
        from lemma.checking.grading import TeacherFiles

        files = TeacherFiles(overrides, previous, queue, undiagnosed)
        return write_sheet_as(format, questions, answers, out, files)

    def identity(self, name: str, **sizes: Any) -> IdentityReport:
        """Check an identity of the problems at the given sizes.

        >>> lemma.check.identity("c7", D=16).holds
        True
        """
        return self._check("identity", name, (), sizes)

    def identities(self) -> IdentityList:
        """List the identities.

        >>> "c7" in str(lemma.check.identities())
        True
        """
        return self._check("identity", None)

    def exercise(self, kind: str, *arguments: Any, show_solution: bool = False, **fields: Any) -> Result:
        """Check an answer to an exercise of some kind: `lemma check KIND` in the terminal.

        Args:
            kind: such as "position"; `lemma check --help` lists all.
            arguments: the name or TOML file of an exercise or a dictionary of its fields, if any, then the answer.
            show_solution: whether the report shows what is right.
            fields: fields of the exercise.

        >>> lemma.check.exercise("position", "PE = [0.841, 0.540]", width=2).right
        True
        """
        exercise, answers = self._read_exercise(kind, arguments, fields)
        return exercise.check(answers, show_solution)

    def exercises(self, kind: str = "") -> ExerciseList:
        """List the exercises that come with Lemma: of one kind, or all.

        >>> "code-softmax" in str(lemma.check.exercises("code"))
        True
        """
        from lemma.checking.exercises.registry import list_exercises

        return list_exercises(kind)

    def help_with(self, level: Any, kind: str, *arguments: Any, **fields: Any) -> ExerciseHelp:
        """Return help with an exercise: "hint", "where" an answer goes wrong, or "solution".

        >>> print(lemma.check.help_with("hint", "position", "alibi"))
        slopes: m_h = 2^(−8h/H) for h = 1 … H
        """
        levels = ("hint", "where", "solution")
        if level not in levels:
            raise SpecError(describe_unknown("level of help", str(level), levels))
        exercise, answers = self._read_exercise(kind, arguments, fields)
        return exercise.help_with(level, answers)

    def describe_exercise(self, kind: str, *arguments: Any, **fields: Any) -> str:
        """Return the fields of a kind of exercise, and the names that an answer may use."""
        from lemma.checking.exercises.registry import describe_fields

        try:
            names = self._read_exercise(kind, arguments, fields)[0].describe()
        except LemmaError as error:  # the fields do not make an exercise yet
            names = f"The names depend on the fields: {error}"
        return f"{describe_fields(kind)}\n\n{names}"

    def _read_exercise(self, kind: str, arguments: Sequence[Any], fields: Mapping[str, Any]) -> Any:
        """Return the exercise and the lines of the answer from the arguments of a check."""
        from lemma.checking.exercises.registry import read_exercise, split_arguments

        if arguments and isinstance(arguments[0], Mapping):
            return read_exercise(arguments[0], kind, **fields), [str(line) for line in arguments[1:]]
        functions = [argument for argument in arguments if callable(argument)]
        texts = [str(argument) for argument in arguments if not callable(argument)]
        exercise, answers = split_arguments(kind, texts, fields)
        return exercise, [*answers, *functions]

    def sources(self, *rows: str, progress: bool = False) -> Audit:
        """Check the claims of the problems' sources: all rows, or some, such as "C2" or "d".

        >>> lemma.check.sources("D4").right
        False
        """
        from lemma.checking.audit import check_sources
        from lemma.report.progress import reading_progress

        report = reading_progress(watch(progress), {"checking": "claims"})
        return check_sources(rows, partial(report, "checking"))

    def _check(self, name: str, model: Any, answers: Sequence[Any] = (), sizes: Mapping[str, Any] | None = None) -> Any:
        """Return the verdict of the checker `name` on answers about a model or case."""
        from lemma.checking.checkers import MODEL_CHECKERS, run_checker
        from lemma.counting.subject import import_model

        return run_checker(name, import_model(model) if name in MODEL_CHECKERS else model, answers, sizes or {})


check = Check()


def describe_cell(cell: CellLike) -> str:
    """Describe a function whose gradients can be checked, with every name and its shape."""
    from lemma.checking.gradients import describe_cell as describe

    return describe(cell)


def describe_worked(case: Any) -> str:
    """List the names that can be claimed of a worked case, with shapes and meanings but no values."""
    from lemma.checking.worked.check import describe_worked as describe

    return describe(case)


def study(
    name: str | Path,
    *,
    out: Path | str,
    progress: bool = True,
    jobs: int | None = None,
    on: str | None = None,
    **settings: Any,
) -> StudyResult:
    """Compare models at an equal budget over several seeds.

    Args:
        name: A built-in study (families, table-a5, positions, penalties, optimizers, tune, heads, length, lstm-gru,
            pretraining, graph) or a TOML file.
        out: The folder of its runs and its report; the same call resumes an interrupted study.
        jobs: Number of training processes, which divide the threads of this machine.
        on: "ray" or "slurm", to train on a cluster; all machines must see the folder `out`.
        settings: Changes to the study's fields, such as seeds=[1, 2, 3]; nested fields with dots, as a dictionary.

    Returns:
        The table, the verdicts on its claims, the conclusion and the plots.

    >>> lemma.study("families", out="runs/demo", seeds=[1])  # doctest: +SKIP
    """
    from lemma.spec.studies import read_study
    from lemma.studies.experiment import run_study

    return run_study(read_study(name, settings), Path(out), watch(progress), jobs=jobs, on=on)


def datasets() -> list[CorpusRow]:
    """List the data sets available by name, with size and licence.

    >>> "shakespeare" in [row.name for row in lemma.datasets()]
    True
    """
    from lemma.data.corpora import list_corpora

    return list_corpora()


def verify(path: Path | str | None = None) -> Verification:
    """Verify every file of a run, of the runs of a study, or of an index against its checksum.

    Without a path, verify the token stores, tokenizers and counts in the data home.

    >>> lemma.verify("runs/a").right  # doctest: +SKIP
    """
    from lemma.files import data_home
    from lemma.runs.verify import verify_folder, verify_home

    if path is None:
        return verify_home(data_home())
    folder = run_folder(path)
    if exists(folder / "index.json"):
        from lemma.retrieval.index import verify_index

        return verify_index(folder)
    return verify_folder(folder)


def pretrained_names() -> tuple[str, ...]:
    """List the pretrained models known by name; each is accepted wherever a run is.

    >>> lemma.api.pretrained_names()
    ('smollm2-135m', 'stories15m')
    """
    from lemma.data.corpora import MODELS

    return tuple(MODELS)


def serve(
    *runs: Path | str | Run,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key: str | None = None,
    allow_hosts: Sequence[str] = (),
    device: str = "auto",
    precision: Literal["auto", "float32", "bfloat16"] = "auto",
    on_ready: Callable[[Ready], object] | None = None,
    **limits: Any,
) -> None:
    """Serve runs until Ctrl-C: a page at the address, and an OpenAI-compatible API under /v1.

    Requests name a run by its folder. `on_ready` gets the address. Default: print it to stderr.

    Args:
        api_key: API key that every request must send.
        allow_hosts: Additional host names of this server.
        device: Device of the models: auto, cpu or cuda.
        precision: Precision of decoders on a GPU; auto is bfloat16.
        limits: tokens (per request), batch (sequences decoded at once), waiting (requests per run), seconds (per
            request), grace (seconds to finish running requests when the server stops).

    >>> lemma.serve("runs/a", port=8000)  # doctest: +SKIP
    """
    _require_packages("serve", "fastapi", "uvicorn")
    from lemma.serving.requests import Limits
    from lemma.serving.server import serve_runs

    check_settings(limits, Limits.__dataclass_fields__, "serve")
    announce = on_ready or partial(print, file=sys.stderr, flush=True)
    more: Any = {"api_key": api_key, "allow_hosts": allow_hosts, "limits": Limits(**limits)}
    serve_runs(runs, _run_loader(device), host, port, announce, precision=precision, **more)


def application(
    *runs: Path | str | Run,
    hosts: Iterable[str] | None = None,
    api_key: str | None = None,
    device: str = "auto",
    precision: Literal["auto", "float32", "bfloat16"] = "auto",
    **limits: Any,
) -> FastAPI:
    """Return the ASGI application that `serve` runs, for your own server or a test.

    `hosts` are the host names it answers to. Default: all. Other arguments are as in `serve`.
    """
    _require_packages("serve", "fastapi")
    from lemma.serving.app import application as make
    from lemma.serving.requests import Limits

    check_settings(limits, Limits.__dataclass_fields__, "application")
    return make(runs, _run_loader(device), precision, hosts, api_key, Limits(**limits))


def _run_loader(device: str) -> Callable[[Path | str | Run], Run]:
    """Return a function that loads a run onto a device, or returns a loaded one."""
    import torch

    kind = device.partition(":")[0]
    if kind not in ("auto", "cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        choices = "auto, cpu or cuda" if torch.cuda.is_available() else "auto or cpu: there is no GPU here"
        raise InputError(f"device = '{device}': give {choices}.")
    return partial(open_run, device=device)


def _require_packages(verb: str, *packages: str, extra: str = "serve") -> None:
    """Raise InputError, with the pip command, if a package that `verb` needs is not installed."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise InputError(f"{verb} needs {' and '.join(missing)}, not installed here: pip install 'lemma-lm[{extra}]'")
