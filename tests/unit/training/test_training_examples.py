"""Training on pairs and labelled texts: convergence, accumulation by targets, exact resume, errors."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import lemma
from adapting_runs import StopAt, same_bits, small_table
from lemma.errors import SpecError
from lemma.models.build import build
from lemma.spec.models import Classifier, EncoderDecoder, Gru
from lemma.spec.recipe import Recipe
from lemma.tasks.registry import task_for
from lemma.training.devices import Distributed

CPU = Distributed(torch.device("cpu"))
TINY = {"tokenizer": "characters", "device": "cpu", "progress": False}
DIGITS = {
    "width": 64,
    "encoder_depth": 1,
    "decoder_depth": 1,
    "context": 10,
    "dropout": 0.0,
    "label_smoothing": 0.0,
    "learning_rate": 4e-3,
    "warm_up": 40,
    "held_out": 0.03,
}


@pytest.fixture(autouse=True)
def _isolated_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "cache"))


def reversed_digits(folder: Path, count: int = 4000) -> Path:
    source, strings = random.Random(5), set()
    while len(strings) < count:
        strings.add("".join(source.choices("0123456789", k=source.randint(3, 7))))
    path = folder / "digits.tsv"
    path.write_text("source\ttarget\n" + "".join(f"{string}\t{string[::-1]}\n" for string in sorted(strings)))
    return path


@pytest.mark.slow
def test_encoder_decoder_learns_to_reverse_digits(tmp_path: Path) -> None:
    pairs = reversed_digits(tmp_path)
    words = {**DIGITS, **TINY, "steps": 400, "evaluate_every": 400}
    lemma.train("encoder-decoder", pairs=pairs, out=tmp_path / "run", **words)
    unseen = [line.split("\t") for line in pairs.read_text().splitlines()[1:]]
    names = lemma.load(tmp_path / "run")
    from lemma.data.pairs import prepare_pairs

    reserved = prepare_pairs(names.data, length=10, tokenizer=names.tokenizer).item("test").pairs
    assert len(reserved) >= 100 and {pair.source for pair in reserved} < {source for source, _ in unseen}
    text = lemma.generate(names, source=[pair.source for pair in reserved])
    right = sum(item.text == pair.source[::-1] for item, pair in zip(text, reserved, strict=True))
    assert right / len(reserved) >= 0.99
    score = lemma.evaluate(names, progress=False, beam=2)
    assert score.chrf.value > 99 and "tok:13a" in score.signatures["bleu"]  # a number is one word: no 4-grams


def test_accumulated_pair_gradients_equal_full_batch(tmp_path: Path) -> None:
    from lemma.data.pairs import prepare_pairs
    from lemma.spec.data import Characters, PairsSpec

    data = prepare_pairs(PairsSpec(pairs=str(reversed_digits(tmp_path, 60)), tokenizer=Characters()), length=10)
    spec = EncoderDecoder(width=16, heads=2, encoder_depth=1, decoder_depth=1, context=10).with_data_sizes(data.sizes())
    _compare_parts(build(spec).double().eval(), data.item("train"))


@pytest.mark.parametrize("held_out", [0.1, 0.2])
def test_accumulated_label_gradients_equal_full_batch(tmp_path: Path, held_out: float) -> None:
    from lemma.data.labels import prepare_labels
    from lemma.spec.data import Characters, LabelsSpec

    spec = LabelsSpec(labels=str(small_table(tmp_path)), tokenizer=Characters(), held_out=held_out)
    data = prepare_labels(spec, length=16, special_tokens=False)
    model = build(Classifier(body=Gru(width=6, hidden=7)).with_data_sizes(data.sizes()))
    _compare_parts(model.double().eval(), data.item("train"))


def _compare_parts(model: Any, examples: Any) -> None:
    recipe = Recipe(batch=12, label_smoothing=0.1)
    task = task_for(model.spec)
    loss, batches = task.loss(model, recipe), task.batches(model, examples, recipe, CPU)
    inputs, targets = batches.batch(0)
    loss(inputs, targets, None)[0].backward()
    full = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    for part in zip(inputs.chunk(5), targets.chunk(5), strict=True):
        (loss(*part, None)[0] * batches.weight(part[1], 5)).backward()
    for item, parameter in zip(full, model.parameters(), strict=True):
        torch.testing.assert_close(item, parameter.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["pairs", "labels"])
def test_interrupted_example_run_resumes_bit_identically(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = reversed_digits(tmp_path, 80) if kind == "pairs" else small_table(tmp_path)
    model = "encoder-decoder" if kind == "pairs" else "encoder"
    words: dict[str, Any] = {**TINY, "width": 16, "heads": 2, "context": 16, "batch": 8, "dropout": 0.2, "warm_up": 2}
    words |= {kind: path, "checkpoint_every": 3, "steps": 6}
    lemma.train(model, out=tmp_path / "whole", **words)
    monkeypatch.setattr("lemma.api.watch", lambda progress: StopAt(4))
    assert lemma.train(model, out=tmp_path / "cut", **words).stopped == "interrupted"
    monkeypatch.undo()
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "cache"))
    assert lemma.resume(tmp_path / "cut", progress=False).stopped == "done"
    assert same_bits(tmp_path / "whole", tmp_path / "cut")


def test_data_of_wrong_kind_are_rejected_with_a_suggestion(tmp_path: Path) -> None:
    labels = small_table(tmp_path)
    with pytest.raises(SpecError, match="encoder-decoder: it learns --pairs"):
        lemma.train("encoder-decoder", text=labels, out=tmp_path / "run", **TINY)
    with pytest.raises(SpecError, match="--pairs is not for a model of the family lstm: it learns --text"):
        lemma.train("lstm", pairs=labels, out=tmp_path / "run", **TINY)
    with pytest.raises(SpecError, match="cannot be the body of a classifier"):
        lemma.train("parser", labels=labels, out=tmp_path / "run", progress=False)
    with pytest.raises(SpecError, match="nothing to learn from"):
        lemma.train("lstm", out=tmp_path / "run", **TINY)
    with pytest.raises(SpecError, match="are for a language model's attention"):
        lemma.train("decoder", labels=labels, out=tmp_path / "run", entropy_penalty=0.1, **TINY)


@pytest.mark.parametrize("body", ["rnn", "lstm", "gru", "feed-forward", "attentive", "decoder", "encoder", "table-a5"])
def test_every_body_trains_and_evaluates_as_classifier(body: str, tmp_path: Path) -> None:
    words = {**TINY, "steps": 5, "batch": 8, "warm_up": 1}
    lemma.train(body, labels=small_table(tmp_path), out=tmp_path / "run", **words)
    score = lemma.evaluate(tmp_path / "run", progress=False)
    other = lemma.evaluate(tmp_path / "run", labels=tmp_path / "labels.csv", progress=False)
    assert score.texts < other.texts == 120
    assert sum(map(sum, other.confusion)) == 120 and 0 <= score.accuracy.low <= score.accuracy.high <= 1
