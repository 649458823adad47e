"""The contract of dual encoders with every text tower."""

import pytest
import torch

from lemma.models.base import count_parameters
from lemma.models.build import build, count_spec_parameters
from lemma.spec.models import DualEncoder

from families import BODIES

SIZES = {"grid": 2, "patch": 3, "image_width": 8, "image_depth": 1, "image_heads": 2, "shared": 5}
READING = [name for name in BODIES if BODIES[name].family != "tree"]
IMAGES = torch.rand(3, 3, 6, 6, generator=torch.Generator().manual_seed(1))
TOKENS = torch.tensor([[1, 2, 3, 4], [5, 6, -1, -1], [7, 8, 9, -1]])


def built(name: str):
    torch.manual_seed(2)
    return build(DualEncoder(body=BODIES[name].to_dict(), **SIZES)).eval()


@pytest.mark.parametrize("name", READING)
def test_logits_are_cosines_over_the_temperature(name: str) -> None:
    model = built(name)
    images, texts = model.image_vectors(IMAGES), model.text_vectors(TOKENS)
    for vectors in (images, texts):
        torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(3))
    cosines = torch.nn.functional.cosine_similarity(images[:, None], texts[None], dim=-1)
    torch.testing.assert_close(model(IMAGES, TOKENS), cosines / 0.07)


@pytest.mark.parametrize("name", READING)
def test_pair_logit_does_not_depend_on_batch_or_padding(name: str) -> None:
    model = built(name)
    single = model(IMAGES[1:2], TOKENS[1:2, :2])
    torch.testing.assert_close(model(IMAGES, TOKENS)[1, 1], single[0, 0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", READING)
def test_every_dual_encoder_parameter_is_trained_and_counted(name: str) -> None:
    model = built(name)
    model(IMAGES, TOKENS).logsumexp(-1).square().sum().backward()
    idle = [name for name, custom in model.named_parameters() if custom.grad is None or not custom.grad.abs().max() > 0]
    assert idle == []
    assert count_spec_parameters(model.spec) == count_parameters(model)


def test_uint8_and_float_images_give_equal_vectors() -> None:
    model = built(READING[0])
    full = (255 * IMAGES).round().byte()
    torch.testing.assert_close(model.image_vectors(full), model.image_vectors(full / 255))
