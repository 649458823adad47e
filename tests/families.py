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
from lemma.spec.positions import (
    Alibi,
    Learned,
    Llama3Scaling,
    NoPositions,
    Positions,
    Relative,
    Rotary,
    Sinusoidal,
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
    "decoder-llama": Decoder(
        vocabulary=11,
        width=8,
        depth=2,
        heads=4,
        key_value_heads=2,
        attention_width=16,
        context=9,
        norm="rms",
        positions=Rotary(share=0.5, layout="halves", scaling=Llama3Scaling(original_context=4)),
        gated=True,
        activation="silu",
        query_key_norm=True,
        bias=False,
        query_key_value_bias=True,
        tied=False,
    ),
    "decoder-window": Decoder(
        vocabulary=11, width=8, depth=2, heads=2, context=9, window=3, positions=Rotary(layout="halves")
    ),
    "decoder-window-alibi": Decoder(
        vocabulary=11, width=8, depth=3, heads=2, context=9, window=2, positions=Alibi(), value_width=12
    ),
    "decoder-parallel": Decoder(
        vocabulary=11,
        width=8,
        depth=2,
        heads=2,
        context=9,
        positions=Relative(buckets=8, farthest=9),
        residual="parallel",
        activation="gelu-exact",
        gated=True,
        logit_cap=2.0,
        scaled_embedding=True,
        attention_output_bias=False,
        feed_forward_bias=False,
        norm_epsilon=1e-3,
    ),
    "table-a5": TableA5(vocabulary=11, embedding=4, width=8, heads=2, feed_forward=8, context=4),
}

POSITIONS: dict[str, Positions] = {
    "none": NoPositions(),
    "learned": Learned(),
    "sinusoidal": Sinusoidal(),
    "rotary": Rotary(),
    "alibi": Alibi(),
    "relative": Relative(buckets=8, farthest=9),
}
ENCODERS: dict[str, Encoder] = {
    f"encoder-{name}-{order}": Encoder(
        vocabulary=11, width=8, depth=2, heads=2, context=9, positions=positions, norm_place=order, objective="both"
    )
    for order in ("pre", "post")
    for name, positions in POSITIONS.items()
} | {
    "encoder-narrow": Encoder(vocabulary=11, width=8, depth=1, heads=3, attention_width=12, context=9, tied=False),
    "encoder-rms": Encoder(vocabulary=11, width=8, depth=1, heads=2, context=9, norm="rms", bias=False),
    "encoder-bert": Encoder(
        vocabulary=11,
        width=8,
        depth=2,
        heads=2,
        context=9,
        positions=Learned(),
        norm_place="post",
        objective="both",
        segments=2,
        embedding_norm=True,
        output_transform=True,
        output_bias=True,
        activation="gelu-exact",
    ),
}
TRANSLATORS: dict[str, EncoderDecoder] = {
    f"encoder-decoder-{name}-{order}": EncoderDecoder(
        vocabulary=11,
        width=8,
        encoder_depth=1,
        decoder_depth=2,
        heads=2,
        attention_width=12,
        feed_forward=10,
        context=9,
        positions=positions,
        norm_place=order,
    )
    for order in ("pre", "post")
    for name, positions in POSITIONS.items()
} | {
    "encoder-decoder-untied": EncoderDecoder(
        vocabulary=11, width=8, encoder_depth=1, decoder_depth=1, heads=2, context=9, tied=False, bias=False, norm="rms"
    ),
    "encoder-decoder-t5": EncoderDecoder(
        vocabulary=11,
        width=8,
        encoder_depth=2,
        decoder_depth=2,
        heads=2,
        attention_width=12,
        context=9,
        norm="rms",
        positions=Relative(buckets=8, farthest=9),
        bias=False,
        scaled_scores=False,
        scaled_output=True,
        gated=True,
        special_tokens=(0, 1, 0),
    ),
}
BODIES = {**SMALL, **ENCODERS, **TRANSLATORS}
CLASSIFIERS: dict[str, Classifier] = {
    f"{name}-{pool}": Classifier(body=body, classes=3, pool=pool)
    for name, body in BODIES.items()
    for pool in ("first", "last", "mean")
}
