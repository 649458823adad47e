"""The verb `adapt`: what it stores, what it needs, and what it says to slips."""

import json
from pathlib import Path

import pytest
import torch

import lemma
from adapting_runs import SMALL, small_base, small_table
from lemma.errors import DataError, LemmaError, RunError, SpecError
from lemma.runs import RunFolder, plain_weights
from lemma.runs.tensors import read_tensors

METHODS = ("frozen", "full", "adapters", "lora")
SHORT = {"steps": 4, "batch": 8, "device": "cpu", "progress": False}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapting")
    small_table(folder)
    return folder


@pytest.fixture(scope="module")
def base(home: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEMMA_HOME", str(home / "cache"))
        return small_base(home, "decoder")


@pytest.fixture(autouse=True)
def _own_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(home / "cache"))


@pytest.mark.parametrize("family", list(SMALL))
@pytest.mark.parametrize("method", METHODS)
def test_every_family_is_adapted_by_every_method_and_stores_only_what_learned(
    family: str, method: str, home: Path, tmp_path: Path
) -> None:
    base = small_base(home, family)
    words = {"rank": 2} if method == "lora" else {"bottleneck": 3} if method == "adapters" else {}
    done = lemma.adapt(base, labels=home / "labels.csv", method=method, out=tmp_path / "run", **words, **SHORT)
    stored, _ = read_tensors(tmp_path / "run" / "model.safetensors")
    model = lemma.load(tmp_path / "run").module
    learned = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert stored.keys() == learned.keys() and done.learned == sum(t.numel() for t in stored.values())
    assert {"head.weight", "head.bias"} <= stored.keys()
    assert method == "full" or not {f"body.{name}" for name in plain_weights(RunFolder.open(base))} & stored.keys()
    assert 0 <= done.score.accuracy.value <= 1


@pytest.mark.parametrize("method", METHODS)
def test_a_loaded_run_is_its_base_and_what_it_learned(method: str, base: Path, home: Path, tmp_path: Path) -> None:
    lemma.adapt(base, labels=home / "labels.csv", method=method, out=tmp_path / "run", **SHORT)
    frozen = plain_weights(RunFolder.open(base))
    model = lemma.load(tmp_path / "run").module
    same = [
        name for name, p in model.named_parameters() if name.removeprefix("body.") in frozen and not p.requires_grad
    ]
    for name in same:
        assert torch.equal(model.get_parameter(name), frozen[name.removeprefix("body.")])
    assert bool(same) == (method != "full")


def test_many_tasks_on_one_base_are_small_on_the_disk(base: Path, home: Path, tmp_path: Path) -> None:
    lemma.adapt(base, labels=home / "labels.csv", method="lora", out=tmp_path / "run", rank=1, **SHORT)
    whole = sum(file.stat().st_size for file in (tmp_path / "run").rglob("*") if file.is_file())
    assert whole < (base / "model.safetensors").stat().st_size / 2
    assert not (tmp_path / "run" / "tokenizer.json").exists() and not (tmp_path / "run" / "checkpoints").exists()


def test_another_base_in_its_place_is_an_error_that_names_both_hashes(home: Path, tmp_path: Path) -> None:
    base = small_base(tmp_path, "lstm")
    done = lemma.adapt(base, labels=home / "labels.csv", method="frozen", out=tmp_path / "run", **SHORT)
    known = RunFolder.open(done.path).adaptation
    small_base(tmp_path, "lstm", overwrite=True, seed=2)
    with pytest.raises(RunError) as error:
        lemma.load(tmp_path / "run")
    assert known is not None and known.base_hash in str(error.value)
    other = json.loads(_header(base / "model.safetensors"))["sha256"]
    assert other in str(error.value) and other != known.base_hash


def _header(path: Path) -> str:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return file.metadata()["lemma"]


def test_base_and_run_may_move_together_and_a_missing_base_is_named(home: Path, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    base = small_base(tmp_path / "here", "gru")
    lemma.adapt(base, labels=home / "labels.csv", method="frozen", out=tmp_path / "here" / "run", **SHORT)
    (tmp_path / "here").rename(tmp_path / "there")
    assert lemma.load(tmp_path / "there" / "run").labels == ("many a", "many h")
    (tmp_path / "there" / "base-gru").rename(tmp_path / "there" / "elsewhere")
    with pytest.raises(RunError, match=r"base-gru.*no run there"):
        lemma.load(tmp_path / "there" / "run")


@pytest.mark.parametrize("method", ["full", "frozen", "lora"])
def test_a_merged_run_is_plain_and_says_the_same(method: str, base: Path, home: Path, tmp_path: Path) -> None:
    lemma.adapt(base, labels=home / "labels.csv", method=method, out=tmp_path / "run", **SHORT)
    lemma.adapt(tmp_path / "run", merge=True, out=tmp_path / "plain")
    one, other = lemma.load(tmp_path / "run"), lemma.load(tmp_path / "plain")
    tokens = torch.tensor([[1, 2, 3, 0, -1], [4, 4, 1, 0, 2]])
    assert other.adaptation is None and (tmp_path / "plain" / "tokenizer.json").exists()
    torch.testing.assert_close(one.module(tokens), other.module(tokens), rtol=1e-5, atol=1e-6)
    scores = [lemma.evaluate(tmp_path / name, progress=False).accuracy for name in ("run", "plain")]
    assert scores[0] == scores[1]


def test_adapters_cannot_be_merged_and_a_plain_run_need_not_be(base: Path, home: Path, tmp_path: Path) -> None:
    lemma.adapt(base, labels=home / "labels.csv", method="adapters", out=tmp_path / "run", **SHORT)
    with pytest.raises(SpecError, match="adapters cannot be merged"):
        lemma.adapt(tmp_path / "run", merge=True, out=tmp_path / "plain")
    with pytest.raises(LemmaError, match="no adapted run"):
        lemma.adapt(base, merge=True, out=tmp_path / "plain")


def test_a_language_model_is_adapted_to_other_text_and_goes_on_writing(base: Path, home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("hgfe dcba\nabba cede\n" * 80)
    done = lemma.adapt(base, text=other, method="lora", rank=2, out=tmp_path / "run", **SHORT)
    assert done.score.perplexity > 1 and lemma.generate(tmp_path / "run", prompt="a", tokens=5, temperature=0).text
    assert lemma.evaluate(tmp_path / "run", text=home / "text.txt", progress=False).perplexity > 1


def test_an_adapted_run_can_be_a_base_itself(base: Path, home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("hgfe dcba\nabba cede\n" * 80)
    lemma.adapt(base, text=other, method="lora", rank=2, out=tmp_path / "first", **SHORT)
    lemma.adapt(tmp_path / "first", labels=home / "labels.csv", method="frozen", out=tmp_path / "second", **SHORT)
    body, plain = lemma.load(tmp_path / "second").module.body, plain_weights(RunFolder.open(tmp_path / "first"))
    for name, tensor in plain.items():
        assert name.startswith("output") or torch.equal(body.get_parameter(name), tensor)


def test_an_interrupted_adaptation_goes_on_to_the_same_end(base: Path, home: Path, tmp_path: Path) -> None:
    words = {"labels": home / "labels.csv", "method": "lora", **SHORT, "steps": 8, "checkpoint_every": 4}
    lemma.adapt(base, out=tmp_path / "whole", **words)
    from lemma.studies.adapting import adapt_run, plan_adaptation
    from lemma.studies.asking import Asked
    from lemma.training import Silent

    class StopAt4(Silent):
        def advance(self, done: int) -> None:
            if done == 4:
                import signal

                signal.raise_signal(signal.SIGTERM)

    recipe = {"steps": 8, "batch": 8, "device": "cpu", "checkpoint_every": 4}
    plan = plan_adaptation(base, Asked(labels=home / "labels.csv"), "lora", recipe, Silent())
    assert adapt_run(plan, tmp_path / "cut", StopAt4()).stopped == "interrupted"
    lemma.resume(tmp_path / "cut", progress=False)
    one, other = (read_tensors(tmp_path / name / "model.safetensors")[0] for name in ("whole", "cut"))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


SLIPS = {
    "text,label\nabc,x\ncde,x\n": "one label",
    "text,label\nabc,x\n,y\n": "line 3",
    "text,label\nabc,x\ncde,\n": "line 3",
    "": "empty",
}


@pytest.mark.parametrize(("table", "said"), SLIPS.items())
def test_a_bad_table_is_told_before_anything_is_made(table: str, said: str, base: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text(table)
    with pytest.raises(DataError, match=said):
        lemma.adapt(base, labels=tmp_path / "bad.csv", out=tmp_path / "run", **SHORT)
    assert not (tmp_path / "run").exists()


def test_slips_of_the_caller_are_told_plainly(base: Path, home: Path, tmp_path: Path) -> None:
    given = {"labels": home / "labels.csv", "out": tmp_path / "run", **SHORT}
    with pytest.raises(DataError, match="Did you mean 'label'"):
        lemma.adapt(base, label_column="labl", **given)
    with pytest.raises(SpecError, match="Did you mean 'lora'"):
        lemma.adapt(base, method="lore", **given)
    with pytest.raises(SpecError, match="Did you mean 'rank'"):
        lemma.adapt(base, rnk=3, **given)
    with pytest.raises(SpecError, match=r"targets = 'nothing\.\*' fits nothing"):
        lemma.adapt(base, targets="nothing.*", **given)
    with pytest.raises(RunError, match="no such folder"):
        lemma.adapt(tmp_path / "nowhere", **given)
    with pytest.raises(SpecError, match="labels, text or pairs"):
        lemma.adapt(base, out=tmp_path / "run", **SHORT)
    with pytest.raises(SpecError, match="One kind of data"):
        lemma.adapt(base, text=home / "text.txt", **given)
    assert not (tmp_path / "run").exists()


def test_the_board_has_every_method_and_names_a_winner_for_each_need(base: Path, home: Path, tmp_path: Path) -> None:
    board = lemma.adapt(base, labels=home / "labels.csv", method="all", out=tmp_path / "all", rank=2, **SHORT)
    assert [row.method for row in board.rows] == list(METHODS) and len(board.winners) == 3
    rows = {row.method: row for row in board.rows}
    assert rows["frozen"].forgetting.ratio == pytest.approx(1, abs=1e-6)
    assert rows["full"].peak_bytes > rows["lora"].peak_bytes > 0 and rows["lora"].merged is not None
    assert rows["full"].adapted.stored_bytes > rows["lora"].adapted.stored_bytes
    assert all(max(map(len, str(line).splitlines()), default=0) <= 80 for line in str(board).splitlines()[2:16])
    saved = json.loads((tmp_path / "all" / "board.json").read_text())
    assert [row["method"]["kind"] for row in saved["rows"]] == list(METHODS)
    assert "<table" in (tmp_path / "all" / "board.html").read_text()
