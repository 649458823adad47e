"""The tasks: one per kind of data, found by what the spec of a model learns."""

from collections.abc import Mapping
from shlex import quote
from typing import Any

from lemma.errors import SpecError, describe_unknown
from lemma.report.progress import Observer
from lemma.runs.load import Run
from lemma.spec.data import PretrainedData
from lemma.spec.models import (
    CrossAttention,
    Encoder,
    EncoderDecoder,
    ModelSpec,
    Parser,
    Tree,
    find_family,
)
from lemma.tasks.base import DataArgs, Score, Task, absolute_path, expand_pattern
from lemma.tasks.classification import ClassificationTask, TreeClassificationTask
from lemma.tasks.image_text import ImageTextTask
from lemma.tasks.language import LanguageTask
from lemma.tasks.masked import MaskedTask
from lemma.tasks.nodes import NodesTask
from lemma.tasks.parsing import ParsingTask
from lemma.tasks.reranking import RerankingTask
from lemma.tasks.translation import TranslationTask

TASKS_BY_SPEC: dict[type[Any], type[Task]] = {
    Encoder: MaskedTask,
    Tree: TreeClassificationTask,
    CrossAttention: RerankingTask,
}
"""The tasks of specs that share their kind of data with others."""
TASKS_BY_OPTION: dict[str, type[Task]] = {
    task.option: task
    for task in (
        LanguageTask,
        ParsingTask,
        TranslationTask,
        ClassificationTask,
        ImageTextTask,
        NodesTask,
    )
}
"""The task of each kind of data, by its option."""
SPLIT_FILES = ("validation", "test")
"""The settings of all kinds that give a split as a file of its own."""


def task_for(spec: ModelSpec | type[ModelSpec]) -> Task:
    """The task of a model spec.

    >>> from lemma.spec.models import Lstm
    >>> task_for(Lstm()).name, task_for(Encoder()).name
    ('language', 'masked')
    """
    return TASKS_BY_SPEC.get(spec if isinstance(spec, type) else type(spec), TASKS_BY_OPTION[spec.data_kind])()


def task_of_family(family: str) -> Task:
    """The task of a family by its name."""
    found = find_family(family)
    return LanguageTask() if found is None else task_for(found)


def data_args(arguments: Mapping[str, Any]) -> DataArgs:
    """Read what a person named: one kind of data at most, and settings that belong to it. None is not given."""
    arguments = {name: value for name, value in arguments.items() if value is not None}
    options = [option for option in TASKS_BY_OPTION if option in arguments]
    if len(options) > 1:
        raise SpecError(
            f"{' and '.join(options)} are given. One kind of data at a time: text, a treebank, pairs, "
            "labels, images or a graph."
        )
    for option, task in TASKS_BY_OPTION.items():
        for setting in task.settings:
            if setting in arguments and option not in options:
                raise SpecError(f"{setting} = {arguments[setting]!r} belongs to {option}, which is not given.")
    for split in (split for split in SPLIT_FILES if split in arguments and not options):
        files = arguments[split] if isinstance(arguments[split], (list, tuple)) else [arguments[split]]
        raise SpecError(
            f"{split} = {', '.join(map(str, files))} is a split of data that are not given. Name them too: text, a "
            "treebank, pairs, labels, images or a graph."
        )
    if not options:
        return DataArgs()
    task, name = TASKS_BY_OPTION[options[0]], arguments[options[0]]
    several = list(name) if isinstance(name, (list, tuple)) else [name]
    if task.several:
        several = [file for one in several for file in expand_pattern(one, task.names)]
    names = [absolute_path(one, task.names) for one in several]
    settings = {name.removesuffix("_column"): arguments[name] for name in task.settings if name in arguments}
    for name in task.files:
        if name in settings and not isinstance(settings[name], int):
            settings[name] = absolute_path(settings[name], task.names)
    for split in (split for split in SPLIT_FILES if split in arguments):
        files = list(arguments[split]) if isinstance(arguments[split], (list, tuple)) else [arguments[split]]
        files = [file for one in files for file in expand_pattern(one, task.names)] if task.several else files
        if len(files) > 1 and not task.several:
            raise SpecError(f"{split}: {len(files)} files are given, and a split of {task.option} is one file.")
        files = [file if isinstance(file, int) else absolute_path(file, task.names) for file in files]
        settings[split] = files if task.several else files[0]
    if isinstance(settings.get("nodes"), str):  # the table of nodes; a number is the size of a generated graph
        settings["nodes_file"] = settings.pop("nodes")
    return DataArgs(task, names if task.several else names[0], settings)


DATA_SETTINGS = {
    *TASKS_BY_OPTION,
    *SPLIT_FILES,
    *(setting for task in TASKS_BY_OPTION.values() for setting in task.settings),
}
DATA_SETTINGS -= {setting for task in TASKS_BY_OPTION.values() for setting in task.evaluation_settings}
"""Settings that can only be about the data; `limit` is one of `evaluate` too."""


def evaluate_run(run: Run, args: DataArgs, split: str | None, settings: Mapping[str, Any], observer: Observer) -> Score:
    """Measure a run by what it was made for; `settings` are those that its kind of score takes."""
    task, family = task_for(run.spec), run.spec.family
    if args.option not in (None, task.option):
        if isinstance(task, NodesTask):
            raise SpecError(
                "evaluate: a graph model is evaluated on the validation or test nodes of the graph it was trained on, "
                f"not on {args.option}. Leave --{args.option} out: lemma evaluate {quote(str(run.path))}"
            )
        first = ""
        if args.option == "labels" and not isinstance(run.spec, Parser | EncoderDecoder):
            first = f" To make a classifier of it: lemma adapt {run.path} --labels {args.name} --out RUN"
        raise SpecError(
            f"evaluate: a run of the family {family} is evaluated on {task.option}, not on {args.option}.{first}"
        )
    if args.option is None and isinstance(run.data, PretrainedData):
        raise SpecError(
            f"evaluate: {run.path} is a pretrained model, whose own data are not known. Name some: "
            f"lemma evaluate {quote(str(run.path))} --{task.option} {task.example}"
        )
    if args.option and split is not None and not task.splits_given_data:
        raise SpecError(f"evaluate: give other {args.option} or a split of the run's own, not both.")
    for word in settings:
        if word in task.evaluation_settings:
            continue
        if word in task.no_effect:
            raise SpecError(f"evaluate: {task.no_effect[word]}. Leave {word} out.")
        elsewhere = any(word in (*other.evaluation_settings, *other.no_effect) for other in TASKS_BY_OPTION.values())
        if elsewhere or not task.evaluation_settings:
            raise SpecError(f"evaluate: {word} has no effect on a run of the family {family}. Leave it out.")
        raise SpecError(describe_unknown(f"evaluate {family}: the setting", word, task.evaluation_settings))
    return task.evaluate(run, args, split, settings, observer)
