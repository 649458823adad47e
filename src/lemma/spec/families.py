"""All families of models by their names."""

from lemma.spec.classifier import Classifier
from lemma.spec.model import Attentive, Decoder, FeedForward, Gru, Lstm, Rnn, TableA5
from lemma.spec.parser import Parser
from lemma.spec.transformer import Encoder, EncoderDecoder

ModelSpec = (
    FeedForward | Attentive | Rnn | Lstm | Gru | Decoder | TableA5 | Parser | Encoder | EncoderDecoder | Classifier
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
        Classifier,
    )
}
