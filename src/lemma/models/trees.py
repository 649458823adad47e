"""From a parser's scores to trees: each word's best governors and relations, decoded to one tree a sentence."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from lemma.data import Lexicon, Sentence, encode_trees
from lemma.models.language_model import evaluating
from lemma.models.parser import ParserModel
from lemma.parts.spanning import best_tree

SCORES_AT_ONCE = 1 << 24  # numbers of a batch's scores: 64 MB in float32
SENTENCES_AT_ONCE = 64

LogArcs = Float[np.ndarray, "relations governors dependents"]
"""Log p(governor, relation | dependent) of one sentence; governor 0 is the top."""
LogPictures = Float[np.ndarray, "relations governors null_and_dependents"]
"""Log attention of each relation's head from each governor, to the null place and to each word."""


@dataclass(frozen=True)
class Prediction:
    """A tree, and how sure the parser is of each word's governor and relation."""

    sentence: Sentence
    probabilities: tuple[float, ...]


def predict_trees(model: ParserModel, lexicon: Lexicon, sentences: Sequence[Sequence[str]]) -> list[Prediction]:
    """Parse sentences, given as lists of words."""
    found: dict[int, Prediction] = {}
    for place, log, _ in readings(model, lexicon, sentences):
        found[place] = decode(log, sentences[place], lexicon)
    return [found[place] for place in range(len(sentences))]


def decode(log: LogArcs, words: Sequence[str], lexicon: Lexicon) -> Prediction:
    """Take the likeliest relation of each arc, and of those arcs the tree of the highest probability."""
    relations = log.argmax(axis=0)
    arcs = np.take_along_axis(log, relations[None], axis=0)[0]
    size = arcs.shape[1]
    heads = best_tree(np.concatenate([np.zeros((size + 1, 1)), arcs], axis=1))
    dependents = np.arange(size)
    names = tuple(lexicon.relations[number] for number in relations[heads, dependents])
    sure = tuple(np.exp(arcs[heads, dependents]).tolist())
    return Prediction(Sentence(tuple(words), tuple(heads.tolist()), names), sure)


def readings(
    model: ParserModel, lexicon: Lexicon, sentences: Sequence[Sequence[str]]
) -> Iterator[tuple[int, LogArcs, LogPictures]]:
    """Yield each sentence's place and both readings of its scores in logarithms; those of like length come together."""
    for batch in _batches([len(words) for words in sentences], model.spec.relations):
        arcs, pictures = _read(model, lexicon, [sentences[place] for place in batch])
        for row, place in enumerate(batch):
            size = len(sentences[place])
            yield place, arcs[row, :, : size + 1, :size], pictures[row, :, : size + 1, : size + 1]


def head_pictures(
    model: ParserModel, lexicon: Lexicon, words: Sequence[str]
) -> Float[np.ndarray, "relations governors null_and_dependents"]:
    """Where each relation's head attends from each governor (0 is the top): the null place first, then the words."""
    return np.exp(_read(model, lexicon, [words])[1][0])


def _read(model: ParserModel, lexicon: Lexicon, sentences: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray]:
    unknown = [Sentence(tuple(words), (0,) * len(words), ("",) * len(words)) for words in sentences]
    rows, _ = encode_trees(unknown, lexicon).batch(range(len(sentences)))
    device = next(model.parameters()).device
    with evaluating(model), torch.no_grad():
        arcs, pictures = model.parse(torch.from_numpy(rows).to(device))
    return arcs.cpu().numpy(), pictures.cpu().numpy()


def _batches(lengths: Sequence[int], relations: int) -> Iterator[list[int]]:
    """Cut sentences, in the order of their lengths, into batches whose scores fit in memory."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: lengths[place]):
        room = SCORES_AT_ONCE // (relations * (lengths[place] + 1) ** 2)
        if batch and len(batch) >= min(SENTENCES_AT_ONCE, max(1, room)):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
