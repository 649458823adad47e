"""The attention page in a real browser: numbers, mouse, keyboard, phone, and without JavaScript."""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lemma.inspection.heads import look_at
from lemma.models.build import build
from lemma.spec.models import Decoder

WORDS = ["to", " be", ",", " or", " not", " to", " be", "<script>window.harmed = 1</script>", "\n", "💡", "שלום", '"']


def model(positions: str = "learned") -> nn.Module:
    torch.manual_seed(1)
    built = build(Decoder(V=12, d=24, L=3, h=4, T=12, positions=positions))
    for parameter in built.parameters():
        nn.init.normal_(parameter, std=0.35)
    return built


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Write a page with learned positions and one with ALiBi; return them with their heads."""
    folder, built = tmp_path_factory.mktemp("pages"), {}
    for positions in ("learned", "alibi"):
        seen = look_at(model(positions), torch.arange(12), WORDS, name="tiny")
        built[positions] = (seen.save(folder / f"{positions}.html"), seen)
    return built


@pytest.fixture
def opened(browser: Any) -> Iterator[Any]:
    """Return a function that opens a page at a width and fails on errors and network requests."""
    troubles: list[str] = []
    contexts = []

    def opening(path: Path, width: int = 1200, **settings: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, **settings)
        contexts.append(context)
        tab = context.new_page()
        tab.on("pageerror", lambda error: troubles.append(str(error)))
        tab.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
        tab.on(
            "request",
            lambda item: None if item.url.startswith(("file:", "data:", "blob:")) else troubles.append(item.url),
        )
        tab.goto(path.as_uri())
        return tab

    yield opening
    for context in contexts:
        context.close()
    assert not troubles


def numbers(text: str) -> list[float]:
    return [float(item.replace("−", "-")) for item in re.findall(r"[−]?\d+\.\d+(?:e[−+]?\d+)?", text)]


def part(tab: Any, name: str) -> str:
    return tab.locator(f'code[data-part="{name}"]').inner_text()


def cell(tab: Any, i: int, j: int) -> Any:
    return tab.locator(f'td[data-i="{i}"][data-j="{j}"]')


@pytest.mark.parametrize("positions", ["learned", "alibi"])
def test_clicked_cell_shows_the_model_arithmetic(positions: str, opened: Any, files: dict[str, Any]) -> None:
    path, seen = files[positions]
    tab = opened(path)
    for index, (i, j) in ((5, (7, 3)), (10, (11, 0)), (0, (4, 4))):
        head = seen.heads[index]
        tab.locator(".tile").nth(index).click()
        cell(tab, i, j).click()
        weight, score = float(head.weights[i, j]), float(head.scores[i, j])
        assert tab.locator("#one-title").inner_text() == f"Layer {head.layer}, head {head.head}"
        assert cell(tab, i, j).inner_text() == f"{weight:.2f}"
        power, total, alpha = numbers(part(tab, "alpha"))
        assert alpha == pytest.approx(weight, abs=5.1e-5) and power / total == pytest.approx(alpha, abs=2e-4)
        assert total == pytest.approx(float(torch.tensor(head.scores[i] - head.scores[i].max()).exp().sum()), abs=6e-5)
        product = numbers(part(tab, "product"))[-1]
        assert product == pytest.approx(float(head.queries[i] @ head.keys[j]), abs=2e-4)
        assert numbers(part(tab, "scaled"))[-1] == pytest.approx(product * head.scale, abs=1e-4)
        assert numbers(part(tab, "score"))[-1] == pytest.approx(score, abs=6e-5)
        added = 0.0 if head.bias is None else float(head.bias[i, j])
        assert numbers(part(tab, "scaled"))[-1] + added == pytest.approx(score, abs=2e-4)
        assert numbers(part(tab, "power"))[-1] == pytest.approx(power)
        assert head.values is not None
        rendered = numbers(part(tab, "mixed").split("\n")[1])
        assert rendered == pytest.approx((weight * head.values[j])[: len(rendered)].tolist(), abs=6e-4)


def test_matrix_shows_model_weights_with_empty_masked_cells(opened: Any, files: dict[str, Any]) -> None:
    path, seen = files["learned"]
    tab = opened(path)
    tab.locator(".tile").nth(6).click()
    rendered = tab.evaluate("[...document.querySelectorAll('.matrix td')].map(cell => cell.textContent)")
    expected = [
        f"{w:.2f}" if ok else "" for w, ok in zip(seen.heads[6].weights.flat, seen.heads[6].allowed.flat, strict=True)
    ]
    assert rendered == expected
    cell(tab, 2, 9).hover()
    assert "may not see" in part(tab, "mask") and "α = 0" in part(tab, "alpha")


def test_displayed_product_terms_sum_to_the_product(opened: Any, files: dict[str, Any]) -> None:
    tab = opened(files["learned"][0])
    cell(tab, 9, 2).hover()
    line, total = part(tab, "product").split("\n")
    pairs = re.findall(r"\(([−\d.]+)\)\(([−\d.]+)\)", line)
    tail = re.search(r"([+−]) ([\d.]+) from", line)
    assert pairs and tail
    result = sum(float(a.replace("−", "-")) * float(b.replace("−", "-")) for a, b in pairs)
    result += float(tail[2]) * (-1 if tail[1] == "−" else 1)
    assert result == pytest.approx(numbers(total)[0], abs=0.01)


def test_hover_previews_click_locks_and_button_unlocks(opened: Any, files: dict[str, Any]) -> None:
    tab = opened(files["learned"][0])
    title, unlock = tab.locator("#cell"), tab.get_by_role("button", name="Unlock")
    cell(tab, 3, 1).hover()
    assert title.inner_text() == "3 “␣or” attends to 1 “␣be”" and not unlock.is_visible()
    cell(tab, 4, 2).click()
    cell(tab, 6, 0).hover()
    assert title.inner_text() == "4 “␣not” attends to 2 “,”" and unlock.is_visible()
    unlock.click()
    cell(tab, 6, 0).hover()
    assert title.inner_text() == "6 “␣be” attends to 0 “to”" and not unlock.is_visible()
    tab.locator('.lines text[data-side="query"]').nth(8).hover()
    assert title.inner_text().startswith("8 “↵” attends to")
    assert tab.locator(".lines path.here").count() == 1


def test_truncated_rows_show_weights_of_the_full_text(opened: Any, tmp_path: Path) -> None:
    """The page shows fewer than the 150 attended tokens; weights must not be renormalized."""
    torch.manual_seed(2)
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    seen = look_at(layer, {"src": 2 * torch.randn(1, 150, 8)}, [f"w{index}" for index in range(150)])
    tab = opened(seen.save(tmp_path / "long.html"))
    assert "of 150 tokens" in tab.locator(".left-out").inner_text()
    tab.locator(".tile").nth(1).click()
    cell(tab, 3, 30).click()
    assert "all 150 keys" in part(tab, "sum")
    assert numbers(part(tab, "alpha"))[-1] == pytest.approx(float(seen.heads[1].weights[3, 30]), rel=1e-3)


def test_hovering_a_head_shows_an_enlarged_preview(opened: Any, files: dict[str, Any]) -> None:
    path, seen = files["learned"]
    tab = opened(path)
    tab.locator(".tile").nth(4).hover()
    preview = tab.locator("#preview")
    assert preview.is_visible() and "Layer 1, head 0" in preview.inner_text()
    assert f"{seen.heads[4].statistics.entropy:.3f}" in preview.inner_text()
    assert tab.locator("#one-title").inner_text() != "Layer 1, head 0"


def test_look_page_is_keyboard_accessible(opened: Any, files: dict[str, Any]) -> None:
    tab = opened(files["learned"][0])
    tab.locator(".tile").first.focus()
    for key in ("ArrowDown", "ArrowRight", "Enter"):
        tab.keyboard.press(key)
    assert tab.locator("#one-title").inner_text() == "Layer 1, head 1"
    tab.locator("td[tabindex='0']").focus()
    for key in ("ArrowUp", "ArrowUp", "Enter"):
        tab.keyboard.press(key)
    unlock = tab.get_by_role("button", name="Unlock")
    assert unlock.is_visible() and tab.locator("#cell").inner_text().startswith("9 ")
    tab.keyboard.press("Escape")
    assert not unlock.is_visible()


def test_html_in_tokens_is_escaped(opened: Any, files: dict[str, Any]) -> None:
    tab = opened(files["learned"][0])
    cell(tab, 8, 7).click()
    assert "<script>window.harmed" in tab.locator("#cell").inner_text()
    assert tab.evaluate("window.harmed") is None


INSIDE = """([inner, outer]) => {
  const a = document.querySelector(inner).getBoundingClientRect(), box = document.querySelector(inner).closest(outer);
  const b = box.getBoundingClientRect();
  const inside = a.top >= b.top && a.bottom <= b.bottom && a.left >= b.left && a.right <= b.right;
  return inside && box.scrollHeight > b.height;
}"""


@pytest.fixture(scope="module")
def long_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the page of a head of 64 tokens whose last token attends to one in the middle."""
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(8, 1, 8, batch_first=True)
    stream = 2 * torch.randn(1, 64, 8)
    seen = look_at(layer, {"src": stream}, [f"word{index}" for index in range(64)])
    return seen.save(tmp_path_factory.mktemp("long") / "heads.html")


@pytest.mark.parametrize("width", [1200, 390])
def test_initial_cell_is_visible_without_scrolling_the_page(width: int, opened: Any, long_page) -> None:
    tab = opened(long_page, width)
    assert tab.evaluate(INSIDE, [".matrix td.at", ".scroller"])
    assert tab.evaluate(INSIDE, ['.lines text[data-side="query"].on', ".scroller"])
    assert tab.evaluate("window.scrollY") == 0


def test_matrix_labels_stay_sticky_while_scrolling(opened: Any, long_page: Path) -> None:
    tab = opened(long_page, 390, has_touch=True)
    cell(tab, 30, 20).tap()
    covering = tab.evaluate("""() => {
      const label = document.querySelector(".matrix th.on[scope=row]"), box = label.closest(".scroller");
      const at = document.querySelector(".matrix td.at");
      box.scrollLeft += at.getBoundingClientRect().left - box.getBoundingClientRect().left - 10;  // under the label
      const place = label.getBoundingClientRect(), frame = box.getBoundingClientRect();
      const top = document.elementFromPoint(place.left + 20, place.top + place.height / 2);
      return [label.contains(top), Math.abs(place.left - frame.left) < 3];
    }""")
    assert covering == [True, True]


def test_look_page_scrolls_only_vertically_on_a_phone(opened: Any, files: dict[str, Any]) -> None:
    tab = opened(files["learned"][0], 390, has_touch=True)
    for step in (lambda: None, lambda: tab.locator(".tile").nth(5).tap(), lambda: cell(tab, 9, 2).tap()):
        step()
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    assert tab.get_by_role("button", name="Unlock").is_visible()
    assert tab.evaluate("(box => box.scrollWidth > box.clientWidth)(document.querySelector('.matrix').parentNode)")


def test_every_view_can_be_saved_as_svg(opened: Any, files: dict[str, Any], tmp_path: Path) -> None:
    path, seen = files["learned"]
    tab = opened(path)
    tab.locator(".tile").nth(6).click()
    saved = {}
    for view in ("grid", "lines", "matrix", "arithmetic"):
        with tab.expect_download() as download:
            tab.locator(f'.export[data-view="{view}"]').click()
        download.value.save_as(tmp_path / f"{view}.svg")
        saved[view] = ElementTree.parse(tmp_path / f"{view}.svg").getroot()
    count = lambda view, tag: len([node for node in saved[view].iter() if node.tag.endswith("}" + tag)])  # noqa: E731
    assert count("grid", "image") == 12
    assert count("matrix", "rect") == int(seen.heads[6].allowed.sum())
    assert count("lines", "path") == int((seen.heads[6].weights >= 0.01).sum())
    assert "α =" in "".join(saved["arithmetic"].itertext())


def test_look_page_works_without_javascript(opened: Any, files: dict[str, Any]) -> None:
    tab = opened(files["learned"][0], java_script_enabled=False)
    assert tab.locator(".tile img").count() == 12 and tab.locator(".numbers tbody tr").count() == 12
    assert tab.locator("figure svg").is_visible() and not tab.locator(".export").first.is_visible()
    tab.locator(".tile").nth(7).click()
    assert tab.url.endswith("#row-1-3")


def test_print_view_uses_static_images(opened: Any, files: dict[str, Any]) -> None:
    tab = opened(files["learned"][0])
    tab.emulate_media(media="print")
    assert tab.locator("figure svg").is_visible() and not tab.locator(".bar").first.is_visible()
