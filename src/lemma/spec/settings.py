"""Settings as typed keyword arguments, so that editors complete them. A test keeps them equal to the specs."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

SYNONYMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("lr", "learningrate", "max_lr", "peak_lr"), ("learning_rate",)),
    **dict.fromkeys(("lr_scheduler", "lr_scheduler_type", "scheduler"), ("schedule",)),
    "optim": ("optimizer",),
    "adam_beta2": ("beta2",),
    **dict.fromkeys(("d_model", "n_embd", "dim", "model_dim"), ("width",)),
    **dict.fromkeys(("embed_dim", "embedding_dim", "emb_dim", "embedding_size"), ("embedding", "width")),
    **dict.fromkeys(("hidden_size", "rnn_size", "n_hid", "nhid"), ("hidden", "width")),
    **dict.fromkeys(("hidden_dim", "hidden_units", "d_hidden", "n_hidden"), ("hidden", "~width", "~feed_forward")),
    **dict.fromkeys(
        ("n_layer", "n_layers", "num_layers", "layers", "num_hidden_layers", "nlayers"),
        ("depth", "encoder_depth decoder_depth"),
    ),
    **dict.fromkeys(("num_encoder_layers", "encoder_layers"), ("encoder_depth",)),
    **dict.fromkeys(("num_decoder_layers", "decoder_layers"), ("decoder_depth",)),
    **dict.fromkeys(("n_head", "n_heads", "num_heads", "nhead", "num_attention_heads"), ("heads",)),
    **dict.fromkeys(("n_kv_heads", "num_kv_heads", "num_key_value_heads"), ("key_value_heads",)),
    **dict.fromkeys(("d_inner", "n_inner", "ffn_dim", "d_ffn", "intermediate_size", "dim_feedforward"), ("d_ff",)),
    **dict.fromkeys(
        ("block_size", "context_length", "n_ctx", "n_positions", "max_seq_len", "max_position_embeddings"),
        ("T", "~N", "sequence_length"),
    ),
    **dict.fromkeys(("seq_len", "seq_length", "sequence_len", "bptt", "max_length"), ("sequence_length", "T")),
    **dict.fromkeys(("window_size", "sliding_window", "attention_window"), ("window", "~N")),
    **dict.fromkeys(("hidden_act", "activation_function", "nonlinearity"), ("activation",)),
    **dict.fromkeys(("vocab", "vocab_size", "n_vocab"), ("vocabulary",)),
    **dict.fromkeys(("num_classes", "num_labels", "n_classes"), ("classes",)),
    **dict.fromkeys(("batch_size", "bs", "bsz"), ("batch",)),
    **dict.fromkeys(("iterations", "max_iters", "max_steps", "num_steps", "n_steps", "iters"), ("steps",)),
    **dict.fromkeys(("n_epochs", "num_epochs", "max_epochs", "num_train_epochs", "epoch"), ("epochs", "~steps")),
    **dict.fromkeys(("warmup", "warmup_steps", "warmup_iters"), ("warm_up",)),
    **dict.fromkeys(("grad_clip", "max_grad_norm", "clip_grad", "clip_grad_norm"), ("clip",)),
    "wd": ("weight_decay",),
    **dict.fromkeys(("p_drop", "dropout_rate", "drop_rate", "dropout_p", "drop"), ("dropout",)),
    "mlm_probability": ("mask_rate",),
    "label_smoothing_factor": ("label_smoothing",),
    **dict.fromkeys(("eval_every", "eval_interval", "eval_steps"), ("evaluate_every",)),
    **dict.fromkeys(("save_every", "save_steps", "ckpt_every"), ("checkpoint_every",)),
    **dict.fromkeys(("random_seed", "random_state"), ("seed",)),
    **dict.fromkeys(("tie_weights", "tie_word_embeddings", "weight_tying"), ("tied",)),
    **dict.fromkeys(("position", "pos", "positional_encoding", "pos_emb"), ("positions",)),
    "early_stopping_patience": ("patience",),
    **dict.fromkeys(("num_threads", "n_threads"), ("threads",)),
    **dict.fromkeys(("lora_r", "lora_rank"), ("rank",)),
    "lora_alpha": ("alpha",),
    **dict.fromkeys(("grad_accum", "gradient_accumulation_steps", "accumulate_grad_batches"), ("~accumulate",)),
    **dict.fromkeys(("warmup_ratio", "warmup_epochs"), ("~warm_up",)),
    **dict.fromkeys(("min_lr", "final_lr", "end_lr"), ("~final_rate",)),
    **dict.fromkeys(("l2", "decay", "l2_penalty"), ("~weight_decay",)),
    **dict.fromkeys(("early_stopping", "early_stop"), ("~patience",)),
    **dict.fromkeys(("fp16", "bf16", "amp", "mixed_precision", "dtype"), ("~precision",)),
    **dict.fromkeys(("gradient_checkpointing", "activation_checkpointing"), ("~recompute",)),
    **dict.fromkeys(("per_device_train_batch_size", "micro_batch_size"), ("~batch",)),
    "epochs": ("~steps",),
    "step_size": ("~learning_rate",),
    "target_modules": ("~targets",),
}
"""Names of settings in other programs, and their names here: the first that the model has, by name or letter.

Several names in one string are all set. A name after ~ is near but means something else, and is explained, not set.
"""

MODEL_SYNONYMS: dict[str, str] = {
    **dict.fromkeys(("transformer", "gpt", "gpt2", "gpt-2", "nanogpt", "llama", "lm"), "decoder"),
    **dict.fromkeys(("bert", "mlm"), "encoder"),
    **dict.fromkeys(("t5", "seq2seq", "translator", "nmt", "bart"), "encoder-decoder"),
    **dict.fromkeys(("clip", "siglip"), "dual-encoder"),
    **dict.fromkeys(("gcn", "gnn"), "graph"),
    **dict.fromkeys(("mlp", "nnlm", "bengio", "ffn", "feedforward"), "feed-forward"),
    **dict.fromkeys(("elman", "recurrent", "vanilla-rnn"), "rnn"),
}
"""Names of models in other programs, and the nearest preset."""


class RecipeSettings(TypedDict, total=False):
    """Fields of `Recipe`."""

    steps: int
    batch: int
    sequence_length: int | None
    accumulate: int
    learning_rate: float
    final_rate: float
    warm_up: int
    schedule: Any
    optimizer: Any
    weight_decay: float
    beta2: float
    clip: float
    dropout: float
    mask_rate: float
    label_smoothing: float
    augment: float
    objective: Any
    entropy_penalty: float
    distance_penalty: float
    distance_max: float
    seed: int
    evaluate_every: int | None
    checkpoint_every: int | None
    patience: int | None
    keep: Literal["best", "last"]
    device: Literal["auto", "cpu", "cuda"]
    threads: int | None
    precision: Literal["auto", "float32", "bfloat16"]
    shard: bool
    recompute: Literal["none", "layers"]
    compile: Literal["auto", True, False]
    tracker: Any


class ModelSettings(TypedDict, total=False):
    """Fields of all families, and their textbook letters."""

    vocabulary: int
    width: int
    hidden: int
    context: int
    activation: Any
    key_width: int
    value_width: Any
    depth: int
    biases: Literal[0, 1, 2]
    tied: bool
    heads: int
    attention_width: int | None
    key_value_heads: int | None
    key_query: Literal["separate", "merged"]
    value_output: Literal["separate", "merged"]
    feed_forward: Any
    gated: bool
    window: int | None
    positions: Any
    scaled_scores: bool
    query_key_norm: bool
    residual: Literal["sequential", "parallel"]
    norm: Literal["layer", "rms"]
    norm_epsilon: float
    bias: bool
    query_key_value_bias: bool | None
    attention_output_bias: bool | None
    feed_forward_bias: bool | None
    scaled_embedding: bool | None
    logit_cap: float | None
    special_tokens: tuple[int, int, int] | None
    segments: int
    embedding_norm: bool
    output_transform: bool
    output_bias: bool
    scaled_output: bool
    embedding: int
    relations: int
    buckets: int
    minimum_count: int
    word_dropout: float
    encoder: Any
    head_width: int
    shared_width: int
    attention_loss: float
    norm_place: Literal["pre", "post"]
    encoder_depth: int
    decoder_depth: int
    pool: Literal["auto", "first", "last", "mean"]
    body: Any
    classes: int
    head_bias: bool
    grid: int
    patch: int
    image_width: int
    image_depth: int
    image_heads: int
    image_pool: Literal["places", "mean"]
    shared: int
    temperature: float
    candidates: int
    towers: Any
    features: int
    normalise: Literal["symmetric", "rows", "none", "alone"]
    V: int
    d: int
    d_h: int
    N: int
    d_k: int
    d_v: int
    D: int
    L: int
    h: int
    h_kv: int
    d_ff: int
    T: int
    d_e: int
    R: int
    w: int
    w_s: int
    L_enc: int
    L_dec: int
    K: int
    G: int
    P: int
    d_i: int
    L_i: int
    h_i: int
    d_s: int
    F: int


class SplitSettings(TypedDict, total=False):
    """Splits in files of their own."""

    validation: Any
    test: Any


class ColumnSettings(SplitSettings, total=False):
    """Splits, and columns of tables."""

    captions: str | None
    parser: str | None
    source_column: str | None
    target_column: str | None
    text_column: str | None
    label_column: str | None
    image_column: str | None
    caption_column: str | None


class DataSettings(ColumnSettings, total=False):
    """Tokenizer, splits and columns of the data."""

    tokenizer: Any
    held_out: float
    source: str | None
    target: str | None
    label: str | None
    image: str | None
    caption: str | None
    nodes_file: str | None
    labelled: int | str | None
    split: int | None
    nodes: Any
    edges: int | None


class MethodSettings(TypedDict, total=False):
    """Fields of the adaptation methods."""

    rank: int
    alpha: float
    lora_dropout: float
    targets: Any
    bottleneck: int
    placement: Any


class TrainSettings(RecipeSettings, ModelSettings, DataSettings, total=False):
    """Settings of `train`."""


class AdaptSettings(RecipeSettings, MethodSettings, SplitSettings, total=False):
    """Settings of `adapt`."""


class SamplingSettings(TypedDict, total=False):
    """Options of sampling in `generate`."""

    tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    no_repeat_ngram: int | None
    logit_bias: Mapping[int, float]
    stop: str | Sequence[str]
    stop_tokens: Sequence[int]
    logprobs: int | None
    seed: int
    stop_at_loop: bool
    stop_at_eos: bool
    precision: Literal["auto", "float32", "bfloat16"]
    beam: int
    length_penalty: float


class EvaluateSettings(ColumnSettings, total=False):
    """Options of `evaluate` that some kinds of models have."""

    context: int | None
    stride: int | None
    layer: int | None
    head: int | None
    limit: int | None
    beam: int | None
    length_penalty: float | None
