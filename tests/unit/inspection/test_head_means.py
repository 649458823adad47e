"""Mean entropy and distance of every head over a text, compared with the weights of each window."""

from pathlib import Path

import numpy as np
import pytest
import torch

import lemma
from lemma.errors import InputError, RunError
from lemma.inspection import heads
from lemma.layers.recording import record_attention

TEXT = "the cat sat on the mat and the dog sat on the log. " * 12


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("means")
    (folder / "text.txt").write_text(TEXT)
    small = {"steps": 5, "batch": 4, "context": 32, "width": 16, "heads": 2, "depth": 2, "tokenizer": "characters"}
    lemma.train("decoder", text=str(folder / "text.txt"), out=folder / "run", progress=False, **small)
    return folder / "run"


def test_head_means_match_weights_of_all_windows(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        heads, "tokens_per_batch", lambda *_: 3 * 32
    )  # several batches, and a shorter window at the end
    result = lemma.look.corpus(run, str(run.parent / "text.txt"))
    loaded = lemma.load(run)
    tokens = torch.from_numpy(np.asarray(loaded.tokenizer.encode(TEXT), dtype=np.int64))
    entropies, squares, uniform = [], [], []
    for window in tokens.split(32):
        with torch.no_grad(), record_attention() as records:
            loaded.model(window[None])
        weights = torch.stack([record.weights()[0] for record in records]).double()  # layer, head, row, key
        entropies.append(torch.special.entr(weights).sum(-1))
        positions = torch.arange(len(window), dtype=torch.float64)
        squares.append((weights * (positions[:, None] - positions).square()).sum(-1))
        uniform.append((positions + 1).log())
    assert result.tokens == len(tokens) and result.length == 32
    assert np.allclose(result.entropy, torch.cat(entropies, -1).mean(-1), atol=1e-5)
    assert np.allclose(result.distance, torch.cat(squares, -1).mean(-1).sqrt(), rtol=1e-5)
    assert result.uniform_entropy == pytest.approx(torch.cat(uniform).mean().item())
    assert len(result.records()) == 4 and "1.1" in str(result)


def test_model_without_attention_is_refused(run: Path, tmp_path: Path) -> None:
    text = str(run.parent / "text.txt")
    lemma.train("rnn", text=text, out=tmp_path / "rnn", steps=1, batch=2, sequence_length=8, progress=False)
    with pytest.raises(InputError, match="no attention heads"):
        lemma.look.corpus(tmp_path / "rnn", text)


def test_uniform_entropy_respects_the_sliding_window(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    small = {"steps": 1, "batch": 2, "context": 12, "width": 8, "heads": 1, "depth": 2, "tokenizer": "characters"}
    settings = {**small, "positions": "rotary", "window": 4}
    lemma.train("decoder", text=str(tmp_path / "text.txt"), out=tmp_path / "run", progress=False, **settings)
    loaded = lemma.load(tmp_path / "run")
    with torch.no_grad():
        for layer in loaded.model.layers:
            layer.attention.query_key_value.weight.zero_()  # every head is uniform over its visible keys
            layer.attention.query_key_value.bias.zero_()
    result = lemma.look.corpus(loaded, str(tmp_path / "text.txt"))
    assert result.length == 12
    assert np.allclose(result.entropy, result.uniform_entropy, atol=1e-5)
    rows = [min(index % 12 + 1, 4) for index in range(result.tokens)]
    assert result.uniform_entropy == pytest.approx(np.log(rows).mean())


def test_encoder_error_suggests_another_command(run: Path, tmp_path: Path) -> None:
    text, small = str(run.parent / "text.txt"), {"width": 8, "heads": 1, "depth": 1, "context": 12}
    lemma.train("encoder", text=text, out=tmp_path / "mlm", steps=1, batch=2, progress=False, **small)
    with pytest.raises(RunError, match=r"whose heads --corpus measures\. .* lemma look \S+ --text"):
        lemma.look.corpus(tmp_path / "mlm", text)
