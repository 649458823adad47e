"""The perplexity of a split of a dataset, which knows its own tokenizer, hash, bytes and what it left out."""

from lemma.data import Dataset
from lemma.evaluation.perplexity import perplexity
from lemma.evaluation.score import Score, Source
from lemma.models import LanguageModel


def perplexity_of_split(
    model: LanguageModel, dataset: Dataset, split: str, *, context: int | None = None, stride: int | None = None
) -> Score:
    """Measure a model on one split of a dataset by a full pass."""
    source = Source(dataset.tokenizer.about, dataset.hash, split, dataset.left_out(split))
    tokens, size = dataset.tokens(split), dataset.bytes(split)
    return perplexity(model, tokens, bytes=size, context=context, stride=stride, source=source)
