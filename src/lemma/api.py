"""The verbs. Rooms are imported when a verb is used, so that help and lists need no torch."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from lemma.errors import InputError, SpecError, unknown
from lemma.spec.choose import Choice, choose
from lemma.spec.models import ModelSpec
from lemma.spec.studies import read_study

if TYPE_CHECKING:
    from fastapi import FastAPI

    from lemma.checking.audit import Audit
    from lemma.checking.gradients import GradientReport
    from lemma.checking.identities import IdentityList
    from lemma.checking.identity import IdentityReport
    from lemma.checking.question import Verdict
    from lemma.checking.shapes import ShapeReport
    from lemma.checking.sheets import Marked
    from lemma.checking.worked.judge import WorkedReport
    from lemma.checking.worked.matching import WorkedMatching
    from lemma.counting.account import Account
    from lemma.counting.against import ToolComparison
    from lemma.counting.drawing import Drawing
    from lemma.counting.solve import Solutions
    from lemma.data.corpora import CorpusRow
    from lemma.generation.beam import Translated
    from lemma.generation.decode import Generation
    from lemma.hub.rewrite import Rewritten
    from lemma.inspection.heads import Heads
    from lemma.inspection.trees import ParsedText
    from lemma.report.progress import Observer
    from lemma.retrieval.result import SearchResult
    from lemma.runs.load import Run
    from lemma.serving.runs import Verbs
    from lemma.serving.server import Ready
    from lemma.studies.compare_methods import UnfinishedComparison
    from lemma.studies.result import StudyResult
    from lemma.tasks.base import Score
    from lemma.tasks.classification import Named
    from lemma.training.adapt import Adapted
    from lemma.training.result import TrainingResult


# What the verbs share: runs loaded, words sorted, progress watched.


Texts = str | Path | Sequence[str | Path]


def load(run: Path | str, device: str = "auto") -> Run:
    """Load a run: its spec, recipe, tokenizer and model."""
    import torch

    from lemma.runs.load import load as load_run

    return load_run(run, ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)


def watch(progress: bool) -> Observer:
    """Who is told of the progress: of several processes the first only."""
    from lemma.report.progress import Silent, observer

    leads = os.environ.get("RANK", "0") == "0"
    return observer() if progress and leads else Silent()


def opened(run: Path | str | Run) -> Run:
    """A run as it is, or loaded from its folder."""
    return load(run) if isinstance(run, (str, Path)) else run


def refuse_unknown(settings: dict[str, Any], known: Iterable[str], verb: str) -> None:
    """Refuse a word that a verb does not know."""
    for word in settings:
        if word not in known:
            raise SpecError(unknown(f"{verb}: the word", word, known))


# The verbs that make runs: train, resume and adapt.


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
    from lemma.tasks.registry import data_args, task_for
    from lemma.training.loop import train as train_model

    kinds = {"text": text, "treebank": treebank, "pairs": pairs, "labels": labels, "images": images, "graph": graph}
    given = data_args({**kinds, "dev": dev, "limit": limit, **_data_settings(words)})
    chosen = choose(model, words, classify=labels is not None)
    data_spec, observer = given.spec(chosen), watch(progress)
    data = task_for(chosen.model).load(data_spec, chosen.model, chosen.recipe, observer)
    return train_model(chosen.model, chosen.recipe, data_spec, data, Path(out), observer=observer, overwrite=overwrite)


def _data_settings(words: dict[str, Any]) -> dict[str, Any]:
    """Take the settings of the data, such as columns of a file, out of the others."""
    from lemma.tasks.registry import DATA_SETTINGS

    return {word: words.pop(word) for word in list(words) if word in DATA_SETTINGS}


def data_option(model: ModelSpec) -> tuple[str, str]:
    """The option that names the data of a model, and an example: ("text", "shakespeare")."""
    from lemma.tasks.registry import task_for

    task = task_for(model)
    return task.option, task.example


def resume(run: Path | str, *, progress: bool = True, **words: Any) -> TrainingResult:
    """Go on with an interrupted run from its last good checkpoint, on a CPU bit for bit."""
    from lemma.runs.folder import RunFolder
    from lemma.spec.base import distribute
    from lemma.spec.recipe import Recipe
    from lemma.tasks.registry import task_for
    from lemma.training.loop import resume as resume_training

    folder, observer = RunFolder.open(Path(run)), watch(progress)
    changes = distribute(words, {"recipe": Recipe})["recipe"]
    task, vocabulary = task_for(folder.spec), folder.vocabulary()
    data = task.load(folder.data, folder.spec, folder.recipe, observer, vocabulary, folder.labels())
    return resume_training(Path(run), data, observer=observer, changes=changes)


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
) -> Adapted | StudyResult | Rewritten | UnfinishedComparison | TrainingResult:
    """Adapt a finished run to labels, text, pairs or images of your own; the new run keeps only what changed.

    Methods: frozen, full, adapters (bottleneck, placement), lora (rank, alpha, lora_dropout, targets); `all` tries each
    of them and returns the table that says what each costs. Other words are the recipe's; columns as in `train`. The
    method is lora if none is named. With `rerank` a dual encoder becomes a re-ranker that looks at its first few
    findings again (candidates=10); its towers stay frozen if no method is named.
    `merge` writes an adapted run as a plain one instead. `peft="to"` writes its LoRA weights as a folder that peft
    loads, and `peft="from"` takes them from such a `folder` and puts them beside a base.
    """
    from lemma.hub.rewrite import rewrite
    from lemma.studies.compare_methods import adapt_to
    from lemma.tasks.registry import data_args

    kinds = {"text": text, "pairs": pairs, "labels": labels, "images": images, "limit": limit}
    given = data_args({**kinds, **_data_settings(words)})
    if merge or peft:
        if given.option or words:
            raise SpecError("adapt: a run that is merged or exchanged is not trained. Leave data and settings out.")
        return rewrite(Path(run), Path(out), "merge" if merge else str(peft), folder, overwrite)
    method = method or ("frozen" if rerank else "lora")
    return adapt_to(run, given, method, words, Path(out), watch(progress), overwrite, rerank)


# The verb that shows: look.


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
    from lemma.inspection.heads import look_at_run

    return viewed(look_at_run, (opened(run), *given), settings)


WORKED = {
    "attention": ("attention", "attention_by_hand"),
    "bpe": ("bpe", "trace_byte_pairs"),
    "cross": ("attention", "cross_by_hand"),
    "graph": ("graph", "graph_by_hand"),
    "lstm": ("lstm", "lstm_by_hand"),
}


def _look_worked(case: str, given: Given, settings: Settings) -> Any:
    module, name = WORKED[case]
    return viewed(getattr(import_module(f"lemma.checking.worked.{module}"), name), given, settings)


def _look_parse(given: Given, settings: Settings) -> ParsedText:
    from lemma.inspection.trees import parse_text

    if not given:
        raise SpecError("look parse: a run is expected, as in look('parse', 'runs/parser', text='I sleep').")
    return viewed(parse_text, (opened(given[0]), *given[1:]), settings)


def viewed(view: Callable[..., Any], given: Given, settings: Settings) -> Any:
    """Call a view; what does not fit its arguments is said plainly."""
    try:
        inspect.signature(view).bind(*given, **settings)
    except TypeError as error:
        raise SpecError(f"look: {error}. As in: look('runs/a', text='the cat sat')") from None
    return view(*given, **settings)


_VIEWS: dict[str, Callable[..., Any]] = {
    "attention": partial(_look_worked, "attention"),
    "bpe": partial(_look_worked, "bpe"),
    "cross": partial(_look_worked, "cross"),
    "graph": partial(_look_worked, "graph"),
    "lstm": partial(_look_worked, "lstm"),
    "parse": _look_parse,
}


# The verbs that ask a run: evaluate, generate and search.


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
) -> Score:
    """Measure a run on its own held-out part, or on other text, trees, pairs or labels.

    A language model's perplexity is a full pass (settings: context, stride), an encoder's is that of what was hidden.
    With a `treebank`, and for a parser's run, measure trees: UAS, LAS, per relation, beside baselines (of a language
    model those of its attention: layer, head, limit). A translator is judged by BLEU and chrF (beam, length_penalty,
    limit), a classifier and a graph model by accuracy, precision, recall and F1, a dual encoder by recall among the
    first 1, 5 and 10, both ways. Columns are named as in `train`.
    """
    from lemma.tasks.language import LanguageTask
    from lemma.tasks.registry import data_args, evaluate_run, task_for

    loaded, observer = opened(run), watch(progress)
    kinds = {"text": text, "treebank": treebank, "pairs": pairs, "labels": labels, "images": images, "graph": graph}
    given = data_args({**kinds, **_data_settings(settings)})
    known = {name: value for name, value in settings.items() if value is not None}
    if treebank is not None and type(task_for(loaded.spec)) is LanguageTask:
        from lemma.studies.attention_trees import evaluate_attention

        return evaluate_attention(loaded, given, split, known, observer)
    return evaluate_run(loaded, given, split, known, observer)


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
    on_text: Callable[[int, str], object] | None = None,
    **settings: Any,
) -> Any:
    """Write text after a prompt, or after each of several; at temperature 0 say where it loops, and prove it.

    Settings: tokens, temperature, top_k, top_p, seed, stop_at_loop, stop_at_eos. A translator writes the target of a
    `source`, or of each of several; its settings: beam, length_penalty, tokens. A classifier names a source's class.
    """
    from lemma.generation.decode import generate_text
    from lemma.generation.sampling import Sampling

    loaded = opened(run)
    if source is not None:
        return _answer(loaded, source, settings)
    prompts: list[Any] = list(prompt) if isinstance(prompt, list | tuple) else [prompt]
    refuse_unknown(settings, Sampling.__dataclass_fields__, "generate")
    with loaded.folded():
        written = generate_text(loaded.model, loaded.tokenizer, prompts, Sampling(**settings), on_text)
    return written[0] if isinstance(prompt, str) else written


def _answer(run: Run, source: str | Sequence[str], settings: dict[str, Any]) -> Any:
    """What a translator makes of a source, or what a classifier calls it."""
    from lemma.generation.beam import Beam, translate_texts
    from lemma.models.encoder_decoder import EncoderDecoderModel
    from lemma.tasks.classification import ClassificationTask, name_texts
    from lemma.tasks.registry import task_for

    sources = [source] if isinstance(source, str) else list(source)
    if isinstance(task_for(run.spec), ClassificationTask):
        if settings:
            raise SpecError(f"generate: a classifier has no use for {', '.join(settings)}: it names a source's class.")
        answers: list[Any] = list(name_texts(run, sources))
    else:
        refuse_unknown(settings, Beam.__dataclass_fields__, "generate")
        with run.folded():
            model = run.require(EncoderDecoderModel, "a translator, which answers a source")
            answers = list(translate_texts(model, run.tokenizer, sources, Beam(**settings)))
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
    """Find the `k` pictures nearest to a `query` or to an `image`, or the `texts` nearest to an `image`.

    `images` is a folder or a set known by name; its index is made the first time, kept in `index` or in the data home,
    and brought up to date. An `index` alone is searched as it stands. `texts` are a list, a file or a set's captions.
    The search is exact unless `faiss` is asked for, or there are more than a million pictures and it is installed.
    With `matrices`, an example or a TOML file, a small search is worked by hand (settings: words, full, decimals).
    What is found is written to `out`, if given; that it can be is seen to before any picture is read.
    """
    from lemma.checking.worked.matching import matching_by_hand
    from lemma.report.result import check_target
    from lemma.retrieval.result import ENDINGS
    from lemma.retrieval.search import SearchRequest, search_run

    if matrices is not None:
        worked = viewed(matching_by_hand, (matrices,), settings)
        if out is not None:
            worked.save(out)
        return worked
    refuse_unknown(settings, ("images", "query", "image", "texts", "k", "index"), "search")
    if run is None:
        raise SpecError("search: a run is expected, as in search('runs/a', images='emoji', query='a red heart').")
    if out is not None:
        check_target(out, ENDINGS)
    request = SearchRequest(images, query, image, texts, text_column, k, index, faiss)
    found = search_run(opened(run), request, _watched_pictures(progress))
    if out is not None:
        found.save(out)
    return found


def _watched_pictures(progress: bool) -> Callable[[str, int, int], None]:
    from lemma.report.progress import watched_reading

    return watched_reading(watch(progress), {"embedding images": "images"})


# The verbs of mathematics: count and check.


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
    from lemma.counting.count import QUANTITIES, Conventions
    from lemma.counting.count import count as account_for
    from lemma.counting.subject import imported, subject_of

    conventions = Conventions(multiply_add, causal, elementwise)  # pyright: ignore[reportArgumentType]
    return account_for(subject_of(imported(model), symbols), quantities or QUANTITIES, conventions)


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
    from lemma.counting.count import count as account_for
    from lemma.counting.solve import read_range, read_total, solve_for
    from lemma.counting.subject import imported, subject_of

    subject = subject_of(imported(model), symbols)
    figure = account_for(subject, [quantity]).quantities[quantity]
    wanted = [read_total(str(total)) for total in totals]
    return solve_for(subject, figure, unknown, wanted, dict(read_range(text) for text in ranges))


def against(model: Any, tools: Sequence[str], **symbols: Any) -> ToolComparison:
    """Set other tools' figures beside the exact ones, and name the module that explains a difference."""
    from lemma.counting.against import against as compare
    from lemma.counting.subject import imported, subject_of

    return compare(subject_of(imported(model), symbols), tools)


def draw(model: Any = "self-attention", **symbols: Any) -> Drawing:
    """Draw the flow of data through a module, with the symbolic shape of everything in it."""
    from lemma.counting.drawing import draw as draw_subject
    from lemma.counting.subject import imported, subject_of

    return draw_subject(subject_of(imported(model), symbols))


def check(
    what: str, model: Any = None, *answers: str, **symbols: Any
) -> Verdict | GradientReport | ShapeReport | WorkedReport | Marked | IdentityReport | IdentityList | Audit:
    """Judge a derivation of one's own.

    `check("parameters", "lstm", "4*D*(d + D + 1) + …")`, likewise `"flops"` and `"trainable"`; `check("number",
    "table-a5", "parameters", "9,721,596")`; `check("gradient", "lstm", "dW_y = (y_hat - y) @ a.T", …)`;
    `check("worked", "e9", "c_t = [0.52, -0.34]")`, a hand computation held against a worked case; `check("shape",
    "self-attention", "Q = H×S×M_QK")`; `check("sheet", "questions.toml", "answers.toml")`; `check("identity", "c7",
    D=256)`, and without a name the list of identities; `check("sources")`, every claim of the sources, or of
    some rows, with `progress=True` told how far it is.
    """
    if what == "sources":
        return _audit([row for row in (model, *answers) if row is not None], symbols)
    from lemma.checking.checkers import OF_MODELS, run_checker

    if what in OF_MODELS:
        from lemma.counting.subject import imported

        model = imported(model)
    return run_checker(what, model, answers, symbols)


def _audit(rows: Sequence[str], words: dict[str, Any]) -> Audit:
    from lemma.checking.audit import judge_sources
    from lemma.report.progress import watched_reading

    refuse_unknown(words, ("progress",), "check sources")
    watcher = watched_reading(watch(bool(words.get("progress"))), {"judging": "claims"})
    return judge_sources(rows, partial(watcher, "judging"))


def describe_cell(cell: str) -> str:
    """The step of a cell whose gradients can be judged, with every name and its shape."""
    from lemma.checking.gradients import describe_cell as describe

    return describe(cell)


def describe_worked(case: Any) -> str:
    """The names that may be claimed of a worked case, with shapes and meanings; no values."""
    from lemma.checking.worked.judge import describe_worked as describe

    return describe(case)


# The verb that compares: study; and what data there are.


def study(name: str | Path, *, out: Path | str, progress: bool = True, **words: Any) -> StudyResult:
    """Compare models at an equal budget over seeds, classifiers, or what parts cost: built in, or from a TOML file."""
    from lemma.studies.run import run_study

    return run_study(read_study(name, words), Path(out), watch(progress))


def corpora() -> list[CorpusRow]:
    """List the corpora known by name."""
    from lemma.data.corpora import corpora_table

    return corpora_table()


# The verb that serves: runs behind a page and an API.


def serve(
    *runs: Path | str | Run,
    host: str = "127.0.0.1",
    port: int = 8000,
    on_ready: Callable[[Ready], object] | None = None,
) -> None:
    """Serve runs until Ctrl-C: a page at the address, and under /v1 the API that OpenAI's clients speak.

    Requests tell runs apart by the names of their folders. `on_ready` is told the address; else stderr is.
    """
    _refuse_without("serve", "fastapi", "uvicorn")
    from lemma.serving.server import serve_runs

    serve_runs(runs, _verbs(), host, port, on_ready or partial(print, file=sys.stderr, flush=True))


def application(*runs: Path | str | Run, hosts: Iterable[str] | None = None) -> FastAPI:
    """Give what `serve` serves as an ASGI application, for a server of one's own or a test.

    `hosts` are the names it answers to; every name if none are given.
    """
    _refuse_without("serve", "fastapi")
    from lemma.serving.app import application as make

    return make(runs, _verbs(), hosts)


def _verbs() -> Verbs:
    """The verbs as the web room is handed them."""
    from lemma.serving.runs import Verbs

    return Verbs(opened, generate, _kind_of_answer, _attends, _heads_page, _account_page)


def _kind_of_answer(run: Run) -> str:
    """What a run makes of a text; one that answers none says what it is for."""
    from lemma.tasks.registry import task_for

    answer = task_for(run.spec).answers
    return answer or str(run.model)  # which refuses the run, with what it is for


def _attends(run: Run) -> bool:
    """Whether `look` finds heads in a run: it is tried on a token."""
    try:
        return bool(look(run, text=run.tokenizer.decode([0])))
    except InputError:
        return False


def _heads_page(run: Run, text: str) -> str:
    from lemma.inspection.page import page

    return page(look(run, text=text))


def _account_page(run: Run) -> str:
    return count(run.path)._repr_html_()


def _refuse_without(verb: str, *packages: str) -> None:
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise InputError(f"{verb} needs {' and '.join(missing)}, not installed here: pip install 'lemma[serve]'")
