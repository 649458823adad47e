"""The verbs that make runs: train, resume and adapt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lemma.api.shared import Texts, columns_of, watch
from lemma.spec import Choice, ModelSpec, choose

if TYPE_CHECKING:
    from lemma.studies.adapted import Adapted
    from lemma.studies.board import Board
    from lemma.studies.boarding import Unfinished
    from lemma.studies.rewriting import Rewritten
    from lemma.training import TrainingResult


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

    asked = Asked(text, treebank, dev, pairs, labels, images, graph, limit=limit, **columns_of(words))
    chosen = choose(model, words, classify=labels is not None)
    data, watcher = asked.spec(chosen), watch(progress)
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
    watcher = watch(progress)
    lesson: Any = lesson_for_data(
        folder.data, folder.spec, folder.recipe, watcher, folder.vocabulary(), folder.labels()
    )
    return resume_training(
        Path(run), lesson.dataset, evaluate=lesson.evaluate, sample=lesson.sample, observer=watcher, changes=changes
    )


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

    asked = Asked(text, None, None, pairs, labels, images, limit=limit, **columns_of(words))
    method = method or ("frozen" if rerank else "lora")
    if merge or peft:
        return rewrite(Path(run), Path(out), "merge" if merge else str(peft), folder, asked, words, overwrite)
    return adapt_to(run, asked, method, words, Path(out), watch(progress), overwrite, rerank)
