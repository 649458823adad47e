"""Check the package order: a package imports only packages before it, and some never import torch."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "lemma"
ORDER = [
    *(
        "errors",
        "optional",
        "processes",
        "files",
        "random_state",
        "spec",
        "report",
        "data",
        "kernels",
        "layers",
        "models",
        "testing",
    ),
    *("adaptation", "hub", "runs", "generation", "tasks", "training", "counting", "checking", "inspection"),
    *("retrieval", "studies", "serving", "api", "cli"),
]
LEVEL = {package: level for level, package in enumerate(ORDER)}
ALLOWED_ONLY = {"cli": {"api", "spec", "report", "errors"}}
WITHOUT_TORCH = {"errors", "files", "spec", "data", "report", "serving", "cli"}
ENTRY_POINTS = {"__init__", "__main__"}  # they only forward to api and cli


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported_modules(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = ("lemma", *path.relative_to(SOURCE).parent.parts)
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            modules |= {module} | ({f"lemma.{alias.name}" for alias in node.names} if module == "lemma" else set())
    return modules


def imported_packages(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imported_modules(path) if name.startswith("lemma.")} - {"__version__"}


def forbidden_imports(package: str, imports: set[str]) -> set[str]:
    """Return the imports of a package that the order forbids."""
    earlier = {other for other, level in LEVEL.items() if level < LEVEL[package]}
    return imports - (earlier & ALLOWED_ONLY.get(package, set(LEVEL)) | {package})


FILES = [path for path in sorted(SOURCE.rglob("*.py")) if package_of(path) not in ENTRY_POINTS]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_import_only_earlier_packages(path: Path) -> None:
    package = package_of(path)
    assert package in LEVEL, f"add the package of {path} to docs/architecture.md and to ORDER"
    assert not forbidden_imports(package, imported_packages(path))


@pytest.mark.parametrize("path", [path for path in FILES if package_of(path) in WITHOUT_TORCH], ids=str)
def test_light_packages_do_not_import_torch(path: Path) -> None:
    assert not {name for name in imported_modules(path) if name.split(".")[0] in {"torch", "safetensors"}}


def test_import_of_a_later_package_is_reported() -> None:
    assert forbidden_imports("data", {"layers", "spec"}) == {"layers"}
    assert forbidden_imports("training", {"studies", "runs"}) == {"studies"}
    assert forbidden_imports("cli", {"api", "training"}) == {"training"}
    assert forbidden_imports("serving", {"errors", "api", "generation"}) == {"api"}
    assert forbidden_imports("spec", {"errors", "spec"}) == set()


def test_source_uses_no_pickle_and_no_eval() -> None:
    forbidden = {"eval", "exec", "pickle", "torch.load", "yaml.load", "joblib"}
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert not (calls | imported_modules(path)) & forbidden, path
