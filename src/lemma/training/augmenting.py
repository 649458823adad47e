"""Pictures changed a little every time they are learned, whole batches at once and on the device."""

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor
from torch.nn import functional

from lemma.training.changes import YIQ, Changes

FLAT = 1e-3
"""What keeps the spread of a picture of one colour from being divided by."""

Pictures = Float[Tensor, "batch channels side side"]
Shares = Float[Tensor, "batch 1 1 1"]


def augment(pictures: UInt8[Tensor, "batch channels side side"], drawn: Changes) -> Pictures:
    """Move, recolour, filter, blur and paint over pictures; what comes in from outside is white. From 0 to 1."""
    device = pictures.device
    changed = _moved(pictures / 255, _on(drawn.places, device))
    changed = _lit(changed, _each(drawn.brightness, device), _each(drawn.contrast, device))
    changed = _mapped(changed, _on(drawn.colours, device))
    changed = _filtered(changed, _on(drawn.filters, device), _each(drawn.filtered, device))
    changed = torch.where(_each(drawn.grey, device) > 0, _grey(changed), changed)
    changed = torch.lerp(changed, _blurred(changed), _each(drawn.blurred, device))
    return _painted(changed, _on(drawn.box, device), _on(drawn.paint, device)).clamp(0, 1)


def _on(numbers: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(numbers.astype(np.float32)).to(device, non_blocking=True)


def _each(numbers: Float[np.ndarray, "batch"] | Bool[np.ndarray, "batch"], device: torch.device) -> Shares:
    return _on(numbers, device)[:, None, None, None]


def _moved(pictures: Pictures, places: Float[Tensor, "batch 2 3"]) -> Pictures:
    """Take every pixel from its place; darkness is moved and not light, so that nothing is white."""
    grid = functional.affine_grid(places, list(pictures.shape), align_corners=False)
    return 1 - functional.grid_sample(1 - pictures, grid, padding_mode="zeros", align_corners=False)


def _lit(pictures: Pictures, brightness: Shares, contrast: Shares) -> Pictures:
    lit = pictures * brightness
    return torch.lerp(lit.mean((1, 2, 3), keepdim=True), lit, contrast)


def _mapped(pictures: Pictures, colours: Float[Tensor, "batch 3 3"]) -> Pictures:
    return torch.bmm(colours, pictures.flatten(2)).view_as(pictures)


def _grey(pictures: Pictures) -> Pictures:
    weights = _on(YIQ[0], pictures.device)[:, None, None]
    return (pictures * weights).sum(1, keepdim=True)


def _filtered(pictures: Pictures, filters: Float[Tensor, "batch 3 3 3 3"], share: Shares) -> Pictures:
    """Mix in the filtered picture, brought to the picture's own mean and spread in each channel."""
    around = functional.unfold(functional.pad(pictures, [1] * 4, mode="replicate"), 3)
    found = torch.bmm(filters.flatten(2), around).view_as(pictures)
    spread, mean = torch.std_mean(found, (2, 3), keepdim=True)
    own_spread, own_mean = torch.std_mean(pictures, (2, 3), keepdim=True)
    return torch.lerp(pictures, (found - mean) / (spread + FLAT) * own_spread + own_mean, share)


def _blurred(pictures: Pictures) -> Pictures:
    """The mean of three by three pixels, twice."""
    return functional.avg_pool2d(functional.avg_pool2d(functional.pad(pictures, [2] * 4, mode="replicate"), 3, 1), 3, 1)


def _painted(pictures: Pictures, box: Float[Tensor, "batch 4"], paint: Float[Tensor, "batch 3"]) -> Pictures:
    centres = (torch.arange(pictures.shape[-1], device=pictures.device) + 0.5) / pictures.shape[-1]
    left, top, right, bottom = (column[:, None] for column in box.unbind(1))
    across, down = (left < centres) & (centres < right), (top < centres) & (centres < bottom)
    inside = (down[:, :, None] & across[:, None, :])[:, None]
    return torch.where(inside, paint[:, :, None, None], pictures)
