"""Files never cause the import of a module that they name; only command lines and Python calls may.

Every kind of file that Lemma reads is written with the name of a module in each of its places, one after another, and
read the way Lemma reads it. The module leaves a trace as soon as it is imported.
"""

import ast
import csv
import json
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lemma
from lemma.adaptation.adapt import adapt_model
from lemma.checking.audit import SourceClaim, check_claim
from lemma.checking.derivation import check_derivation
from lemma.checking.formats import evaluation_function, nbgrader_notebook, otter_tests
from lemma.checking.gradients import check_gradients
from lemma.checking.grading import mark_class
from lemma.checking.marking import mark_answers
from lemma.checking.sheets import read_sheet
from lemma.checking.worked.check import check_worked, describe_worked
from lemma.cli.main import main
from lemma.counting.subject import resolve_subject
from lemma.data.graphs import read_node_link
from lemma.data.tables import open_table
from lemma.data.tokenizers import train_tokenizer
from lemma.data.treebanks import Lexicon
from lemma.errors import InputError, LemmaError, SpecError
from lemma.files import file_checksum, write_checked_json
from lemma.hub.peft import read_peft, write_peft
from lemma.models.build import build
from lemma.retrieval.index import Index, IndexEntry, append_entries, create_index
from lemma.runs.checkpoint import (
    MANIFEST,
    Checkpoint,
    named_weights,
    read_checksums,
    read_latest_checkpoint,
    save_checkpoint,
)
from lemma.runs.folder import RunFolder
from lemma.runs.load import load, run_hash
from lemma.spec.base import read_toml, to_toml
from lemma.spec.choose import choose
from lemma.spec.data import Characters, DataSpec, LabelsSpec
from lemma.spec.models import Classifier, Decoder, Lstm
from lemma.spec.recipe import AdaptationSpec, Lora, Recipe
from lemma.spec.studies import STUDIES, GridStudy, read_study
from lemma.studies.grid import expand_grid
from lemma.tasks.language import objective_function

MODULE = "lemma_canary"
FACTORY = f"{MODULE}:factory"
CODE = f"__import__('{MODULE}')"
KEYS = ("model", "loss", "adds", "turns", "biases", "kind", "family", "module", "auto_map", "__class__", "_target_")
SOURCE = """
from pathlib import Path
Path({trace!r}).write_text("imported")
from torch import nn
def factory(d=4, **others):
    return nn.Linear(d, d)
"""


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Create an importable module and return the file that it writes on import."""
    folder = tmp_path / "trace.txt"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / f"{MODULE}.py").write_text(SOURCE.format(trace=str(folder)), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "site")
    yield folder
    sys.modules.pop(MODULE, None)


def poisoned(document: Any) -> Iterator[Any]:
    """Yield the document with the module name as each value in turn, and under each key that could mean code."""
    for path in [(), *_paths_of(document)]:
        if path:
            yield from (_with_value(document, path, name) for name in (FACTORY, MODULE, CODE))
        if isinstance(_value_at(document, path), dict):
            yield from (_with_value(document, (*path, key), FACTORY) for key in KEYS)
            yield from (_with_value(document, (*path, key), {"kind": FACTORY, "family": FACTORY}) for key in KEYS)


def _paths_of(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    inner = document.items() if isinstance(document, dict) else enumerate(document[:2]) if _listed(document) else ()
    for key, value in inner:
        yield from _paths_of(value, (*path, key))


def _listed(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _value_at(document: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        document = document[step]
    return document


def _with_value(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = json.loads(json.dumps(document))
    _value_at(changed, path[:-1])[path[-1]] = value
    return changed


def read_ignoring_errors(read: Callable[..., Any], *given: Any) -> None:
    """Read a file, ignoring errors about its content."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with suppress(LemmaError, ValueError, TypeError, LookupError, AttributeError, OSError):
            read(*given)


def small_run(out: Path, family: str = "lstm") -> Path:
    """Write an untrained run with all files of a trained one."""
    spec: Any = Lstm(vocabulary=4, width=3, hidden=4)
    data: Any = DataSpec(text=("text.txt",), tokenizer=Characters())
    if family == "classifier":
        spec, data = Classifier(classes=2, body=spec.to_dict()), LabelsSpec(labels="table.csv")
    labels = ["one", "two"] if family == "classifier" else []
    folder = RunFolder(out, spec, Recipe(device="cpu"), data, "0")
    folder.create(train_tokenizer(Characters(), ["abcd"]), labels=labels)
    folder.metrics.append({"step": 1, "loss": 2.0})
    weights = named_weights(build(spec, 0.0), include_frozen=True)
    save_checkpoint(folder.checkpoints, Checkpoint(1, {"model": weights}, {"said": "nothing"}))
    folder.finish(weights, {"steps": 1, "model": "lstm"})
    return out


def adapted_run(out: Path) -> Path:
    base = RunFolder.open(small_run(out.parent / "base"))
    description = AdaptationSpec(base="../base", base_hash=run_hash(base), method=Lora(rank=1))
    folder = RunFolder(out, base.spec, base.recipe, base.data, "0", description)
    folder.create(None)
    adapted = adapt_model(build(base.spec, 0.0), description.method).model
    folder.finish(named_weights(adapted), {"steps": 1})
    return out


def reads_of(path: Path) -> list[Callable[[], Any]]:
    """Return functions that read everything of a run."""
    return [
        lambda: load(path),
        lambda: lemma.count(path, quantities=["parameters"]),
        lambda: objective_function(RunFolder.open(path).recipe.objective),
        lambda: RunFolder.open(path).labels(),
        lambda: RunFolder.open(path).metrics.rows(),
        lambda: RunFolder.open(path).summary(),
        lambda: read_latest_checkpoint(path / "checkpoints"),
    ]


def use_spec(path: Path) -> None:
    choice = choose(path)
    build(choice.model)
    objective_function(choice.recipe.objective)
    resolve_subject(str(path))


def use_study(path: Path) -> None:
    result: Any = read_study(path)
    if not isinstance(result, GridStudy):
        for model in getattr(result, "models", ()):
            build(choose(model.model, model.settings).model)
        return
    for cell in expand_grid(result):
        assert cell.model is not None
        build(cell.model)
        objective_function(cell.recipe.objective)


SHEET = {
    "title": "Week 1",
    "questions": [
        {"id": "Q1", "kind": "parameters", "model": "self-attention", "settings": {"E": 4}},
        {"id": "Q2", "kind": "number", "model": "lora", "quantity": "parameters"},
        {"id": "Q3", "kind": "gradient", "cell": "softmax-cross-entropy", "lines": ["dz"]},
        {"id": "Q4", "kind": "number", "value": "2 Q2", "credit": {"7": 0.5}},
    ],
}
ANSWERS = {"student": "A", "answers": {"Q1": "4 E", "Q2": "3", "Q3": "dz = y_hat - y"}}
CLAIM = {"row": "A1", "says": "It is so.", "check": "parameters", "of": "lora", "answers": ["R"], "sizes": {"R": 2}}
SPEC = {
    "family": "decoder",
    "width": 8,
    "depth": 1,
    "heads": 2,
    "context": 4,
    "vocabulary": 5,
    "positions": {"kind": "rotary"},
    "tokenizer": {"kind": "characters"},
    "recipe": {"steps": 2, "objective": {"kind": "causal"}},
}
STUDY = {
    "name": "mine",
    "data": {"text": ["text.txt"], "tokenizer": {"kind": "characters"}},
    "models": [{"model": "rnn", "name": "one", "settings": {"width": 4}}],
    "settings": {"objective": "causal"},
    "grid": {"hidden": [3, 4]},
    "budget": {"tokens": 100},
}
CLASSIFIERS = {
    "name": "mine",
    "kind": "classifiers",
    "labels": "film",
    "models": [{"model": "rnn", "settings": {"width": 4, "hidden": 4}}],
}
GRAPHS = {
    "name": "mine",
    "kind": "graph",
    "graph": "karate",
    "models": [{"model": "graph", "name": "two layers", "settings": {"depth": 2, "normalise": "rows"}}],
}
GRAPH = {"nodes": [{"id": "a", "label": "x"}, {"id": "b", "label": "y"}], "links": [{"source": "a", "target": "b"}]}
LEXICON = {"format": 1, "buckets": 8, "relations": ["root"], "words": ["a"]}
RECORD = {"text": "a b", "label": "one"}
WORKED = ("c1", "e1", "e9")


def _toml(document: Any, path: Path) -> Path:
    path.write_text(to_toml(document), encoding="utf-8")
    return path


def _json(document: Any, path: Path) -> Path:
    path.write_text(json.dumps(document) + "\n", encoding="utf-8")
    return path


def _markdown(document: Any, path: Path) -> Path:
    blocks = [f"## {item.get('id', 'Q')}\n```toml\n{to_toml(item)}```\n" for item in document["questions"]]
    path.write_text(f"# {document.get('title', '')}\n" + "\n".join(blocks), encoding="utf-8")
    return path


def _sheet(path: Path) -> None:
    mark_answers(path, _toml(ANSWERS, path.parent / "answers-given.toml"))


def _other_tools(path: Path) -> None:
    sheet = read_sheet(path)
    assert otter_tests(sheet) and nbgrader_notebook(sheet)
    for question in read_toml(path)["questions"]:
        read_ignoring_errors(evaluation_function, "4 E", "", question)


def _answers(path: Path) -> None:
    mark_answers(_toml(SHEET, path.parent / "sheet-asked.toml"), path)


FUNCTION = {
    "forward": "S = X^2 / 2",
    "loss": "sum(dS * S)",
    "answers": "dX = dS * X",
    "sizes": {"n": "rows", "d": "width"},
    "inputs": {"X": "n d", "dS": "n d incoming"},
}
FORMATS: dict[str, tuple[Any, str, Callable[[Any, Path], Path], Callable[[Path], Any]]] = {
    "sheet in TOML": (SHEET, "sheet.toml", _toml, _sheet),
    "sheet in Markdown": (SHEET, "sheet.md", _markdown, _sheet),
    "sheet for other tools": (SHEET, "sheet.toml", _toml, _other_tools),
    "answers": (ANSWERS, "answers.toml", _toml, _answers),
    "claim": (CLAIM, "claim.toml", _toml, lambda path: check_claim(SourceClaim.read(read_toml(path), "claim"))),
    "function": (FUNCTION, "mine.toml", _toml, check_gradients),
    "derivation": ({**FUNCTION, "steps": "dX = dS * S\n= S * dS"}, "mine.toml", _toml, check_derivation),
    "spec": (SPEC, "spec-of-mine.toml", _toml, use_spec),
    "study": (STUDY, "study.toml", _toml, use_study),
    "study of costs": (STUDIES["heads"].to_dict(), "study.toml", _toml, use_study),
    "study of classifiers": (CLASSIFIERS, "study.toml", _toml, use_study),
    "study of a graph": (GRAPHS, "study.toml", _toml, use_study),
    "graph": (GRAPH, "graph.json", _json, read_node_link),
    "lexicon": (LEXICON, "lexicon.json", _json, Lexicon.load),
    "records": (RECORD, "records.jsonl", _json, lambda path: list(open_table(path)[1])),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_values_in_files_are_never_imported(kind: str, trace: Path, tmp_path: Path) -> None:
    document, name, write, read = FORMATS[kind]
    read(write(document, tmp_path / name))  # the original file is valid
    for changed in poisoned(document):
        read_ignoring_errors(lambda changed=changed: read(write(changed, tmp_path / name)))
        assert not trace.exists(), changed


def test_values_in_class_tables_are_never_imported(trace: Path, tmp_path: Path) -> None:
    names = ("student", "user", "Q1", "Q2", "Q3", "Q4")
    rows = [["A", "", "4 E", "3", "dz = y_hat - y", "6"]]
    rows += [[*rows[0][:at], name, *rows[0][at + 1 :]] for at in range(6) for name in (FACTORY, MODULE, CODE)]
    with (tmp_path / "class.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    result = mark_class(_toml(SHEET, tmp_path / "sheet.toml"), [tmp_path / "class.csv"])
    assert len(result.students) == 19 and result.students[0]["Q3"] and not trace.exists()


@pytest.mark.parametrize("case", WORKED)
def test_values_in_worked_cases_are_never_imported(case: str, trace: Path, tmp_path: Path) -> None:
    shipped = Path(lemma.__file__).parent / "checking" / "worked" / "examples" / f"{case}.toml"
    assert describe_worked(str(shipped))
    for changed in poisoned(read_toml(shipped)):
        read_ignoring_errors(lambda changed=changed: describe_worked(str(_toml(changed, tmp_path / "case.toml"))))
        assert not trace.exists(), changed


@pytest.mark.parametrize("text", [FACTORY, CODE, f"dz = {FACTORY}", f"dz = {CODE}", f"dz = {CODE}.factory()"])
def test_lines_of_derivations_are_never_imported(text: str, trace: Path) -> None:
    read_ignoring_errors(check_gradients, "softmax-cross-entropy", [text])
    read_ignoring_errors(check_worked, "e9", [text])
    read_ignoring_errors(lemma.check, "parameters", "lora", text)
    assert not trace.exists()


RUN_FILES = [
    ("lstm", "spec.toml"),
    ("lstm", "recipe.toml"),
    ("lstm", "tokenizer.json"),
    ("lstm", "summary.json"),
    ("lstm", "metrics.jsonl"),
    ("lstm", "checkpoints/step-1/state.json"),
    ("lstm", "checkpoints/step-1/manifest.json"),
    ("classifier", "spec.toml"),
    ("classifier", "labels.json"),
    ("adapted", "adaptation.toml"),
]


@pytest.mark.parametrize(("kind", "name"), RUN_FILES)
def test_values_in_run_files_are_never_imported(kind: str, name: str, trace: Path, tmp_path: Path) -> None:
    out = adapted_run(tmp_path / "run") if kind == "adapted" else small_run(tmp_path / "run", kind)
    for read in reads_of(out):
        read()  # the original files are valid
    (out / MANIFEST).unlink()  # otherwise the changed file is rejected unread
    path = out / name
    write, document = (_toml, read_toml(path)) if path.suffix == ".toml" else (_json, json.loads(path.read_text()))
    for changed in poisoned(document):
        read_ignoring_errors(write, changed, path)
        if path.name == "state.json":  # update the checksum, otherwise the file is rejected unread
            sums = {**read_checksums(path.parent), path.name: file_checksum(path)}
            (path.parent / MANIFEST).write_text(json.dumps(sums))
        for read in reads_of(out):
            read_ignoring_errors(read)
        assert not trace.exists(), changed


def test_values_in_search_indexes_are_never_imported(trace: Path, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    folder.mkdir()
    append_entries(
        folder,
        create_index(folder, "run", 2, "pictures").header,
        [IndexEntry("a.png", 1, 2, "ab")],
        np.ones((1, 2), np.float32),
    )
    assert Index.open(folder).entries[0].name == "a.png"
    head, entries = folder / "index.json", next(folder.glob("entries-*.jsonl"))
    output, listed = json.loads(head.read_text()), json.loads(entries.read_text())
    del output["sha256"]
    for changed in poisoned(listed):
        _json(changed, entries)
        content = entries.read_bytes()
        write_checked_json(head, {**output, "size": len(content), "entries_sum": zlib.crc32(content)})
        read_ignoring_errors(lambda: Index.open(folder).entries)
        assert not trace.exists(), changed
    _json(listed, entries)
    for changed in poisoned(output):
        write_checked_json(head, changed) if isinstance(changed, dict) else _json(changed, head)
        read_ignoring_errors(lambda: Index.open(folder).entries)
        assert not trace.exists(), changed


def test_values_in_peft_folders_are_never_imported(trace: Path, tmp_path: Path) -> None:
    spec = Decoder(vocabulary=5, width=4, depth=1, heads=1, context=4)
    write_peft(adapt_model(build(spec), Lora(rank=1)).model, tmp_path / "peft")
    path = tmp_path / "peft" / "adapter_config.json"
    assert read_peft(path.parent, build(spec))
    for changed in poisoned(json.loads(path.read_text())):
        _json(changed, path)
        read_ignoring_errors(lambda: read_peft(path.parent, build(spec)))
        assert not trace.exists(), changed


def test_values_in_cached_counts_are_never_imported(trace: Path, tmp_path: Path) -> None:
    lemma.count("lora", quantities=["parameters"])
    (path,) = (tmp_path / "home" / "counts").glob("*.json")
    saved = json.loads(path.read_text())
    del saved["sha256"]
    for changed in poisoned(saved):
        write_checked_json(path, changed) if isinstance(changed, dict) else _json(changed, path)
        read_ignoring_errors(lambda: lemma.count("lora", quantities=["parameters"]))
        assert not trace.exists(), changed


def test_sheet_naming_python_code_is_rejected_with_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Regression: a sheet once passed its settings to os.system."""
    folder = tmp_path / "ran"
    words = {"command": f"touch {folder}"}
    sheet = {"questions": [{"id": "Q1", "kind": "parameters", "model": "os:system", "settings": words}]}
    _toml(sheet, tmp_path / "sheet.toml")
    _toml(ANSWERS, tmp_path / "answers.toml")
    with pytest.raises(SystemExit) as done:
        main(["check", "sheet", str(tmp_path / "sheet.toml"), str(tmp_path / "answers.toml")])
    output = " ".join(capsys.readouterr().err.split())
    assert done.value.code == 2 and not folder.exists()
    assert "question Q1" in output and "model = 'os:system' names Python code" in output
    assert "Expected a preset" in output and "lemma count package.module:factory" in output


def test_user_supplied_factories_are_imported(trace: Path) -> None:
    """The trace file appears for names typed or passed by the user, which shows that it detects imports."""
    with pytest.raises(SpecError, match="Python code"):
        resolve_subject(FACTORY)
    assert not trace.exists()
    assert lemma.count(FACTORY, quantities=["parameters"]).parameters.formula == "d*(d + 1)"
    assert trace.exists()
    verdict: Any = lemma.check("parameters", FACTORY, "d^2 + d")
    assert verdict.equal
    with pytest.raises(InputError):
        lemma.check("shape", FACTORY, "Q = d")


IMPORTERS = {
    "checking/code_child.py": "a file of code that a person named, in a process of its own",
    "checking/exercises/registry.py": "Lemma's own modules, by names in the code of kinds",
    "__init__.py": "Lemma's own modules",
    "counting/subject.py": "what a person names",
    "models/build.py": "Lemma's own modules, by names in the code of specs",
    "optional.py": "libraries by names in the code",
    "spec/plugins.py": "what installed packages bring",
    "tasks/registry.py": "Lemma's own modules, by names in the code of tasks",
}


def test_only_listed_modules_import_by_name() -> None:
    """Review each addition: can the imported name come from a file?"""
    root = Path(lemma.__file__).parent
    result = {str(path.relative_to(root)) for path in root.rglob("*.py") if _imports_by_name(path)}
    assert result == set(IMPORTERS)
    callers = {str(path.relative_to(root)) for path in root.rglob("*.py") if _calls(path, {"import_model"})}
    assert callers == {"api.py"}


def _imports_by_name(path: Path) -> bool:
    return _calls(
        path, {"import_module", "__import__", "eval", "exec", "run_path", "run_module", "exec_module"}, methods=False
    )


def _calls(path: Path, names: set[str], methods: bool = True) -> bool:
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    base = {node.func.id for node in calls if isinstance(node.func, ast.Name)}
    dotted = {node.func.attr for node in calls if isinstance(node.func, ast.Attribute)}
    return bool(names & base or (names - ({"eval"} if not methods else set())) & dotted)
