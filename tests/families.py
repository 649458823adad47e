"""Small models of every family, for the tests that hold for all of them."""

from lemma.spec.models import (
    Attentive,
    Classifier,
    Decoder,
    Encoder,
    EncoderDecoder,
    FeedForward,
    Gru,
    Lstm,
    ModelSpec,
    Rnn,
    TableA5,
)
from lemma.spec.positions import Alibi, Learned, NoPositions, Positions, Rotary, Sinusoidal

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

PLACES: dict[str, Positions] = {
    "none": NoPositions(),
    "learned": Learned(),
    "sinusoidal": Sinusoidal(),
    "rotary": Rotary(),
    "alibi": Alibi(),
}
ENCODERS: dict[str, Encoder] = {
    f"encoder-{name}-{norm_place}": Encoder(
        vocabulary=11, width=8, depth=2, heads=2, context=9, positions=places, norm_place=norm_place, objective="both"
    )
    for norm_place in ("pre", "post")
    for name, places in PLACES.items()
} | {
    "encoder-narrow": Encoder(vocabulary=11, width=8, depth=1, heads=3, attention_width=12, context=9, tied=False),
    "encoder-rms": Encoder(vocabulary=11, width=8, depth=1, heads=2, context=9, norm="rms", bias=False),
}
TRANSLATORS: dict[str, EncoderDecoder] = {
    f"encoder-decoder-{name}-{norm_place}": EncoderDecoder(
        vocabulary=11,
        width=8,
        encoder_depth=1,
        decoder_depth=2,
        heads=2,
        attention_width=12,
        feed_forward=10,
        context=9,
        positions=places,
        norm_place=norm_place,
    )
    for norm_place in ("pre", "post")
    for name, places in PLACES.items()
} | {
    "encoder-decoder-untied": EncoderDecoder(
        vocabulary=11, width=8, encoder_depth=1, decoder_depth=1, heads=2, context=9, tied=False, bias=False, norm="rms"
    ),
}
BODIES = {**SMALL, **ENCODERS, **TRANSLATORS}
CLASSIFIERS: dict[str, Classifier] = {
    f"{name}-{pool}": Classifier(body=body, classes=3, pool=pool)
    for name, body in BODIES.items()
    for pool in ("first", "last", "mean")
}
