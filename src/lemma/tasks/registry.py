"""The kinds of data: what each is called, which task learns it, and the data that a person named. No torch."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from glob import glob
from importlib import import_module
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lemma.data.corpora import CORPORA, GRAPHS, IMAGES, LABELLED_CORPORA, PAIR_CORPORA, TREEBANKS
from lemma.errors import DataError, SpecError
from lemma.spec.base import exists, short_repr
from lemma.spec.choose import Choice
from lemma.spec.data import AnyDataSpec, DataSpec, GraphSpec, ImagesSpec, LabelsSpec, PairsSpec, TreebankSpec
from lemma.spec.models import CrossAttention, Encoder, ModelSpec, Tree

if TYPE_CHECKING:
    from lemma.tasks.base import Task


@dataclass(frozen=True)
class TaskInfo:
    """Names, command-line options and wording of a task, known without importing the task."""

    name: str
    path: str  # the class of the task, as `module:class`; it is imported when a model is trained or evaluated
    option: str  # option, and field of the data spec, that names the data: "text", "labels", …
    example: str  # value of the option for messages
    trains_on: str  # the kind of data for messages: "labelled texts"
    data_spec: type[Any]
    names: Collection[str] = ()  # data sets that are known by name
    takes_several: bool = False  # whether the option takes several names
    settings: tuple[str, ...] = ()  # further settings of the option, such as "source_column"
    file_settings: tuple[str, ...] = ()  # those of the settings that name files
    evaluation_settings: tuple[str, ...] = ()  # settings of `evaluate`
    no_effect: Mapping[str, str] = field(default_factory=dict)  # settings of `evaluate`, and why they make no sense
    splits_other_data: bool = False  # whether `evaluate` takes a split of data other than the run's
    unit: str = "nats/token"  # of the loss
    has_perplexity: bool = True  # whether perplexities of different models can be compared
    counts: str = "tokens"  # unit of training throughput
    answers: str | None = None  # "prompt", "translation" or "class"; None if texts have no answer
    text_checks: bool = True  # whether warnings about text apply: too many epochs, validation far better than training
    no_penalties: str | None = None  # reason why the attention penalties do not apply; None where they do
    adaptation_batch: int = 32


LANGUAGE = TaskInfo(
    "language",
    "lemma.tasks.language:LanguageTask",
    option="text",
    example="shakespeare",
    trains_on="text",
    data_spec=DataSpec,
    names=CORPORA,
    takes_several=True,
    answers="prompt",
    evaluation_settings=("context", "stride"),
)
MASKED = replace(
    LANGUAGE,
    name="masked",
    path="lemma.tasks.masked:MaskedTask",
    unit="nats/hidden token",
    answers=None,
    evaluation_settings=(),
    no_penalties="an encoder learns what is hidden from it",
)
WINDOWS = "trees are of whole sentences; --context and --stride cut running text into windows, for perplexity"
ONE_TREE = "a parser has one tree per sentence; --layer and --head choose among a language model's heads"
PARSING = TaskInfo(
    "parsing",
    "lemma.tasks.parsing:ParsingTask",
    option="treebank",
    example="ewt",
    trains_on="a treebank",
    data_spec=TreebankSpec,
    names=TREEBANKS,
    settings=("dev",),
    file_settings=("dev",),
    evaluation_settings=("limit",),
    no_effect={
        "context": WINDOWS,
        "stride": WINDOWS,
        "layer": ONE_TREE,
        "head": ONE_TREE,
        "seed": "a parser's trees need no random weights; seed fixes those a language model is compared with",
    },
    splits_other_data=True,
    unit="nats/word",
    has_perplexity=False,
    no_penalties="a parser's heads are shaped by their relations",
)
TRANSLATION = TaskInfo(
    "translation",
    "lemma.tasks.translation:TranslationTask",
    option="pairs",
    example="tatoeba-es",
    trains_on="pairs of texts",
    data_spec=PairsSpec,
    names=PAIR_CORPORA,
    settings=("source_column", "target_column"),
    evaluation_settings=("beam", "length_penalty", "limit"),
    answers="translation",
    no_penalties="an encoder-decoder learns to translate",
)
CLASSIFICATION = TaskInfo(
    "classification",
    "lemma.tasks.classification:ClassificationTask",
    option="labels",
    example="tweets",
    trains_on="labelled texts",
    data_spec=LabelsSpec,
    names=LABELLED_CORPORA,
    settings=("text_column", "label_column", "limit", "parser"),
    file_settings=("parser",),
    unit="nats/text",
    has_perplexity=False,
    answers="class",
    no_penalties="a classifier learns labels",
)
IMAGE_TEXT = TaskInfo(
    "image-text",
    "lemma.tasks.image_text:ImageTextTask",
    option="images",
    example="emoji",
    trains_on="images with captions",
    data_spec=ImagesSpec,
    names=IMAGES,
    settings=("captions", "image_column", "caption_column"),
    file_settings=("captions",),
    splits_other_data=True,
    unit="nats/pair",
    has_perplexity=False,
    text_checks=False,  # a smaller split has a lower loss by its size alone
    no_penalties="a dual encoder learns images and captions",
    adaptation_batch=128,  # the images of a batch are each other's negatives, so there must be many
)
RERANKING = replace(
    IMAGE_TEXT,
    name="re-ranking",
    path="lemma.tasks.reranking:RerankingTask",
    no_penalties="a re-ranker learns images and captions",
    adaptation_batch=64,
)
NODES = TaskInfo(
    "nodes",
    "lemma.tasks.nodes:NodesTask",
    option="graph",
    example="cora",
    trains_on="a graph",
    data_spec=GraphSpec,
    names=GRAPHS,
    settings=("nodes", "labelled"),
    file_settings=("nodes", "labelled"),
    unit="nats/node",
    has_perplexity=False,
    counts="nodes",
    text_checks=False,  # the same few nodes are read at every step, as they should be
    no_penalties="a graph model has fixed weights in its place",
)
TREE_CLASSIFICATION = replace(
    CLASSIFICATION,
    path="lemma.tasks.classification:TreeClassificationTask",
    example="tweets --parser runs/parser",
)
TASKS_BY_OPTION = {info.option: info for info in (LANGUAGE, PARSING, TRANSLATION, CLASSIFICATION, IMAGE_TEXT, NODES)}
"""The first task for each kind of data, by its option."""
TASKS_BY_SPEC: dict[type[Any], TaskInfo] = {
    Encoder: MASKED,
    Tree: TREE_CLASSIFICATION,
    CrossAttention: RERANKING,
}
"""The tasks of specs that share their kind of data with others."""
SPLIT_FILES = ("validation", "test")
"""Settings of every kind of data that name the file of a split."""
DATA_SETTINGS = {
    *TASKS_BY_OPTION,
    *SPLIT_FILES,
    *(setting for info in TASKS_BY_OPTION.values() for setting in info.settings),
} - {setting for info in TASKS_BY_OPTION.values() for setting in info.evaluation_settings}
"""Settings that can only be about the data; `limit` is also one of `evaluate`."""


def task_info(spec: ModelSpec | type[ModelSpec]) -> TaskInfo:
    """Return names, options and wording of a model spec's task, without importing the task's module.

    >>> from lemma.spec.models import Lstm
    >>> task_info(Lstm()).name, task_info(Encoder()).name
    ('language', 'masked')
    """
    return TASKS_BY_SPEC.get(spec if isinstance(spec, type) else type(spec), TASKS_BY_OPTION[spec.data_kind])


def task_for(spec: ModelSpec | type[ModelSpec]) -> "Task":
    """Return the task of a model spec, importing its module."""
    info = task_info(spec)
    module, _, name = info.path.partition(":")
    return getattr(import_module(module), name)()


# Data that a person named


@dataclass(frozen=True)
class DataArgs:
    """Data that the user named, of at most one kind, with the settings of that kind."""

    info: TaskInfo | None = None  # the first task for this kind of data; None if no data are named
    name: Any = None  # name of a data set, or the absolute path of a file; a list of them for text
    settings: Mapping[str, Any] = field(default_factory=dict)  # fields of the data spec, such as `source`

    @property
    def option(self) -> str | None:
        """Name of the option that names the data, such as "text"; None if no data are named."""
        return self.info.option if self.info else None

    def spec(self, choice: Choice) -> AnyDataSpec:
        """Return the data spec of these arguments for a choice of model; raise SpecError if no data are named."""
        if self.info is None:
            raise SpecError(
                "nothing to learn from is given: text, a treebank for a parser, pairs of texts, labels, images or a "
                "graph."
            )
        return choice.data_spec(self.info.option, self.name, **self.settings)


def data_args(arguments: Mapping[str, Any]) -> DataArgs:
    """Return the data that `arguments` (option → value) name; other arguments are ignored.

    Raise SpecError for two kinds of data, or settings of another kind.
    """
    arguments = {name: value for name, value in arguments.items() if value is not None}
    options = [option for option in TASKS_BY_OPTION if option in arguments]
    if len(options) > 1:
        raise SpecError(
            f"{' and '.join(options)} are given. One kind of data at a time: text, a treebank, pairs, "
            "labels, images or a graph."
        )
    for option, info in TASKS_BY_OPTION.items():
        for setting in info.settings:
            if setting in arguments and option not in options:
                raise SpecError(f"{setting} = {arguments[setting]!r} belongs to {option}, which is not given.")
    split_files = {split: arguments[split] for split in SPLIT_FILES if split in arguments}
    if not options:
        for split, value in split_files.items():
            files = value if isinstance(value, (list, tuple)) else [value]
            raise SpecError(
                f"{split} = {', '.join(map(str, files))} is a split of data that are not given. Name them too: text, a "
                "treebank, pairs, labels, images or a graph."
            )
        return DataArgs()
    info = TASKS_BY_OPTION[options[0]]

    def read_files(value: Any) -> list[Any]:
        files = list(value) if isinstance(value, (list, tuple)) else [value]
        if info.takes_several:
            files = [file for pattern in files for file in _expand_pattern(pattern, info.names)]
        return [file if isinstance(file, int) else absolute_path(file, info.names) for file in files]

    names = read_files(arguments[info.option])
    settings = {name.removesuffix("_column"): arguments[name] for name in info.settings if name in arguments}
    for name in info.file_settings:
        if name in settings and not isinstance(settings[name], int):
            settings[name] = absolute_path(settings[name], info.names)
    for split, value in split_files.items():
        files = read_files(value)
        if len(files) > 1 and not info.takes_several:
            raise SpecError(f"{split}: {len(files)} files are given, and a split of {info.option} is one file.")
        settings[split] = files if info.takes_several else files[0]
    if isinstance(settings.get("nodes"), str):  # the table of nodes; a number is the size of a generated graph
        settings["nodes_file"] = settings.pop("nodes")
    return DataArgs(info, names if info.takes_several else names[0], settings)


def absolute_path(name: Any, names: Collection[str] = ()) -> str:
    """Return the absolute path of a file; a name in `names`, such as that of a known corpus, is returned unchanged."""
    text = str(name)
    return str(Path(text).resolve()) if text not in names and exists(Path(text)) else text


def _expand_pattern(name: Any, names: Collection[str]) -> list[str]:
    """Return the sorted files that match a pattern such as shard-*.txt.gz; [name] if it is a file or in `names`."""
    text = str(name)
    if text in names or not any(sign in text for sign in "*?[") or exists(Path(text)):
        return [text]
    files = sorted(glob(text, recursive=True))  # noqa: PTH207 (a pattern may begin at the root)
    if not files:
        raise DataError(f"{text}: no file has a name like that. Check the pattern and the folder.")
    return files


def check_epochs(epochs: Any, settings: Mapping[str, Any]) -> None:
    """Raise SpecError if `epochs` is not a number above 0, or `settings` has `steps` too."""
    if epochs is None:
        return
    if isinstance(epochs, bool) or not isinstance(epochs, Real) or not 0 < float(epochs) < math.inf:
        raise SpecError(f"epochs = {short_repr(epochs)}: a number above 0 is expected, as in epochs=3.")
    if "steps" in settings:
        raise SpecError("steps and epochs are both given. Leave one of them out.")
