"""Tokenizers over characters, words and byte pairs, and those of pretrained models: trained, loaded, applied."""

import json
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64
from pydantic import Field
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Engine

from lemma.data.batches import gather
from lemma.data.chat import ChatTemplateError, ChatText, render_chat
from lemma.data.foreign import ForeignFields, reading_foreign_file
from lemma.errors import DataError
from lemma.files import MAX_JSON_BYTES, read_json, text_hash, unreadable_error, write_atomically
from lemma.spec.data import BytePairs, Characters, PretrainedTokenizer, Words
from lemma.spec.models import SPECIAL_TOKENS

EOS = "<eos>"
UNK = "<unk>"
PRETRAINED = "pretrained"
# The files next to a pretrained model's `tokenizer.json`, as transformers writes them
CONFIG_FILE, TEMPLATE_FILE, GENERATION_FILE = "tokenizer_config.json", "chat_template.jinja", "generation_config.json"
DIFFERENT_WORDS = 500_000  # that are counted at once; beyond that the rarest so far are dropped to bound memory
MAX_WORD_LENGTH = 100  # a longer word is `<unk>`: a text without white space must not become its own vocabulary
MAX_TEMPLATE_BYTES = 1 << 20

Ids = Int64[np.ndarray, " tokens"]


class Tokenizer:
    """Text to ids and back; its JSON is that of the `tokenizers` library and gives the same ids everywhere.

    A pretrained model's tokenizer (`kind` is "pretrained") comes with the settings of its `tokenizer_config.json` and
    `generation_config.json`: special tokens, where to stop, how to sample, the chat template.

    >>> from lemma.data.tokenizers import train_tokenizer
    >>> from lemma.spec.data import Characters
    >>> tokenizer = train_tokenizer(Characters(), ["abba"])
    >>> tokenizer, tokenizer.encode("baa"), tokenizer.decode([1, 0])
    (<Tokenizer: characters, V = 2>, array([1, 0, 0]), 'ba')
    """

    def __init__(
        self,
        json: str,
        source: str = "the tokenizer",
        *,
        config: Mapping[str, Any] | None = None,
        generation: Mapping[str, Any] | None = None,
        vocabulary: int | None = None,
    ) -> None:
        try:
            self._engine = Engine.from_str(json)
        except Exception as error:  # the library raises nothing narrower
            raise DataError(f"{source}: not a tokenizer of the tokenizers library ({error}).") from None
        self._engine.no_truncation()
        self._engine.no_padding()  # to a length that the file says, however large
        self.json, self._source = json, source
        self.config, self.generation = dict(config or {}), dict(generation or {})
        self._template_file = source
        _ = self._fields  # wrong types are an error now, not at the first conversation
        self.kind = _detect_kind(self._engine, source)  # characters, words, byte-pairs or pretrained
        numbers = self._engine.get_vocab()
        larger = (vocabulary or 0) if self.kind == PRETRAINED else 0  # some models have more rows than tokens
        self.vocabulary: int = max(larger, max(numbers.values(), default=-1) + 1)  # V
        self.unk: int | None = numbers.get(UNK) if self.kind == "words" else None
        self.eos: int | None = numbers.get(EOS) if self.kind in ("words", "byte-pairs") else None
        self.bos: int | None = None
        self.prefix: tuple[int, ...] = ()  # special tokens that a pretrained model's texts begin with
        self.suffix: tuple[int, ...] = ()  # and end with
        self._adds_space = False
        self.hash = text_hash(json)
        if self.kind == "byte-pairs":
            self._encode_batch = BytePairEncoder(self._engine).encode_batch
        elif self.kind == "characters":
            self._encode_batch = partial(_encode_characters, _code_point_table(numbers))
        elif self.kind == "words":
            self._encode_batch = partial(_encode_words, numbers)
        else:
            self._encode_batch = partial(_encode_with_library, self._engine)
            self._read_special_tokens()

    def _read_special_tokens(self) -> None:
        """Set `bos`, `eos`, `unk`, `prefix` and `suffix` of a pretrained model from its pipeline and configuration."""
        special = {name: self._engine.token_to_id(text) for name, text in self.special_tokens.items()}
        for name in ("bos_token", "eos_token"):
            special.setdefault(name, next(iter(self._valid_ids(self.generation.get(f"{name}_id"))), None))
        self.bos, self.eos, self.unk = special["bos_token"], special["eos_token"], special.get("unk_token")
        try:
            bare, full = (self._engine.encode("a", add_special_tokens=added).ids for added in (False, True))
            both, second = (self._engine.encode(text, add_special_tokens=False).ids for text in ("a b", " b"))
        except Exception as error:  # the library raises nothing narrower
            raise DataError(f"{self._source}: the tokenizer cannot encode a text ({error}).") from None
        start = next((i for i in range(len(full)) if full[i : i + len(bare)] == bare), 0)
        self.prefix, self.suffix = tuple(full[:start]), tuple(full[start + len(bare) :])
        self._adds_space = both != bare + second
        self.hash = text_hash(f"{self.hash} {self.bos} {self.eos} {self.vocabulary}")
        if str(self.config.get("tokenizer_class", "")).startswith("Bert") and (ids := self.mask_tokens):
            affixes = ids[:1], ids[1:2]  # whatever the pipeline says: transformers' class for BERT has its own
            if affixes != (self.prefix, self.suffix):
                self.prefix, self.suffix = affixes
                self.hash = text_hash(f"{self.hash} {affixes}")

    @property
    def special_tokens(self) -> dict[str, str]:
        """Special tokens by their names in `tokenizer_config.json`, such as bos_token."""
        if self.kind != PRETRAINED:
            trained = {"eos_token": (self.eos, EOS), "unk_token": (self.unk, UNK)}
            return {name: text for name, (token, text) in trained.items() if token is not None}
        tokens = self._fields.special_tokens.items()
        texts = {name: token.content if isinstance(token, AddedTokenFields) else token for name, token in tokens}
        return {name: text for name, text in texts.items() if isinstance(text, str) and text}

    @property
    def pad(self) -> int | None:
        """Id with which other libraries may pad: a special token that no text begins or ends with; None without one."""
        name = self.special_tokens.get("pad_token")
        candidates = (None if name is None else self._engine.token_to_id(name), self.eos, self.unk)
        return next((token for token in candidates if token not in (None, *self.prefix, *self.suffix)), None)

    @property
    def mask_tokens(self) -> tuple[int, int, int] | None:
        """Ids of a pretrained encoder's <start>, <end> and <mask> tokens; None unless it has all three."""
        names = (self.special_tokens.get(name) for name in ("cls_token", "sep_token", "mask_token"))
        start, end, mask = (None if name is None else self._engine.token_to_id(name) for name in names)
        return None if start is None or end is None or mask is None else (start, end, mask)

    @property
    def sampling(self) -> dict[str, Any]:
        """Sampling settings that a pretrained model recommends, by their names in `generate`."""
        fields = GenerationFields.read(self.generation, self._source) if self.generation else GenerationFields()
        settings = fields.model_dump(exclude={"do_sample"})
        for name in ("top_k", "top_p", "no_repeat_ngram"):  # 0 switches one off there
            settings[name] = None if settings[name] in (0, -1) else settings[name]
        if fields.do_sample is False:
            settings["temperature"] = 0.0
        settings["stop_tokens"] = tuple(sorted(self.stop_tokens - {self.eos})) or None
        return {name: value for name, value in settings.items() if value is not None}

    @property
    def stop_tokens(self) -> frozenset[int]:
        """Ids that end a generated text: `<eos>`, and all that a pretrained model's configuration lists."""
        return frozenset(self._valid_ids([*self._valid_ids(self.generation.get("eos_token_id")), self.eos]))

    def _valid_ids(self, ids: Any) -> list[int]:
        """Return the values of `ids`, one or a list, that are ids of the vocabulary."""
        candidates = ids if isinstance(ids, list) else [ids]
        return [token for token in candidates if isinstance(token, int) and 0 <= token < self.vocabulary]

    def boundary_tokens(self, special_tokens: bool) -> tuple[Sequence[int], Sequence[int]]:
        """Return the special ids that come before an example and those that come after it.

        A pretrained tokenizer has its own; others use `<start>` and `<end>`, numbered after the vocabulary, if
        `special_tokens`, else none.
        """
        if self.kind == PRETRAINED:
            return self.prefix, self.suffix
        return ((self.vocabulary,), (self.vocabulary + 1,)) if special_tokens else ((), ())

    def model_vocabulary(self, special_tokens: bool) -> int:
        """Return the vocabulary size of a model with this tokenizer; `special_tokens` adds `<start>` and the like."""
        return self.vocabulary + (len(SPECIAL_TOKENS) if special_tokens and self.kind != PRETRAINED else 0)

    @property
    def description(self) -> str:
        """Kind and vocabulary size as text, such as "words, V = 1,000"."""
        return f"{self.kind}, V = {self.vocabulary:,}"

    def __repr__(self) -> str:
        return f"<Tokenizer: {self.description}>"

    def encode(self, text: str) -> Ids:
        """Return the ids of a text as a model reads it; an unknown character is a DataError.

        A pretrained model's tokenizer adds its special tokens, such as the beginning of the text, if the model was
        trained with them; all other methods encode just the text.
        """
        ids, _ = self.encode_batch([text])
        if (missing := np.flatnonzero(ids < 0)).size:
            offset = int(missing[0])
            raise DataError(
                f"the character {text[offset]!r} (U+{ord(text[offset]):04X}) at offset {offset} is not among the "
                f"{self.vocabulary} characters that the tokenizer knows. Leave it out, or train on text that has it."
            )
        if isinstance(text, ChatText) or not (self.prefix or self.suffix):
            return ids
        return np.concatenate([self.prefix, ids, self.suffix]).astype(np.int64)

    def encode_lossy(self, text: str, continued: bool = False) -> tuple[Ids, int]:
        """Return the ids of a text without unknown characters, and the number of these characters.

        A `continued` text was cut off before the space that it begins with; some tokenizers add that space themselves.
        """
        ids, _ = self.encode_batch([text[1:] if continued and self._adds_space and text[:1] == " " else text])
        valid = ids[ids >= 0]
        return valid, len(ids) - len(valid)

    def encode_batch(self, texts: Sequence[str]) -> tuple[Ids, Ids]:
        """Return the concatenated ids of texts (−1 for unknown characters), and their bounds.

        Text i has the ids from bounds[i] to bounds[i + 1].
        """
        for text in texts:
            if not text.isascii() and (surrogate := _SURROGATE.search(text)):
                raise DataError(
                    f"offset {surrogate.start()}: half a surrogate pair (U+{ord(surrogate[0]):04X}) is not a "
                    "character. Decode the text as UTF-8 before giving it."
                )
        return self._encode_batch(texts)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the text of a sequence of ids, without a pretrained model's special tokens."""
        numbers = np.asarray(ids, dtype=np.int64)
        invalid = numbers[(numbers < 0) | (numbers >= self.vocabulary)]
        if invalid.size:
            raise DataError(
                f"the token {invalid[0]} is not one of 0 to {self.vocabulary - 1}. "
                "Decode with the tokenizer that made the ids."
            )
        return self._engine.decode(numbers.tolist(), skip_special_tokens=self.kind == PRETRAINED)

    def token_strings(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        """Return for each id the text that it adds after the id before; for a special token its name."""
        strings: list[str] = []
        for index, token in enumerate(np.asarray(ids).tolist()):
            previous = [] if self.kind != PRETRAINED or not index else [int(ids[index - 1])]
            text = self.decode([*previous, token])[len(self.decode(previous)) if previous else 0 :]
            strings.append(text or self._engine.id_to_token(token) or "")
        return strings

    @property
    def has_chat_template(self) -> bool:
        """True if the model comes with a template for conversations."""
        return self._template is not None

    @property
    def _fields(self) -> "TokenizerFields":
        """Validated fields of `tokenizer_config.json`."""
        return TokenizerFields.from_config(self.config, self._source) if self.config else TokenizerFields()

    @property
    def _template(self) -> str | None:
        """Jinja source of the chat template; None without one."""
        template = self._fields.chat_template
        if isinstance(template, list):  # some models have several, by name
            return next((choice.template for choice in template if choice.name == "default"), None)
        return template

    def has_role(self, role: str) -> bool:
        """Return whether the source of the chat template quotes a role's name, as in `message.role == 'developer'`."""
        return any(f"{quote}{role}{quote}" in (self._template or "") for quote in "'\"")

    def chat(self, messages: Sequence[Mapping[str, Any]], **settings: Any) -> ChatText:
        """Return a conversation as text by the model's chat template, up to where the assistant answers.

        Each message has a `role` (system, user or assistant) and a `content`. `settings` reach the template.
        """
        template = self._template
        if template is None:
            raise DataError(
                "this model has no chat template: it was not trained on conversations. "
                "Give it a text to go on with: --prompt '…'"
            )
        try:
            return render_chat(template, messages, self.special_tokens, **settings)
        except ChatTemplateError as error:
            raise DataError(f"{self._template_file}: {error}") from None

    def settings(self) -> dict[str, Any]:
        """Return the keyword arguments of `Tokenizer` that build the same tokenizer in another process."""
        sizes = {"config": self.config, "generation": self.generation, "vocabulary": self.vocabulary}
        return {"json": self.json, "source": self._source, **sizes}

    def pipeline(self) -> dict[str, Any]:
        """Return the JSON of the `tokenizers` library as a dictionary."""
        return json.loads(self._engine.to_str())

    def save(self, path: str | Path) -> None:
        """Write the tokenizer to a JSON file that the library and transformers read, and its settings next to it."""
        path = Path(path)
        write_atomically(path, self.json.encode())
        for name, values in ((CONFIG_FILE, self.config), (GENERATION_FILE, self.generation)):
            if values:
                write_atomically(path.with_name(name), json.dumps(values, indent=2, ensure_ascii=False) + "\n")

    @classmethod
    def load(
        cls,
        path: str | Path,
        vocabulary: int | None = None,
        default_config: Mapping[str, Any] | None = None,
        **generation: Any,
    ) -> "Tokenizer":
        """Read a tokenizer's JSON file, whose kind is recognised, and the settings in the files next to it.

        The model's `vocabulary` may be larger than the tokenizer's. `default_config` and `generation` are fields for
        those that `tokenizer_config.json` and `generation_config.json` lack.
        """
        path = Path(path)
        try:
            if (size := path.stat().st_size) > MAX_JSON_BYTES:
                raise DataError(f"{path} has {size:,} bytes; a tokenizer has at most {MAX_JSON_BYTES:,}.")
            content = path.read_bytes().decode()
        except FileNotFoundError:
            raise DataError(f"{path}: there is no such tokenizer file.") from None
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: cannot be read as a tokenizer file ({error}).") from None
        except OSError as error:
            raise unreadable_error(path, error) from None
        config_file, generation_file, template_file = (
            path.with_name(name) for name in (CONFIG_FILE, GENERATION_FILE, TEMPLATE_FILE)
        )
        config, file_generation = (read_json(file) if file.is_file() else {} for file in (config_file, generation_file))
        if config:
            TokenizerFields.from_config(config, str(config_file))  # to name this file in errors
        if file_generation:
            GenerationFields.read(file_generation, generation_file)
        config = {**(default_config or {}), **config}
        if template_file.is_file():
            with reading_foreign_file(template_file):
                if (size := template_file.stat().st_size) > MAX_TEMPLATE_BYTES:
                    raise DataError(
                        f"{template_file} has {size:,} bytes; a chat template has at most {MAX_TEMPLATE_BYTES:,}."
                    )
                config["chat_template"] = template_file.read_text(encoding="utf-8")
        generation = {name: value for name, value in generation.items() if value is not None} | file_generation
        tokenizer = cls(content, str(path), config=config, generation=generation, vocabulary=vocabulary)
        tokenizer._template_file = str(template_file if template_file.is_file() else config_file)
        return tokenizer


def train_tokenizer(spec: Characters | Words | BytePairs | PretrainedTokenizer, pieces: Iterable[str]) -> Tokenizer:
    """Train the tokenizer that `spec` describes on pieces of training text; the same text always gives the same one.

    Characters are numbered in the order of their code points; words by their frequency, and equally frequent ones in
    the order of their code points. Byte pairs are merged until the vocabulary, with all 256 bytes and `<eos>`, has its
    size. A pair that occurs only once is not merged, so a short text yields a smaller vocabulary; of equally frequent
    pairs the library merges the one whose parts were learned first. Runs longer than 100 characters are cut.

    >>> train_tokenizer(Words(minimum_count=2), ["b a b c", " a c a"]).decode([2, 3, 4])
    'a b c'
    """
    if isinstance(spec, PretrainedTokenizer):
        raise DataError(
            "tokenizer = pretrained comes with a pretrained model and is not trained. To use it, adapt that model: "
            "lemma adapt smollm2-135m --text FILE --out RUN"
        )
    if isinstance(spec, Characters):
        alphabet: set[str] = set()
        for piece in pieces:
            alphabet.update(set(piece))
        engine = characters_pipeline(sorted(alphabet))
    elif isinstance(spec, Words):
        engine = words_pipeline(_frequent_words(spec, pieces))
    else:
        engine = _train_byte_pairs(spec, pieces)
    return Tokenizer(engine.to_str(pretty=True))


def _frequent_words(spec: Words, pieces: Iterable[str]) -> list[str]:
    """Count the words of the training text; return those for the vocabulary, the most frequent first."""
    counts: Counter[str] = Counter()
    for piece in pieces:
        words = split_words(piece)
        if max(map(len, words), default=0) > MAX_WORD_LENGTH:
            words = [word for word in words if len(word) <= MAX_WORD_LENGTH]
        counts.update(words)
        threshold = 1
        while len(counts) > DIFFERENT_WORDS:
            for word in [word for word, count in counts.items() if count <= threshold]:
                del counts[word]
            threshold += 1
    least = spec.minimum_count
    ranked = sorted((-count, word) for word, count in counts.items() if count >= least and word not in (UNK, EOS))
    if not ranked:
        raise DataError(
            f"the training text has no words: nothing of at most {MAX_WORD_LENGTH} characters between white space. "
            "Take characters or byte-pairs for it."
            if least == 1
            else f"no word is seen {least} times in the training text. Set a lower minimum_count or give more text."
        )
    limit = None if spec.vocabulary is None else spec.vocabulary - 2
    return [word for _, word in ranked[:limit]]


def _train_byte_pairs(spec: BytePairs, pieces: Iterable[str]) -> Engine:
    """Train byte-pair merges on pieces of text; return the pipeline of the `tokenizers` library."""
    trainer: Any = trainers.BpeTrainer(
        vocab_size=spec.vocabulary - 1,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    engine = byte_pairs_pipeline({}, [])
    # Training takes time in the square of the longest word: text without spaces would take hours.
    engine.train_from_iterator(chain.from_iterable(map(_CUT_AFTER_LONG_RUNS.findall, pieces)), trainer)
    model = json.loads(engine.to_str())["model"]
    return byte_pairs_pipeline({**model["vocab"], EOS: len(model["vocab"])}, map(tuple, model["merges"]))


# Settings of pretrained tokenizers


class ChatTemplateFields(ForeignFields):
    """Name and Jinja source of one of several chat templates of a model."""

    name: str
    template: str


class AddedTokenFields(ForeignFields):
    """A special token that the configuration writes as an object, not as a string."""

    content: str


class TokenizerFields(ForeignFields):
    """Fields of `tokenizer_config.json` that are read; every field `*_token` is a special token, a flag or a number."""

    chat_template: str | list[ChatTemplateFields] | None = None
    special_tokens: dict[str, str | AddedTokenFields | bool | float | None] = Field(default={})

    @classmethod
    def from_config(cls, config: Mapping[str, Any], source: str) -> "TokenizerFields":
        """Validate the fields of `tokenizer_config.json`; an error names the file `source`."""
        tokens = {name: value for name, value in config.items() if str(name).endswith("_token")}
        return cls.read({"chat_template": config.get("chat_template"), "special_tokens": tokens}, source)


class GenerationFields(ForeignFields):
    """Fields of `generation_config.json` that recommend how to sample; None, 0 and a top_k of −1 change nothing."""

    do_sample: bool | None = None
    temperature: float | None = Field(default=None, ge=0)
    top_k: int | None = Field(default=None, ge=-1)
    top_p: float | None = Field(default=None, ge=0, le=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0)
    no_repeat_ngram: int | None = Field(default=None, ge=0, alias="no_repeat_ngram_size")


# The three kinds of trained tokenizer as pipelines of the `tokenizers` library. Whatever loads their JSON (the library
# itself, transformers) gives the same ids, because nothing is added to the pipeline outside it. `<eos>` is a plain
# entry of the vocabulary, not an "added token" that the library would look for inside the text: text that spells
# "<eos>" stays text. (Byte-pairs cannot even merge into it, as GPT-2's rule separates letters from signs; among words,
# the word `<eos>` is the token, as in the Penn Treebank the word `<unk>` is.)

# What Python's str.split() splits at, spelled out: the regular expressions of the library know four characters fewer.
_SPACES = r"\t-\r\x1c-\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
_CUT_AFTER_LONG_RUNS = re.compile(r"(?s).*?(?:\S{100}|\s{100})|.+")
_SURROGATE = re.compile("[\ud800-\udfff]")


def characters_pipeline(alphabet: Iterable[str]) -> Engine:
    """Build a pipeline with one token per character of the alphabet, numbered in order; it refuses other characters."""
    engine = Engine(models.WordLevel({character: number for number, character in enumerate(alphabet)}))
    engine.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    engine.decoder = decoders.Fuse()
    return engine


def words_pipeline(words: Iterable[str]) -> Engine:
    """Build a pipeline with one token per listed word; a newline is `<eos>`, a word that is not listed `<unk>`."""
    numbers = {word: number for number, word in enumerate([UNK, EOS, *words])}
    engine = Engine(models.WordLevel(numbers, unk_token=UNK))
    engine.normalizer = normalizers.Replace("\n", f" {EOS} ")
    engine.pre_tokenizer = pre_tokenizers.Split(Regex(f"[{_SPACES}]+"), "removed")
    line_end = decoders.Replace(Regex(f" ?(?<![^ ]){EOS}(?![^ ]) ?"), "\n")
    # A word never holds a space, so that this decoder for word pieces takes every word for a new one.
    engine.decoder = decoders.Sequence([decoders.WordPiece(prefix=" ", cleanup=False), decoders.Fuse(), line_end])
    return engine


def byte_pairs_pipeline(vocabulary: Mapping[str, int], merges: Iterable[tuple[str, str]]) -> Engine:
    """Build a pipeline of byte-level byte-pair encoding that splits text by GPT-2's rule first.

    `vocabulary` maps tokens to ids, and `merges` are pairs of tokens in the order of training.
    """
    engine = Engine(models.BPE(dict(vocabulary), list(merges)))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    engine.decoder = decoders.ByteLevel()
    return engine


def _cutting_rules(engine: Engine) -> tuple[Any, ...]:
    """Return the settings of a pipeline that decide how it splits text, to compare with those of another."""
    pipeline = json.loads(engine.to_str())
    return pipeline["model"]["type"], pipeline["normalizer"], pipeline["pre_tokenizer"], pipeline["added_tokens"]


_CUTTING_RULES = {
    "characters": _cutting_rules(characters_pipeline([])),
    "words": _cutting_rules(words_pipeline([])),
    "byte-pairs": _cutting_rules(byte_pairs_pipeline({}, [])),
}


def _detect_kind(engine: Engine, source: str) -> str:
    """Return "characters", "words" or "byte-pairs" if Lemma trained the tokenizer, else "pretrained"; check its ids.

    >>> _detect_kind(characters_pipeline("abc"), "tokenizer.json")
    'characters'
    """
    rules, numbers = _cutting_rules(engine), engine.get_vocab()
    kind = next((kind for kind, expected in _CUTTING_RULES.items() if rules == expected), None)
    if kind is None:
        if not numbers:
            raise DataError(f"{source}: this tokenizer has no tokens.")
        return PRETRAINED
    if sorted(numbers.values()) != list(range(len(numbers))) or not numbers:
        raise DataError(f"{source}: the ids are not 0 to {len(numbers) - 1}, each once.")
    if (kind == "words" and not {UNK, EOS} <= numbers.keys()) or (
        kind == "characters" and any(len(token) != 1 for token in numbers)
    ):
        raise DataError(f"{source}: the vocabulary is not one of {kind}.")
    return kind


# Fast encoders, one per kind; a test compares each with the library's own ids. They return the ids of some texts one
# after the other (−1 for unknown characters), and the bounds of each text.


def _code_point_table(vocabulary: Mapping[str, int]) -> Int32[np.ndarray, " code_points"]:
    """Return an array of the token id of every Unicode code point; −1 for characters without one."""
    table = np.full(0x110000, -1, dtype=np.int32)
    for character, number in vocabulary.items():
        table[ord(character)] = number
    return table


def _encode_characters(table: Int32[np.ndarray, " code_points"], texts: Sequence[str]) -> tuple[Ids, Ids]:
    """Encode texts by the table of ids by code point; return their concatenated ids and the bounds of each text."""
    points = np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4")
    return table[points].astype(np.int64), np.cumsum([0, *map(len, texts)])


def _encode_words(word_ids: Mapping[str, int], texts: Sequence[str]) -> tuple[Ids, Ids]:
    """Encode texts by the ids of their words; return their concatenated ids and the bounds of each text."""
    words = [split_words(text) for text in texts]
    bounds = np.cumsum([0, *map(len, words)])
    ids = map(word_ids.get, chain.from_iterable(words), repeat(word_ids[UNK]))
    return np.fromiter(ids, np.int64, bounds[-1]), bounds


def _encode_with_library(engine: Engine, texts: Sequence[str]) -> tuple[Ids, Ids]:
    """Encode texts by the `tokenizers` library; return their concatenated ids and the bounds of each text."""
    try:
        lists = [encoding.ids for encoding in engine.encode_batch_fast(list(texts), add_special_tokens=False)]
    except Exception as error:  # the library raises nothing narrower
        raise DataError(f"the tokenizer cannot encode a text: {error}.") from None
    bounds = np.cumsum([0, *map(len, lists)])
    return np.fromiter(chain.from_iterable(lists), np.int64, bounds[-1]), bounds


def split_words(text: str) -> list[str]:
    r"""Return the words of a text, with `<eos>` for every newline.

    >>> split_words("to be\n\nor not")
    ['to', 'be', '<eos>', '<eos>', 'or', 'not']
    """
    return text.replace("\n", f" {EOS} ").split()


class BytePairEncoder:
    """Byte-pair encoder with a cache: the `tokenizers` library encodes every different chunk of text once.

    A chunk is a run of non-spaces with the space before it, or a run of white space: a coarser cut than GPT-2's rule
    makes, at positions where that rule always cuts. Natural text repeats its chunks, which makes this several times as
    fast as encoding it all. The cache is emptied when it has grown past `MAX_CACHED_IDS`.
    """

    MAX_CACHED_IDS = 1 << 20
    # \x1c to \x1f are white space to Python but not to GPT-2's rule.
    _CHUNK = re.compile(r" ?[\S\x1c-\x1f]+|[^\S\x1c-\x1f]+(?![\S\x1c-\x1f])|[^\S\x1c-\x1f]")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._clear_cache()

    def encode_batch(self, texts: Sequence[str]) -> tuple[Ids, Ids]:
        """Return the concatenated ids of texts, and bounds: text i has the ids from bounds[i] to bounds[i + 1]."""
        chunks = [self._CHUNK.findall(text) for text in texts]
        firsts = np.cumsum([0, *map(len, chunks)])
        with self._lock:
            if len(self._ids) > self.MAX_CACHED_IDS:
                self._clear_cache()
            rows = np.fromiter(map(self._rows.__getitem__, chain.from_iterable(chunks)), np.int64, firsts[-1])
            self._encode_new_chunks()
            ends = np.cumsum(np.concatenate([[0], np.diff(self._bounds)[rows]]))
            return gather(self._ids, self._bounds, rows), ends[firsts]

    def _clear_cache(self) -> None:
        """Empty the cache of encoded chunks."""
        self._rows: defaultdict[str, int] = defaultdict()
        self._rows.default_factory = self._rows.__len__  # a new chunk gets the next row
        self._ids: Ids = np.zeros(0, dtype=np.int64)
        self._bounds: Ids = np.zeros(1, dtype=np.int64)  # row r owns ids[bounds[r] : bounds[r + 1]]

    def _encode_new_chunks(self) -> None:
        """Encode the chunks that were added to `_rows` since the last call, and append their ids."""
        num_new = len(self._rows) + 1 - len(self._bounds)
        if not num_new:
            return
        chunks = list(islice(reversed(self._rows), num_new))[::-1]
        try:
            lists = [encoding.ids for encoding in self._engine.encode_batch_fast(chunks, add_special_tokens=False)]
        except BaseException:
            self._clear_cache()  # rows without ids must not stay
            raise
        lengths = np.array([len(ids) for ids in lists], dtype=np.int64)
        self._ids = np.concatenate([self._ids, np.fromiter(chain.from_iterable(lists), np.int64, lengths.sum())])
        self._bounds = np.concatenate([self._bounds, self._bounds[-1] + np.cumsum(lengths)])
