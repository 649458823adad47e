"""All families of models by their names."""

from lemma.spec.classifier import Classifier
from lemma.spec.dual_encoder import CrossAttention, DualEncoder
from lemma.spec.graph import Graph
from lemma.spec.model import Attentive, Decoder, FeedForward, Gru, Lstm, Rnn, TableA5
from lemma.spec.parser import Parser
from lemma.spec.transformer import Encoder, EncoderDecoder
from lemma.spec.tree import Tree

LanguageSpec = FeedForward | Attentive | Rnn | Lstm | Gru | Decoder | TableA5
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
