"""Attention worked by hand: words with vectors look at each other, pass after pass (after Vaswani et al. 2017)."""

from collections import Counter
from collections.abc import Sequence
from typing import overload

import numpy as np
from jaxtyping import Float

from lemma.errors import SpecError, unknown
from lemma.looking.worked.cases import MOST_WORDS, AttentionCase
from lemma.looking.worked.maps import Maps, make_maps, stack
from lemma.looking.worked.numerals import printable
from lemma.looking.worked.reading import Examples, Found, Given, list_examples, read_case
from lemma.looking.worked.steps import Steps, attend
from lemma.looking.worked.worked_attention import WorkedAttention, WorkedSentence


@overload
def attention_by_hand(example: None = None) -> Examples: ...
@overload
def attention_by_hand(
    example: Given,
    *,
    words: Sequence[str] | None = None,
    passes: int | None = None,
    scaled: bool | None = None,
    mask: str | None = None,
    full: bool = False,
    decimals: int = 3,
) -> WorkedAttention: ...
def attention_by_hand(
    example: Given | None = None,
    *,
    words: Sequence[str] | None = None,
    passes: int | None = None,
    scaled: bool | None = None,
    mask: str | None = None,
    full: bool = False,
    decimals: int = 3,
) -> WorkedAttention | Examples:
    """Work attention out step by step, for an example by name, a TOML file or a table of the same words.

    α_ij = softmax_j(q_i·k_j / √d_k), output_i = Σ_j α_ij v_j; the outputs are the encodings of the next pass. `words`
    (those in focus), `passes`, `scaled` and `mask` take the place of what the case says. Without an example, those that
    come with Lemma are listed.

    >>> worked = attention_by_hand("e1", passes=1)
    >>> worked.sentences[0].passes[0].weights[5].round(3).tolist()
    [0.08, 0.08, 0.08, 0.08, 0.08, 0.219, 0.08, 0.08, 0.219]
    """
    if example is None:
        return list_examples("attention")
    changes = {"focus": words or None, "passes": passes, "scaled": scaled, "mask": mask}
    found = read_case(AttentionCase, example, changes)
    sentences = [_split(sentence, found.where) for sentence in found.case.sentences]
    _check_focus(found, sentences)
    worked = tuple(_work(found, words) for words in sentences)
    return WorkedAttention(found.case, found.text, worked, _notes(found.case, sentences), full, decimals)


def _split(sentence: str, where: str) -> list[str]:
    words = sentence.split()
    if not words or len(words) > MOST_WORDS:
        raise SpecError(
            f"{where}: sentences: {sentence[:40]!r} has {len(words)} words; give from 1 to {MOST_WORDS}. "
            "For longer text: lemma look RUN --text"
        )
    return words


def _work(found: Found[AttentionCase], words: list[str]) -> WorkedSentence:
    case, labels = found.case, _labels(words)
    vectors = stack(labels, [_vector(found, word) for word in words], "vectors", found.where)
    width = vectors.shape[1]
    maps = make_maps(case, width, width, found.where)
    if case.passes > 1 and maps.value.shape[1] != width:
        raise SpecError(
            f"{found.where}: W_V makes vectors of length {maps.value.shape[1]} from vectors of length {width}, so that "
            "its outputs cannot be encodings again. Set passes = 1, or give a W_V that keeps the length."
        )
    focus = tuple(place for place, label in enumerate(labels) if {label, words[place]} & set(case.focus))
    passes = _passes(found, labels, vectors, maps)
    return WorkedSentence(printable(" ".join(words)), tuple(labels), focus, passes)


def _passes(
    found: Found[AttentionCase], labels: tuple[str, ...], vectors: Float[np.ndarray, "words width"], maps: Maps
) -> tuple[Steps, ...]:
    passes: list[Steps] = []
    for number in range(1, found.case.passes + 1):
        where = f"{found.where}: pass {number}"
        passes.append(attend(labels, labels, vectors, vectors, maps, causal=found.case.mask == "causal", where=where))
        vectors = passes[-1].outputs
    return tuple(passes)


def _labels(words: list[str]) -> tuple[str, ...]:
    """The words, numbered where one occurs twice: the#1, the#2."""
    counts, seen = Counter(words), Counter[str]()
    labels: list[str] = []
    for word in words:
        seen[word] += 1
        labels.append(printable(word) + (f"#{seen[word]}" if counts[word] > 1 else ""))
    return tuple(labels)


def _vector(found: Found[AttentionCase], word: str) -> Sequence[float]:
    vector = found.case.vectors.get(word, found.case.other_words)
    if vector is None:
        known = unknown("the word", word, found.case.vectors) if found.case.vectors else f"'{word}' has no vector."
        raise SpecError(f"{found.where}: vectors: {known} Give it a vector, or set other_words for all that have none.")
    return vector


def _check_focus(found: Found[AttentionCase], sentences: list[list[str]]) -> None:
    there = {name: None for words in sentences for name in (*words, *_labels(words))}
    for word in found.case.focus:
        if word not in there:
            raise SpecError(f"{found.where}: " + unknown("focus", word, there))


def _notes(case: AttentionCase, sentences: list[list[str]]) -> tuple[str, ...]:
    """What a person may have meant otherwise: vectors of words that are in no sentence."""
    used = {word for words in sentences for word in words}
    idle = [printable(word) for word in case.vectors if word not in used]
    return (f"In no sentence, so not used: {', '.join(idle)}",) if idle else ()
