"""The tasks, one per kind of data; the task of a model, the data that a person named, and the evaluation of a run."""

from collections.abc import Mapping
from shlex import quote
from typing import Any

from lemma.errors import SpecError, describe_unknown
from lemma.report.progress import Observer
from lemma.runs.load import Run
from lemma.spec.data import PretrainedData
from lemma.spec.models import CrossAttention, Encoder, EncoderDecoder, ModelSpec, Parser, Tree, find_family
from lemma.tasks.base import DataArgs, Score, Task, TaskInfo, absolute_path, evaluate_task, expand_pattern
from lemma.tasks.classification import ClassificationTask, TreeClassificationTask
from lemma.tasks.image_text import ImageTextTask
from lemma.tasks.language import LanguageTask
from lemma.tasks.masked import MaskedTask
from lemma.tasks.nodes import NodesTask
from lemma.tasks.parsing import ParsingTask
from lemma.tasks.reranking import RerankingTask
from lemma.tasks.translation import TranslationTask

TASKS_BY_OPTION: dict[str, type[Task]] = {
    task.info.option: task
    for task in (
        LanguageTask,
        ParsingTask,
        TranslationTask,
        ClassificationTask,
        ImageTextTask,
        NodesTask,
    )
}
"""The first task for each kind of data, by its option."""
TASKS_BY_SPEC: dict[type[Any], type[Task]] = {
    Encoder: MaskedTask,
    Tree: TreeClassificationTask,
    CrossAttention: RerankingTask,
}
"""The tasks of specs that share their kind of data with others."""
SPLIT_FILES = ("validation", "test")
"""Settings of every kind of data that name the file of a split."""
DATA_SETTINGS = {
    *TASKS_BY_OPTION,
    *SPLIT_FILES,
    *(setting for task in TASKS_BY_OPTION.values() for setting in task.info.settings),
} - {setting for task in TASKS_BY_OPTION.values() for setting in task.info.evaluation_settings}
"""Settings that can only be about the data; `limit` is also one of `evaluate`."""


def task_for(spec: ModelSpec | type[ModelSpec]) -> Task:
    """Return the task of a model spec.

    >>> from lemma.spec.models import Lstm
    >>> task_for(Lstm()).info.name, task_for(Encoder()).info.name
    ('language', 'masked')
    """
    return TASKS_BY_SPEC.get(spec if isinstance(spec, type) else type(spec), TASKS_BY_OPTION[spec.data_kind])()


def task_of_family(family: str) -> Task:
    """Return the task of a family by its name; a language task for an unknown one."""
    spec = find_family(family)
    return LanguageTask() if spec is None else task_for(spec)


def data_args(arguments: Mapping[str, Any]) -> DataArgs:
    """Read the data that a person named: of one kind at most, with settings that belong to it; None means not given."""
    arguments = {name: value for name, value in arguments.items() if value is not None}
    options = [option for option in TASKS_BY_OPTION if option in arguments]
    if len(options) > 1:
        raise SpecError(
            f"{' and '.join(options)} are given. One kind of data at a time: text, a treebank, pairs, "
            "labels, images or a graph."
        )
    _check_settings(arguments, options)
    if not options:
        return DataArgs()
    task = TASKS_BY_OPTION[options[0]]
    info = task.info

    def read_files(value: Any) -> list[Any]:
        files = list(value) if isinstance(value, (list, tuple)) else [value]
        if info.takes_several:
            files = [file for pattern in files for file in expand_pattern(pattern, info.names)]
        return [file if isinstance(file, int) else absolute_path(file, info.names) for file in files]

    names = read_files(arguments[info.option])
    settings = {name.removesuffix("_column"): arguments[name] for name in info.settings if name in arguments}
    for name in info.file_settings:
        if name in settings and not isinstance(settings[name], int):
            settings[name] = absolute_path(settings[name], info.names)
    for split in (split for split in SPLIT_FILES if split in arguments):
        files = read_files(arguments[split])
        if len(files) > 1 and not info.takes_several:
            raise SpecError(f"{split}: {len(files)} files are given, and a split of {info.option} is one file.")
        settings[split] = files if info.takes_several else files[0]
    if isinstance(settings.get("nodes"), str):  # the table of nodes; a number is the size of a generated graph
        settings["nodes_file"] = settings.pop("nodes")
    return DataArgs(task, names if info.takes_several else names[0], settings)


def _check_settings(arguments: Mapping[str, Any], options: list[str]) -> None:
    """Raise SpecError if a setting or a split belongs to data that are not given."""
    for option, task in TASKS_BY_OPTION.items():
        for setting in task.info.settings:
            if setting in arguments and option not in options:
                raise SpecError(f"{setting} = {arguments[setting]!r} belongs to {option}, which is not given.")
    for split in (split for split in SPLIT_FILES if split in arguments and not options):
        files = arguments[split] if isinstance(arguments[split], (list, tuple)) else [arguments[split]]
        raise SpecError(
            f"{split} = {', '.join(map(str, files))} is a split of data that are not given. Name them too: text, a "
            "treebank, pairs, labels, images or a graph."
        )


def evaluate_run(run: Run, args: DataArgs, split: str | None, settings: Mapping[str, Any], observer: Observer) -> Score:
    """Score a run on its own held-out data or on other data; `settings` are those of its task's evaluation."""
    task, family = task_for(run.spec), run.spec.family
    info = task.info
    if args.option not in (None, info.option):
        if isinstance(task, NodesTask):
            raise SpecError(
                "evaluate: a graph model is evaluated on the validation or test nodes of the graph it was trained on, "
                f"not on {args.option}. Leave --{args.option} out: lemma evaluate {quote(str(run.path))}"
            )
        hint = ""
        if args.option == "labels" and not isinstance(run.spec, Parser | EncoderDecoder):
            hint = f" To make a classifier of it: lemma adapt {run.path} --labels {args.name} --out RUN"
        raise SpecError(
            f"evaluate: a run of the family {family} is evaluated on {info.option}, not on {args.option}.{hint}"
        )
    if args.option is None and isinstance(run.data, PretrainedData):
        raise SpecError(
            f"evaluate: {run.path} is a pretrained model, whose own data are not known. Name some: "
            f"lemma evaluate {quote(str(run.path))} --{info.option} {info.example}"
        )
    if args.option and split is not None and not info.splits_other_data:
        raise SpecError(f"evaluate: give other {args.option} or a split of the run's own, not both.")
    for setting in settings:
        _check_evaluation_setting(setting, info, family)
    return evaluate_task(task, run, args, split, settings, observer)


def _check_evaluation_setting(setting: str, info: TaskInfo, family: str) -> None:
    """Raise SpecError if a setting is not one of a task's evaluation."""
    if setting in info.evaluation_settings:
        return
    if setting in info.no_effect:
        raise SpecError(f"evaluate: {info.no_effect[setting]}. Leave {setting} out.")
    others = [task.info for task in TASKS_BY_OPTION.values()]
    is_known = any(setting in (*other.evaluation_settings, *other.no_effect) for other in others)
    if is_known or not info.evaluation_settings:
        raise SpecError(f"evaluate: {setting} has no effect on a run of the family {family}. Leave it out.")
    raise SpecError(describe_unknown(f"evaluate {family}: the setting", setting, info.evaluation_settings))
