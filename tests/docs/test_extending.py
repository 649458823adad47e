"""The pages on extending Lemma: files are written, installed and tested, commands executed."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "extending").glob("*.md"))
DATA = ROOT / "docs" / "extending" / "data.md"  # a change of Lemma itself; the others are packages
PACKAGES = [page for page in PAGES if page != DATA]
FILE = re.compile(r'^```(\w+) title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
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


@pytest.mark.parametrize("page", PACKAGES, ids=lambda page: page.stem)
def test_packages_depend_on_the_published_name_of_lemma(page: Path) -> None:
    name = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
    files = {title: text for _, title, text in FILE.findall(page.read_text(encoding="utf-8"))}
    described = next(text for title, text in files.items() if title.endswith("pyproject.toml"))
    assert tomllib.loads(described)["project"]["dependencies"] == [name]


def run(words: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8", **more}
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)


def write_files(page: Path, folder: Path) -> str:
    """Write the files of a page; return its changes to existing files as one patch."""
    patch = ""
    for kind, name, body in FILE.findall(page.read_text(encoding="utf-8")):
        if kind == "diff":
            patch += f"--- a/{name}\n+++ b/{name}\n{body}"
            continue
        path = folder / name
        assert not path.exists(), f"{page.name}: {name} is there already"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body, encoding="utf-8")
    return patch


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the packages of all pages into `site` of the returned folder."""
    folder = tmp_path_factory.mktemp("extending")
    for page in PACKAGES:
        assert not write_files(page, folder / "packages")
    projects = [str(path.parent) for path in sorted(folder.glob("packages/*/pyproject.toml"))]
    assert len(projects) == 3
    done = run([*PIP, "--target", str(folder / "site"), *projects], folder)
    assert done.returncode == 0, done.stderr
    return folder


def search_path(packages: Path) -> str:
    """Return the search path: the installed packages, then this tree before any other Lemma."""
    return os.pathsep.join([str(packages / "site"), str(ROOT / "src"), str(ROOT)])


def test_extension_packages_match_their_pages_and_pass_their_tests(packages: Path) -> None:
    done = run(["-c", FOLLOW, *map(str, PACKAGES)], packages / "packages", PYTHONPATH=search_path(packages))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b8 passed\b", done.stdout), done.stdout


def test_new_kind_of_data_works_as_documented(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src")  # with compiled modules, which are used while they are up to date
    patch = write_files(DATA, tmp_path)
    single = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}  # git must not detect a parent repository
    done = subprocess.run(["git", "apply", "-"], cwd=tmp_path, env=single, input=patch, capture_output=True, text=True)
    assert done.returncode == 0, f"{DATA.name}: a diff does not fit src any more\n{done.stderr}"
    path = os.pathsep.join([str(tmp_path / "src"), str(ROOT)])
    done = run(["-c", FOLLOW, str(DATA)], tmp_path, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b3 passed\b", done.stdout), done.stdout


def test_plugin_family_settings_are_listed_without_torch(packages: Path) -> None:
    code = (
        "import sys\nfrom lemma.cli.main import main\n"
        "try:\n    main(['train', 'bag', '--settings'])\nexcept SystemExit as left:\n    assert not left.code\n"
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    done = run(["-c", code], packages, PYTHONPATH=search_path(packages))
    assert done.stderr.strip() == "False"
    assert re.search(r"hidden \(d_h\) = 128\s+Units of the hidden layer", done.stdout)


def test_links_of_extension_pages_resolve() -> None:
    for page in PAGES:
        targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
        assert [target for target in targets if not (page.parent / target).exists()] == []
