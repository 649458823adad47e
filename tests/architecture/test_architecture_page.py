"""Check docs/architecture.md against the source tree."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "lemma"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def paths_in(text: str) -> set[str]:
    """Return the source files that a text names, with braces expanded: `data/{text, store}.py` names two."""
    paths: set[str] = set()
    for folder, names in re.findall(r"`?\b([a-z_/]+/)\{([\w, ]+)\}", text):
        paths |= {f"{folder}{name.strip()}.py" for name in names.split(",")}
    return paths | set(re.findall(r"\b[a-z_]+(?:/[a-z_]+)*/[a-z_0-9]+\.py\b", text))


def test_files_named_on_the_architecture_page_exist() -> None:
    missing = {path for path in paths_in(PAGE) if not (SOURCE / path).is_file() and not (ROOT / path).is_file()}
    assert not missing


def test_every_package_is_in_the_architecture_table() -> None:
    table = PAGE.split("## Flows")[0]
    packages = {path.stem for path in SOURCE.iterdir() if path.is_dir() or path.suffix == ".py"} - {"__pycache__"}
    assert not {name for name in packages if not name.startswith("__") and f"`{name}`" not in table}


def test_braces_are_expanded() -> None:
    assert paths_in("see `data/{text, store}.py` and hub/peft.py") == {"data/text.py", "data/store.py", "hub/peft.py"}
