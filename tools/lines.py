"""Compare the lines of each package of `src` with its budget in `lines.toml`: `python -m tools.lines`.

A package may not outgrow its budget: raise the figure in the same commit, with the reason in the commit's message.
"""

import sys
import tomllib
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "lemma"
BUDGET = Path(__file__).with_name("lines.toml")


def count_lines() -> dict[str, int]:
    """Count the lines of Python by package; modules next to the packages are counted as `modules`."""
    lines: dict[str, int] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        package, *inner = path.relative_to(SOURCE).parts
        key = package if inner else "modules"
        lines[key] = lines.get(key, 0) + len(path.read_text(encoding="utf-8").splitlines())
    return lines


def main() -> int:
    """Print lines next to budgets; return 1 if a package exceeds its budget or has none."""
    budget = tomllib.loads(BUDGET.read_text(encoding="utf-8"))["lines"]
    lines = count_lines()
    for package in sorted(lines.keys() | budget.keys()):
        actual, limit = lines.get(package, 0), budget.get(package)
        excess = (
            "no budget in tools/lines.toml" if limit is None else f"{actual - limit} over" if actual > limit else ""
        )
        print(f"{package:12} {actual:6} of {limit or 0:6}  {excess}".rstrip())
    print(f"{'total':12} {sum(lines.values()):6} of {sum(budget.values()):6}")
    exceeded = [package for package, actual in lines.items() if actual > budget.get(package, 0)]
    if exceeded:
        print(f"Over budget: {', '.join(exceeded)}. Delete something, or raise the figure and say why in the commit.")
    return bool(exceeded)


if __name__ == "__main__":
    sys.exit(main())
