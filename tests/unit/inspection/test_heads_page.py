"""The HTML page of heads: self-contained, escaped, and within its size budget."""

import base64
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from torch import nn

from lemma.inspection.heads import Heads, look_at
from lemma.inspection.page import MAX_CHARACTERS, build_payload, render_page
from lemma.models.build import build
from lemma.spec.models import Decoder

HOSTILE = ["<script>alert(1)</script>", "</script>", '"><img src=x onerror=alert(1)>', "'", "&amp;", "\u2028", "\x00"]


class PageParser(HTMLParser):
    """HTML parser that collects tags, link targets, and text outside scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.targets: list[str] = []
        self.handlers: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.targets += [value or "" for name, value in attrs if name in {"src", "href", "data", "action", "srcset"}]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data):
        self.text += data if self.tags[-1:] not in (["script"], ["style"]) else ""


def heads(words: list[str], name: str = "a model", **sizes: int) -> Heads:
    model = build(Decoder(**{"V": len(words), "d": 16, "L": 2, "h": 4, "T": len(words), **sizes}))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return look_at(model, torch.arange(len(words)), words, name=name)


def read_payload(html: str) -> dict:
    hits = re.search(r'<script type="application/json" id="payload">(.*?)</script>', html, re.S)
    assert hits
    return json.loads(hits[1])


def test_page_is_self_contained_and_escapes_hostile_text() -> None:
    reader, innocent = PageParser(), PageParser()
    html = render_page(heads(HOSTILE, name="<b>run</b>"))
    reader.feed(html)
    torch.manual_seed(0)
    innocent.feed(render_page(heads(list("abcdefg"))))
    assert reader.tags.count("script") == 2 and set(reader.tags) == set(innocent.tags)
    assert reader.tags.count("b") == innocent.tags.count("b") and not reader.handlers
    assert all(target.startswith(("#", "data:")) for target in reader.targets)
    assert not re.findall(r"(?:https?:)?//(?!www\.w3\.org/2000/svg)[\w.]+\.\w+", html)
    assert "<b>run</b>" in reader.text and "<script>alert(1)</script>" in reader.text


def test_page_without_javascript_shows_every_head() -> None:
    inspected = heads(list("abcabcabc"))
    html = render_page(inspected)
    assert html.count('class="tile"') == html.count('<tr id="row-') == 8
    for head in inspected.heads:
        assert f"{head.statistics.entropy:.3f}" in html
    assert html.count("data:image/png;base64,") == 8
    assert "masked" in html and '<svg xmlns="http://www.w3.org/2000/svg"' in html


def test_payload_holds_the_scores_of_the_model() -> None:
    inspected = heads(list("abcabcabc"))
    values = read_payload(render_page(inspected))
    for head, settings in zip(inspected.heads, values["heads"], strict=True):
        raw = {name: base64.b64decode(values["arrays"][settings[name]]) for name in ("scores", "sums", "mask")}
        mask = np.unpackbits(np.frombuffer(raw["mask"], np.uint8))[:81].reshape(9, 9).astype(bool)
        scores = np.full((9, 9), -np.inf)
        scores[mask] = np.frombuffer(raw["scores"], "<f4")
        most, total = np.frombuffer(raw["sums"], "<f4").reshape(9, 2).T
        np.testing.assert_array_equal(mask, np.tri(9, dtype=bool))
        np.testing.assert_allclose(np.exp(scores - most[:, None]) / total[:, None], head.weights, atol=1e-6)


def test_large_model_page_stays_within_budget_with_notes() -> None:
    inspected = heads([f"w{index}" for index in range(60)], d=192, L=12, h=12, d_ff=8)
    width = heads([f"w{index}" for index in range(60)], d=768, L=12, h=12, d_ff=8)
    html = render_page(width)
    assert len(html) < 4_500_000 and "are left out" in html
    assert read_payload(html)["heads"][0]["vectors"] and read_payload(html)["heads"][-1]["vectors"] is None
    assert not build_payload(inspected).notes


def test_long_text_is_truncated_only_in_images() -> None:
    words = [f"w{index}" for index in range(200)]
    inspected = heads(words, L=12, h=8)
    cut = build_payload(inspected)
    assert cut.num_tokens < 200 and f"first {cut.num_tokens} of 200 tokens" in cut.notes[0]
    assert sum(map(len, cut.values["arrays"])) <= MAX_CHARACTERS
    sums = np.frombuffer(base64.b64decode(cut.values["arrays"][cut.values["heads"][0]["sums"]]), "<f4").reshape(-1, 2)
    scores = inspected.heads[0].scores
    expected = np.exp(scores - scores.max(1, keepdims=True)).sum(1)
    np.testing.assert_allclose(sums[:, 1], expected[: cut.num_tokens], rtol=1e-6)


def test_vectors_quantized_to_16_bits_stay_close(monkeypatch: pytest.MonkeyPatch) -> None:
    inspected = heads(list("abcabcabc"))
    full = build_payload(inspected)
    spent = sum(map(len, full.values["arrays"]))
    monkeypatch.setattr("lemma.inspection.page.MAX_CHARACTERS", spent * 3 // 4)
    cut = build_payload(inspected)
    query = cut.values["heads"][0]["vectors"][0]
    assert query["bytes"] == 2
    numbers = np.frombuffer(base64.b64decode(cut.values["arrays"][query["array"]]), "<i2") * query["unit"]
    np.testing.assert_allclose(numbers.reshape(9, -1), inspected.heads[0].queries, atol=query["unit"] * 0.51)


def test_notebook_shows_the_page_in_an_iframe() -> None:
    reader = PageParser()
    reader.feed(heads(HOSTILE)._repr_html_())
    assert reader.tags == ["iframe"]
