"""The upper part of a report, as a browser shows it: the screenshot of the README."""

import shutil
from pathlib import Path

QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SIZE = {"width": 1200, "height": 1960}


def take_screenshot(page: Path, out: Path) -> None:
    """Open a page of this machine in chromium and write what is seen first as a PNG."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=QUIET)
        tab = browser.new_page(viewport={"width": SIZE["width"], "height": SIZE["height"]})
        tab.goto(page.as_uri())
        tab.screenshot(path=out)
        browser.close()
