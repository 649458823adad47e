"""Encoders, translators, classifiers and adapted runs on a GPU."""

from pathlib import Path

import pytest
import torch

import lemma
from adapting_runs import small_base, small_table
from lemma.adaptation.adapt import adapt_model, merge_lora
from lemma.models.build import build
from lemma.spec.models import Classifier, Encoder, EncoderDecoder, Gru, Lstm
from lemma.spec.recipe import Lora

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
METHODS = ("frozen", "full", "adapters", "lora")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("family", ["decoder", "lstm", "encoder", "feed-forward"])
def test_every_adaptation_method_trains_on_gpu_and_loads_on_cpu(family: str, tmp_path: Path) -> None:
    base = small_base(tmp_path, family, device="cuda")
    for method in METHODS:
        out = tmp_path / method
        lemma.adapt(base, labels=small_table(tmp_path), method=method, out=out, steps=4, batch=8, progress=False)
        tokens = torch.tensor([[1, 2, 3, 0, -1], [4, 4, 1, 0, 2]])
        current, present = lemma.load(out, "cuda").module(tokens.cuda()).cpu(), lemma.load(out, "cpu").module(tokens)
        torch.testing.assert_close(current, present, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("body", [Lstm(width=8, hidden=12), Gru(width=8, hidden=12)])
def test_recurrent_lora_trains_with_cudnn(body: Lstm | Gru) -> None:
    model = build(Classifier(body=body)).cuda()
    adapt_model(model, Lora(rank=2), ("head.*",))
    tokens = torch.randint(0, 256, (4, 9), device="cuda")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".B"):
                parameter.normal_(std=0.1)
    model(tokens).square().sum().backward()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert trained and all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in trained)
    before = model.eval()(tokens)
    torch.testing.assert_close(merge_lora(model)(tokens), before, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "alibi"])
def test_padding_does_not_change_gpu_outputs(positions: str) -> None:
    encoder = build(Encoder(width=16, heads=2, depth=2, context=20, positions=positions)).cuda().eval()
    both = build(EncoderDecoder(width=16, heads=2, context=20, positions=positions)).cuda().eval()
    source, target = (torch.randint(0, 253, (3, 7), device="cuda") for _ in range(2))
    longer = torch.nn.functional.pad(source, (0, 5), value=-1)
    with torch.no_grad():
        torch.testing.assert_close(encoder(longer)[:, :7], encoder(source), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(both(longer, target), both(source, target), rtol=1e-4, atol=1e-4)


def test_encoder_compiles_and_translator_trains_in_bfloat16(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("abcdefghij" * 600)
    words = {"tokenizer": "characters", "width": 32, "heads": 2, "context": 32, "progress": False, "batch": 16}
    quick = {"learning_rate": 4e-3, "warm_up": 20, "compile": True, "depth": 2}
    done = lemma.train("encoder", text=text, out=tmp_path / "run", steps=160, **quick, **words)
    assert done.validation_loss is not None and done.validation_loss < 1.0
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{n}\t{str(n)[::-1]}\n" for n in range(1000, 1400)))
    lemma.train("encoder-decoder", pairs=pairs, out=tmp_path / "pairs", steps=30, **words)
    assert lemma.evaluate(tmp_path / "pairs", progress=False, beam=2).sentences
