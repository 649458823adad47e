"""What reads a sentence both ways: layers of two LSTMs, or Transformer layers in which every word sees all."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lemma.models.layers import Layer, LayerShape
from lemma.parts import AttentionShape
from lemma.spec import BiLstm, Rotary, TransformerEncoder

Stream = Float[Tensor, "batch places width"]
There = Bool[Tensor, "batch places"]
"""Which places hold something; what is not there comes last."""
NEAR = 1000.0  # rotary's base: sentences are short


class BothWays(nn.Module):
    """Two LSTMs over each sentence, one from its start and one from its own end: padding is never read first."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.forwards = nn.LSTM(width, hidden, batch_first=True)
        self.backwards = nn.LSTM(width, hidden, batch_first=True)

    def forward(self, stream: Stream, turned: Int[Tensor, "batch places"]) -> Stream:
        """Join what both have read up to each place."""
        ahead, _ = self.forwards(stream)
        back, _ = self.backwards(_taken(stream, turned))
        return torch.cat([ahead, _taken(back, turned)], dim=-1)


class BiLstmEncoder(nn.Module):
    """Layers that read both ways, with dropout between them."""

    def __init__(self, spec: BiLstm, width: int, dropout: float) -> None:
        super().__init__()
        widths = [width, *[spec.width] * (spec.depth - 1)]
        self.layers = nn.ModuleList(BothWays(into, spec.hidden) for into in widths)
        self.dropout = nn.Dropout(dropout)

    def forward(self, stream: Stream, there: There) -> Stream:
        """Read all layers, one after the other."""
        turned = _turned(there)
        for number, layer in enumerate(self.layers):
            stream = layer(self.dropout(stream) if number else stream, turned)
        return stream


class RotaryEncoder(nn.Module):
    """Pre-norm Transformer layers with rotary positions."""

    def __init__(self, spec: TransformerEncoder, width: int, dropout: float) -> None:
        super().__init__()
        self.enter = nn.Linear(width, spec.width)
        attention = AttentionShape(spec.width, spec.heads, causal=False, positions=Rotary(base=NEAR))
        shape = LayerShape(attention, 4 * spec.width)
        self.layers = nn.ModuleList(Layer(shape, dropout) for _ in range(spec.depth))
        self.norm = shape.new_norm()

    def forward(self, stream: Stream, there: There) -> Stream:
        """Read all layers; no word sees padding."""
        stream = self.enter(stream)
        for layer in self.layers:
            stream, _ = layer(stream, mask=there[:, None, None, :])
        return self.norm(stream)


def sentence_encoder(spec: BiLstm | TransformerEncoder, width: int, dropout: float) -> nn.Module:
    """Build the encoder that a spec names, for vectors of that width."""
    if isinstance(spec, BiLstm):
        return BiLstmEncoder(spec, width, dropout)
    return RotaryEncoder(spec, width, dropout)


def _turned(there: There) -> Int[Tensor, "batch places"]:
    """Where each place of the turned sentence is taken from; padding stays where it is."""
    places = torch.arange(there.shape[1], device=there.device)
    return torch.where(there, there.sum(1, keepdim=True) - 1 - places, places)


def _taken(stream: Stream, places: Int[Tensor, "batch places"]) -> Stream:
    return stream.gather(1, places[..., None].expand_as(stream))
