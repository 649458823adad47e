"""The verb `adapt`: stored weights, references to the base, comparison, errors."""

import json
from pathlib import Path

import pytest
import torch

import lemma
from adapting_runs import SMALL, small_base, small_table
from lemma.errors import DataError, LemmaError, RunError, SpecError
from lemma.runs.checkpoint import read_tensors
from lemma.runs.folder import RunFolder
from lemma.runs.load import read_merged_weights, run_hash
from lemma.studies.compare_methods import SCENARIOS

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
def _isolated_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(home / "cache"))


@pytest.mark.parametrize("family", list(SMALL))
@pytest.mark.parametrize("method", METHODS)
def test_every_method_adapts_every_family_storing_only_trainable_weights(
    family: str, method: str, home: Path, tmp_path: Path
) -> None:
    base = small_base(home, family)
    words = {"rank": 2} if method == "lora" else {"bottleneck": 3} if method == "adapters" else {}
    done = lemma.adapt(base, labels=home / "labels.csv", method=method, out=tmp_path / "run", **words, **SHORT)
    stored, _ = read_tensors(tmp_path / "run" / "model.safetensors")
    model = lemma.load(tmp_path / "run", "cpu").module
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert stored.keys() == trained.keys() and done.learned == sum(t.numel() for t in stored.values())
    head = {"head.weight"} if family == "decoder" else {"head.weight", "head.bias"}  # as in transformers
    assert head <= stored.keys()
    assert (
        method == "full" or not {f"body.{name}" for name in read_merged_weights(RunFolder.open(base))} & stored.keys()
    )
    assert 0 <= done.score.accuracy.value <= 1


@pytest.mark.parametrize("method", METHODS)
def test_loaded_adapted_run_combines_base_and_update(method: str, base: Path, home: Path, tmp_path: Path) -> None:
    lemma.adapt(base, labels=home / "labels.csv", method=method, out=tmp_path / "run", **SHORT)
    frozen = read_merged_weights(RunFolder.open(base))
    model = lemma.load(tmp_path / "run", "cpu").module
    same = [
        name for name, p in model.named_parameters() if name.removeprefix("body.") in frozen and not p.requires_grad
    ]
    for name in same:
        assert torch.equal(model.get_parameter(name), frozen[name.removeprefix("body.")])
    assert bool(same) == (method != "full")


def test_adapted_runs_are_much_smaller_than_their_base(base: Path, home: Path, tmp_path: Path) -> None:
    lemma.adapt(base, labels=home / "labels.csv", method="lora", out=tmp_path / "run", rank=1, **SHORT)
    full = sum(file.stat().st_size for file in (tmp_path / "run").rglob("*") if file.is_file())
    assert full < (base / "model.safetensors").stat().st_size / 2
    assert not (tmp_path / "run" / "tokenizer.json").exists() and not (tmp_path / "run" / "checkpoints").exists()


def test_replaced_base_is_rejected_with_both_hashes(home: Path, tmp_path: Path) -> None:
    base = small_base(tmp_path, "lstm")
    done = lemma.adapt(base, labels=home / "labels.csv", method="frozen", out=tmp_path / "run", **SHORT)
    names = RunFolder.open(done.path).adaptation
    small_base(tmp_path, "lstm", overwrite=True, seed=2)
    with pytest.raises(RunError) as error:
        lemma.load(tmp_path / "run", "cpu")
    assert names is not None and names.base_hash in str(error.value)
    other = run_hash(RunFolder.open(base))
    assert other in str(error.value) and other != names.base_hash


def test_changed_tokenizer_or_method_is_detected(home: Path, tmp_path: Path) -> None:
    base = small_base(tmp_path, "gru")
    lemma.adapt(base, labels=home / "labels.csv", method="lora", out=tmp_path / "run", **SHORT)
    words = (tmp_path / "run" / "adaptation.toml").read_text()
    (tmp_path / "run" / "adaptation.toml").write_text(words.replace("alpha = 16.0", "alpha = 400.0"))
    with pytest.raises(RunError, match=r"adaptation\.toml says method .*alpha"):
        lemma.load(tmp_path / "run", "cpu")
    (tmp_path / "run" / "adaptation.toml").write_text(words)
    tokenizer = base / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"a"', '"*"').replace('"b"', '"a"').replace('"*"', '"b"'))
    with pytest.raises(RunError, match=r"tokenizer\.json is damaged|trained again or changed"):
        lemma.load(tmp_path / "run", "cpu")


def test_adapted_run_cannot_overwrite_its_base(base: Path, home: Path, tmp_path: Path) -> None:
    kwargs = {"labels": home / "labels.csv", "method": "frozen", **SHORT}
    before = (base / "model.safetensors").read_bytes()
    with pytest.raises(RunError, match="is the base itself"):
        lemma.adapt(base, out=base, overwrite=True, **kwargs)
    lemma.adapt(base, out=tmp_path / "run", **kwargs)
    with pytest.raises(RunError, match="is the base itself"):
        lemma.export(tmp_path / "run", to="merged", out=base, overwrite=True)
    assert (base / "model.safetensors").read_bytes() == before and lemma.load(tmp_path / "run", "cpu").labels


def test_finished_run_without_checkpoints_cannot_resume(base: Path, home: Path, tmp_path: Path) -> None:
    lemma.adapt(base, labels=home / "labels.csv", method="lora", out=tmp_path / "run", **SHORT)
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    with pytest.raises(RunError, match="keeps no checkpoint"):
        lemma.resume(tmp_path / "run", progress=False, steps=9)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before


def test_forgetting_of_full_tuning_uses_the_tied_output(base: Path, home: Path, tmp_path: Path) -> None:
    words = {**SHORT, "steps": 12, "learning_rate": 0.02}
    board = lemma.adapt.compare(base, labels=home / "labels.csv", out=tmp_path / "all", rank=2, **words)
    forgot = {row.method: row.forgetting.after for row in board.rows}
    adapted, unwrapped = lemma.load(tmp_path / "all" / "full", "cpu").module.body, lemma.load(base, "cpu")
    for (
        name,
        parameter,
    ) in unwrapped.module.named_parameters():  # a new model with the tuned weights and the original tying
        if name != "output.weight":
            parameter.data.copy_(adapted.get_parameter(name))
    from lemma.report.progress import SilentObserver
    from lemma.tasks.language import LanguageTask, split_perplexity

    after = split_perplexity(
        unwrapped.model, LanguageTask()._load_own(unwrapped, SilentObserver()), "validation"
    ).perplexity
    assert forgot["full"] == pytest.approx(after, rel=1e-5) and forgot["full"] != pytest.approx(forgot["frozen"])
    again = lemma.adapt.compare(base, labels=home / "labels.csv", out=tmp_path / "all", rank=2, **words)
    assert [row.adapted.training.seconds for row in again.rows] == [row.adapted.training.seconds for row in board.rows]
    with pytest.raises(RunError, match="holds a run already"):
        lemma.adapt.compare(base, labels=home / "labels.csv", out=tmp_path / "all", **{**words, "steps": 5})


def test_comparison_works_without_the_text_of_the_base(home: Path, tmp_path: Path) -> None:
    base = small_base(tmp_path, "gru")
    (tmp_path / "text.txt").unlink()
    board = lemma.adapt.compare(base, labels=home / "labels.csv", out=tmp_path / "all", **SHORT)
    assert all(row.forgetting is None for row in board.rows) and "cannot be read" in board.to_dict()["note"]


def test_limit_restricts_labelled_examples(base: Path, home: Path, tmp_path: Path) -> None:
    done = lemma.adapt(base, labels=home / "labels.csv", limit=20, method="frozen", out=tmp_path / "run", **SHORT)
    assert RunFolder.open(done.path).data.limit == 20
    with pytest.raises(SpecError, match="belongs to labels"):
        lemma.adapt(base, text=home / "text.txt", limit=20, out=tmp_path / "other", **SHORT)


def test_ineffective_adaptation_settings_are_rejected(base: Path, home: Path, tmp_path: Path) -> None:
    kwargs = {"labels": home / "labels.csv", "out": tmp_path / "run", **SHORT}
    for word, output in {
        "classes": "unknown",
        "mask_rate": "no effect",
        "augment": "no effect",
        "width": "the base's",
    }.items():
        with pytest.raises(SpecError, match=output):
            lemma.adapt(base, **kwargs, **{word: 1})
    with pytest.raises(SpecError, match="a setting of the method lora"):
        lemma.adapt(base, method="adapters", rank=4, **kwargs)
    with pytest.raises(SpecError, match=r"recipe\.batch = 0"):
        lemma.adapt(base, **{**kwargs, "batch": 0})


def test_base_and_run_can_move_together(home: Path, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    base = small_base(tmp_path / "here", "gru")
    lemma.adapt(base, labels=home / "labels.csv", method="frozen", out=tmp_path / "here" / "run", **SHORT)
    (tmp_path / "here").rename(tmp_path / "there")
    assert lemma.load(tmp_path / "there" / "run", "cpu").labels == ("many a", "many h")
    (tmp_path / "there" / "base-gru").rename(tmp_path / "there" / "elsewhere")
    with pytest.raises(RunError, match=r"base-gru.*no run is there"):
        lemma.load(tmp_path / "there" / "run", "cpu")


@pytest.mark.parametrize("method", ["full", "frozen", "lora"])
def test_merged_run_is_plain_with_equal_outputs(method: str, base: Path, home: Path, tmp_path: Path) -> None:
    lemma.adapt(base, labels=home / "labels.csv", method=method, out=tmp_path / "run", **SHORT)
    lemma.export(tmp_path / "run", to="merged", out=tmp_path / "plain")
    item, other = lemma.load(tmp_path / "run", "cpu"), lemma.load(tmp_path / "plain", "cpu")
    tokens = torch.tensor([[1, 2, 3, 0, -1], [4, 4, 1, 0, 2]])
    assert other.adaptation is None and (tmp_path / "plain" / "tokenizer.json").exists()
    torch.testing.assert_close(item.module(tokens), other.module(tokens), rtol=1e-5, atol=1e-6)
    scores = [lemma.evaluate(tmp_path / name, progress=False).accuracy for name in ("run", "plain")]
    assert scores[0] == scores[1]


def test_merging_adapters_or_plain_runs_is_rejected(base: Path, home: Path, tmp_path: Path) -> None:
    lemma.adapt(base, labels=home / "labels.csv", method="adapters", out=tmp_path / "run", **SHORT)
    with pytest.raises(SpecError, match="adapters cannot be merged"):
        lemma.export(tmp_path / "run", to="merged", out=tmp_path / "plain")
    with pytest.raises(LemmaError, match="not an adapted run"):
        lemma.export(base, to="merged", out=tmp_path / "plain")


def test_language_model_adapted_to_other_text_generates(base: Path, home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("hgfe dcba\nabba cede\n" * 80)
    done = lemma.adapt(base, text=other, method="lora", rank=2, out=tmp_path / "run", **SHORT)
    assert done.score.perplexity > 1 and lemma.generate(tmp_path / "run", prompt="a", tokens=5, temperature=0).text
    assert lemma.evaluate(tmp_path / "run", text=home / "text.txt", progress=False).perplexity > 1


def test_adapted_run_can_be_a_base(base: Path, home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("hgfe dcba\nabba cede\n" * 80)
    lemma.adapt(base, text=other, method="lora", rank=2, out=tmp_path / "first", **SHORT)
    lemma.adapt(tmp_path / "first", labels=home / "labels.csv", method="frozen", out=tmp_path / "second", **SHORT)
    body, unwrapped = (
        lemma.load(tmp_path / "second", "cpu").module.body,
        read_merged_weights(RunFolder.open(tmp_path / "first")),
    )
    for name, tensor in unwrapped.items():
        assert name.startswith("output") or torch.equal(body.get_parameter(name), tensor)


def test_resumed_adaptation_equals_uninterrupted_adaptation(base: Path, home: Path, tmp_path: Path) -> None:
    words = {"labels": home / "labels.csv", "method": "lora", **SHORT, "steps": 8, "checkpoint_every": 4}
    lemma.adapt(base, out=tmp_path / "whole", **words)
    from lemma.counting.count import trainable_formula
    from lemma.report.progress import SilentObserver
    from lemma.tasks.registry import data_args
    from lemma.training.adapt import adapt_run, plan_adaptation

    class StopAt4(SilentObserver):
        def advance(self, done: int) -> None:
            if done == 4:
                import signal

                signal.raise_signal(signal.SIGTERM)

    recipe = {"steps": 8, "batch": 8, "device": "cpu", "checkpoint_every": 4}
    plan = plan_adaptation(base, data_args({"labels": home / "labels.csv"}), "lora", recipe, SilentObserver())
    assert adapt_run(plan, tmp_path / "cut", StopAt4(), trainable_formula).stopped == "interrupted"
    lemma.resume(tmp_path / "cut", progress=False)
    item, other = (read_tensors(tmp_path / name / "model.safetensors")[0] for name in ("whole", "cut"))
    assert item.keys() == other.keys() and all(torch.equal(item[name], other[name]) for name in item)


INVALID_TABLES = {
    "text,label\nabc,x\ncde,x\n": "one label",
    "text,label\nabc,x\n,y\n": "line 3",
    "text,label\nabc,x\ncde,\n": "line 3",
    "": "empty",
}


@pytest.mark.parametrize(("table", "said"), INVALID_TABLES.items())
def test_invalid_label_table_is_rejected_before_writing(table: str, said: str, base: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text(table)
    with pytest.raises(DataError, match=said):
        lemma.adapt(base, labels=tmp_path / "bad.csv", out=tmp_path / "run", **SHORT)
    assert not (tmp_path / "run").exists()


def test_invalid_adapt_arguments_get_helpful_errors(base: Path, home: Path, tmp_path: Path) -> None:
    kwargs = {"labels": home / "labels.csv", "out": tmp_path / "run", **SHORT}
    with pytest.raises(DataError, match="Did you mean 'label'"):
        lemma.adapt(base, label_column="labl", **kwargs)
    with pytest.raises(SpecError, match="Did you mean 'lora'"):
        lemma.adapt(base, method="lore", **kwargs)
    with pytest.raises(SpecError, match="Did you mean 'rank'"):
        lemma.adapt(base, rnk=3, **kwargs)
    with pytest.raises(SpecError, match=r"targets = 'nothing\.\*' matches nothing"):
        lemma.adapt(base, targets="nothing.*", **kwargs)
    with pytest.raises(RunError, match="no such folder"):
        lemma.adapt(tmp_path / "nowhere", **kwargs)
    with pytest.raises(SpecError, match="labels, text, pairs or images"):
        lemma.adapt(base, out=tmp_path / "run", **SHORT)
    with pytest.raises(SpecError, match="One kind of data"):
        lemma.adapt(base, text=home / "text.txt", **kwargs)
    assert not (tmp_path / "run").exists()


def test_comparison_has_every_method_and_a_winner_per_scenario(base: Path, home: Path, tmp_path: Path) -> None:
    board = lemma.adapt.compare(base, labels=home / "labels.csv", out=tmp_path / "all", rank=2, **SHORT)
    assert [row.method for row in board.rows] == list(METHODS)
    assert [line.partition(":")[0] for line in board.conclusion[-3:]] == [need.title for need in SCENARIOS]
    rows = {row.method: row for row in board.rows}
    assert rows["frozen"].forgetting.ratio == pytest.approx(1, abs=1e-6)
    assert rows["full"].peak_bytes > rows["lora"].peak_bytes > 0 and rows["lora"].merged is not None
    assert rows["full"].adapted.stored_bytes > rows["lora"].adapted.stored_bytes
    assert all(max(map(len, str(line).splitlines()), default=0) <= 80 for line in str(board).splitlines()[2:16])
    saved = json.loads((tmp_path / "all" / "board.json").read_text())
    assert [row["method"]["kind"] for row in saved["rows"]] == list(METHODS)
    assert "<table" in (tmp_path / "all" / "board.html").read_text()


def test_counting_an_adapted_run_includes_its_updates(home: Path, tmp_path: Path) -> None:
    base = small_base(home, "feed-forward")
    done = lemma.adapt(base, labels=home / "labels.csv", method="lora", rank=3, out=tmp_path / "run", **SHORT)
    account = lemma.count(tmp_path / "run", quantities=["parameters", "optimizer"])
    model = lemma.load(tmp_path / "run", "cpu").module
    assert account.parameters.total == sum(parameter.numel() for parameter in model.parameters())
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert account.optimizer.total == sum(8 * item.numel() + 4 for item in trained)
    assert done.learned == sum(item.numel() for item in trained)
    wider = lemma.count(tmp_path / "run", quantities=["parameters"], r=5).parameters.total
    assert wider - account.parameters.total == 2 * (3 * 6 + 9)  # two ranks more next to a matrix of 9 × 3·6


def test_lora_parameter_formula_holds_at_any_recurrent_depth(home: Path, tmp_path: Path) -> None:
    base = small_base(home, "lstm")
    lemma.adapt(base, labels=home / "labels.csv", method="lora", rank=3, out=tmp_path / "run", **SHORT)
    figure, module = (
        lemma.count(tmp_path / "run", quantities=["parameters"]).parameters,
        lemma.load(tmp_path / "run", "cpu").module,
    )
    assert not figure.refused
    assert figure.total == sum(parameter.numel() for parameter in module.parameters())
    d, D = module.spec.body.width, module.spec.body.hidden
    added = 3 * (d + D + 8 * D) + 2 * 3 * 10 * D  # A and B of both matrices in the first layer, and in two more
    unwrapped = lemma.count(module.spec, quantities=["parameters"], L=3).parameters.total
    assert lemma.count(tmp_path / "run", quantities=["parameters"], L=3).parameters.total == unwrapped + added


@pytest.mark.parametrize("family", ["encoder", "lstm"])
def test_comparison_supports_adapting_to_text(family: str, home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("hgfe dcba\nabba cede\n" * 60)
    words = {"positions": "learned"} if family == "encoder" else {}
    (tmp_path / "text.txt").write_text((home / "text.txt").read_text())
    base = small_base(tmp_path, family, **words)
    board = lemma.adapt.compare(base, text=other, rank=2, out=tmp_path / "all", **SHORT)
    assert [row.headline.name for row in board.rows] == ["perplexity"] * 4
    assert all(row.unmerged.median > 0 and row.forgetting.before > 1 for row in board.rows)
