"""The quantities of a search worked by hand, and what usual slips make of them."""

from lemma.looking.worked.judging.quantity import AnyQuantity, WordQuantity, numbered, quantity
from lemma.looking.worked.matching import WorkedMatching


def of_matching(worked: WorkedMatching) -> list[AnyQuantity]:
    """P, Q, their lengths, scores, cosines, and who fits whom."""
    steps = worked.steps
    width, pair = numbered(steps.image_map.shape[1]), (steps.images, steps.sentences)
    lengths = steps.image_lengths[:, None] * steps.sentence_lengths[None]
    half = {"divided by |p|² |q|²: the lengths count once each": steps.scores / lengths**2}
    half["divided by |p| alone"] = steps.scores / steps.image_lengths[:, None]
    half["divided by |q| alone"] = steps.scores / steps.sentence_lengths[None]
    return [
        quantity("P", steps.image_vectors, (steps.images, width), "I·W_i", ("p", "image_vectors")),
        quantity("Q", steps.sentence_vectors, (steps.sentences, width), "T·W_t", ("q", "sentence_vectors")),
        quantity("scores", steps.scores, pair, "P·Qᵀ", ("score", "S", "p·q", "PQ")),
        quantity("length_p", steps.image_lengths, (steps.images,), "|p|", ("|p|", "norm_p")),
        quantity("length_q", steps.sentence_lengths, (steps.sentences,), "|q|", ("|q|", "norm_q")),
        quantity("cosines", steps.cosines, pair, "p·q / (|p| |q|)", ("cosine", "cos"), half),
        *_winners(worked),
    ]


def _winners(worked: WorkedMatching) -> list[AnyQuantity]:
    images, sentences = worked.steps.images, worked.steps.sentences
    found = (("", images, worked.of_images, "sentence"), ("_image", sentences, worked.of_sentences, "image"))
    words: list[AnyQuantity] = []
    for end, labels, matches, other in found:
        product = tuple(one.by_product for one in matches)
        cosine = tuple(one.by_cosine for one in matches)
        words.append(WordQuantity(f"best{end}", product, (labels,), f"{other} of the largest product"))
        words.append(WordQuantity(f"best{end}_cosine", cosine, (labels,), f"{other} of the largest cosine"))
    return words
