"""The verbs that ask a run: evaluate, generate and search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from lemma.api.seeing import viewed
from lemma.api.shared import Texts, columns_of, opened, refuse_unknown, watch
from lemma.errors import SpecError

if TYPE_CHECKING:
    from lemma.generation import Generation, Translated
    from lemma.looking.worked import WorkedMatching
    from lemma.retrieval import SearchResult
    from lemma.runs import Run
    from lemma.studies.judged import AnyScore
    from lemma.studies.naming import Named


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

    asked = Asked(text, treebank, None, pairs, labels, images, graph, **columns_of(settings))
    given = {name: value for name, value in settings.items() if value is not None}
    return judge_run(opened(run), asked, split, given, watch(progress))


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
    from lemma.generation import Sampling, generate_text

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
    from lemma.generation import Beam, translate_texts
    from lemma.studies.naming import name_texts

    sources = [source] if isinstance(source, str) else list(source)
    if run.spec.family == "classifier":
        if settings:
            raise SpecError(f"generate: a classifier has no use for {', '.join(settings)}: it names a source's class.")
        answers: list[Any] = list(name_texts(run, sources))
    else:
        refuse_unknown(settings, Beam.__dataclass_fields__, "generate")
        with run.folded():
            answers = list(translate_texts(run.translator, run.tokenizer, sources, Beam(**settings)))
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
    from lemma.looking.worked import matching_by_hand
    from lemma.retrieval import Wanted, refuse_target, search_run

    if matrices is not None:
        worked = viewed(matching_by_hand, (matrices,), settings)
        if out is not None:
            worked.save(out)
        return worked
    refuse_unknown(settings, ("images", "query", "image", "texts", "k", "index"), "search")
    if run is None:
        raise SpecError("search: a run is expected, as in search('runs/a', images='emoji', query='a red heart').")
    if out is not None:
        refuse_target(Path(out))
    wanted = Wanted(images, query, image, texts, text_column, k, index, faiss)
    found = search_run(opened(run), wanted, _watched_pictures(progress))
    if out is not None:
        found.save(out)
    return found


def _watched_pictures(progress: bool) -> Callable[[str, int, int], None]:
    from lemma.training.progress import watched_reading

    return watched_reading(watch(progress), {"embedding pictures": "pictures"})
