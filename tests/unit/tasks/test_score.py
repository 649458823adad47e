"""Perplexity scores: derived metrics and display."""

import json
import math

import pytest

from lemma.tasks.language import PerplexityScore, Protocol


def score(loss: float, bytes: int | None = None, streams: int | None = None) -> PerplexityScore:
    protocol = Protocol("characters", "abc", "<test>", 8, 4, streams, 4, "float32", ("the first token",))
    return PerplexityScore(loss, 1000, bytes, protocol)


def test_perplexity_and_bits_follow_from_the_loss() -> None:
    ten_bits = score(math.log(1024), bytes=500)
    assert ten_bits.perplexity == pytest.approx(1024)
    assert ten_bits.bits_per_byte == pytest.approx(1000 * 10 / 500)
    assert score(1.0).bits_per_byte is None


def test_perplexity_score_json_has_exactly_the_documented_keys() -> None:
    base = json.loads(json.dumps(score(1.5, bytes=10).to_dict(), allow_nan=False))
    assert list(base) == ["perplexity", "loss", "bits_per_byte", "tokens", "protocol"]
    names = ["tokenizer", "data_hash", "split", "context", "stride", "streams", "warm_up", "precision", "left_out"]
    assert list(base["protocol"]) == names
    assert base["loss"] == 1.5 and base["protocol"]["left_out"] == ["the first token"]


@pytest.mark.parametrize("loss", [math.inf, math.nan, 1e4])
def test_nonfinite_perplexity_is_null_in_json_and_explained(loss: float) -> None:
    wrong = score(loss, bytes=10)
    base = wrong.to_dict()
    json.dumps(base, allow_nan=False)
    assert base["perplexity"] is None and (base["loss"] is None) == (not math.isfinite(loss))
    assert ("nan" if math.isnan(loss) else "inf") in str(wrong)


def test_perplexity_table_shows_metrics_and_protocol() -> None:
    table = str(score(math.log(8), bytes=1500))
    rows = [tuple(line.split(maxsplit=1)) for line in table.splitlines()]
    assert rows[0] == ("perplexity", "8.0000") and ("tokens", "1,000") in rows
    assert "in windows of 8 tokens, stride 4" in table and "the first token" in table
    assert "bits per byte" in table and "bits per byte" not in str(score(1.0))
    assert "in 5 streams, each warmed up on 4 tokens" in str(score(1.0, streams=5))
    assert "in one pass" in str(score(1.0, streams=1))


def test_notebook_table_has_the_same_lines_escaped() -> None:
    page = score(math.log(8))._repr_html_()
    assert page.count("<tr>") == len(str(score(math.log(8))).splitlines())
    assert "&lt;test&gt;" in page and "<test>" not in page
