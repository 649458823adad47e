"""A tiny treebank for the tests of parsing: problem B1's sentence and variations of it."""

from lemma.data.treebanks import Sentence

B1 = Sentence(
    words=("I", "prefer", "the", "morning", "flight", "through", "Denver"),
    heads=(2, 0, 5, 5, 2, 7, 5),
    relations=("nsubj", "root", "det", "nmod", "dobj", "case", "nmod"),
    tags=("PRON", "VERB", "DET", "NOUN", "NOUN", "ADP", "PROPN"),
    name="b1",
)


def tiny() -> list[Sentence]:
    """Return B1's sentence and fifteen with other words, some without the last three or the first noun."""
    result = [B1]
    for subject in ("I", "you", "they"):
        for verb in ("prefer", "book", "want"):
            result.append(
                Sentence((subject, verb, "it"), (2, 0, 2), ("nsubj", "root", "dobj"), ("PRON", "VERB", "PRON"))
            )
        for noun, index in (("train", "Boston"), ("bus", "Paris")):
            words = (subject, "take", "a", noun, "to", index, ".")
            relations = ("nsubj", "root", "det", "dobj", "case", "nmod", "punct")
            tags = ("PRON", "VERB", "DET", "NOUN", "ADP", "PROPN", "PUNCT")
            result.append(Sentence(words, (2, 0, 4, 2, 6, 4, 2), relations, tags))
    return result
