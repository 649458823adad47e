"""The verbs, a few lines each. Rooms are imported when a verb is used, so that help and lists need no torch."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from lemma.errors import RunError, SpecError, unknown
from lemma.spec import Choice, DataSpec, ModelSpec, TreebankSpec, choose, read_cost, read_study

if TYPE_CHECKING:
    from lemma.data import CorpusRow, Dataset
    from lemma.evaluation import ParsingScore, Score
    from lemma.generation import Generation
    from lemma.ledger import Account
    from lemma.ledger.against import Comparison
    from lemma.ledger.drawing import Drawing
    from lemma.ledger.gradients import GradientReport
    from lemma.ledger.identities import IdentityList, IdentityReport
    from lemma.ledger.judging import Verdict
    from lemma.ledger.sheets import Marked
    from lemma.ledger.solving import Solutions
    from lemma.looking import Heads, ParsedText
    from lemma.models import LanguageModel
    from lemma.runs import Run
    from lemma.studies import CostResult, StudyResult
    from lemma.training import Observer, TrainingResult

Texts = str | Path | Sequence[str | Path]
SAMPLES, SAMPLE_TOKENS = 3, 60

__all__ = [
    "against",
    "check",
    "choose",
    "corpora",
    "count",
    "draw",
    "evaluate",
    "generate",
    "load",
    "look",
    "resume",
    "solve",
    "study",
    "train",
]


def train(
    model: str | Path | ModelSpec | Choice,
    *,
    text: Texts | None = None,
    treebank: str | Path | None = None,
    dev: str | Path | None = None,
    out: Path | str,
    overwrite: bool = False,
    progress: bool = True,
    **words: Any,
) -> TrainingResult:
    """Train a model (a preset, a spec file or a choice) into the run folder `out`.

    A language model learns `text`, corpora or files. A parser learns a `treebank`, by name or from CoNLL-U files, and
    is validated on `dev`, on the treebank's own part for that, or on sentences held out.
    """
    from lemma.training import train as train_model

    chosen = choose(model, words)
    if (text is None) == (treebank is None):
        raise SpecError("train: give text, or a treebank for a parser: one of the two.")
    data = chosen.data(_texts(text)) if text is not None else chosen.trees(*_trees(treebank, dev))
    watcher = _watcher(progress)
    lesson = _lesson(data, chosen.model, watcher)
    return train_model(
        chosen.model,
        chosen.recipe,
        data,
        lesson.dataset,
        Path(out),
        evaluate=lesson.evaluate,
        sample=lesson.sample,
        observer=watcher,
        overwrite=overwrite,
    )


def resume(run: Path | str, *, progress: bool = True, **words: Any) -> TrainingResult:
    """Go on with an interrupted run from its last good checkpoint, on a CPU bit for bit."""
    from lemma.runs import RunFolder
    from lemma.spec import Recipe, distribute
    from lemma.training import resume as resume_training

    folder = RunFolder.open(Path(run))
    changes = distribute(words, {"recipe": Recipe})["recipe"]
    watcher = _watcher(progress)
    lesson = _lesson(folder.data, folder.spec, watcher, folder.vocabulary())
    return resume_training(
        Path(run), lesson.dataset, evaluate=lesson.evaluate, sample=lesson.sample, observer=watcher, changes=changes
    )


def evaluate(
    run: Path | str | Run,
    text: Texts | None = None,
    *,
    treebank: str | Path | None = None,
    split: str | None = None,
    context: int | None = None,
    stride: int | None = None,
    progress: bool = True,
    **settings: Any,
) -> Score | ParsingScore:
    """Measure perplexity by a full pass over other text, or over the run's own held-out text.

    With a `treebank`, and for a parser's run, measure trees: UAS, LAS, per relation, beside baselines. Of a language
    model the trees are those of its attention: settings layer, head, limit (sentences).
    """
    from lemma.data import read_tokens
    from lemma.evaluation import perplexity_of_split
    from lemma.training import watched_reading

    loaded, watcher = _loaded(run), _watcher(progress)
    if treebank is not None or loaded.spec.family == "parser":
        from lemma.studies.treebank import evaluate_trees

        if text is not None:
            raise SpecError("evaluate: trees are compared with a treebank's, not with text. Give --treebank alone.")
        windows = {name: size for name, size in (("context", context), ("stride", stride)) if size is not None}
        return evaluate_trees(loaded, _trees(treebank)[0], split, watcher, {**settings, **windows})
    _refuse_unknown(settings, (), "evaluate")
    if text is not None and split is not None:
        raise SpecError("evaluate: give other text or a split of the run's own, not both.")
    if text is not None:
        dataset = read_tokens(_texts(text), loaded.tokenizer, progress=watched_reading(watcher))
        split = dataset.splits[0]
    else:
        dataset = _own_data(loaded, watcher)
        split = _split(dataset, split)
    return perplexity_of_split(loaded.model, dataset, split, context=context, stride=stride)


@overload
def generate(run: Path | str | Run, prompt: str = "", **settings: Any) -> Generation: ...
@overload
def generate(run: Path | str | Run, prompt: Sequence[str], **settings: Any) -> list[Generation]: ...
def generate(
    run: Path | str | Run,
    prompt: str | Sequence[str] = "",
    *,
    on_text: Callable[[int, str], None] | None = None,
    **settings: Any,
) -> Generation | list[Generation]:
    """Write text after a prompt, or after each of several; at temperature 0 say where it loops, and prove it.

    Settings: tokens, temperature, top_k, top_p, seed, stop_at_loop, stop_at_eos.
    """
    from lemma.generation import Sampling, generate_text

    loaded = _loaded(run)
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    _refuse_unknown(settings, Sampling.__dataclass_fields__, "generate")
    written = generate_text(loaded.model, loaded.tokenizer, prompts, Sampling(**settings), on_text)
    return written[0] if isinstance(prompt, str) else written


def count(
    model: Any,
    *,
    quantities: Sequence[str] | None = None,
    multiply_add: int = 2,
    causal: str = "full",
    elementwise: bool = False,
    **symbols: Any,
) -> Account:
    """Account for a model: parameters, operations and bytes as formulas in its sizes, proved against the module.

    `model` is a preset, a spec, a spec file, a run folder, an example's name, `package.module:factory`, or a factory
    itself. Quantities: parameters, flops, backward, activations, cache, optimizer; all of them if none is named.
    """
    from lemma.ledger import QUANTITIES, Conventions, subject_of
    from lemma.ledger import count as account_for

    conventions = Conventions(multiply_add, causal, elementwise)  # pyright: ignore[reportArgumentType]
    return account_for(subject_of(model, symbols), quantities or QUANTITIES, conventions)


def solve(
    model: Any,
    unknown: Sequence[str],
    totals: Sequence[int | str],
    *,
    quantity: str = "parameters",
    ranges: Sequence[str] = (),
    **symbols: Any,
) -> Solutions:
    """Find the sizes that give printed totals: `solve("table-a5", ["V", "d_e"], ["L=2:9721596", "L=4:14980860"])`."""
    from lemma.ledger import count as account_for
    from lemma.ledger import subject_of
    from lemma.ledger.solving import read_range, read_total, solve_for

    subject = subject_of(model, symbols)
    figure = account_for(subject, [quantity]).quantities[quantity]
    wanted = [read_total(str(total)) for total in totals]
    return solve_for(subject, figure, unknown, wanted, dict(read_range(text) for text in ranges))


def against(model: Any, tools: Sequence[str], **symbols: Any) -> Comparison:
    """Set other tools' figures beside the exact ones, and name the module that explains a difference."""
    from lemma.ledger import subject_of
    from lemma.ledger.against import against as compare

    return compare(subject_of(model, symbols), tools)


def draw(model: Any = "self-attention", **symbols: Any) -> Drawing:
    """Draw the flow of data through a module, with the symbolic shape of everything in it."""
    from lemma.ledger import subject_of
    from lemma.ledger.drawing import draw as draw_subject

    return draw_subject(subject_of(model, symbols))


def check(
    what: str, model: Any = None, *answers: str, **symbols: Any
) -> Verdict | GradientReport | Marked | IdentityReport | IdentityList:
    """Judge a derivation of one's own.

    `check("parameters", "lstm", "4*D*(d + D + 1) + …")`, likewise `"flops"`; `check("number", "table-a5",
    "parameters", "9,721,596")`; `check("gradient", "lstm", "dW_y = (y_hat - y) @ a.T", …)`; `check("sheet",
    "questions.toml", "answers.toml")`; `check("identity", "c7", D=256)`, and without a name the list of identities.
    """
    judge = _JUDGES.get(what)
    if judge is None:
        raise SpecError(unknown("check", what, _JUDGES))
    if model is None and what != "identity":
        raise SpecError(f"check {what}: a model is expected behind it, as in check('{what}', 'lstm', …).")
    return judge(model, answers, symbols)


def describe_cell(cell: str) -> str:
    """The step of a cell whose gradients can be judged, with every name and its shape."""
    from lemma.ledger.gradients import describe_cell as describe

    return describe(cell)


def _judge_formula(quantity: str, model: Any, answers: Sequence[str], symbols: dict[str, Any]) -> Verdict:
    from lemma.ledger.judging import judge_formula

    (formula,) = _answers(quantity, answers, "FORMULA")
    return judge_formula(model, quantity, formula, symbols)  # pyright: ignore[reportArgumentType]


def _judge_number(model: Any, answers: Sequence[str], symbols: dict[str, Any]) -> Verdict:
    from lemma.ledger.judging import judge_number

    quantity, value = _answers("number", answers, "QUANTITY", "VALUE")
    return judge_number(model, quantity, str(value), symbols)


def _judge_gradient(cell: Any, lines: Sequence[str], symbols: dict[str, Any]) -> GradientReport:
    from lemma.ledger.gradients import judge_gradients

    return judge_gradients(cell, lines)


def _judge_sheet(sheet: Any, answers: Sequence[str], symbols: dict[str, Any]) -> Marked:
    from lemma.ledger.sheets import mark

    (given,) = _answers("sheet", answers, "ANSWERS")
    return mark(Path(sheet), Path(given))


def _check_identity(name: str | None, answers: Sequence[str], sizes: dict[str, Any]) -> IdentityReport | IdentityList:
    from lemma.ledger.identities import check_identity, list_identities

    _answers("identity", answers)
    return check_identity(name, sizes) if name else list_identities()


_JUDGES: dict[str, Callable[..., Any]] = {
    "parameters": partial(_judge_formula, "parameters"),
    "flops": partial(_judge_formula, "flops"),
    "number": _judge_number,
    "gradient": _judge_gradient,
    "sheet": _judge_sheet,
    "identity": _check_identity,
}


def _answers(what: str, answers: Sequence[str], *names: str) -> Sequence[str]:
    if len(answers) != len(names):
        expected = " and ".join(names) or "nothing"
        raise SpecError(f"check {what}: {expected} expected behind the model, got {len(answers)} answers.")
    return answers


def look(what: Path | str | Run, *given: Any, **settings: Any) -> Any:
    """See what a model does, or a small case worked step by step.

    `look("runs/a", text="the cat sat")` shows every attention head; `look("parse", "runs/a", text=…)` a tree;
    `look("attention", "mine.toml")`, `look("cross", "mine.toml")` and `look("bpe", "abbc abb abc abb")` work a small
    case by hand, every step shown.
    """
    if isinstance(what, (str, Path)) and str(what) not in _VIEWS and not Path(what).exists():
        raise SpecError(unknown("look", str(what), _VIEWS) + " Or give the folder of a run.")
    viewer = _VIEWS.get(str(what)) or partial(_look_heads, what)
    return viewer(given, settings)


Given, Settings = tuple[Any, ...], dict[str, Any]


def _look_heads(run: Path | str | Run, given: Given, settings: Settings) -> Heads:
    from lemma.looking import look_at_run

    return _viewed(look_at_run, (_loaded(run), *given), settings)


def _look_worked(case: str, given: Given, settings: Settings) -> Any:
    from lemma.looking import worked

    return _viewed(getattr(worked, case), given, settings)


def _look_parse(given: Given, settings: Settings) -> ParsedText:
    from lemma.looking import parse_text

    if not given:
        raise SpecError("look parse: a run is expected, as in look('parse', 'runs/parser', text='I sleep').")
    return _viewed(parse_text, (_loaded(given[0]), *given[1:]), settings)


def _viewed(view: Callable[..., Any], given: Given, settings: Settings) -> Any:
    """Call a view; what does not fit its arguments is said plainly."""
    try:
        inspect.signature(view).bind(*given, **settings)
    except TypeError as error:
        raise SpecError(f"look: {error}. As in: look('runs/a', text='the cat sat')") from None
    return view(*given, **settings)


_VIEWS: dict[str, Callable[..., Any]] = {
    "attention": partial(_look_worked, "attention_by_hand"),
    "bpe": partial(_look_worked, "trace_byte_pairs"),
    "cross": partial(_look_worked, "cross_by_hand"),
    "parse": _look_parse,
}


def study(name: str | Path, *, out: Path | str, progress: bool = True, **words: Any) -> StudyResult | CostResult:
    """Compare models at an equal budget over seeds, or what parts cost: a built-in study, or a TOML file."""
    from lemma.studies import run_cost, run_study

    cost = read_cost(str(name), words)
    if cost is not None:
        return run_cost(cost, Path(out), _watcher(progress))
    return run_study(read_study(str(name), words), Path(out), observer=_watcher(progress))


def corpora() -> list[CorpusRow]:
    """List the corpora known by name."""
    from lemma.data import corpora_table

    return corpora_table()


def load(run: Path | str, device: str = "auto") -> Run:
    """Load a run: its spec, recipe, tokenizer and model."""
    import torch

    from lemma.runs import load as load_run

    return load_run(run, ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)


@dataclass(frozen=True)
class _Lesson:
    """What training asks for while it runs: a full validation pass, and samples."""

    dataset: Dataset

    def evaluate(self, model: LanguageModel) -> Score:
        from lemma.evaluation import perplexity_of_split

        return perplexity_of_split(model, self.dataset, "validation")

    def sample(self, model: LanguageModel) -> list[str]:
        from lemma.generation import Sampling, generate_text

        settings = Sampling(tokens=SAMPLE_TOKENS)
        return [written.text for written in generate_text(model, self.dataset.tokenizer, [""] * SAMPLES, settings)]


def _lesson(data: DataSpec | TreebankSpec, model: ModelSpec, watcher: Observer, vocabulary: Any = None) -> Any:
    from lemma.studies.treebank import TreeLesson, prepared_trees

    if isinstance(data, DataSpec):
        return _Lesson(_prepared(data, watcher, vocabulary))
    return TreeLesson(prepared_trees(data, model, watcher, vocabulary))


def _texts(text: Texts) -> list[str]:
    """Name corpora as they are, and files from the root, so that a run finds them from anywhere."""
    from lemma.data import CORPORA

    names = [str(text)] if isinstance(text, (str, Path)) else [str(one) for one in text]
    return [str(Path(name).resolve()) if name not in CORPORA and Path(name).exists() else name for name in names]


def _trees(*names: str | Path | None) -> list[Any]:
    """The same for treebanks and CoNLL-U files."""
    from lemma.data import TREEBANKS

    named = [None if name is None else str(name) for name in names]
    return [str(Path(n).resolve()) if n and n not in TREEBANKS and Path(n).exists() else n for n in named]


def _watcher(progress: bool) -> Observer:
    from lemma.training import Silent, observer

    leads = os.environ.get("RANK", "0") == "0"
    return observer() if progress and leads else Silent()


def _prepared(data: DataSpec, watcher: Observer, tokenizer: Any = None) -> Dataset:
    from lemma.data import prepare
    from lemma.training import watched_reading

    return prepare(data, tokenizer=tokenizer, progress=watched_reading(watcher))


def _own_data(run: Run, watcher: Observer) -> Dataset:
    assert isinstance(run.data, DataSpec)  # a parser's trees go another way
    dataset = _prepared(run.data, watcher, run.tokenizer)
    if dataset.hash != run.data_hash:
        raise RunError(
            f"{run.path} was trained on text with SHA-256 {run.data_hash}, but {', '.join(run.data.text)} now has "
            f"{dataset.hash}: the held-out part may have been learned. To judge it all the same, name it with --text."
        )
    return dataset


def _split(dataset: Dataset, asked: str | None) -> str:
    if asked is None:
        return "test" if "test" in dataset.splits else "validation"
    if asked not in dataset.splits:
        raise SpecError(unknown("split", asked, dataset.splits))
    return asked


def _loaded(run: Path | str | Run) -> Run:
    return load(run) if isinstance(run, (str, Path)) else run


def _refuse_unknown(settings: dict[str, Any], known: Iterable[str], verb: str) -> None:
    for word in settings:
        if word not in known:
            raise SpecError(unknown(f"{verb}: the word", word, known))
