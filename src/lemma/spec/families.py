"""All families of models by their names: Lemma's own, and those that other packages bring."""

from lemma.spec.classifier import Classifier
from lemma.spec.dual_encoder import CrossAttention, DualEncoder
from lemma.spec.graph import Graph
from lemma.spec.model import Attentive, Decoder, FeedForward, Gru, Lstm, Rnn, TableA5
from lemma.spec.new_family import NEW_FAMILIES, NewFamily
from lemma.spec.parser import Parser
from lemma.spec.transformer import Encoder, EncoderDecoder
from lemma.spec.tree import Tree

LanguageSpec = FeedForward | Attentive | Rnn | Lstm | Gru | Decoder | TableA5 | NewFamily
"""Those that predict the next token."""
ModelSpec = (
    FeedForward
    | Attentive
    | Rnn
    | Lstm
    | Gru
    | Decoder
    | TableA5
    | Parser
    | Encoder
    | EncoderDecoder
    | Tree
    | Classifier
    | DualEncoder
    | CrossAttention
    | Graph
    | NewFamily
)
FAMILIES: dict[str, type[ModelSpec]] = {
    str(family.model_fields["family"].default): family
    for family in (
        FeedForward,
        Attentive,
        Rnn,
        Lstm,
        Gru,
        Decoder,
        TableA5,
        Parser,
        Encoder,
        EncoderDecoder,
        Tree,
        Classifier,
        DualEncoder,
        CrossAttention,
        Graph,
    )
}


def family_of(name: str) -> type[ModelSpec] | None:
    """The family of that name, whoever brings it; None if nobody does."""
    return FAMILIES.get(name) or NEW_FAMILIES.find(name)


def family_names() -> list[str]:
    """All families that there are, Lemma's own first."""
    return [*FAMILIES, *NEW_FAMILIES.others()]
