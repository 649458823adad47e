"""The site opened from disk: search and formulas work without network requests."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FIRST = "# Home\n\nA word such as *perplexity*, and $\\sqrt{d_k}$.\n\n```console\n$ lemma count rnn\n```\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build two pages with the settings of the site."""
    pytest.importorskip("material", reason="needs mkdocs-material: pip install 'lemma-lm[docs]'")
    pytest.importorskip("latex2mathml", reason="needs latex2mathml: pip install 'lemma-lm[docs]'")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs" / "assets", folder / "docs" / "assets")
    (folder / "docs" / "index.md").write_text(FIRST, encoding="utf-8")
    (folder / "docs" / "loops.md").write_text("# Loops\n\nGreedy decoding must loop.\n", encoding="utf-8")
    settings = {"docs_dir": str(folder / "docs"), "site_dir": str(folder / "built"), "plugins": ["search", "offline"]}
    build(load_config(str(ROOT / "mkdocs.yml"), nav=["index.md", "loops.md"], **settings))
    return folder / "built"


@pytest.fixture
def tab(site: Path, browser: Any) -> Iterator[Any]:
    troubles: list[str] = []
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.on("pageerror", lambda error: troubles.append(str(error)))
    tab.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    tab.on("request", lambda item: None if item.url.startswith(("file:", "data:")) else troubles.append(item.url))
    tab.goto((site / "index.html").as_uri())
    yield tab
    tab.close()
    assert troubles == []


def test_offline_search_links_to_matching_pages(tab: Any) -> None:
    tab.locator(".md-search__input").press_sequentially("greedy")  # type key by key: the search handles key events
    result = tab.locator(".md-search-result__item a")
    result.first.wait_for(timeout=10_000)
    assert result.count() == 1 and "Loops" in result.first.inner_text()
    result.first.click()
    tab.wait_for_url("**/loops.html*")
    assert tab.locator("h1").inner_text().startswith("Loops")


def test_formulas_render_without_javascript_and_commands_keep_dollars(tab: Any) -> None:
    assert tab.locator("math msqrt").count() == 1
    assert tab.locator("math msqrt").bounding_box()["height"] > 5
    assert tab.locator("pre code").inner_text().startswith("$ lemma count rnn")
