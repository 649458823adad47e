"""Tokenizers of GGUF files: byte-level byte-pairs ("gpt2") or SentencePiece's pieces with scores ("llama")."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Engine

from lemma.data.tokenizers import Tokenizer
from lemma.errors import DataError, RunError, describe_unknown
from lemma.hub.gguf_header import Metadata

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""GGUF's types of tokens."""
SPECIAL_TOKENS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
"""Keys of tokenizer_config.json, and the names in GGUF's metadata."""
MAX_SPLIT_CHARACTERS = 1 << 28
"""Characters of all splits of all pieces of a vocabulary; 256,000 pieces of 16 have a quarter of it."""
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


SPLIT_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
SPLIT_DIGITS = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), SPLIT_BYTES])


def _build_splitter(number_pattern: str) -> Any:
    """Return the pre-tokenizer of Llama 3 and Qwen, which differ in the regular expression of a piece of digits."""
    split = pre_tokenizers.Split(Regex(f"{CONTRACTIONS}{number_pattern}|{SIGNS}"), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


PRE_TOKENIZERS: dict[str, Any] = {
    "default": SPLIT_BYTES,
    "gpt-2": SPLIT_BYTES,
    "smollm": SPLIT_DIGITS,
    "starcoder": SPLIT_DIGITS,
    "llama-bpe": _build_splitter(r"\p{N}{1,3}"),
    "qwen2": _build_splitter(r"\p{N}"),
}
"""By the names that llama.cpp gives to the rules."""


def read_tokenizer(metadata: Metadata, vocabulary: int) -> Tokenizer:
    """Build the tokenizer of a GGUF file from its metadata; `vocabulary` is the vocabulary size of the model."""
    path, prefix = metadata.path, "tokenizer.ggml."
    tokens = metadata.get_list(f"{prefix}tokens", str)
    if not tokens:
        raise RunError(f"{path} has no tokenizer (tokenizer.ggml.tokens). Take a file that has one.")
    kinds = metadata.get_list(f"{prefix}token_type", int, len(tokens)) or [NORMAL] * len(tokens)
    tokens_of_kind: dict[int, list[str]] = {}
    for token, kind in zip(tokens, kinds, strict=True):
        tokens_of_kind.setdefault(kind, []).append(token)
    special, added = tokens_of_kind.get(CONTROL, []), tokens_of_kind.get(USER_DEFINED, [])
    ids = {name: metadata.get(f"{prefix}{name}_token_id", int) for name in SPECIAL_TOKENS.values()}
    named = {name: tokens[index] for name, index in ids.items() if index is not None and 0 <= index < len(tokens)}
    model, adds_bos = metadata.get(f"{prefix}model", str), metadata.get(f"{prefix}add_bos_token", bool)
    bos = named.get("bos") if (model == "llama" if adds_bos is None else adds_bos) else None
    if model == "gpt2":
        rule = metadata.get(f"{prefix}pre", str) or "default"
        if rule not in PRE_TOKENIZERS:
            message = describe_unknown("tokenizer", rule, PRE_TOKENIZERS)
            raise RunError(f"{path}: {message} Take the model's Hugging Face folder.")
        merges = [tuple(merge.split(" ", 1)) for merge in metadata.get_list(f"{prefix}merges", str) or []]
        token_ids = {token: index for index, token in enumerate(tokens)}
        engine = Engine(models.BPE(token_ids, merges, ignore_merges=rule == "llama-bpe"))  # pyright: ignore
        if rule == "qwen2":
            engine.normalizer = normalizers.NFC()
        engine.pre_tokenizer, engine.decoder = PRE_TOKENIZERS[rule], decoders.ByteLevel()
        _add_tokens(engine, special, added, bos)
    elif model == "llama":
        scores = metadata.get_list(f"{prefix}scores", float, len(tokens)) or [0.0] * len(tokens)
        has_space = metadata.get(f"{prefix}add_space_prefix", bool) is not False
        unknown = named.get("unknown", next(iter(tokens_of_kind.get(UNKNOWN, [])), None))
        engine = sentencepiece_pipeline(tokens, scores, unknown, special, bos, added, has_space)
    else:
        raise RunError(f"{path}: {describe_unknown('kind of tokenizer', str(model), ('gpt2', 'llama'))}")
    config: dict[str, Any] = {key: named[name] for key, name in SPECIAL_TOKENS.items() if name in named}
    if template := metadata.get("tokenizer.chat_template", str):
        config["chat_template"] = template
    generation = {"eos_token_id": [ids["eos"]]} if ids["eos"] is not None else {}
    size = max(vocabulary, len(tokens))
    return Tokenizer(engine.to_str(), str(path), config=config, generation=generation, vocabulary=size)


def sentencepiece_pipeline(
    tokens: Sequence[str],
    scores: Sequence[float],
    unknown: str | None = None,
    special: Sequence[str] = (),
    bos: str | None = None,
    added: Sequence[str] = (),
    has_space: bool = True,
) -> Engine:
    """Return a pipeline of the library tokenizers for SentencePiece's BPE, which merges the best-scored pair first.

    A merge is any split of a piece into two others; it comes as early as its piece's score is high. All splits of all
    pieces are tried, so very long pieces, which no real vocabulary has, are refused.

    Args:
        tokens: pieces in the order of their ids.
        scores: score of each piece; a pair that makes a piece of a higher score is merged earlier.
        unknown: token for unknown characters.
        special: tokens that are no text, such as the end of a text.
        bos: special token that begins every text.
        added: tokens that are looked for in the text before all others.
        has_space: whether a space is put before every text.
    """
    if sum(len(piece) ** 2 for piece in tokens) > MAX_SPLIT_CHARACTERS:
        max_length = max(map(len, tokens))
        raise DataError(f"a vocabulary with pieces of up to {max_length:,} characters cannot be read. Is it damaged?")
    ids = {token: index for index, token in enumerate(tokens)}
    merges: list[tuple[float, int, int, str, str]] = []
    for piece, score in zip(tokens, scores, strict=True):
        splits = [(piece[:index], piece[index:]) for index in range(1, len(piece))]
        pairs = [pair for pair in splits if pair[0] in ids and pair[1] in ids]
        for left, right in sorted(pairs, key=lambda pair: (ids[pair[0]], ids[pair[1]])):
            merges.append((score, len(left), len(right), left, right))
    merges.sort(key=lambda merge: merge[:3], reverse=True)
    pairs = [(left, right) for *_, left, right in merges]
    engine = Engine(models.BPE(ids, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prepend = [normalizers.Prepend("▁")] if has_space else []
    engine.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if has_space else []
    spaces = decoders.Replace("▁", " ")
    engine.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), *strip])
    _add_tokens(engine, [*special, *([unknown] if unknown else [])], added, bos)
    return engine


def _add_tokens(engine: Engine, special: Sequence[str], added: Sequence[str], bos: str | None) -> None:
    """Add special tokens and other tokens to a pipeline in place; `bos`, if any, begins every text."""
    engine.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    engine.add_tokens([AddedToken(token, special=False, normalized=False) for token in added])
    if bos is not None:
        ids = [(bos, engine.token_to_id(bos))]
        engine.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=ids)


def write_tokenizer(writer: Any, tokenizer: Tokenizer, vocabulary: int) -> None:
    """Write a byte-pair tokenizer to a GGUF file with a `gguf.GGUFWriter`.

    `vocabulary` is the vocabulary size of the model; ids without a token are padded.
    """
    pipeline = tokenizer.pipeline()
    model, decoder = pipeline["model"], json.dumps(pipeline["decoder"])
    has_byte_tokens = bool(model.get("byte_fallback"))
    if model["type"] != "BPE" or not ("ByteLevel" in decoder or has_byte_tokens):
        raise RunError(
            f"GGUF has tokenizers of byte-pairs only, and this one is of {tokenizer.kind}. "
            "Train with tokenizer=byte-pairs. For transformers: --to huggingface"
        )
    added = {token["id"]: token for token in pipeline["added_tokens"]}
    ids = {**model["vocab"], **{token["content"]: index for index, token in added.items()}}
    tokens, kinds = [f"[PAD{index}]" for index in range(vocabulary)], [UNUSED] * vocabulary
    for token, index in ids.items():
        tokens[index] = token
        if token == model.get("unk_token"):
            kinds[index] = UNKNOWN
        elif (index in added and added[index]["special"]) or index == tokenizer.eos:
            kinds[index] = CONTROL
        elif has_byte_tokens and token.startswith("<0x"):
            kinds[index] = BYTE
        else:
            kinds[index] = USER_DEFINED if index in added else NORMAL
    merges = [tuple(merge.split(" ", 1)) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
    if has_byte_tokens:
        writer.add_tokenizer_model("llama")
        scores = dict.fromkeys(tokens, 0.0)
        for rank, (left, right) in reversed(list(enumerate(merges, start=1))):
            scores[left + right] = -float(rank)
        writer.add_token_scores([scores[token] for token in tokens])
        writer.add_add_space_prefix("Prepend" in json.dumps(pipeline["normalizer"]))
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(_pre_tokenizer_name(pipeline["pre_tokenizer"]))
        writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    for name, index in {"bos": tokenizer.bos, "eos": tokenizer.eos, "unk": tokenizer.unk}.items():
        if index is not None:
            getattr(writer, f"add_{name}_token_id")(index)
    writer.add_add_bos_token(bool(tokenizer.prefix))
    if isinstance(template := tokenizer.config.get("chat_template"), str):
        writer.add_chat_template(template)


def _pre_tokenizer_name(pre_tokenizer: Mapping[str, Any]) -> str:
    """Return the name in GGUF of a pre-tokenizer (JSON of the library tokenizers); one without a name is a RunError."""
    expected = _parse_without_offsets(json.dumps(pre_tokenizer))
    for name, known in PRE_TOKENIZERS.items():
        if name != "default" and _parse_without_offsets(known.__getstate__()) == expected:
            return name
    raise RunError("the rule by which this tokenizer first cuts a text has no name in GGUF.")


def _parse_without_offsets(text: str | bytes) -> Any:
    """Parse a pre-tokenizer's JSON and drop `trim_offsets` from all objects, since it does not change the tokens."""
    return json.loads(text, object_hook=lambda entries: {k: v for k, v in entries.items() if k != "trim_offsets"})
