"""Names of settings and models in other programs, and their names here."""

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
