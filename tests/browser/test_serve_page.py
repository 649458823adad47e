"""The page of `lemma serve` in a real browser and server shows the output of `lemma.generate`."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lemma
from served_runs import running, untrained

pytest.importorskip("fastapi", reason="needs FastAPI")
REFUSED = "status of 400"  # the browser logs a rejected request, which the page reports


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("served")
    return {kind: untrained(folder, kind) for kind in ("trigram", "decoder", "mood")}


@pytest.fixture(scope="module")
def address(runs: dict[str, Path]) -> Iterator[str]:
    with running(*runs.values()) as address:
        yield address


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Any]:
    """Return a function that opens the page at a width and fails on errors and external requests."""
    troubles: list[str] = []
    contexts = []

    def opening(width: int = 1280, **settings: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, **settings)
        contexts.append(context)
        tab = context.new_page()
        tab.set_default_timeout(20_000)
        tab.on("pageerror", lambda error: troubles.append(str(error)))
        tab.on(
            "console",
            lambda item: troubles.append(item.text) if item.type == "error" and REFUSED not in item.text else None,
        )
        tab.on("request", lambda item: None if item.url.startswith((address, "data:")) else troubles.append(item.url))
        tab.goto(address)
        tab.locator("#run option").first.wait_for(state="attached")
        return tab

    yield opening
    for context in contexts:
        context.close()
    assert not troubles


def test_page_shows_generated_text_and_its_loop(opened: Any, runs: dict[str, Path]) -> None:
    tab = opened()
    tab.locator("#prompt").fill("the cat")
    for name, value in (("temperature", "0.9"), ("tokens", "80"), ("top-p", "0.8"), ("seed", "4")):
        tab.locator(f"#{name}").fill(value)
    tab.get_by_role("button", name="Generate").click()
    tab.get_by_text("80 tokens in").wait_for()
    expected = lemma.generate(runs["trigram"], "the cat", tokens=80, temperature=0.9, top_p=0.8, seed=4)
    assert tab.locator("#text").text_content() == "the cat" + expected.text
    assert "seed 4" in tab.locator("#status").inner_text() and not tab.locator("#loop").is_visible()
    tab.locator("#temperature").fill("0")
    tab.get_by_role("button", name="Generate").click()
    greedy = lemma.generate(runs["trigram"], "the cat", tokens=80, temperature=0.0)
    tab.locator("#loop").wait_for()
    assert greedy.loop and tab.locator("#loop").inner_text() == greedy.note


def test_tokens_show_candidates_and_can_be_continued_from(opened: Any, runs: dict[str, Path]) -> None:
    tab = opened()
    tab.locator("#prompt").fill("the")
    tab.locator("#tokens").fill("12")
    tab.locator("#seed").fill("4")
    tab.get_by_role("button", name="Generate").click()
    tab.get_by_text("12 tokens in").wait_for()
    expected = lemma.generate(runs["trigram"], "the", tokens=12, temperature=0.8, seed=4, logprobs=8)
    assert tab.locator("#after .token").all_inner_texts() == [logprob.text for logprob in expected.logprobs]
    tab.locator("#after .token").nth(5).click()
    logprob, rendered = expected.logprobs[5], tab.locator("#candidates-list li").all_inner_texts()
    assert f"Token 6: “{logprob.text.replace(' ', '␣')}”" in tab.locator("#candidates-title").inner_text()
    assert [row[1] for row in rendered[:3]] == [other.text.replace(" ", "␣") for other in logprob.top[:3]]
    assert [float(row.split()[-2]) for row in rendered[:3]] == pytest.approx(
        [100 * math.exp(other.logprob) for other in logprob.top[:3]], rel=0.06
    )
    tab.locator("#candidates-list button").nth(1).click()
    tab.get_by_text("What comes next, by trigram").wait_for()
    text = "the" + expected.text[:5] + logprob.top[1].text
    assert tab.locator("#prompt").input_value() == text
    tab.locator("#candidates-list button").first.click()
    follows = lemma.generate(runs["trigram"], text, tokens=1, temperature=0.0).text
    tab.wait_for_function("text => document.getElementById('prompt').value === text", arg=text + follows)


def test_two_runs_generate_side_by_side_with_marked_loops(opened: Any, runs: dict[str, Path]) -> None:
    tab = opened()
    tab.locator("#prompt").fill("the cat")
    tab.locator("#temperature").fill("0")
    tab.locator("#tokens").fill("60")
    tab.locator("#other").select_option("decoder")
    tab.get_by_role("button", name="Generate").click()
    tab.get_by_text("60 tokens in").nth(1).wait_for()
    for side, name in (("", "trigram"), ("other-", "decoder")):
        text = lemma.generate(runs[name], "the cat", tokens=60, temperature=0.0)
        assert tab.locator(f"#{side}text").text_content() == "the cat" + text.text and text.loop
        marks = [kind.split()[-1] for kind in tab.evaluate(CLASSES, f"#{side}after .token")]
        first = text.loop.onset
        turns = [(index - first) // text.loop.period for index in range(first, 60)]
        assert marks[first:] == [("loops", "again")[turn % 2] for turn in turns] and set(marks[:first]) <= {"token"}
        assert tab.locator(f"#{side}loop").inner_text() == text.note
    tab.evaluate("SIDES[0].write('\\n', null)")  # a loop of empty lines is visible, too
    assert tab.locator("#after .token").last.evaluate("one => one.getClientRects()[0].width") > 5
    left, right = (tab.locator(f"#{side}text").bounding_box() for side in ("", "other-"))
    assert left["y"] == right["y"] and right["x"] > left["x"] + left["width"]
    tab.set_viewport_size({"width": 390, "height": 900})
    left, right = (tab.locator(f"#{side}text").bounding_box() for side in ("", "other-"))
    assert left["x"] == right["x"] and right["y"] > left["y"] + left["height"]


CLASSES = "where => [...document.querySelectorAll(where)].map((one) => one.className)"


def test_errors_are_shown_on_the_page(opened: Any) -> None:
    tab = opened()
    tab.locator("#prompt").fill("Ω")
    tab.get_by_role("button", name="Generate").click()
    tab.get_by_text("the character 'Ω' (U+03A9) at offset 0 is not among").wait_for()
    body = 'data: {"error": {"message": "<i>the server is stopping</i>"}}\n\n'
    tab.route("**/v1/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    tab.get_by_role("button", name="Generate").click()
    tab.locator("#status.trouble").wait_for()
    assert tab.locator("#status").inner_text() == "<i>the server is stopping</i>"


def test_eos_is_listed_as_a_candidate(opened: Any) -> None:
    tab, request = opened(), []

    def answer(route: Any) -> None:
        request.append(route.request.post_data_json)
        logprobs = {"top_logprobs": [None, {"a": -3.0}, {"<eos>": -0.1, "b": -2.4}]}
        route.fulfill(json={"choices": [{"text": "", "logprobs": logprobs}]})

    tab.route("**/v1/completions", answer)
    tab.locator("#prompt").fill("the")
    tab.get_by_role("button", name="Next token").click()
    tab.locator("#candidates .candidate").first.wait_for()
    assert tab.locator("#candidates .candidate code").all_inner_texts() == ["“<eos>”", "“b”"]
    assert request[0]["echo"] and request[0]["max_tokens"] == 1


def test_arrow_keys_skip_partial_character_tokens(opened: Any) -> None:
    tab = opened()

    def told(*tokens: str) -> dict[str, Any]:
        return {"tokens": tokens, "token_logprobs": [-0.7] * len(tokens), "top_logprobs": [{"x": -0.7}] * len(tokens)}

    pieces = [("When", told("\ufffd", "When")), (" I", told(" I")), ("é", told("\ufffd", "\ufffd")), ("!", told("!"))]
    chunks = [{"seed": 1, "choices": [{"text": text, "logprobs": logs}]} for text, logs in pieces]
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    tab.route("**/v1/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    tab.get_by_role("button", name="Generate").click()
    tab.get_by_text("tokens in").wait_for()
    tab.locator("#text").focus()
    choice = []
    for _ in range(3):
        tab.keyboard.press("ArrowRight")
        choice.append(tab.locator(".chosen").inner_text())
    assert choice == [" I", "!", "!"]


def test_serve_page_is_keyboard_accessible(opened: Any) -> None:
    tab = opened()
    tab.locator("#run").focus()
    tab.keyboard.press("ArrowDown")
    assert tab.locator("#facts").inner_text() == "decoder"
    tab.keyboard.press("Tab")
    tab.keyboard.press("ArrowRight")
    assert tab.locator("#look").is_visible() and tab.locator("#tab-look").get_attribute("aria-selected") == "true"
    tab.keyboard.press("ArrowLeft")
    tab.keyboard.press("Tab")
    tab.keyboard.press("Control+a")
    tab.keyboard.type("a dog")
    tab.keyboard.press("Control+Enter")
    tab.get_by_text("200 tokens in").wait_for()
    assert tab.locator("#before").inner_text() == "a dog"
    tab.locator("#tokens").fill("4000")
    tab.keyboard.press("Control+Enter")
    tab.get_by_text("generating …").wait_for()
    tab.keyboard.press("Escape")
    tab.get_by_text("stopped").wait_for()
    assert 0 < len(tab.locator("#after").text_content()) < 4000 and tab.locator("#go").is_enabled()


def test_tabs_depend_on_the_kind_of_run(opened: Any) -> None:
    tab = opened()
    assert not tab.locator("#tab-look").is_visible()
    tab.locator("#tab-evaluate").click()
    tab.get_by_text("12.2500").first.wait_for()
    assert tab.locator("#samples").inner_text() == "<b>a sample</b>"
    tab.locator("#run").select_option("decoder")
    tab.locator("#tab-look").click()
    tab.locator("#look-text").fill("the cat sat")
    tab.get_by_role("button", name="Look").click()
    frame = tab.frame_locator("#heads")
    frame.locator(".tile").nth(1).click()
    assert frame.locator("#one-title").inner_text() == "Layer 0, head 1"  # its script runs inside the frame
    tab.locator("#run").select_option("mood")
    assert not tab.locator("#tab-look").is_visible()
    tab.locator("#tab-generate").click()
    tab.locator("#prompt").fill("a cat")
    tab.get_by_role("button", name="Generate").click()
    tab.locator("#chances").wait_for()
    rendered = [row.split("\t") for row in tab.locator("#chances tr").all_inner_texts()]
    assert {name for name, _ in rendered} == {"good", "bad"} and sum(
        float(chance) for _, chance in rendered
    ) == pytest.approx(1)
    assert tab.locator("#after").inner_text() == rendered[0][0] and not tab.locator("#temperature").is_visible()


LUMINANCE = """() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map((x) => (x / 255) ** 2.2);
  const light = (colour) => (([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b)(parts(colour));
  const soft = document.querySelector(".keys"), [a, b] = [light(getComputedStyle(document.body).backgroundColor),
    light(getComputedStyle(soft).color)];
  return [a, (Math.max(a, b) + .05) / (Math.min(a, b) + .05)];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_serve_page_fits_a_phone_in_light_and_dark(scheme: str, opened: Any) -> None:
    tab = opened(390, color_scheme=scheme)
    tab.get_by_role("button", name="Generate").click()
    tab.get_by_text("tokens in").wait_for()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    light, contrast = tab.evaluate(LUMINANCE)
    assert (light > 0.5) == (scheme == "light") and contrast >= 4.5
    tab.locator("#tab-evaluate").click()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    if scheme == "light":  # a table's rows become blocks
        tab.locator("#tab-count").click()
        cells = tab.frame_locator("#account").locator("tbody tr").first.locator("td")
        cells.first.wait_for()
        assert {round(cell.bounding_box()["x"]) for cell in cells.all()[1:3]} == {
            round(cells.nth(1).bounding_box()["x"])
        }
        assert tab.frames[-1].evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
