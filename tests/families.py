"""Small models of every family, for the tests that hold for all of them."""

from lemma.spec import (
    Alibi,
    Attentive,
    Decoder,
    FeedForward,
    Gru,
    Lstm,
    ModelSpec,
    NoPositions,
    Rnn,
    Rotary,
    Sinusoidal,
    TableA5,
)

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
    "decoder-rotary": Decoder(
        vocabulary=11, width=8, depth=2, heads=2, key_value_heads=1, context=9, positions=Rotary(), norm="rms"
    ),
    "decoder-alibi": Decoder(vocabulary=11, width=8, depth=2, heads=2, value_width=12, context=9, positions=Alibi()),
    "decoder-merged": Decoder(
        vocabulary=11, width=8, depth=2, heads=2, context=9, key_query="merged", value_output="merged"
    ),
    "decoder-merged-keys": Decoder(
        vocabulary=11, width=8, depth=1, heads=4, key_value_heads=2, context=9, key_query="merged", bias=False
    ),
    "table-a5": TableA5(vocabulary=11, embedding=4, width=8, heads=2, feed_forward=8, context=4),
}
