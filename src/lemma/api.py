"""The verbs, a few lines each. Rooms are imported when a verb is used, so that help and lists need no torch."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from lemma.errors import SpecError, unknown
from lemma.spec import Choice, ModelSpec, choose, read_cost, read_graph_study, read_label_study, read_study

if TYPE_CHECKING:
    from lemma.data import CorpusRow
    from lemma.generation import Generation, Translated
    from lemma.ledger import Account
    from lemma.ledger.against import Comparison
    from lemma.ledger.drawing import Drawing
    from lemma.ledger.gradients import GradientReport
    from lemma.ledger.identities import IdentityList, IdentityReport
    from lemma.ledger.judging import Verdict
    from lemma.ledger.sheets import Marked
    from lemma.ledger.solving import Solutions
    from lemma.looking import Heads, ParsedText
    from lemma.looking.worked import WorkedMatching
    from lemma.retrieval import SearchResult
    from lemma.runs import Run
    from lemma.studies import CostResult, LabelResult, StudyResult
    from lemma.studies.adapted import Adapted
    from lemma.studies.board import Board
    from lemma.studies.boarding import Unfinished
    from lemma.studies.judged import AnyScore
    from lemma.studies.naming import Named
    from lemma.studies.rewriting import Rewritten
    from lemma.training import Observer, TrainingResult

Texts = str | Path | Sequence[str | Path]

__all__ = [
    "adapt",
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
    "search",
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
    pairs: str | Path | None = None,
    labels: str | Path | None = None,
    images: str | Path | None = None,
    graph: str | Path | None = None,
    limit: int | None = None,
    out: Path | str,
    overwrite: bool = False,
    progress: bool = True,
    **words: Any,
) -> TrainingResult:
    """Train a model (a preset, a spec file or a choice) into the run folder `out`.

    A language model learns `text`, corpora or files, and so does an encoder. A parser learns a `treebank`, by name or
    from CoNLL-U files, and is validated on `dev`, on the treebank's own part for that, or on sentences held out. An
    encoder–decoder learns `pairs`. With `labels` any model becomes the body of a classifier. A dual encoder learns
    `images`, by name or from a folder with a table of `captions`, a graph model a `graph` (with a table of `nodes`
    beside a table of edges). Columns of files are named by source_column, target_column, text_column, label_column,
    image_column and caption_column; `limit` is how many labelled texts to learn from, `parser` the run that draws
    their trees.
    """
    from lemma.studies.asking import Asked
    from lemma.studies.lessons import lesson_for_data
    from lemma.training import train as train_model

    asked = Asked(text, treebank, dev, pairs, labels, images, graph, limit=limit, **_columns(words))
    chosen = choose(model, words, classify=labels is not None)
    data, watcher = asked.spec(chosen), _watcher(progress)
    lesson: Any = lesson_for_data(data, chosen.model, chosen.recipe, watcher)
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
    from lemma.studies.lessons import lesson_for_data
    from lemma.training import resume as resume_training

    folder = RunFolder.open(Path(run))
    changes = distribute(words, {"recipe": Recipe})["recipe"]
    watcher = _watcher(progress)
    lesson: Any = lesson_for_data(
        folder.data, folder.spec, folder.recipe, watcher, folder.vocabulary(), folder.labels()
    )
    return resume_training(
        Path(run), lesson.dataset, evaluate=lesson.evaluate, sample=lesson.sample, observer=watcher, changes=changes
    )


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
    **settings: Any,
) -> AnyScore:
    """Measure a run on its own held-out part, or on other text, trees, pairs or labels.

    A language model's perplexity is a full pass (settings: context, stride), an encoder's is that of what was hidden.
    With a `treebank`, and for a parser's run, measure trees: UAS, LAS, per relation, beside baselines (of a language
    model those of its attention: layer, head, limit). A translator is judged by BLEU and chrF (beam, length_penalty,
    limit), a classifier and a graph model by accuracy, precision, recall and F1, a dual encoder by recall among the
    first 1, 5 and 10, both ways. Columns are named as in `train`.
    """
    from lemma.studies.asking import Asked
    from lemma.studies.judged import judge_run

    asked = Asked(text, treebank, None, pairs, labels, images, graph, **_columns(settings))
    given = {name: value for name, value in settings.items() if value is not None}
    return judge_run(_loaded(run), asked, split, given, _watcher(progress))


@overload
def generate(run: Path | str | Run, *, source: str, **settings: Any) -> Translated | Named: ...
@overload
def generate(run: Path | str | Run, *, source: list[str], **settings: Any) -> list[Translated] | list[Named]: ...
@overload
def generate(run: Path | str | Run, prompt: str = "", **settings: Any) -> Generation: ...
@overload
def generate(run: Path | str | Run, prompt: Sequence[str], **settings: Any) -> list[Generation]: ...
def generate(
    run: Path | str | Run,
    prompt: str | Sequence[str] = "",
    *,
    source: str | Sequence[str] | None = None,
    on_text: Callable[[int, str], None] | None = None,
    **settings: Any,
) -> Any:
    """Write text after a prompt, or after each of several; at temperature 0 say where it loops, and prove it.

    Settings: tokens, temperature, top_k, top_p, seed, stop_at_loop, stop_at_eos. A translator writes the target of a
    `source`, or of each of several; its settings: beam, length_penalty, tokens. A classifier names a source's class.
    """
    from lemma.generation import Sampling, generate_text

    loaded = _loaded(run)
    if source is not None:
        return _answer(loaded, source, settings)
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    _refuse_unknown(settings, Sampling.__dataclass_fields__, "generate")
    with loaded.folded():
        written = generate_text(loaded.model, loaded.tokenizer, prompts, Sampling(**settings), on_text)
    return written[0] if isinstance(prompt, str) else written


def _answer(run: Run, source: str | Sequence[str], settings: dict[str, Any]) -> Any:
    """What a translator makes of a source, or what a classifier calls it."""
    from lemma.generation import Beam, translate_texts
    from lemma.studies.naming import name_texts

    sources = [source] if isinstance(source, str) else list(source)
    if run.spec.family == "classifier":
        if settings:
            raise SpecError(f"generate: a classifier has no use for {', '.join(settings)}: it names a source's class.")
        answers: list[Any] = list(name_texts(run, sources))
    else:
        _refuse_unknown(settings, Beam.__dataclass_fields__, "generate")
        with run.folded():
            answers = list(translate_texts(run.translator, run.tokenizer, sources, Beam(**settings)))
    return answers[0] if isinstance(source, str) else answers


def adapt(
    run: Path | str,
    *,
    labels: str | Path | None = None,
    text: Texts | None = None,
    pairs: str | Path | None = None,
    images: str | Path | None = None,
    rerank: bool = False,
    limit: int | None = None,
    method: str | None = None,
    out: Path | str,
    merge: bool = False,
    peft: Literal["from", "to"] | None = None,
    folder: Path | str | None = None,
    overwrite: bool = False,
    progress: bool = True,
    **words: Any,
) -> Adapted | Board | Rewritten | Unfinished | TrainingResult:
    """Adapt a finished run to labels, text, pairs or images of your own; the new run keeps only what changed.

    Methods: frozen, full, adapters (bottleneck, placement), lora (rank, alpha, lora_dropout, targets); `all` tries each
    of them and returns the board that says what each costs. Other words are the recipe's; columns as in `train`. The
    method is lora if none is named. With `rerank` a dual encoder becomes a re-ranker that looks at its first few
    findings again (candidates=10); its towers stay frozen if no method is named.
    `merge` writes an adapted run as a plain one instead. `peft="to"` writes its LoRA weights as a folder that peft
    loads, and `peft="from"` takes them from such a `folder` and puts them beside a base.
    """
    from lemma.studies.asking import Asked
    from lemma.studies.boarding import adapt_to
    from lemma.studies.rewriting import rewrite

    asked = Asked(text, None, None, pairs, labels, images, limit=limit, **_columns(words))
    method = method or ("frozen" if rerank else "lora")
    if merge or peft:
        return rewrite(Path(run), Path(out), "merge" if merge else str(peft), folder, asked, words, overwrite)
    return adapt_to(run, asked, method, words, Path(out), _watcher(progress), overwrite, rerank)


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
    `look("attention", "mine.toml")`, `look("cross", "mine.toml")`, `look("bpe", "abbc abb abc abb")` and
    `look("lstm", "mine.toml", backward=True)` work a small case by hand, every step shown.
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
    "graph": partial(_look_worked, "graph_by_hand"),
    "lstm": partial(_look_worked, "lstm_by_hand"),
    "parse": _look_parse,
}


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
    """Find the `k` pictures nearest to a `query` or to an `image`, or the `texts` nearest to an `image`.

    `images` is a folder or a set known by name; its index is made the first time, kept in `index` or in the data home,
    and brought up to date. An `index` alone is searched as it stands. `texts` are a list, a file or a set's captions.
    The search is exact unless `faiss` is asked for, or there are more than a million pictures and it is installed.
    With `matrices`, an example or a TOML file, a small search is worked by hand (settings: words, full, decimals).
    What is found is written to `out`, if given; that it can be is seen to before any picture is read.
    """
    from lemma.looking.worked import matching_by_hand
    from lemma.retrieval import Wanted, refuse_target, search_run

    if matrices is not None:
        worked = _viewed(matching_by_hand, (matrices,), settings)
        if out is not None:
            worked.save(out)
        return worked
    _refuse_unknown(settings, ("images", "query", "image", "texts", "k", "index"), "search")
    if run is None:
        raise SpecError("search: a run is expected, as in search('runs/a', images='emoji', query='a red heart').")
    if out is not None:
        refuse_target(Path(out))
    wanted = Wanted(images, query, image, texts, text_column, k, index, faiss)
    found = search_run(_loaded(run), wanted, _watched_pictures(progress))
    if out is not None:
        found.save(out)
    return found


def _watched_pictures(progress: bool) -> Callable[[str, int, int], None]:
    from lemma.training.progress import watched_reading

    return watched_reading(_watcher(progress), {"embedding pictures": "pictures"})


def study(
    name: str | Path, *, out: Path | str, progress: bool = True, **words: Any
) -> StudyResult | CostResult | LabelResult:
    """Compare models at an equal budget over seeds, classifiers, or what parts cost: built in, or from a TOML file."""
    from lemma.studies import run_cost, run_graph_study, run_label_study, run_study

    cost = read_cost(str(name), words)
    if cost is not None:
        return run_cost(cost, Path(out), _watcher(progress))
    graphs = read_graph_study(str(name), words)
    if graphs is not None:
        return run_graph_study(graphs, Path(out), _watcher(progress))
    labelled = read_label_study(str(name), words)
    if labelled is not None:
        return run_label_study(labelled, Path(out), _watcher(progress))
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


def _watcher(progress: bool) -> Observer:
    from lemma.training import Silent, observer

    leads = os.environ.get("RANK", "0") == "0"
    return observer() if progress and leads else Silent()


COLUMNS = (
    "source_column",
    "target_column",
    "text_column",
    "label_column",
    "image_column",
    "caption_column",
    "captions",
    "nodes",
    "parser",
)


def _columns(words: dict[str, Any]) -> dict[str, Any]:
    """Take the words that say which columns of a file are meant out of the others."""
    named = {word: words.pop(word) for word in COLUMNS if word in words}
    return {word: value for word, value in named.items() if value is not None}


def _loaded(run: Path | str | Run) -> Run:
    return load(run) if isinstance(run, (str, Path)) else run


def _refuse_unknown(settings: dict[str, Any], known: Iterable[str], verb: str) -> None:
    for word in settings:
        if word not in known:
            raise SpecError(unknown(f"{verb}: the word", word, known))
