"""The image tower and the logits of both towers against numpy."""

import numpy as np
import pytest
import torch

from lemma.models.build import build
from lemma.models.dual_encoder import DualEncoderModel, UpperBound, extract_patches, standardise
from lemma.spec.models import DualEncoder, Encoder

SPEC = DualEncoder(
    body=Encoder(vocabulary=9, width=6, depth=1, heads=1, context=8),
    grid=3,
    patch=2,
    image_width=4,
    image_depth=1,
    image_heads=2,
    shared=5,
)
IMAGES = torch.rand(4, 3, 6, 6, generator=torch.Generator().manual_seed(1)).double()


def towers(pool: str) -> DualEncoderModel:
    torch.manual_seed(3)
    return build(SPEC.replace(image_pool=pool)).double().eval()


@pytest.mark.parametrize("pool", ["places", "mean"])
def test_image_vector_sums_position_dependent_patch_projections(pool: str) -> None:
    model = towers(pool)
    with torch.no_grad():
        patches = model.patches(IMAGES)
        actual, queries = model.project_image(patches), model.queries(patches)
    weight = model.image_projection.weight.detach().numpy()
    maps = [weight[:, 4 * index : 4 * index + 4] if pool == "places" else weight for index in range(9)]
    by_hand = np.array([[maps[index] @ patch for index, patch in enumerate(image)] for image in patches.numpy()])
    np.testing.assert_allclose(queries.numpy(), by_hand, atol=1e-12)
    summed = by_hand.sum(1)
    np.testing.assert_allclose(actual.numpy(), summed / np.linalg.norm(summed, axis=1, keepdims=True), atol=1e-12)


def test_patch_order_matters_only_with_position_dependent_pooling() -> None:
    for pool, moves in (("places", True), ("mean", False)):
        model = towers(pool)
        with torch.no_grad():
            patches = model.patches(IMAGES)
            rotated = model.project_image(patches.flip(1))
            assert (not torch.allclose(rotated, model.project_image(patches))) is moves


def test_image_tower_is_invariant_to_brightness_and_contrast() -> None:
    dimmed = 0.2 + 0.5 * IMAGES
    spread = IMAGES.flatten(1).std(1)
    with torch.no_grad():
        ratio = standardise(dimmed) / standardise(IMAGES)
    expected = (
        0.5 * (spread + 0.05) / (0.5 * spread + 0.05)
    )  # the constant that keeps a uniform image from becoming noise
    np.testing.assert_allclose(ratio.flatten(1).numpy(), expected[:, None].expand(-1, 108).numpy(), rtol=1e-9)
    assert standardise(torch.full((1, 3, 6, 6), 0.7)).abs().max() < 1e-5


def test_uint8_and_scaled_float_images_are_equal() -> None:
    grey = torch.randint(0, 256, (2, 3, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    model = towers("places").float()
    with torch.no_grad():
        torch.testing.assert_close(model.image_vectors(grey), model.image_vectors(grey / 255))


def test_patches_are_squares_in_row_order() -> None:
    patches = extract_patches(IMAGES, 2)
    for index in range(9):
        row, column = divmod(index, 3)
        square = IMAGES[:, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        assert torch.equal(patches[:, index], square.flatten(1))


@pytest.mark.parametrize("log_scale", [4.0, 4.7])
def test_logit_scale_is_clamped_but_keeps_its_gradient(log_scale: float) -> None:
    model = towers("mean")
    for wants, passes in ((1.0, True), (-1.0, log_scale < 4.6)):  # a positive gradient lowers the scale
        model.log_scale.data.fill_(log_scale)
        model.log_scale.grad = None
        assert model.scale.item() == pytest.approx(min(np.exp(log_scale), 100.0))
        (wants * model.scale).backward()
        assert model.log_scale.grad is not None
        assert model.log_scale.grad.item() == pytest.approx(wants * np.exp(log_scale) * passes)


def test_logit_scale_clamp_compiles() -> None:
    value = torch.tensor(4.7, requires_grad=True)
    compiled = torch.compile(lambda x: UpperBound.apply(x.exp(), 100.0), backend="aot_eager", fullgraph=True)
    compiled(value).backward()
    assert value.grad is not None and value.grad.item() == pytest.approx(np.exp(4.7))
