"""Re-rankers as runs: adaptation, storage, exact resume, evaluation, merging and errors."""

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import lemma
from adapting_runs import StopAt, same_bits
from image_runs import shapes
from lemma.cli.main import app
from lemma.counting.count import trainable_formula
from lemma.data.batches import TokenRows
from lemma.data.images import CaptionedImages, prepare_images
from lemma.errors import LemmaError, SpecError
from lemma.models.classifier import ClassifierModel
from lemma.models.dual_encoder import CrossAttentionModel, DualEncoderModel
from lemma.runs.checkpoint import read_tensors
from lemma.runs.load import load
from lemma.spec.data import ImagesSpec
from lemma.tasks.registry import data_args
from lemma.tasks.reranking import PairLogits, RerankingScore, sample_images
from lemma.training.adapt import adapt_run, plan_adaptation
from two_colours import COLOURS, folder_of_halves

SMALL: dict[str, Any] = {
    "grid": 2, "patch": 4, "image_width": 16, "image_depth": 1, "image_heads": 2, "shared": 2, "tokenizer": "words",
    "body": "encoder", "body.width": 16, "body.depth": 1, "body.heads": 2, "body.context": 8,
}  # fmt: skip
QUICK: dict[str, Any] = {"device": "cpu", "augment": 0, "batch": 30, "evaluate_every": 1000, "progress": False}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of_halves(tmp_path_factory.mktemp("halves") / "pictures")


@pytest.fixture(scope="module")
def dual(images: Path) -> Path:
    """Return a dual encoder whose two shared dimensions cannot separate all pairs of colours."""
    out = images.parent / "dual"
    lemma.train("dual-encoder", images=images, out=out, steps=150, learning_rate=3e-3, dropout=0, **SMALL, **QUICK)
    return out


@pytest.fixture(scope="module")
def frozen(dual: Path, images: Path) -> Path:
    out = dual.parent / "frozen"
    lemma.adapt(dual, rerank=True, images=images, out=out, steps=8, candidates=6, **QUICK)
    return out


def test_default_reranker_freezes_towers_and_stores_added_weights(dual: Path, frozen: Path) -> None:
    stored = read_tensors(frozen / "model.safetensors")[0]
    assert stored and not any(name.startswith("towers.") for name in stored)
    ours, base = load(frozen), load(dual)
    assert ours.spec.family == "cross-attention" and ours.spec.candidates == 6
    assert ours.adaptation is not None and ours.adaptation.method.kind == "frozen"
    for name, tensor in base.module.state_dict().items():
        assert torch.equal(ours.module.towers.state_dict()[name], tensor), name
    assert (frozen / "model.safetensors").stat().st_size < (dual / "model.safetensors").stat().st_size


def test_reranking_improves_recall_beyond_the_dual_encoder(dual: Path, images: Path) -> None:
    """Problem E8: recall at 1 on new images rises significantly."""
    words = {"method": "full", "steps": 120, "learning_rate": 3e-3, "candidates": 10}
    adapted = lemma.adapt(dual, rerank=True, images=images, out=dual.parent / "full", **words, **QUICK)
    remaining = folder_of_halves(dual.parent / "others", times=1, seed=1)
    score = lemma.evaluate(dual.parent / "full", images=remaining, progress=False)
    assert isinstance(score, RerankingScore) and isinstance(adapted.score, RerankingScore)
    for gain in (score.image_to_text, score.text_to_image):
        assert gain.recall.value > 0.2 and gain.recall.low > 0.05 and gain.better > 5 * gain.worse
    single = lemma.evaluate(dual, images=remaining, progress=False)
    before = score.baselines["dual encoder"]  # the original dual encoder, not the trained towers
    assert before.image_to_text.recall == single.scores.image_to_text.recall
    assert score.scores.image_to_text.recall[1].value <= score.image_to_text.ceiling


def test_interrupted_reranker_resumes_bit_identically(frozen: Path, dual: Path, images: Path) -> None:
    words = {"steps": 8, "candidates": 6, "checkpoint_every": 3, **QUICK}
    words.pop("progress")
    request, stopped = data_args({"images": images}), dual.parent / "stopped"
    plan = plan_adaptation(dual, request, "frozen", words, StopAt(4), rerank=True)
    result = adapt_run(plan, stopped, StopAt(4), trainable_formula)
    assert getattr(result, "stopped", "") == "interrupted"
    lemma.resume(stopped, progress=False)
    assert same_bits(stopped, frozen)


@pytest.mark.parametrize("method", ["lora", "adapters"])
def test_lora_and_adapters_also_train_the_towers(method: str, dual: Path, images: Path) -> None:
    out = dual.parent / f"re-{method}"
    words = {"rank": 2} if method == "lora" else {"bottleneck": 2}
    adapted = lemma.adapt(dual, rerank=True, images=images, out=out, method=method, steps=3, **words, **QUICK)
    stored = read_tensors(out / "model.safetensors")[0]
    assert any(name.startswith("towers.") for name in stored) and "values.weight" in stored
    assert adapted.learned < adapted.parameters and isinstance(adapted.score, RerankingScore)


def test_merged_reranker_gives_equal_scores_without_its_base(frozen: Path, tmp_path: Path) -> None:
    lemma.export(frozen, to="merged", out=tmp_path / "plain")
    base = load(tmp_path / "plain")
    assert base.adaptation is None
    item, other = (lemma.evaluate(run, progress=False).to_dict() for run in (frozen, tmp_path / "plain"))
    assert item.pop("loss") == pytest.approx(other.pop("loss"), rel=1e-5)  # a GPU sums in another order
    assert item == other


def test_dual_encoder_adapts_to_other_images_without_reranking(dual: Path, tmp_path: Path) -> None:
    remaining = shapes(tmp_path / "shapes", copies=3)
    for method, trained in (
        ("frozen", {"image_projection.weight", "text_projection.weight", "log_scale"}),
        ("lora", None),
    ):
        out = tmp_path / method
        words = {"rank": 2} if method == "lora" else {}
        lemma.adapt(dual, images=remaining, out=out, method=method, steps=3, **words, **{**QUICK, "batch": 8})
        assert load(out).spec.family == "dual-encoder"
        stored = set(read_tensors(out / "model.safetensors")[0])
        assert stored == trained if trained else all("lora" in name or "update" in name for name in stored), stored


def test_adapting_a_reranker_starts_from_its_weights(frozen: Path, images: Path, tmp_path: Path) -> None:
    lemma.adapt(frozen, images=images, out=tmp_path / "on", method="frozen", steps=1, learning_rate=1e-9, **QUICK)
    item, other = (
        load(frozen).require(CrossAttentionModel, "a re-ranker"),
        load(tmp_path / "on").require(CrossAttentionModel, "a re-ranker"),
    )
    assert other.spec.candidates == 6
    torch.testing.assert_close(other.score.weight, item.score.weight, atol=1e-6, rtol=0)
    assert item.score.weight.abs().max() > 1e-4


def test_text_tower_becomes_a_classifier_body(dual: Path, tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    rows = [f"{item} left of {two} {three},{item}" for item, two, three in permutations(COLOURS, 3)]
    table.write_text("\n".join(["text,label", *rows]) + "\n")
    lemma.adapt(dual, labels=table, out=tmp_path / "classes", method="frozen", steps=2, device="cpu", progress=False)
    ours, base = (
        load(tmp_path / "classes").require(ClassifierModel, "a classifier").body.state_dict(),
        load(dual).require(DualEncoderModel, "a dual encoder").body.state_dict(),
    )
    assert ours.keys() == base.keys() and all(torch.equal(ours[name], base[name]) for name in ours)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rerank": True}, "learns images"),
        ({"rerank": True, "text": "speeches"}, "learns images"),
        ({"text": "speeches"}, "learns images"),
        ({"images": "emoji", "method": "all"}, "lemma.adapt.compare"),
        ({"images": "emoji", "rerank": True, "shared": 4}, "shared is the base's"),
        ({"images": "emoji", "rerank": True, "candidates": 1}, "candidates"),
        ({"images": "emoji", "rerank": True, "accumulate": 2}, "accumulate"),
    ],
)
def test_invalid_reranking_settings_are_rejected_before_work(
    given: dict[str, Any], said: str, dual: Path, tmp_path: Path
) -> None:
    if "accumulate" in given:
        given = {**given, "images": dual.parent / "pictures"}
    with pytest.raises(LemmaError, match=said):
        lemma.adapt(dual, out=tmp_path / "no", progress=False, **given)


def test_reranking_a_reranker_is_rejected(frozen: Path, images: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="It is one already"):
        lemma.adapt(frozen, rerank=True, images=images, out=tmp_path / "no", progress=False)


def test_reranking_commands_report_gain_and_ceiling(dual: Path, frozen: Path, images: Path, tmp_path: Path) -> None:
    words = ["steps=2", "batch=8", "device=cpu", "augment=0"]
    settings = ["adapt", str(dual), "--rerank", "--images", str(images), "--out", str(tmp_path / "again"), *words]
    done = CliRunner().invoke(app, settings)
    assert done.exit_code == 0, done.output
    assert "gain, image → text" in done.output and "ranked again" in done.output
    assert "d_i·(d + 8·d_i + 9)" in done.output  # values d·d_i, two maps of 4·d_i² with biases, two norms, the score
    assert max(map(len, done.stdout.splitlines())) <= 80 or str(tmp_path) in done.stdout
    rendered = CliRunner().invoke(app, ["evaluate", str(frozen), "--images", str(images), "--json"])
    output = json.loads(rendered.stdout)
    assert output["candidates"] == 6 and 0 <= output["gain"]["text_to_image"]["ceiling"] <= 1


def test_sampled_images_stay_with_their_captions() -> None:
    rows = TokenRows(np.arange(30), np.arange(0, 31, 2))
    pixels = np.arange(6, dtype=np.uint8)[:, None, None, None] * np.ones((1, 3, 2, 2), dtype=np.uint8)
    full = CaptionedImages(pixels, rows, np.array([0, 1, 4, 6, 9, 12, 15]), np.arange(15))
    part = sample_images(full, 4)
    assert len(part.pixels) == 4 and sample_images(full, 6) is full
    for index, image in enumerate(part.pixels[:, 0, 0, 0].tolist()):
        ours, reference = (
            item.rows.pad(range(*item.caption_bounds[at : at + 2])) for item, at in ((part, index), (full, image))
        )
        assert ours.tolist() == reference.tolist()
        assert part.caption_ids[slice(*part.caption_bounds[index : index + 2])].tolist() == list(
            range(*full.caption_bounds[image : image + 2])
        )


def test_search_retrieves_by_towers_and_reranks_the_top(frozen: Path, images: Path, tmp_path: Path) -> None:
    result = lemma.search(
        frozen, images=images, query="red left of blue", k=9, index=tmp_path / "index", progress=False
    )
    hits = result.answers[0].hits
    again, tail = [hit.reranked_score for hit in hits[:6]], hits[6:]
    assert again == sorted(again, reverse=True) and all(hit.reranked_score is None for hit in tail)
    assert min(hit.score for hit in hits[:6]) >= max(
        hit.score for hit in tail
    )  # the candidates are the towers' first six
    run = load(frozen)
    dataset = prepare_images(
        ImagesSpec(images=str(images)), evaluation=True, side=8, length=8, special_tokens=True, tokenizer=run.tokenizer
    )
    examples, names = dataset.item("images"), [image.name for image in dataset.item("images").images]
    text = [caption for image in dataset.item("images").images for caption in image.captions].index("red left of blue")
    positions = np.array(
        [next(i for i, name in enumerate(names) if Path(name).name == Path(hit.name).name) for hit in hits]
    )
    logits = PairLogits(run.require(CrossAttentionModel, "a re-ranker"), examples.pixels, examples.rows)(
        positions[:6], np.full(6, text)
    )
    np.testing.assert_allclose(again, logits, rtol=1e-4)
    assert "re-ranked" in str(result)


def test_texts_retrieved_for_an_image_are_reranked(frozen: Path, images: Path) -> None:
    captions = [f"{item} left of {other}" for item, other in permutations(COLOURS, 2)]
    image = images / "red-blue-0.png"
    hits = lemma.search(frozen, image=image, texts=captions, k=8, progress=False).answers[0].hits
    again = [hit.reranked_score for hit in hits[:6]]
    assert again == sorted(again, reverse=True) and all(hit.reranked_score is None for hit in hits[6:])


def test_label_smoothing_is_rejected_for_rerankers(dual: Path, images: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="label_smoothing has no effect on a model of the family cross-attention"):
        lemma.adapt(dual, rerank=True, images=images, out=tmp_path / "run", label_smoothing=0.1, progress=False)
