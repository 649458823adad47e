"""Unique class names and banned words."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "lemma"
BANNED = {
    r"\bnoughts?\b": "0 or zero",
    r"\b(commonest|oftener)\b": "most frequent, more often",
    r"\blikeliest\b": "most likely",
    r"\bgovernors?\b": "head (of a dependency)",
    r"\boverhear\w*": "record attention",
    r"\b(shelf|shelves)\b": "cache",
    r"\bladders?\b|\brungs?\b": "probe sizes",
    r"\blessons?\b": "loss",
    r"\bcontenders?\b": "model or condition",
    r"\banew\b": "again",
    r"\bone's own\b": "your own, custom",
    r"\bso many\b": "N, at most N",
    r"\btold apart\b": "differs significantly",
    r"(?-i:(?<!there )\bis none\b)(?! of)|\bis no run\b": "is not a …",
    r"\bfirst weights\b": "initial weights",
    r"\bnats a (token|word|text|node|pair)\b": "nats/token",
    r"\bheld.out part\b": "validation or test split",
    r"\bstretch(es|ed)?\b": "sequence length, span",
    r"\bbeside\b": "next to",
    r"\bpictures?\b": "image",
}
EXCEPT = {"tests/architecture/test_names.py", "CHANGELOG.md", "CONTRIBUTING.md", "docs/changelog.md"}
FORMATS = re.compile(
    r"""["'](stretch|contenders|pictures?|governors?)["']|\bself\.governor\b"""
)  # names in files on people's disks: keys, columns, weights
TEXTS = [
    path
    for pattern in ("src/**/*.py", "tests/**/*.py", "benchmarks/*.py", "pages/*.py", "docs/**/*.md", "*.md")
    for path in sorted(ROOT.glob(pattern))
    if str(path.relative_to(ROOT)) not in EXCEPT
]


def test_class_names_are_unique_in_the_package() -> None:
    positions: dict[str, list[str]] = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                positions[node.name].append(str(path.relative_to(SOURCE)))
    assert not {name: files for name, files in positions.items() if len(files) > 1}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_banned_words_do_not_appear(path: Path) -> None:
    """Reject the words of `BANNED` in names, comments, messages and docs."""
    text = FORMATS.sub("", path.read_text(encoding="utf-8"))
    result = [
        f"line {text.count(chr(10), 0, match.start()) + 1}: '{match[0]}', better: {better}"
        for phrase, better in BANNED.items()
        for match in re.finditer(phrase, text, re.IGNORECASE)
    ]
    assert not result


def test_banned_word_patterns_match_their_words() -> None:
    assert any(re.search(phrase, "the commonest class is told apart") for phrase in BANNED)
    assert not any(re.search(phrase, "if value is None: feed-forward, no runs") for phrase in BANNED)
