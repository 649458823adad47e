"""The screenshot of docs/search.md: the page of a search, as a browser shows it.

Run: python -m benchmarks.search_page RUN [docs/search.png]
"""

import shutil
import sys
import tempfile
from pathlib import Path

import lemma

QUERIES = ("a red heart", "cat", "train")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def main(run: str, out: str = "docs/search.png") -> None:
    """Search the emoji, and take a screenshot of the page."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        page = Path(folder) / "found.html"
        lemma.search(run, images="emoji", query=QUERIES, k=6).save(page)
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=QUIET)
        tab = browser.new_page(viewport={"width": 1000, "height": 600})
        tab.goto(page.as_uri())
        tab.evaluate("document.querySelector('.about').remove()")  # where the index is on this machine
        tab.screenshot(path=out, full_page=True)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
