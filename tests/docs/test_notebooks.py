"""Each page of the gallery is also a notebook, generated from it."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from pages import PageError
from pages.executing import execute_notebook
from pages.notebooks import notebook, render_notebook, write_notebook

GALLERY = Path(__file__).parents[2] / "docs" / "problems"
PAGES = sorted(set(GALLERY.glob("*.md")) - {GALLERY / "index.md"})
PAGE = """# Sums

See [another](other.md) and $x^2$.

```python
half = 21
```

```console
$ lemma count rnn --only parameters  # counted
```

```text
parameters = …
```

```toml
kept = "as text"
```
"""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_committed_notebook_matches_its_page(page: Path) -> None:
    """If this fails: python -m pages notebook docs/problems/PAGE.md."""
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat: pip install 'lemma-lm[docs]'")
    text = page.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert text == render_notebook(page)
    nbformat.validate(json.loads(text))
    assert sum(cell["cell_type"] == "code" for cell in json.loads(text)["cells"]) > 0


def test_every_notebook_has_a_page() -> None:
    assert {path.stem for path in GALLERY.glob("*.ipynb")} == {page.stem for page in PAGES}


def test_page_blocks_become_notebook_cells() -> None:
    cells = notebook(PAGE)["cells"]
    assert ["".join(cell["source"]) for cell in cells] == [
        "# Sums\n\nSee [another](other.md) and $x^2$.",
        "half = 21",
        "import sys\n!{sys.executable} -m lemma count rnn --only parameters",
        '```toml\nkept = "as text"\n```',
    ]
    assert cells[2]["outputs"] == [{"output_type": "stream", "name": "stdout", "text": ["parameters = …\n"]}]
    assert len({cell["id"] for cell in cells}) == 4


@pytest.mark.parametrize(
    "said", ["'c_{t-1} + {sys}'", "'$x$ and $$y_1$$ at 5$'", "{}", "'$ {a}$b'", "'$d_h \\frac{a}{b}$'"]
)
def test_notebook_commands_reach_the_shell_unchanged(said: str) -> None:
    formatter = pytest.importorskip("IPython.utils.text").DollarFormatter()  # IPython formats commands with it
    [cell] = notebook(f"```console\n$ lemma check {said}\n```\n")["cells"]
    command = formatter.vformat("".join(cell["source"]).partition("!")[2], [], {"sys": sys})
    assert shlex.split(command) == [sys.executable, "-m", "lemma", "check", *shlex.split(said)]


def test_notebook_execution_detects_changed_outputs(tmp_path: Path) -> None:
    pytest.importorskip("nbclient", reason="needs nbclient: pip install 'lemma-lm[docs]'")
    pytest.importorskip("ipykernel", reason="needs ipykernel: pip install 'lemma-lm[docs]'")
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(6 * 7)\n```\n```text\n42\n```\n", encoding="utf-8")
    execute_notebook(write_notebook(page))
    page.write_text("```python\nprint(6 * 7)\n```\n```text\n43\n```\n", encoding="utf-8")
    with pytest.raises(PageError, match=r"page.ipynb shows \['43'\]"):
        execute_notebook(write_notebook(page))
