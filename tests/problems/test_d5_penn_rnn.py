"""Problem D5: the word-level recurrent model at two sizes: its recipe, its counts, early stopping, sentences."""

from pathlib import Path

import pytest

import lemma
from lemma.checking.read_formula import read_formula
from lemma.spec.choose import choose, preset
from lemma.spec.data import Words
from lemma.spec.models import Rnn

SMALL, LARGE = {"d": 256, "D": 512}, {"d": 2048, "D": 4096}
LINES = ["the cat sat", "the dog ran on", "a cat ran", "the old dog sat on a cat"]


def test_recipe_matches_the_problem() -> None:
    choice = choose("penn-rnn", {})
    recipe = choice.recipe
    assert (recipe.dropout, recipe.sequence_length, recipe.batch, recipe.learning_rate) == (0.1, 10, 128, 0.001)
    assert recipe.patience is not None, "early stopping"
    epochs = recipe.steps * recipe.batch * recipe.sequence_length / 929_589
    assert epochs > 5, "one epoch of Penn Treebank's training split leaves the model above the source's 164"
    assert recipe.evaluate_every is not None and recipe.patience * recipe.evaluate_every < recipe.steps / 2
    assert isinstance(choice.model, Rnn) and (choice.model.width, choice.model.hidden) == (256, 512)
    assert preset("penn-rnn").tokenizer == Words(vocabulary=10_000)


@pytest.mark.parametrize(("sizes", "number"), [(SMALL, 8_083_728), (LARGE, 86_619_920)])
def test_parameters_match_at_both_sizes(sizes: dict[str, int], number: int) -> None:
    d, D, V = sizes["d"], sizes["D"], 10_000
    assert number == V * d + D * D + d * D + D * V + D + V
    assert lemma.count("penn-rnn", quantities=["parameters"], **sizes).parameters.total == number


def test_larger_model_takes_twelve_times_the_flops() -> None:
    small, large = (
        lemma.count("penn-rnn", quantities=["flops"], B=128, T=10, **sizes).flops for sizes in (SMALL, LARGE)
    )
    assert small.total == 2 * 128 * 10 * (256 * 512 + 512**2 + 512 * 10_000) == 14_113_832_960
    assert round(large.total / small.total, 2) == 11.99
    expected = read_formula("2*B*T*(d*D + D^2 + D*V)", small.polynomial.symbols).to_polynomial()
    assert small.polynomial.substitute("L", 1) == expected


def test_training_stops_early_and_generation_ends_at_eos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "home"))
    (tmp_path / "text.txt").write_text("".join(f"{LINES[n % 4]}\n" for n in range(300)))
    words = {"d": 8, "D": 16, "vocabulary": 20, "batch": 8, "steps": 400, "evaluate_every": 4, "device": "cpu"}
    rate = {"learning_rate": 0.05, "warm_up": 0}
    run = lemma.train("penn-rnn", text=tmp_path / "text.txt", out=tmp_path / "run", progress=False, **words, **rate)
    assert run.stopped == "early" and run.steps == run.best_step + 3 * 4 < 400, "three validations without a better one"
    assert run.best_perplexity is not None and run.best_perplexity < 4, "of eleven different tokens"
    text = [lemma.generate(tmp_path / "run", tokens=60, seed=seed) for seed in range(5)]
    assert all(0 < len(item.text.split()) < 20 and "<eos>" not in item.text for item in text)
