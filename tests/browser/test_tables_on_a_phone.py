"""Tables of formulas on a phone: rows are stacked and nothing is cut off."""

from pathlib import Path
from typing import Any

from torch import nn

import lemma


def long_paths(width_of_stream: int = 64, width_inside: int = 4096) -> nn.Module:
    layer = nn.Linear(width_of_stream, width_inside)
    return nn.ModuleDict({"a_module_with_a_long_name": nn.ModuleDict({"inside_of_it": layer})})


def test_tables_fit_a_phone_screen(browser: Any, tmp_path: Path) -> None:
    page = lemma.count(long_paths, quantities=["parameters"]).save(tmp_path / "account.html")
    tab = browser.new_context(viewport={"width": 390, "height": 900}).new_page()
    tab.goto(page.as_uri())
    inner = "[...document.querySelectorAll('.scroll')].every(one => one.scrollWidth <= one.clientWidth)"
    assert tab.evaluate(inner) and tab.evaluate("document.documentElement.scrollWidth") <= 390
    assert tab.evaluate("getComputedStyle(document.querySelector('td')).display") == "block"
    tab.set_viewport_size({"width": 1200, "height": 900})
    assert tab.evaluate("getComputedStyle(document.querySelector('td')).display") == "table-cell"
