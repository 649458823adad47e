"""Dual encoders: training, retrieval scores and exact resume."""

from pathlib import Path

import numpy as np
import pytest
import torch

import lemma
from image_runs import QUICK, SPEC, random_captioned_images, shapes, token_names
from lemma.data.batches import TokenRows
from lemma.data.images import CaptionedImages
from lemma.errors import RunError, SpecError
from lemma.models.dual_encoder import CrossAttentionModel, DualEncoderModel, embed_images, embed_texts
from lemma.runs.checkpoint import read_weights
from lemma.runs.folder import RunFolder
from lemma.runs.load import load
from lemma.tasks.image_text import score_dual_encoder

CLOCK = {"seconds", "tokens_per_second"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shapes(tmp_path_factory.mktemp("pictures") / "shapes", 3)


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    out = folder.parent / "run"
    words = {**QUICK, "steps": 150, "batch": 12, "augment": 0.3, "keep": "last", "evaluate_every": 75}
    lemma.train(SPEC, images=folder, out=out, progress=False, tokenizer="words", **words)
    return out


def test_dual_encoder_learns_twelve_coloured_shapes(run: Path, folder: Path) -> None:
    score = lemma.evaluate(run, images=folder, progress=False)
    assert score.figures["recall_at_1"] == 1.0
    assert score.scores.image_to_text.chance[1] == pytest.approx(1 / 12)


def test_retrieval_score_uses_the_model_embeddings(run: Path) -> None:
    model, examples = (
        load(run).require(DualEncoderModel, "a dual encoder"),
        random_captioned_images(7, captions=2, vocabulary=8),
    )
    images = torch.stack([model.image_vectors(torch.from_numpy(pixel[None]))[0] for pixel in examples.pixels]).detach()
    rows = [torch.from_numpy(examples.rows.pad([row])) for row in range(14)]
    texts = torch.cat([model.text_vectors(row) for row in rows]).detach()
    np.testing.assert_allclose(embed_images(model, examples.pixels), images, atol=1e-5)
    np.testing.assert_allclose(embed_texts(model, examples.rows), texts, atol=1e-5)
    table = (images @ texts.T).numpy()
    result = [
        min(np.argsort(-row).tolist().index(custom) for custom in (2 * i, 2 * i + 1)) for i, row in enumerate(table)
    ]
    score = score_dual_encoder(model, examples, 7, samples=0)
    assert score.scores.image_to_text.recall[5].value == pytest.approx(np.mean(np.array(result) < 5))
    assert score.scores.text_to_image.queries == 14


def test_nearest_pixel_baseline_excludes_the_query_image(run: Path, folder: Path) -> None:
    score = lemma.evaluate(run, images=folder, split="train", progress=False)
    assert score.protocol["split"] == "train"
    assert score.protocol["learned"] == f"{score.images} of these images were in the training split"
    for way in score.baselines["nearest pixel"]:
        assert way.chance[1] < way.recall[1].value < 1.0
    assert "learned" not in lemma.evaluate(run, images=folder, split="test", progress=False).protocol


def test_unknown_word_captions_score_at_chance(run: Path, folder: Path, tmp_path: Path) -> None:
    strange = shapes(tmp_path / "strange")
    names = sorted(path.name for path in strange.glob("*.png"))
    rows = [f"{name},zebra{index}" for index, name in enumerate(names)]
    (strange / "captions.csv").write_text("\n".join(["image,caption", *rows]))
    score = lemma.evaluate(run, images=strange, progress=False)
    for way in score.scores:
        assert [way.chance[1], way.recall[1].value] == pytest.approx(
            [1 / 12, 1 / 12]
        )  # all captions have equal ids, so scores are at chance


def test_resumed_dual_encoder_equals_uninterrupted_run(folder: Path, tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    words = {**QUICK, "steps": 12, "dropout": 0.2, "evaluate_every": 5, "checkpoint_every": 4}
    kwargs = {"images": folder, "progress": False, "tokenizer": "words"}
    lemma.train(SPEC, **kwargs, out=tmp_path / "whole", **words)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        from lemma.training.session import Session

        step = Session.step

        def some(session) -> None:
            if session.state.step == 9:
                raise Stopped
            step(session)

        patch.setattr(Session, "step", some)
        lemma.train(SPEC, **kwargs, out=tmp_path / "stopped", **words)
    lemma.resume(tmp_path / "stopped", progress=False)
    item, other = (read_weights(tmp_path / name / "model.safetensors")[0] for name in ("whole", "stopped"))
    assert item.keys() == other.keys() and all(torch.equal(item[name], other[name]) for name in item)
    rows = [
        [{key: row[key] for key in row if key not in CLOCK} for row in RunFolder.open(tmp_path / name).metrics.rows()]
        for name in ("whole", "stopped")
    ]
    assert rows[0] == rows[1] and any("recall_at_10" in row for row in rows[0])


def test_dual_encoder_rejects_text_generation_with_advice(run: Path) -> None:
    with pytest.raises(RunError, match=r"not a language model. It is a dual encoder.*lemma search"):
        lemma.generate(run, "a red")
    with pytest.raises(RunError, match="not a re-ranker"):
        _ = load(run).require(CrossAttentionModel, "a re-ranker")
    with pytest.raises(SpecError, match="evaluated on images"):
        lemma.evaluate(run, text=__file__, progress=False)
    with pytest.raises(SpecError, match="stride has no effect"):
        lemma.evaluate(run, stride=3, progress=False)


def test_changed_image_folder_is_not_used_as_test_split(run: Path, folder: Path, tmp_path: Path) -> None:
    table = folder / "captions.csv"
    before = table.read_text()
    try:
        table.write_text(before.replace("a red circle", "a crimson disc"))
        with pytest.raises(RunError, match="--images"):
            lemma.evaluate(run, progress=False)
        assert not lemma.evaluate(run, images=folder, progress=False).baselines
    finally:
        table.write_text(before)


def test_tree_body_is_rejected_for_captions(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="captions have none"):
        lemma.train(SPEC, images=folder, out=tmp_path / "run", body="tree", progress=False)


def test_duplicate_captions_are_relevant_to_both_images() -> None:
    examples = random_captioned_images(4)
    rows = TokenRows(np.array([3, 4, 3, 5]), np.arange(5))
    score = score_dual_encoder(
        load_small(), CaptionedImages(examples.pixels, rows, np.arange(5), token_names(rows)), 4, samples=0
    )
    assert score.scores.image_to_text.chance[1] == pytest.approx((2 + 1 + 2 + 1) / 16)


def load_small():
    from lemma.models.build import build

    return build(SPEC.with_data_sizes({"vocabulary": 20}))
