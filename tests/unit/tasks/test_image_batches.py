"""Images in training: deterministic batches, augmentation, the contrastive loss."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

from image_runs import LSTM, SPEC, random_captioned_images
from lemma.data.batches import TokenRows
from lemma.data.images import CaptionedImages
from lemma.errors import SpecError
from lemma.models.build import build
from lemma.spec.models import CrossAttention
from lemma.spec.recipe import Recipe
from lemma.tasks.augmentation import YIQ, augment, draw_transforms
from lemma.tasks.image_text import ImageBatches, contrastive_loss
from lemma.tasks.registry import task_for
from lemma.training.devices import Distributed
from lemma.training.session import Session, chance_warning

CPU = Distributed(torch.device("cpu"))
RECIPE = Recipe(batch=6, seed=3, steps=100)
STILL = draw_transforms(0, 0, 4, 0.0)


def random_images(count: int = 4, side: int = 16, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, side, side), generator=torch.Generator().manual_seed(seed)).byte()


def test_image_batch_is_determined_by_its_step() -> None:
    source, other = (ImageBatches(random_captioned_images(captions=3), RECIPE, CPU) for _ in range(2))
    later = [source.batch(step) for step in range(5)]
    for tensor, again in zip(later[4], other.batch(4), strict=True):
        assert torch.equal(tensor, again)
    assert not torch.equal(later[3][0], later[4][0])


@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_processes_share_one_global_image_batch(strength: float) -> None:
    recipe = RECIPE.replace(augment=strength)
    full = ImageBatches(random_captioned_images(captions=2), recipe, CPU).batch(7)
    parts = [
        ImageBatches(random_captioned_images(captions=2), recipe, replace(CPU, rank=rank, size=2)).batch(7)
        for rank in range(2)
    ]
    for index in range(2):
        torch.testing.assert_close(torch.cat([part[index] for part in parts]), full[index])


def test_epochs_reshuffle_images_into_batches_of_one_shape() -> None:
    examples = random_captioned_images(12, captions=3)
    source = ImageBatches(examples, RECIPE.replace(augment=0.0), CPU)
    batches = [source.batch(step) for step in range(4)]
    assert {tuple(tokens.shape) for _, tokens in batches} == {(6, int(examples.rows.lengths.max()))}
    seen = [np.round(255 * images.numpy()).astype(np.uint8) for images, _ in batches]
    epochs = [np.concatenate(seen[:2]), np.concatenate(seen[2:])]
    keys = [[image.tobytes() for image in epoch] for epoch in epochs]
    assert sorted(keys[0]) == sorted(keys[1]) == sorted(image.tobytes() for image in examples.pixels)
    assert keys[0] != keys[1]


def test_captions_of_mixed_length_are_padded_to_the_longest() -> None:
    lengths = np.array([2] * 6 + [3] * 5 + [7])
    rows = TokenRows(np.arange(lengths.sum()) % 20, np.concatenate([[0], np.cumsum(lengths)]))
    source = ImageBatches(
        CaptionedImages(random_captioned_images(12).pixels, rows, np.arange(13), np.arange(12)), RECIPE, CPU
    )
    batches = [source.batch(step)[1] for step in range(8)]
    assert {tuple(tokens.shape) for tokens in batches} == {(6, 7)}
    short = [int(((tokens >= 0).sum(1) == 2).sum()) for tokens in batches]
    assert any(0 < number < 6 for number in short)


def test_images_are_sampled_with_all_their_captions() -> None:
    examples = random_captioned_images(6, captions=3)
    source = ImageBatches(examples, RECIPE.replace(augment=0.0), CPU)
    names = {image.tobytes(): index for index, image in enumerate(examples.pixels)}
    met: set[tuple[int, int]] = set()
    for step in range(40):
        images, tokens = source.batch(step)
        for image, caption in zip(images, tokens, strict=True):
            index = names[np.round(255 * image.numpy()).astype(np.uint8).tobytes()]
            custom = [examples.rows.pad([row])[0].tolist() for row in range(3 * index, 3 * index + 3)]
            met.add((index, custom.index([token for token in caption.tolist() if token >= 0])))
    assert len(met) == 18


def test_repeated_image_in_a_batch_gets_the_same_caption() -> None:
    choice = np.array([0, 1, 1, 0, 1, 0])
    source = ImageBatches(random_captioned_images(6, captions=5), RECIPE.replace(augment=0.0), CPU)
    source.order = SimpleNamespace(examples=lambda step: choice)  # pyright: ignore[reportAttributeAccessIssue]
    tokens = source.batch(0)[1].numpy()
    for index in range(6):
        for other in range(6):
            assert (choice[index] == choice[other]) == np.array_equal(tokens[index], tokens[other])


def test_zero_augmentation_changes_nothing() -> None:
    torch.testing.assert_close(augment(random_images(), STILL), random_images() / 255, atol=1e-5, rtol=0)


def test_integer_translation_shifts_pixels_and_fills_white() -> None:
    positions = STILL.affine.copy()
    positions[:, 0, 2] = 2 * 3 / 16  # each pixel comes from three pixels to the right
    moved = augment(random_images(), replace(STILL, affine=positions))
    torch.testing.assert_close(moved[..., :-3], random_images()[..., 3:] / 255, atol=1e-5, rtol=0)
    assert (moved[..., -3:] == 1).all()


def test_quarter_turn_equals_rot90() -> None:
    positions = np.tile(np.array([[[0.0, -1.0, 0.0], [1.0, 0.0, 0.0]]]), (4, 1, 1))
    rotated = augment(random_images(), replace(STILL, affine=positions))
    candidates = [torch.rot90(random_images() / 255, times, (2, 3)) for times in (1, 3)]
    assert any(torch.allclose(rotated, candidate, atol=1e-5) for candidate in candidates)


def test_geometric_augmentation_stays_within_its_bounds() -> None:
    samples = draw_transforms(0, 5, 2000, 1.0)
    scales = np.sqrt(np.linalg.det(samples.affine[:, :, :2]))
    assert 0.89 < scales.min() < 0.9 and 1.11 < scales.max() < 1.12  # e^±0.11; shear preserves areas
    turns = np.degrees(np.arctan2(samples.affine[:, 1, 0], samples.affine[:, 0, 0]))
    assert 7 < np.abs(turns).max() < 7.5 * np.exp(2 * 0.05)
    assert 0.09 < np.abs(samples.affine[:, :, 2]).max() <= 0.1  # a side has length two
    assert np.abs(draw_transforms(0, 5, 500, 0.1).affine[:, :, 2]).max() <= 0.01


def test_augmentations_occur_at_their_documented_rates() -> None:
    samples = draw_transforms(0, 5, 4000, 1.0)
    often = {
        "filtered": (samples.filter_mix > 0).mean(),
        "grey": samples.is_grey.mean(),
        "blurred": (samples.blur_mix > 0).mean(),
        "painted": (samples.box[:, 2] > samples.box[:, 0]).mean(),
        "pointwise": (samples.filters[:, 0, 0, 0, 0] == 0).mean(),
    }
    expected = {"filtered": 0.7, "grey": 0.2, "blurred": 0.3, "painted": 0.25, "pointwise": 0.3}
    assert often == pytest.approx(expected, abs=0.03)
    assert samples.filters.std(axis=0)[0, 0, 1, 1] == pytest.approx(27**-0.5, rel=0.1)


def test_colour_augmentation_preserves_grey_and_brightness() -> None:
    samples = draw_transforms(1, 1, 300, 1.0).colour_maps
    np.testing.assert_allclose(YIQ[0] @ samples, np.broadcast_to(YIQ[0], (300, 3)), atol=1e-9)
    np.testing.assert_allclose(samples @ np.ones(3), 1, atol=0.01)  # YIQ coefficients have three decimals
    chroma = YIQ[1:] @ samples @ np.linalg.inv(YIQ)[:, 1:]
    sequence_length = np.sqrt(np.linalg.det(chroma))
    np.testing.assert_allclose(
        chroma @ chroma.transpose(0, 2, 1), sequence_length[:, None, None] ** 2 * np.eye(2), atol=1e-9
    )
    assert 0.5 <= sequence_length.min() < 0.55 and 1.45 < sequence_length.max() <= 1.5
    assert 25 < np.degrees(np.abs(np.arctan2(chroma[:, 1, 0], chroma[:, 0, 0]))).max() <= 27 + 1e-6


def test_brightness_scales_and_contrast_scales_about_the_mean() -> None:
    brightness, contrast = np.array([0.5, 1.0, 0.8, 0.9]), np.array([1.0, 0.6, 0.5, 0.1])
    done = augment(random_images(), replace(STILL, brightness=brightness, contrast=contrast)).double()
    for index in range(4):
        lit = brightness[index] * random_images()[index].double() / 255
        expected = lit.mean() + contrast[index] * (lit - lit.mean())
        torch.testing.assert_close(done[index], expected, atol=1e-5, rtol=0)


def test_random_filter_is_a_renormalized_convolution() -> None:
    samples = draw_transforms(2, 2, 4, 1.0)
    fraction = np.array([0.0, 1.0, 0.5, 0.25])
    soft = (random_images() / 4 + 96).byte()  # far from black and white to avoid clipping
    done = augment(soft, replace(STILL, filters=samples.filters, filter_mix=fraction))
    for index in range(4):
        image = soft[index : index + 1] / 255
        filters = torch.from_numpy(samples.filters[index]).float()
        result = functional.conv2d(functional.pad(image, [1] * 4, mode="replicate"), filters)
        result = (result - result.mean((2, 3), keepdim=True)) / (result.std((2, 3), keepdim=True) + 1e-3)
        result = result * image.std((2, 3), keepdim=True) + image.mean((2, 3), keepdim=True)
        expected = (1 - fraction[index]) * image + fraction[index] * result
        torch.testing.assert_close(done[index], expected[0].clamp(0, 1), atol=1e-4, rtol=0)


def test_grey_is_luma_in_all_three_channels() -> None:
    done = augment(random_images(), replace(STILL, is_grey=np.array([False, True, False, True])))
    red, green, blue = (random_images()[1] / 255).unbind(0)
    torch.testing.assert_close(
        done[1], (0.299 * red + 0.587 * green + 0.114 * blue).expand(3, -1, -1), atol=1e-5, rtol=0
    )
    torch.testing.assert_close(done[0], random_images()[0] / 255, atol=1e-5, rtol=0)


def test_blur_mixes_in_a_box_filter_applied_twice() -> None:
    fraction = np.array([0.0, 1.0, 0.3, 0.0])
    done = augment(random_images(), replace(STILL, blur_mix=fraction))
    box = torch.tensor([1.0, 2, 3, 2, 1]) / 9
    for index in range(4):
        image = random_images()[index] / 255
        padded = functional.pad(image[None], [2] * 4, mode="replicate").transpose(0, 1)
        soft = functional.conv2d(padded, torch.outer(box, box)[None, None])[:, 0]
        torch.testing.assert_close(done[index], torch.lerp(image, soft, float(fraction[index])), atol=1e-5, rtol=0)


def test_paint_fills_only_its_box() -> None:
    box, paint = np.zeros((4, 4)), np.tile([0.1, 0.2, 0.3], (4, 1))
    box[2] = [0.25, 0.5, 0.5, 1.0]
    done = augment(random_images(), replace(STILL, box=box, paint=paint))
    expected = random_images() / 255
    expected[2, :, 8:, 4:8] = torch.tensor([0.1, 0.2, 0.3])[:, None, None]
    torch.testing.assert_close(done, expected, atol=1e-5, rtol=0)


def test_augmented_images_have_valid_shape_and_range() -> None:
    done = augment(random_images(64), draw_transforms(0, 1, 64, 2.0))
    assert done.shape == (64, 3, 16, 16) and done.min() >= 0 and done.max() <= 1


@pytest.mark.parametrize("spec", [SPEC, LSTM])
def test_image_text_loss_is_the_contrastive_loss(spec) -> None:
    model = build(spec.with_data_sizes({"vocabulary": 20})).eval()
    images, tokens = ImageBatches(random_captioned_images(), RECIPE, CPU).batch(0)
    result, terms, state = task_for(model.spec).loss(model, RECIPE)(images, tokens)
    torch.testing.assert_close(result, contrastive_loss(model(images, tokens)).loss)
    assert torch.equal(terms[0], result) and terms[1].item() == pytest.approx(spec.temperature) and state is None


def test_smoothed_loss_is_minimised_and_unsmoothed_reported() -> None:
    model = build(SPEC.with_data_sizes({"vocabulary": 20})).eval()
    images, tokens = ImageBatches(random_captioned_images(), RECIPE, CPU).batch(0)
    result, terms, _ = task_for(model.spec).loss(model, RECIPE.replace(label_smoothing=0.3))(images, tokens)
    logits = model(images, tokens)
    torch.testing.assert_close(result, contrastive_loss(logits, smoothing=0.3).objective)
    torch.testing.assert_close(terms[0], contrastive_loss(logits).loss)


def test_equal_captions_in_a_batch_are_not_negatives() -> None:
    examples = random_captioned_images(6)
    rows = TokenRows(np.tile([4, 5], 6), 2 * np.arange(7))
    same = CaptionedImages(examples.pixels, rows, examples.caption_bounds, np.zeros(6, dtype=np.int64))
    images, tokens = ImageBatches(same, RECIPE, CPU).batch(0)
    model = build(SPEC.with_data_sizes({"vocabulary": 20}))
    assert task_for(model.spec).loss(model, RECIPE)(images, tokens)[0].item() == pytest.approx(0, abs=1e-6)


def test_contrastive_accumulation_is_rejected_with_the_reason() -> None:
    with pytest.raises(SpecError, match="compares every image with every caption"):
        task_for(SPEC).loss(build(SPEC), RECIPE.replace(accumulate=2))


def test_contrastive_batch_of_one_is_rejected() -> None:
    for spec in (SPEC, CrossAttention(towers=SPEC)):
        with pytest.raises(SpecError, match="batch=2 or more"):
            task_for(spec).loss(build(spec), RECIPE.replace(batch=1))


def test_oversized_image_batch_is_reduced_with_a_message() -> None:
    received: list[str] = []
    cut = session(Recipe(batch=500, steps=5, device="cpu"), received.append)
    assert received == ["batch = 500 is more than the 64 training images: batch=64 is used."]
    assert cut.chance == (64, "captions", "B")
    images, _ = cut.batches.batch(0)
    assert len({image.numpy().tobytes() for image in images}) == len(images) == 64
    assert ImageBatches(random_captioned_images(64), Recipe(batch=500), replace(CPU, size=3)).recipe.batch == 63


def session(recipe: Recipe, tell=lambda message: None) -> Session:
    return Session(SPEC.with_data_sizes({"vocabulary": 20}), recipe, random_captioned_images(64), CPU, tell)


def test_contrastive_loss_stuck_at_log_batch_warns() -> None:
    received: list[str] = []
    recipe = Recipe(batch=16, steps=50, warm_up=0, learning_rate=1e-9, device="cpu", dropout=0.0)
    asleep = session(recipe, received.append)
    asleep.model.log_scale.data.zero_()  # cosines of about 0: chance
    for _ in range(50):
        asleep.step()
    row = asleep.metrics_row()
    assert row["loss"] == pytest.approx(math.log(16), abs=0.05) and "temperature" in row
    assert len(received) == 1 and "guessing among 16 captions gives ln B = 2.773" in received[0]


def test_contrastive_loss_below_chance_does_not_warn() -> None:
    assert chance_warning(RECIPE, 60, 0.9 * math.log(6), 6, "captions", "B") is None
