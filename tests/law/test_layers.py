"""The layer law: a room imports only rooms before it in the order of the house."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "lemma"
ORDER = [
    *(
        "errors",
        "processes",
        "random_state",
        "spec",
        "data",
        "report",
        "layers",
        "models",
        "adaptation",
        "hub",
        "runs",
        "generation",
        "tasks",
    ),
    *("training", "counting", "checking", "inspection", "retrieval", "studies", "serving", "api", "cli"),
]
LEVEL = {room: level for level, room in enumerate(ORDER)}
SEES_ONLY = {"cli": {"api", "spec", "report", "errors"}, "serving": {"spec", "errors"}}
WITHOUT_TORCH = {"errors", "spec", "data", "report", "serving", "cli"}
FREE = {"__init__", "__main__"}  # the package's own doors: they only forward to api and cli


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported_modules(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = ("lemma", *path.relative_to(SOURCE).parent.parts)
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            found |= {module} | ({f"lemma.{alias.name}" for alias in node.names} if module == "lemma" else set())
    return found


def rooms_imported(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imported_modules(path) if name.startswith("lemma.")} - {"__version__"}


def broken_laws(room: str, imports: set[str]) -> set[str]:
    """The imports of a room that the law forbids."""
    allowed = {other for other, level in LEVEL.items() if level < LEVEL[room]} | {room}
    return imports - (allowed & SEES_ONLY.get(room, set(LEVEL)) | {room})


FILES = [path for path in sorted(SOURCE.rglob("*.py")) if room_of(path) not in FREE]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_imports_only_rooms_before_its_own(path: Path) -> None:
    room = room_of(path)
    assert room in LEVEL, f"{path} stands outside the house; add its room to docs/architecture.md and to ORDER"
    assert not broken_laws(room, rooms_imported(path))


@pytest.mark.parametrize("path", [path for path in FILES if room_of(path) in WITHOUT_TORCH], ids=str)
def test_rooms_without_torch_do_not_import_it(path: Path) -> None:
    assert not {name for name in imported_modules(path) if name.split(".")[0] in {"torch", "safetensors"}}


def test_the_law_itself_catches_a_room_that_comes_later() -> None:
    assert broken_laws("data", {"layers", "spec"}) == {"layers"}
    assert broken_laws("training", {"studies", "runs"}) == {"studies"}
    assert broken_laws("cli", {"api", "training"}) == {"training"}
    assert broken_laws("serving", {"errors", "api", "generation"}) == {"api", "generation"}
    assert broken_laws("spec", {"errors", "spec"}) == set()


def test_no_pickle_and_no_evaluation_anywhere() -> None:
    forbidden = {"eval", "exec", "pickle", "torch.load", "yaml.load", "joblib"}
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert not (calls | imported_modules(path)) & forbidden, path
