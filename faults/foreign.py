"""Files of other programs, each field changed in turn: only Lemma's errors, within two seconds, bounded memory."""

import copy
import json
import math
import random
import struct
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer as Engine

from faults import Row, failure_of, home
from lemma.adaptation.adapt import adapt_model
from lemma.data.chat import close_renderers
from lemma.data.tokenizers import CONFIG_FILE, GENERATION_FILE, TEMPLATE_FILE, Tokenizer, train_tokenizer
from lemma.hub.huggingface import TOKENIZER, WEIGHTS, write_folder
from lemma.hub.peft import CONFIG as PEFT_CONFIG
from lemma.hub.peft import WEIGHTS as PEFT_WEIGHTS
from lemma.hub.peft import read_peft, write_peft
from lemma.hub.pretrained import CHECKSUMS, open_pretrained
from lemma.hub.pretrained import CONFIG as MODEL_CONFIG
from lemma.models.base import named_weights
from lemma.models.build import build
from lemma.spec.data import BytePairs
from lemma.spec.models import Decoder
from lemma.spec.recipe import Lora

FLIPS = 600
"""Flipped bytes in the header of each kind of binary file."""
TALK = [{"role": "user", "content": "Hi!"}]
SPEC = Decoder(width=8, depth=2, heads=2, context=16, feed_forward=8, norm="rms", gated=True, activation="silu")


# GGUF, written by hand: a value of metadata is a pair of its type and itself.

TEXT, LIST = 8, 9
CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
Typed = tuple[int, Any]
Change = tuple[str, Callable[[], bytes]]
"""What is changed, and a function that makes the file."""


class TensorInfo(NamedTuple):
    """A tensor's entry in the header of a GGUF file."""

    name: str
    sizes: tuple[int, ...]
    kind: int = 0
    offset: int | None = None
    dimensions: int | None = None


def text_bytes(text: str) -> bytes:
    """Encode a text as GGUF does."""
    content = text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(content)) + content


def value_bytes(kind: int, value: Any) -> bytes:
    """Encode a value of metadata; a list's value is a pair of the elements' type and the elements."""
    if kind == TEXT:
        return text_bytes(value)
    if kind == LIST:
        inner, values = value
        return struct.pack("<IQ", inner, len(values)) + b"".join(value_bytes(inner, entry) for entry in values)
    return struct.pack(f"<{CODES[kind]}", value) if kind in CODES else b"\0" * 8


def gguf_bytes(metadata: dict[str, Typed], tensors: list[TensorInfo]) -> tuple[bytes, int]:
    """Write a GGUF file; return it with the length of its header."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, (kind, value) in metadata.items():
        head += text_bytes(key) + struct.pack("<I", kind) + value_bytes(kind, value)
    end = 0
    for name, sizes, kind, offset, dimensions in tensors:
        head += text_bytes(name) + struct.pack("<I", len(sizes) if dimensions is None else dimensions)
        head += b"".join(struct.pack("<Q", size) for size in sizes)
        head += struct.pack("<IQ", kind, end if offset is None else offset)
        if all(size < 1 << 20 for size in sizes):
            end += 4 * math.prod(sizes) + -4 * math.prod(sizes) % 32
    padding = -len(head) % 32
    return head + b"\0" * padding + random.Random(1).randbytes(end).replace(b"\xff", b"\0"), len(head)


def good_gguf(tokenizer: str) -> tuple[dict[str, Typed], list[TensorInfo]]:
    """Metadata and tensors of a small Llama, with either kind of tokenizer."""
    letters = [*"abcdefgh", "ab", "cd", "abcd", "<s>", "</s>", "<unk>"]
    metadata: dict[str, Typed] = {
        "general.architecture": (TEXT, "llama"),
        "general.alignment": (4, 32),
        "llama.embedding_length": (4, 8),
        "llama.feed_forward_length": (4, 8),
        "llama.block_count": (4, 2),
        "llama.attention.head_count": (4, 2),
        "llama.attention.head_count_kv": (4, 2),
        "llama.attention.key_length": (4, 4),
        "llama.attention.layer_norm_rms_epsilon": (6, 1e-5),
        "llama.attention.sliding_window": (4, 8),
        "llama.context_length": (4, 16),
        "llama.rope.freq_base": (6, 10000.0),
        "llama.rope.dimension_count": (4, 4),
        "llama.rope.scaling.type": (TEXT, "yarn"),
        "llama.rope.scaling.factor": (6, 2.0),
        "llama.rope.scaling.original_context_length": (4, 8),
        "llama.rope.scaling.yarn_beta_fast": (6, 32.0),
        "llama.rope.scaling.yarn_attn_factor": (6, 1.0),
        "tokenizer.ggml.model": (TEXT, tokenizer),
        "tokenizer.ggml.pre": (TEXT, "gpt-2"),
        "tokenizer.ggml.tokens": (LIST, (TEXT, letters)),
        "tokenizer.ggml.token_type": (LIST, (5, [1] * 11 + [3, 3, 2])),
        "tokenizer.ggml.scores": (LIST, (6, [-float(rank) for rank in range(14)])),
        "tokenizer.ggml.merges": (LIST, (TEXT, ["a b", "c d", "ab cd"])),
        "tokenizer.ggml.bos_token_id": (4, 11),
        "tokenizer.ggml.eos_token_id": (4, 12),
        "tokenizer.ggml.unknown_token_id": (4, 13),
        "tokenizer.ggml.add_bos_token": (7, True),
        "tokenizer.ggml.add_space_prefix": (7, True),
        "tokenizer.chat_template": (TEXT, "{{ messages[0].content }}"),
    }
    tensors = [TensorInfo("token_embd.weight", (8, 14)), TensorInfo("output_norm.weight", (8,))]
    for layer in range(2):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            tensors.append(TensorInfo(f"blk.{layer}.{name}.weight", (8, 8)))
        tensors += [TensorInfo(f"blk.{layer}.{name}.weight", (8,)) for name in ("attn_norm", "ffn_norm")]
    return metadata, tensors


WRONG_TYPED: list[Typed] = [
    (0, 0),
    (4, 0),
    (4, 1),
    (4, 3),
    (4, 2**32 - 1),
    (5, -1),
    (5, -32),
    (10, 2**64 - 1),
    (11, -(2**63)),
    (6, math.nan),
    (6, math.inf),
    (6, -1.0),
    (12, 1e308),
    (7, True),
    (99, 0),
    (TEXT, ""),
    (TEXT, "x"),
    (TEXT, "{% for a in range(9) %}"),
    (TEXT, "x" * 200_000),
    (LIST, (4, [])),
    (LIST, (4, [2, 2])),
    (LIST, (6, [math.nan] * 14)),
    (LIST, (TEXT, ["a"])),
    (LIST, (TEXT, [""] * 14)),
    (LIST, (TEXT, ["x" * 200_000] * 14)),
    (LIST, (TEXT, [" "] * 3)),
    (LIST, (5, [-1] * 14)),
    (LIST, (LIST, [(4, [1])] * 14)),
    (LIST, (99, [0])),
]


def changed_gguf(tokenizer: str) -> Iterator[Change]:
    """GGUF files of which one field is missing or has another value."""
    metadata, tensors = good_gguf(tokenizer)

    def make(metadata: dict[str, Typed], tensors: list[TensorInfo]) -> Callable[[], bytes]:
        return lambda: gguf_bytes(metadata, tensors)[0]

    for key in metadata:
        yield f"no {key}", make({name: value for name, value in metadata.items() if name != key}, tensors)
        for wrong in WRONG_TYPED:
            yield f"{key} = {wrong[0]}: {str(wrong[1])[:40]}", make({**metadata, key: wrong}, tensors)
    for number, tensor in enumerate(tensors[:6]):
        changes: list[TensorInfo | None] = [None, tensors[0]]
        changes += [tensor._replace(name=name) for name in ("", "blk.", "blk.x.y", "blk.0.a.b.c", "x" * 200_000, "é\0")]
        changes += [tensor._replace(dimensions=count) for count in (0, 3, 5, 2**32 - 1)]
        changes += [tensor._replace(sizes=(size, *tensor.sizes[1:])) for size in (0, 1, 7, 2**31, 2**63, 2**64 - 1)]
        changes += [tensor._replace(sizes=(*tensor.sizes, 2**62))]
        changes += [tensor._replace(kind=kind) for kind in (*range(1, 42), 99, 2**32 - 1)]
        changes += [tensor._replace(offset=offset) for offset in (0, 1, 32, 1 << 20, 2**63, 2**64 - 32)]
        for change in changes:
            changed = [*tensors[:number], *([change] if change else []), *tensors[number + 1 :]]
            yield f"{tensor.name}: {str(change)[:60]}", make(metadata, changed)


# JSON

DEEP: Any = []
for _ in range(200):
    DEEP = [DEEP]
WRONG: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    2**31 - 1,
    10**30,
    1e308,
    -1e-300,
    "",
    "x",
    "8",
    "(a+)+$",
    "x" * 100_000,
    [],
    [1],
    ["x"],
    [None],
    {},
    {"a": {}},
    {"(x+)+y": 1},
    [{"name": "default"}],
    DEEP,
]


def changed_json(values: dict[str, Any], more: tuple[str, ...] = ()) -> Iterator[Change]:
    """JSON files of which one field, at any depth, is missing or has another value; `more` are fields to be added."""

    def make(changed: Any) -> Callable[[], bytes]:
        return lambda: json.dumps(changed).encode()

    for path in [*field_paths(values), *((name,) for name in more)]:
        for wrong in WRONG:
            changed = copy.deepcopy(values)
            parent = changed
            for step in path[:-1]:
                parent = parent[step]
            parent[path[-1]] = wrong
            yield f"{'.'.join(map(str, path))} = {str(wrong)[:40]}", make(changed)
        if len(path) == 1 and path[0] in values:
            yield f"no {path[0]}", make({name: value for name, value in values.items() if name != path[0]})
    yield from fixed_contents(b"", b"[]", b"\xff", b"{", b"[" * 100_000, b'{"a": NaN}', b"9" * 5000)


def fixed_contents(*contents: bytes) -> Iterator[Change]:
    """Files of some contents."""
    for content in contents:
        yield f"{content[:20]!r}", lambda content=content: content


def field_paths(values: dict[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all fields."""
    for name, value in values.items():
        yield (*prefix, name)
        if isinstance(value, dict):
            yield from field_paths(value, (*prefix, name))


def flipped(content: bytes, length: int, chance: random.Random, count: int) -> Iterator[Change]:
    """A file with one or two bytes of its header changed, or cut off."""
    for _ in range(count):
        changed = bytearray(content)
        for _ in range(chance.randrange(1, 3)):
            changed[chance.randrange(length)] = chance.choice([0, 1, 255, 128, chance.randrange(256)])
        cut = chance.randrange(20) == 0
        yield from fixed_contents(bytes(changed[: chance.randrange(len(changed))] if cut else changed))


# The campaign


def use(path: Path) -> None:
    """Read all of a pretrained model: its spec, its tokenizer, its template and its weights."""
    source = open_pretrained(path)
    _ = source.spec
    tokenizer = source.tokenizer
    tokenizer.encode_lossy("a cat abcd")
    _ = tokenizer.sampling, tokenizer.stop_tokens, tokenizer.pad, tokenizer.mask_tokens
    source.model()
    if tokenizer.has_chat_template:
        tokenizer.chat(TALK)


def write_files(folder: Path) -> Path:
    """Write a small model as a Hugging Face folder."""
    engine = Engine.from_str(train_tokenizer(BytePairs(vocabulary=260), ["the cat sat on the mat " * 9]).json)
    engine.add_special_tokens(["<s>", "</s>"])
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": "{{ bos_token }}{{ messages[0].content }}"}
    tokenizer = Tokenizer(engine.to_str(), config=settings)
    spec = SPEC.replace(vocabulary=tokenizer.vocabulary, positions={"kind": "rotary", "scaling": "llama3"}, bias=False)
    folder.mkdir()
    write_folder(folder, spec, named_weights(build(spec)), tokenizer)
    return folder


def foreign(folder: Path, fraction: float, seed: int = 1) -> Iterator[Row]:
    """GGUF, config.json, tokenizer_config.json, generation_config.json, chat templates, peft and safetensors."""
    chance = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    model = write_files(folder / "model")
    base = build(SPEC)
    write_peft(adapt_model(build(SPEC), Lora(rank=2, targets=("layers.*",))).model, folder / "peft")
    (folder / "peft" / CHECKSUMS).unlink()  # as another program writes such a folder: without Lemma's checksums

    def read_adapter(path: Path) -> None:
        read_peft(path, copy.deepcopy(base))

    def in_json(path: Path, more: tuple[str, ...]) -> Iterator[Change]:
        return changed_json(json.loads(path.read_text()) if path.exists() else {}, more)

    def in_header(path: Path) -> Iterator[Change]:
        content = path.read_bytes()
        return flipped(content, min(len(content), 8 + int.from_bytes(content[:8], "little")), chance, FLIPS)

    gguf = folder / "model.gguf"
    special = ("bos_token", "eos_token", "pad_token", "mask_token", "chat_template", "tokenizer_class")
    sampling = ("temperature", "top_k", "top_p", "do_sample", "eos_token_id", "repetition_penalty", "min_p")
    sizes = ("head_dim", "rope_scaling", "rope_theta", "layer_types", "architectures", "quantization_config")
    options = ("rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "exclude_modules", "layers_to_transform")
    spinning = b"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    templates = fixed_contents(
        b"\xff", b"{{", spinning, b"{{ 'a' * 9999999999 }}", b"{{ messages[9].x }}", b" " * (2 << 20)
    )
    peft = folder / "peft"
    kinds: list[tuple[str, Path, Path, Iterator[Change], Callable[[Path], None]]] = [
        *((f"GGUF, {name} tokenizer", gguf, gguf, changed_gguf(name), use) for name in ("llama", "gpt2")),
        ("GGUF, flipped bytes", gguf, gguf, flipped(*gguf_bytes(*good_gguf("llama")), chance, FLIPS), use),
        ("config.json", model / MODEL_CONFIG, model, in_json(model / MODEL_CONFIG, sizes), use),
        (CONFIG_FILE, model / CONFIG_FILE, model, in_json(model / CONFIG_FILE, special), use),
        (GENERATION_FILE, model / GENERATION_FILE, model, in_json(model / GENERATION_FILE, sampling), use),
        (TEMPLATE_FILE, model / TEMPLATE_FILE, model, templates, use),
        (f"{TOKENIZER}, flipped bytes", model / TOKENIZER, model, in_header(model / TOKENIZER), use),
        (f"{WEIGHTS}, flipped bytes", model / WEIGHTS, model, in_header(model / WEIGHTS), use),
        (PEFT_CONFIG, peft / PEFT_CONFIG, peft, in_json(peft / PEFT_CONFIG, options), read_adapter),
        (f"{PEFT_WEIGHTS}, flipped bytes", peft / PEFT_WEIGHTS, peft, in_header(peft / PEFT_WEIGHTS), read_adapter),
    ]
    gguf.write_bytes(gguf_bytes(*good_gguf("llama"))[0])
    with home(folder / "home"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind, file, path, changes, read in kinds:
            read(path)  # as it is, it can be read
            row, good = Row("foreign", kind), file.read_bytes() if file.exists() else None
            for description, make in changes:
                if chance.random() >= fraction:
                    continue
                file.write_bytes(make())
                row.add(failure_of(lambda path=path, read=read: read(path), description))
            if good is None:
                file.unlink(missing_ok=True)
            else:
                file.write_bytes(good)
            yield row
    close_renderers()
