"""Translation scores: display, errors, and the loss against brute force."""

import json
import math
import sys

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lemma.data.batches import TokenRows
from lemma.data.pairs import TokenPairs
from lemma.errors import InputError
from lemma.tasks.translation import score_pairs, score_translations

V = 11


class Translator(nn.Module):
    """A simple translator whose logits depend on the last token and the sum of the source, ignoring padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(V, 6), nn.Linear(6, V)
        self.dropout = nn.Dropout(0.5)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        present = (source >= 0)[..., None]
        read = (self.embedding(source.clamp(min=0)) * present).sum(1, keepdim=True)
        return self.output(self.dropout(self.embedding(target.clamp(min=0)) + read))


def pairs(count: int) -> TokenPairs:
    random = np.random.default_rng(4)

    def rows(before: list[int]) -> TokenRows:
        lengths = random.integers(0, 9, size=count)
        tokens = random.integers(0, V - 3, size=lengths.sum()).astype(np.int32)
        return TokenRows(tokens, np.cumsum([0, *lengths])).add_affixes(before, [V - 2])

    return TokenPairs(rows([]), rows([V - 3]))


def test_translation_loss_averages_over_target_tokens() -> None:
    model, settings = Translator(), pairs(60)
    measured = score_pairs(model, settings)
    loss, tokens = measured.loss, measured.tokens
    assert model.training
    total, count = 0.0, 0
    for index in range(60):
        source, target = (torch.from_numpy(part) for part in settings.batch([index]))
        log = model.eval()(source, target[:, :-1]).log_softmax(-1)[0]
        total -= sum(log[t, token].item() for t, token in enumerate(target[0, 1:]))
        count += target.shape[1] - 1
    assert tokens == count and loss == pytest.approx(total / count, rel=1e-5)
    assert measured.perplexity == pytest.approx(math.exp(loss), rel=1e-6)
    assert measured.to_dict()["tokens"] == count and "nats/token" in str(measured)


def test_empty_pair_list_is_rejected() -> None:
    with pytest.raises(InputError, match="no pairs to measure"):
        score_pairs(Translator(), pairs(0))


def test_score_output_fits_80_columns_and_json() -> None:
    score = score_translations(["a b c d e"] * 9, [("a b c d e", "x")] * 9, {"data hash": "0" * 64, "split": "test"})
    assert score.bleu.value == pytest.approx(100) and score.figures["chrf"] == pytest.approx(100)
    assert max(map(len, str(score).splitlines())) <= 80 and "9" in str(score)
    base = json.loads(json.dumps(score.to_dict()))
    assert base["sentences"] == 9 and "tok:13a" in base["signatures"]["bleu"]
    assert "tok:13a" in score._repr_html_()


def test_zero_bleu_has_an_interval() -> None:
    score = score_translations(["q"] * 4, ["a b c"] * 4, samples=50)
    assert (score.bleu.value, score.bleu.low, score.bleu.high) == (0, 0, 0)


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        ([], [], "no translations to score"),
        (["a"], ["a", "b"], "1 translations cannot be compared with 2 references"),
        (["a", "b"], [("a",), ()], "translation 2 has nothing to be compared with"),
    ],
)
def test_invalid_score_inputs_are_rejected(hypotheses: list[str], references: list, message: str) -> None:
    with pytest.raises(InputError, match=message):
        score_translations(hypotheses, references)


def test_missing_sacrebleu_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(InputError, match=r"scoring translations needs sacrebleu.*pip install sacrebleu"):
        score_translations(["a"], ["a"])


@pytest.mark.parametrize(("good", "bad"), [("a b c d e", "q"), ("a b c d e", ""), ("x", "")])
def test_bootstrap_samples_without_matches_can_be_averaged(good: str, bad: str) -> None:
    """sacrebleu's mean rejects them: a sample without a match is a float 0.0, others are NumPy float32."""
    score = score_translations([good, bad], [good, "p q r"], samples=50)
    assert score.bleu.interval and score.bleu.low <= score.bleu.high
    assert score.chrf.interval and score.chrf.low < score.chrf.high
