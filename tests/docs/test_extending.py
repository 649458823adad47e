"""The pages on extending Lemma, followed literally: their files written, installed and tested, their commands run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "extending").glob("*.md"))
FILE = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
PIP = [
    "-m",
    "pip",
    "install",
    "--quiet",
    "--no-build-isolation",
    "--no-deps",
    "--no-index",
    "--disable-pip-version-check",
]
FOLLOW = """
import sys
import pytest
from pages.__main__ import main
pages = sys.argv[1:]
main(["check", *pages])
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", ".", "."]))
"""


def run(words: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8", **more}
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages of all pages, and a `site` where they are installed."""
    folder = tmp_path_factory.mktemp("extending")
    for name, body in (found for page in PAGES for found in FILE.findall(page.read_text(encoding="utf-8"))):
        path = folder / "packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body, encoding="utf-8")
    projects = [str(path.parent) for path in sorted(folder.glob("packages/*/pyproject.toml"))]
    assert len(projects) == 3  # a kind of data is not a package
    done = run([*PIP, "--target", str(folder / "site"), *projects], folder)
    assert done.returncode == 0, done.stderr
    return folder


def search_path(packages: Path) -> str:
    """The installed packages of the pages, and this tree before any other Lemma."""
    return os.pathsep.join([str(packages / "site"), str(ROOT / "src"), str(ROOT)])


def test_every_page_does_what_it_says_and_its_own_tests_pass(packages: Path) -> None:
    done = run(["-c", FOLLOW, *map(str, PAGES)], packages / "packages", PYTHONPATH=search_path(packages))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b8 passed\b", done.stdout), done.stdout


def test_the_settings_of_another_packages_family_are_listed_without_torch(packages: Path) -> None:
    code = (
        "import sys\nfrom lemma.cli.main import main\n"
        "try:\n    main(['train', 'bag', '--settings'])\nexcept SystemExit as left:\n    assert not left.code\n"
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    done = run(["-c", code], packages, PYTHONPATH=search_path(packages))
    assert done.stderr.strip() == "False"
    assert re.search(r"hidden \(d_h\) = 128\s+Units of the hidden layer", done.stdout)


def test_pages_link_only_to_what_is_there() -> None:
    for page in PAGES:
        targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
        assert [target for target in targets if not (page.parent / target).exists()] == []
