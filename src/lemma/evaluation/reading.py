"""How a text is cut into rows that are read side by side.

Windows and streams are the same cut: row k reads `length` tokens from token k·`scored` on and scores the last
`scored` of them; the first row scores all of its own. Windows are short and many, streams long and few.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lemma.errors import InputError
from lemma.models import LanguageModel
from lemma.spec import Decoder

WARM_UP = 128  # tokens a recurrent model reads before it scores; what it remembers of older ones is faint
MOST_STREAMS = 32  # more rows a step gain little on two cores
NOT_SCORED = -100  # the target that cross-entropy passes over


@dataclass(frozen=True)
class Reading:
    """A cut of a text's `places`, the tokens that have a next one.

    >>> tokens = np.arange(6)
    >>> windows = Reading(places=5, length=3, scored=2, carried=False)
    >>> windows.cut(tokens, range(windows.rows), range(3))
    (array([[0, 1, 2],
           [2, 3, 4]]), array([[   1,    2,    3],
           [-100,    4,    5]]))
    """

    places: int
    length: int
    scored: int
    carried: bool
    """Whether the rows are streams, whose state carries all that counts, or windows."""
    context: int | None = None
    stride: int | None = None

    @property
    def rows(self) -> int:
        """How many rows cover all places."""
        return 1 + max(0, -(-(self.places - self.length) // self.scored))

    @property
    def warm_up(self) -> int:
        """Tokens each row but the first reads without scoring."""
        return self.length - self.scored if self.rows > 1 else 0

    def cut(self, tokens: np.ndarray, rows: range, columns: range) -> tuple[np.ndarray, np.ndarray]:
        """Return some columns of some rows and their targets, `NOT_SCORED` where nothing is scored."""
        starts = np.arange(rows.start, rows.stop)[:, None] * self.scored
        within = np.arange(columns.start, columns.stop)
        places = starts + within
        inputs, targets = (tokens[np.minimum(index, self.places)].astype(np.int64) for index in (places, places + 1))
        targets[(places >= self.places) | ((starts > 0) & (within < self.warm_up))] = NOT_SCORED
        return inputs, targets

    def batches(self, positions: int) -> Iterator[tuple[range, list[range]]]:
        """Go through the rows, some at a time, each time with the stretches of columns to read one after the other.

        About `positions` tokens are read at once. Streams all run side by side, since the next stretch has to wait
        for the state of the one before.
        """
        together = self.rows if self.carried else max(1, positions // self.length)
        stretches = _parts(self.length, max(1, positions // together))
        for rows in _parts(self.rows, together):
            yield rows, stretches


def _parts(whole: int, most: int) -> list[range]:
    return [range(start, min(start + most, whole)) for start in range(0, whole, most)]


def plan(model: LanguageModel, places: int, context: int | None, stride: int | None, streams: int | None) -> Reading:
    """Choose how to read a text: streams where a carried state gives each token its full context, else windows."""
    context, stride = _settle(model, context, stride)
    if context == model.reach and stride in (None, 1):
        length, scored = _stream(places, model.reach, streams)
        return Reading(places, length, scored, True, context, stride)
    if streams is not None:
        raise InputError(f"streams = {streams} needs a carried state, not windows of {context} tokens; leave it out.")
    length = min(context or places, places)
    return Reading(places, length, min(stride or length, length), False, context, stride)


def _settle(model: LanguageModel, context: int | None, stride: int | None) -> tuple[int | None, int | None]:
    """Fill in what was not given: the model's reach, and the stride that it can afford."""
    context = _usual_context(model) if context is None else context
    if context is None:
        if stride is not None:
            raise InputError(f"stride = {stride} needs a context: this model's memory has no bound. Give context too.")
        return None, None
    if context < 1 or (model.reach and context > model.reach):
        bounds = f"between 1 and {model.reach}, the tokens the model sees" if model.reach else "at least 1"
        raise InputError(f"context = {context} is not {bounds}.")
    stride = _usual_stride(model, context) if stride is None else stride
    if not 1 <= stride <= context:
        raise InputError(f"stride = {stride} is not between 1 and the context {context}.")
    return context, stride


def _usual_context(model: LanguageModel) -> int | None:
    """What the model sees; of a Transformer that sees everything, the context it was trained for."""
    return model.spec.context if model.reach is None and isinstance(model.spec, Decoder) else model.reach


def _usual_stride(model: LanguageModel, context: int) -> int:
    """One token for the window models; half the context for a Transformer, which reads a window anew at each step."""
    exact = context == model.reach and not isinstance(model.spec, Decoder)
    return 1 if exact else max(1, context // 2)


def _stream(places: int, reach: int | None, streams: int | None) -> tuple[int, int]:
    """Return the length of each stream and how much of it is scored."""
    warm_up = WARM_UP if reach is None else reach
    if streams is None:
        streams = 1 if reach else min(MOST_STREAMS, places // (8 * WARM_UP))
    elif streams < 1:
        raise InputError(f"streams = {streams} is less than 1; 1 reads the text in one pass.")
    if streams <= 1 or places <= warm_up:
        return places, places
    scored = -(-(places - warm_up) // streams)
    return warm_up + scored, scored
