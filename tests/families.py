"""Small models of every family, for the tests that hold for all of them."""

from lemma.spec import Attentive, Decoder, FeedForward, Gru, Lstm, ModelSpec, NoPositions, Rnn, Sinusoidal, TableA5

SMALL: dict[str, ModelSpec] = {
    "feed-forward": FeedForward(vocabulary=11, width=6, hidden=7, context=4),
    "feed-forward-bigram": FeedForward(vocabulary=11, width=6, hidden=7, context=2, activation="relu"),
    "attentive": Attentive(vocabulary=11, width=6, key_width=5, value_width=4, hidden=7, context=5),
    "rnn": Rnn(vocabulary=11, width=6, hidden=7, activation="relu"),
    "lstm": Lstm(vocabulary=11, width=6, hidden=7, depth=2),
    "lstm-tied": Lstm(vocabulary=11, width=6, hidden=6, tied=True, biases=2),
    "gru": Gru(vocabulary=11, width=6, hidden=7, biases=0),
    "decoder": Decoder(vocabulary=11, width=8, depth=2, heads=2, context=9),
    "decoder-sinusoidal": Decoder(
        vocabulary=11, width=8, depth=1, heads=3, attention_width=12, context=9, positions=Sinusoidal(), tied=False
    ),
    "decoder-none": Decoder(
        vocabulary=11, width=8, depth=2, heads=2, context=9, positions=NoPositions(), norm="rms", bias=False
    ),
    "table-a5": TableA5(vocabulary=11, embedding=4, width=8, heads=2, feed_forward=8, context=4),
}
