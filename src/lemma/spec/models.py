"""Specs of the model families."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from lemma.errors import describe_unknown
from lemma.spec.base import Letter, Spec, kind_validator
from lemma.spec.data import TrainedTokenizer
from lemma.spec.plugins import OpenChoice, PluginGroup
from lemma.spec.positions import Learned, Positions, Rotary, Sinusoidal

Size = Annotated[int, Field(ge=1)]
Activation = Literal["gelu", "gelu-exact", "relu", "silu"]
"""Activation functions of a Transformer's feed-forward layers; gelu is its tanh form."""


def check_heads(width_name: str, width: int, heads_name: str, heads: int) -> None:
    """Raise a ValueError with the nearest fitting widths if the number of heads does not divide a width.

    The names are those of the settings.
    """
    if width % heads:
        lower = width // heads * heads
        nearest = ", ".join(str(multiple) for multiple in (lower, lower + heads) if multiple)
        raise ValueError(f"{heads_name} = {heads} does not divide {width_name} = {width}. Nearest widths: {nearest}.")


class ModelSpec(Spec):
    """Base class of the specs of all families."""

    model: ClassVar[str] = ""
    """Its `lemma.models.base.Model`, as package.module:Class, which is called with a spec and the dropout."""
    data_kind: ClassVar[str] = "text"
    """The kind of data that it learns, by its option."""
    usage: ClassVar[str] = "a language model. To generate with it: lemma generate {} --prompt '…'"
    """The purpose of its runs and a command to type; {} is the path of the run."""
    first_letters: ClassVar[Sequence[str]] = ()
    """The letters that come first in formulas, where it is not the order of the fields."""

    if TYPE_CHECKING:
        family: Any

    @classmethod
    def letters(cls) -> dict[str, str]:
        """Return the names of the fields by their textbook letters, those of `first_letters` first."""
        letters = super().letters()
        return {letter: letters[letter] for letter in (*cls.first_letters, *letters)}

    def sizes(self) -> dict[str, int]:
        """Return the model's sizes by their textbook letters.

        >>> from lemma.spec.models import FeedForward
        >>> FeedForward().sizes()
        {'V': 256, 'd': 64, 'd_h': 256, 'N': 8}
        """
        return {letter: getattr(self, name) for letter, name in type(self).letters().items()}

    def with_sizes(self, sizes: Mapping[str, int]) -> Self:
        """Return a copy with other sizes, by their textbook letters.

        >>> from lemma.spec.models import FeedForward
        >>> FeedForward().with_sizes({"d": 8}).width
        8
        """
        return self.replace(**sizes)


class BodySpec(ModelSpec):
    """Base class of the families that read tokens, each of which can be the body of a classifier.

    Some have a `context` too: N for the window models, which predict a word from the N−1 words before it, and T for the
    Transformer, the most tokens that it sees at once.
    """

    vocabulary: Annotated[Size, Letter("V")] = 256
    """Number of tokens in the vocabulary; training takes it from the tokenizer."""


class LanguageSpec(BodySpec):
    """Base class of the families that predict the next token."""


class WindowSpec(LanguageSpec):
    """Base class of the families with one hidden layer over a window of words."""

    model: ClassVar[str] = "lemma.models.feed_forward:FeedForwardModel"
    width: Annotated[Size, Letter("d")] = 64
    """Width of the word embeddings."""
    hidden: Annotated[Size, Letter("d_h")] = 256
    """Number of hidden units."""
    context: Annotated[int, Field(ge=2), Letter("N")] = 8
    """Length of the n-gram: a word is predicted from the N−1 words before it."""
    activation: Literal["tanh", "sigmoid", "relu"] = "tanh"
    """Activation function of the hidden layer."""


class FeedForward(WindowSpec):
    """The feed-forward neural language model (Bengio et al. 2003): embed the N−1 previous words, one hidden layer."""

    family: Literal["feed-forward"] = "feed-forward"


class Attentive(WindowSpec):
    """A feed-forward model that reads its window through one attention head; only the last word has a query."""

    family: Literal["attentive"] = "attentive"
    first_letters: ClassVar[Sequence[str]] = ("V", "d", "d_k", "d_v")
    key_width: Annotated[Size, Letter("d_k")] = 64
    """Width of the head's queries and keys."""
    value_width: Annotated[Size, Letter("d_v")] = 128
    """Width of the head's values, the input of the hidden layer."""


class Recurrent(LanguageSpec):
    """Base class of the recurrent families: an embedding, layers of cells, an output layer."""

    model: ClassVar[str] = "lemma.models.recurrent:RecurrentModel"
    width: Annotated[Size, Letter("d")] = 128
    """Width of the word embeddings."""
    hidden: Annotated[Size, Letter("D")] = 256
    """Hidden units of each recurrent layer."""
    depth: Annotated[Size, Letter("L")] = 1
    """Number of recurrent layers."""
    biases: Literal[0, 1, 2] = 1
    """Number of bias vectors per gate: 1 as in textbooks, 2 as in torch.nn (input and recurrent), or 0."""
    tied: bool = False
    """Whether to tie the output layer to the embedding; requires hidden = width."""

    @model_validator(mode="after")
    def _check_tying(self) -> Self:
        """Check that a tied output layer has the width of the embedding."""
        if self.tied and self.hidden != self.width:
            family = getattr(self, "family", "recurrent")
            raise ValueError(
                f"{family}.tied needs {family}.hidden = {family}.width, since the output layer shares its weights with "
                f"the embedding; got hidden {self.hidden} and width {self.width}. Set both to {self.hidden}, or "
                "tied=false."
            )
        return self


class Rnn(Recurrent):
    """The simple recurrent network (Elman 1990): h = σ(x I + h H + b)."""

    family: Literal["rnn"] = "rnn"
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation function of the hidden layer."""


class Lstm(Recurrent):
    """Long short-term memory (Hochreiter & Schmidhuber 1997): input, forget and output gates around a cell."""

    family: Literal["lstm"] = "lstm"


class Gru(Recurrent):
    """The gated recurrent unit (Cho et al. 2014): reset and update gates, no separate cell."""

    family: Literal["gru"] = "gru"


class LayerStack(LanguageSpec):
    """Base class of the decoder, whose depth is shown next to its width, before the other sizes."""

    width: Annotated[Size, Letter("d")] = 128
    """Width of the residual stream."""
    depth: Annotated[Size, Letter("L")] = 4
    """Number of layers."""


class AttentionModel(BodySpec):
    """Base class of the Transformers."""

    width: Annotated[Size, Letter("d")] = 128
    """Width of the residual stream."""
    heads: Annotated[Size, Letter("h")] = 4
    """Number of attention heads per layer."""
    attention_width: Annotated[Size | None, Letter("d_h")] = None
    """Total width of the queries of all heads. Default: the model's width."""
    feed_forward: Annotated[Size | None, Letter("d_ff")] = None
    """Hidden units of each feed-forward layer. Default: four times the width."""
    gated: bool = False
    """Whether feed-forward layers are gated, W₂(σ(W_g x) ⊙ W₁ x): SwiGLU with silu, GeGLU with gelu (Shazeer 2020)."""
    context: Annotated[Size, Letter("T")] = 64
    """Context length: maximum number of tokens that the model sees at once."""
    positions: Positions = Learned()
    """Position encoding: none, learned, sinusoidal, rotary, alibi or relative."""
    norm: Literal["layer", "rms"] = "layer"
    """Type of norm: LayerNorm (Ba et al. 2016; with a shift if bias is on) or RMSNorm (Zhang & Sennrich 2019)."""
    norm_epsilon: Annotated[float, Field(gt=0)] = 1e-5
    """Epsilon that norms add to the variance or the mean square before taking the root."""
    activation: Activation = "gelu"
    """Activation of the feed-forward layers: gelu (tanh form), gelu-exact, relu or silu (Elfwing et al. 2018)."""
    bias: bool = True
    """Whether linear layers and norms have biases; the output layer never has one."""
    tied: bool = True
    """Whether to tie the output layer to the embedding (Press & Wolf 2017)."""

    @property
    def query_width(self) -> int:
        """Total width of the queries of all heads."""
        return self.attention_width or self.width

    @property
    def head_width(self) -> int:
        """Width of the queries of one head."""
        return self.query_width // self.heads

    @property
    def feed_forward_width(self) -> int:
        """Hidden units of each feed-forward layer."""
        return self.feed_forward or 4 * self.width

    def sizes(self) -> dict[str, int]:
        """Return the sizes by their letters, with the widths of attention and feed-forward layers filled in."""
        sizes = super().sizes() | {"d_h": self.query_width, "d_ff": self.feed_forward_width}
        return {letter: size for letter, size in sizes.items() if size is not None}

    @model_validator(mode="after")
    def _check_head_sizes(self) -> Self:
        """Check that the number of heads divides the width, and that positions suit the width of a head."""
        name = "attention_width" if self.attention_width else "width"
        check_heads(f"{self.family}.{name}", self.query_width, f"{self.family}.heads", self.heads)
        width, positions = self.head_width, self.positions
        if positions.paired and width % 2:
            nearest = ", ".join(str(self.heads * even) for even in (width - 1, width + 1) if even)
            raise ValueError(
                f"{self.family}.positions = '{positions.kind}' rotates pairs, so that a head must have an even "
                f"width; it is {width} ({self.query_width} over {self.heads} heads). Nearest: {nearest}."
            )
        if isinstance(positions, Rotary):
            rotary_dim = positions.rotary_dim(width)
            if rotary_dim % 2 or not rotary_dim:
                nearest = 2 * max(1, round(width * positions.share / 2)) / width
                raise ValueError(
                    f"{self.family}.positions.share = {positions.share} rotates {rotary_dim} of the {width} "
                    f"coordinates of a head, where whole pairs are needed. Nearest: {nearest:g}."
                )
        return self


class Decoder(AttentionModel, LayerStack):
    """A pre-norm decoder-only Transformer (Radford et al. 2019)."""

    family: Literal["decoder"] = "decoder"
    first_letters: ClassVar[Sequence[str]] = ("V", "d", "L", "h", "d_h", "d_v", "h_kv", "d_ff")
    model: ClassVar[str] = "lemma.models.decoder:DecoderModel"
    value_width: Annotated[Size | None, Letter("d_v")] = None
    """Total width of the values of all heads. Default: the attention width."""
    key_value_heads: Annotated[Size | None, Letter("h_kv")] = None
    """Key–value heads, each shared by a group of query heads (Ainslie et al. 2023). Default: one per query head."""
    key_query: Literal["separate", "merged"] = "separate"
    """Key and query matrices: separate, or one merged matrix per head, W^QK = W_Qᵀ W_K (problem B6)."""
    value_output: Literal["separate", "merged"] = "separate"
    """Value and output matrices: separate, or one merged matrix per head, W^(h) = W_V W_O (problem C8)."""
    window: Annotated[Size | None, Letter("w")] = None
    """Sliding window: each layer attends to the last w tokens (Beltagy et al. 2020; Mistral). Default: all tokens."""
    query_key_norm: bool = False
    """Whether to apply RMSNorm to queries and keys, shared by all heads (Henry et al. 2020; Qwen3)."""
    residual: Literal["sequential", "parallel"] = "sequential"
    """Attention before feed-forward, or both in parallel on the same input (Wang & Komatsuzaki 2021)."""
    query_key_value_bias: bool | None = None
    """Whether queries, keys and values have biases (the only ones in Qwen2). Default: as `bias`."""
    attention_output_bias: bool | None = None
    """Whether the output projection of attention has a bias. Default: as `bias`."""
    feed_forward_bias: bool | None = None
    """Whether feed-forward layers have biases. Default: as `bias`."""
    scaled_embedding: bool | None = None
    """Whether to multiply embeddings by √d (Vaswani et al. 2017; Gemma). Default: with sinusoidal positions only."""
    logit_cap: Annotated[float, Field(gt=0)] | None = None
    """Soft cap c of the logits: c·tanh(logit/c) (Gemma 2, Riviere et al. 2024). Default: no cap."""

    def has_bias(self, part: str) -> bool:
        """Return whether a part (query_key_value, attention_output or feed_forward) has biases."""
        own = getattr(self, f"{part}_bias")
        return self.bias if own is None else own

    @property
    def has_scaled_embedding(self) -> bool:
        """True if embeddings are multiplied by √d."""
        return self.positions.scaled if self.scaled_embedding is None else self.scaled_embedding

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        """Check value width, key–value heads, merged matrices and window against the other settings."""
        check_heads("decoder.value_width", self.value_width or self.heads, "decoder.heads", self.heads)
        key_value_heads = self.key_value_heads or self.heads
        if self.heads % key_value_heads:
            divisors = ", ".join(str(number) for number in range(1, self.heads + 1) if self.heads % number == 0)
            raise ValueError(
                f"decoder.key_value_heads = {key_value_heads} does not divide decoder.heads = {self.heads}. "
                f"Fitting: {divisors}."
            )
        if self.positions.rotates and self.key_query == "merged":
            raise ValueError(
                f"decoder.key_query = 'merged' is not possible with {self.positions.kind} positions: the rotation "
                "acts between the two matrices and differs from pair to pair of tokens. Use positions=alibi, or "
                "key_query=separate."
            )
        if self.query_key_norm and self.key_query == "merged":
            raise ValueError(
                "decoder.key_query = 'merged' is not possible with query_key_norm: the norms act between the two "
                "matrices. Use key_query=separate, or query_key_norm=false."
            )
        if self.window and not self.positions.extrapolates:
            raise ValueError(
                f"decoder.window = {self.window} needs positions that depend on distances only, since the window moves "
                f"on without end; {self.positions.kind} positions end with the context. Use positions=rotary, alibi or "
                "relative."
            )
        return self


class TableA5(LanguageSpec):
    """The Transformer of the table in problem A5: PyTorch decoder layers over a window of N−1 words.

    The cross-attention of the layers reads the embedded window itself. Positions are sinusoidal, so that the number of
    parameters does not depend on N.
    """

    family: Literal["table-a5"] = "table-a5"
    model: ClassVar[str] = "lemma.models.table_a5:TableA5Model"
    vocabulary: Annotated[Size, Letter("V")] = 7676
    """Number of tokens in the vocabulary; training takes it from the tokenizer."""
    embedding: Annotated[Size, Letter("d_e")] = 64
    """Width of the word embeddings, before the projection to the width of the layers."""
    width: Annotated[Size, Letter("d")] = 512
    """Width of the layers."""
    depth: Annotated[Size, Letter("L")] = 2
    """Number of layers."""
    heads: Annotated[Size, Letter("h")] = 8
    """Number of attention heads per layer."""
    feed_forward: Annotated[Size, Letter("d_ff")] = 512
    """Hidden units of each feed-forward layer."""
    context: Annotated[int, Field(ge=2), Letter("N")] = 5
    """Length of the n-gram: a word is predicted from the N−1 words before it."""

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        """Check that the number of heads divides the width."""
        check_heads("table-a5.width", self.width, "table-a5.heads", self.heads)
        return self


SPECIAL_TOKENS = ("<start>", "<end>", "<mask>")
"""Special tokens that no text contains; they come after the tokenizer's own, so that V counts both."""


class Transformer(AttentionModel):
    """Base class of the encoder and the encoder–decoder, Transformers that read a whole text at once."""

    vocabulary: Annotated[int, Field(ge=len(SPECIAL_TOKENS) + 1), Letter("V")] = 256
    """Number of tokens in the vocabulary, special tokens included; training takes it from the tokenizer."""
    context: Annotated[int, Field(ge=4), Letter("T")] = 64
    """Context length: maximum number of tokens that the model sees at once, special tokens included."""
    scaled_scores: bool = True
    """Whether to divide scores by the square root of the head width; T5 learns the scale (Raffel et al. 2020)."""
    norm_place: Literal["pre", "post"] = "pre"
    """Position of the norm: pre is x + f(norm(x)) with a final norm; post is norm(x + f(x)) (Vaswani et al. 2017)."""
    special_tokens: tuple[int, int, int] | None = None
    """Ids of <start>, <end> and <mask> in an existing vocabulary. Default: the last three ids."""

    @property
    def special_ids(self) -> tuple[int, int, int]:
        """Ids of <start>, <end> and <mask>."""
        size = self.vocabulary
        return self.special_tokens or (size - 3, size - 2, size - 1)

    @model_validator(mode="after")
    def _check_special_ids(self) -> Self:
        """Check that the ids of special tokens are in the vocabulary."""
        if any(not 0 <= token < self.vocabulary for token in self.special_tokens or ()):
            raise ValueError(
                f"{self.family}.special_tokens = {self.special_tokens}: ids from 0 to {self.vocabulary - 1} are "
                f"expected, those of <start>, <end> and <mask> in a vocabulary of {self.vocabulary}."
            )
        return self


class Encoder(Transformer):
    """A Transformer in which every token attends to all tokens; it learns masked tokens (Devlin et al. 2019)."""

    family: Literal["encoder"] = "encoder"
    model: ClassVar[str] = "lemma.models.transformer:EncoderModel"
    usage: ClassVar[str] = (
        "an encoder, which predicts hidden tokens and writes no text. To adapt it: lemma adapt {} --labels …"
    )
    positions: Positions = Rotary()
    """Position encoding: none, learned, sinusoidal, rotary, alibi or relative."""
    depth: Annotated[Size, Letter("L")] = 4
    """Number of layers."""
    objective: Literal["masked", "next-sentence", "both"] = "masked"
    """Training objective: predict masked tokens, predict whether one segment follows another, or both."""
    segments: Annotated[int, Field(ge=0)] = 0
    """Number of segment embeddings, added to the tokens of segments separated by <end> (BERT has 2); 0 for none."""
    embedding_norm: bool = False
    """Whether to normalise embeddings before the first layer (Devlin et al. 2019)."""
    output_transform: bool = False
    """Whether output heads have a hidden layer: with a norm for tokens, with tanh for the next sentence (BERT)."""
    output_bias: bool = False
    """Whether the output layer for tokens has a bias (BERT)."""

    def with_data_sizes(self, sizes: Mapping[str, int]) -> Self:
        """Return a copy for a tokenizer of this vocabulary size; special tokens are added unless it has them."""
        return self.replace(vocabulary=sizes["vocabulary"] + (0 if self.special_tokens else len(SPECIAL_TOKENS)))


class EncoderDecoder(Transformer):
    """The Transformer of Vaswani et al. (2017): an encoder reads the source, a decoder writes the target.

    Source and target share one embedding.
    """

    family: Literal["encoder-decoder"] = "encoder-decoder"
    model: ClassVar[str] = "lemma.models.encoder_decoder:EncoderDecoderModel"
    data_kind: ClassVar[str] = "pairs"
    usage: ClassVar[str] = "a translator. To translate: lemma generate {} --source '…'"
    positions: Positions = Sinusoidal()
    """Position encoding: none, learned, sinusoidal, rotary, alibi or relative; cross-attention has none."""
    encoder_depth: Annotated[Size, Letter("L_enc")] = 3
    """Number of encoder layers, which read the source."""
    decoder_depth: Annotated[Size, Letter("L_dec")] = 3
    """Number of decoder layers, which generate the target."""
    scaled_output: bool = False
    """Whether to divide hidden states by √d before a tied output layer (Raffel et al. 2020)."""


class Tree(BodySpec):
    """Graph convolution (Kipf & Welling 2017) over a sentence's dependency tree; a body for classifiers only."""

    family: Literal["tree"] = "tree"
    model: ClassVar[str] = "lemma.models.classifier:TreeModel"
    data_kind: ClassVar[str] = "labels"
    usage: ClassVar[str] = "the body of a classifier, which writes nothing."
    width: Annotated[Size, Letter("d")] = 64
    """Width of the word embeddings and of every layer."""
    depth: Annotated[int, Letter("L"), Field(ge=0)] = 2
    """Number of graph layers: a word sees others up to this many arcs away; 0 ignores the arcs."""


class NewFamily(LanguageSpec):
    """Base class of families that plugins bring: its settings, and where the model is.

    A subclass has its name as `family: Literal["bag"] = "bag"`, a default for every setting, and `model`. Its module
    should not import torch, so that lists and help stay quick; `model` is imported when one is built.
    """

    model: ClassVar[str] = ""
    """A `lemma.models.base.LanguageModel`, as package.module:Class; it is called with a spec and the dropout."""
    recipe: ClassVar[Mapping[str, Any]] = {}
    """Default settings of the recipe."""
    tokenizer: ClassVar[TrainedTokenizer | None] = None
    """Default tokenizer; None means byte-pairs."""
    probe_sizes: ClassVar[Mapping[str, Sequence[int]]] = {}
    """Sizes by letter at which `count` may probe it, if not all small ones are possible."""

    @property
    def longest(self) -> int | None:
        """Maximum number of tokens that the model reads at once; None for no limit."""
        return None


def _reserved_names() -> set[str]:
    """Return the names that plugins cannot give to a family."""
    from lemma.spec.choose import RESERVED_NAMES  # made of all families

    return RESERVED_NAMES


PLUGIN_FAMILIES: PluginGroup[NewFamily] = PluginGroup("lemma.families", "family", NewFamily, "family", _reserved_names)
"""The families of plugins."""

_BuiltInBody = FeedForward | Attentive | Rnn | Lstm | Gru | Decoder | TableA5 | Encoder | EncoderDecoder | Tree
BODIES: dict[str, type[BodySpec]] = {body.model_fields["family"].default: body for body in get_args(_BuiltInBody)}
DEFAULT_MAX_TOKENS = 256  # of a text that is read by a body without a context
DEFAULT_POOLING = {
    "feed-forward": "mean",
    "attentive": "mean",
    "encoder": "first",
    "encoder-decoder": "first",
    "tree": "mean",
}
"""By body; all others take the last token, the only one that has seen all."""


def max_text_tokens(body: BodySpec) -> int:
    """Return the maximum number of tokens of a text that a classifier with this body reads."""
    if isinstance(body, NewFamily):
        return body.longest or DEFAULT_MAX_TOKENS
    return body.context if isinstance(body, Transformer | Decoder) else DEFAULT_MAX_TOKENS


def body_from_name(value: Any) -> Any:
    """Convert the name of a body to a table of settings, before validation; tables are returned unchanged."""
    if isinstance(value, dict) and "kind" in value:  # as in body=lstm body.hidden=64
        value = {"family": value["kind"], **{name: inner for name, inner in value.items() if name != "kind"}}
    family = value if isinstance(value, str) else value.get("family") if isinstance(value, dict) else None
    if isinstance(family, str) and family not in BODIES and not PLUGIN_FAMILIES.provides(family):
        raise ValueError(describe_unknown("body", family, [*BODIES, *PLUGIN_FAMILIES.names()]))
    return {"family": value} if isinstance(value, str) else value


AnyBody = Annotated[
    BodySpec,
    OpenChoice(Annotated[_BuiltInBody, Field(discriminator="family")], PLUGIN_FAMILIES),
    BeforeValidator(body_from_name),
]


class Pooling(Spec):
    """Setting of how the vectors of a body become one."""

    pool: Literal["auto", "first", "last", "mean"] = "auto"
    """Pooling of hidden states: first, last, mean, or auto (encoder: first; window model, tree: mean; else last)."""


class TextReader(Pooling, ModelSpec):
    """Base class of models that read text with a body; their vocabulary and sizes include those of the body."""

    body: AnyBody = Lstm()
    """Model that reads the text: a language model without its output layer, or an encoder."""

    @property
    def vocabulary(self) -> int:
        """Size of the vocabulary of the body."""
        return self.body.vocabulary

    @property
    def pooling(self) -> str:
        """How the body's vectors of a text become one: "first", "last" or "mean"."""
        return DEFAULT_POOLING.get(self.body.family, "last") if self.pool == "auto" else self.pool

    def with_data_sizes(self, sizes: Mapping[str, int]) -> Self:
        """Return a copy with the sizes that the data determine; the vocabulary is set in the body."""
        sizes = dict(sizes)
        body = self.body.replace(vocabulary=sizes.pop("vocabulary", self.vocabulary))
        return self.replace(**sizes, body=body.to_dict())

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the body and of the model, by their textbook letters."""
        return {**self.body.sizes(), **super().sizes()}

    def with_sizes(self, sizes: Mapping[str, int]) -> Self:
        """Return a copy with other sizes, by their textbook letters; letters that the model lacks are the body's.

        >>> from lemma.spec.models import Classifier
        >>> Classifier().with_sizes({"K": 3, "D": 8}).sizes()["D"]
        8
        """
        letters = type(self).letters()
        head = {letter: size for letter, size in sizes.items() if letter in letters}
        body = {letter: size for letter, size in sizes.items() if letter not in letters}
        return self.replace(**head, body=self.body.with_sizes(body).to_dict())


class ClassifierHead(Pooling):
    """Settings of a classifier that are not those of its body."""

    head_bias: bool = True
    """Whether the classification layer has a bias; decoder-based classifiers of transformers have none."""


class Classifier(TextReader, ClassifierHead):
    """A body that reads a text, pooling of its vectors, and one linear layer to the classes."""

    family: Literal["classifier"] = "classifier"
    model: ClassVar[str] = "lemma.models.classifier:ClassifierModel"
    data_kind: ClassVar[str] = "labels"
    usage: ClassVar[str] = "a classifier. To classify a text: lemma generate {} --source '…'"
    classes: Annotated[int, Field(ge=2), Letter("K")] = 2
    """Number of classes; training takes it from the labels."""


CHANNELS = 3  # red, green and blue; transparent pixels are put on white


class DualEncoder(TextReader):
    """A patch Transformer for images, any body for texts, and a linear layer of each to a shared space.

    An image and a text are as similar as the cosine of their vectors, and training makes matching pairs most similar
    (CLIP, Radford et al. 2021). The image tower is made of the encoder's layers (ViT, Dosovitskiy et al. 2021).
    """

    family: Literal["dual-encoder"] = "dual-encoder"
    model: ClassVar[str] = "lemma.models.dual_encoder:DualEncoderModel"
    data_kind: ClassVar[str] = "images"
    usage: ClassVar[str] = "a dual encoder. To search with it: lemma search {} --images FOLDER --query '…'"
    body: AnyBody = Encoder(width=128, depth=1, context=32)
    """Model that reads the text: a language model without its output layer, or an encoder."""
    grid: Annotated[Size, Letter("G")] = 4
    """Number of patches along each side of an image."""
    patch: Annotated[Size, Letter("P")] = 6
    """Pixels along each side of a patch; images are scaled to grid × patch pixels along each side."""
    image_width: Annotated[Size, Letter("d_i")] = 128
    """Width of the image tower's residual stream."""
    image_depth: Annotated[Size, Letter("L_i")] = 2
    """Number of layers of the image tower."""
    image_heads: Annotated[Size, Letter("h_i")] = 4
    """Number of attention heads per layer of the image tower."""
    image_pool: Literal["places", "mean"] = "places"
    """Pooling of patches: places sums them after one matrix per position; mean has one matrix for their mean."""
    shared: Annotated[Size, Letter("d_s")] = 128
    """Width of the shared embedding space of images and texts."""
    temperature: float = Field(default=0.07, gt=0.01, le=1)
    """Initial temperature, which divides the cosines; it is learned, with a minimum of 0.01."""

    @property
    def image_side(self) -> int:
        """Pixels along each side of an image as it is read."""
        return self.grid * self.patch

    @property
    def num_projections(self) -> int:
        """Number of matrices that map patches to the shared space: one for every position, or one for all."""
        return self.grid**2 if self.image_pool == "places" else 1

    @model_validator(mode="after")
    def _check_head_sizes(self) -> Self:
        """Check that the image tower's number of heads divides its width."""
        check_heads("dual-encoder.image_width", self.image_width, "dual-encoder.image_heads", self.image_heads)
        return self


class Reranking(Spec):
    """Settings of a re-ranker that are not those of its dual encoder."""

    candidates: Annotated[int, Field(ge=2)] = 10
    """Number of the dual encoder's top results to re-rank."""


class CrossAttention(Reranking, ModelSpec):
    """A re-ranker: an image's patches attend to a text's words by the dual encoder's projections as queries and keys.

    It adds the scale, the softmax and a value matrix (problem E8), a feed-forward layer and a score. It is made by
    adapting a trained dual encoder, and sorts the best results of that dual encoder again.
    """

    family: Literal["cross-attention"] = "cross-attention"
    model: ClassVar[str] = "lemma.models.dual_encoder:CrossAttentionModel"
    data_kind: ClassVar[str] = "images"
    usage: ClassVar[str] = "a re-ranker. To search with it: lemma search {} --images FOLDER --query '…'"
    towers: DualEncoder = DualEncoder()
    """Dual encoder whose results are re-ranked."""

    @property
    def vocabulary(self) -> int:
        """Size of the vocabulary of the text tower."""
        return self.towers.vocabulary

    def with_data_sizes(self, sizes: Mapping[str, int]) -> Self:
        """Return a copy with the sizes that the data determine, set in the towers."""
        return self.replace(towers=self.towers.with_data_sizes(sizes).to_dict())

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the two towers by their textbook letters."""
        return self.towers.sizes()

    def with_sizes(self, sizes: Mapping[str, int]) -> Self:
        """Return a copy with other sizes of the two towers, by their textbook letters."""
        return self.replace(towers=self.towers.with_sizes(sizes).to_dict())


class BiLstm(Spec):
    """Bidirectional LSTM layers."""

    kind: Literal["bilstm"] = "bilstm"
    hidden: Annotated[Size, Letter("D")] = 200
    """Hidden units per direction; the output of a layer is twice as wide."""
    depth: Annotated[Size, Letter("L")] = 2
    """Number of layers."""

    @property
    def width(self) -> int:
        """Width of its output."""
        return 2 * self.hidden


class TransformerEncoder(Spec):
    """Pre-norm Transformer layers in which every word attends to all words, with rotary positions."""

    kind: Literal["transformer"] = "transformer"
    width: Size = 192
    """Width of the residual stream."""
    depth: Annotated[Size, Letter("L")] = 4
    """Number of layers."""
    heads: Annotated[Size, Letter("h")] = 6
    """Number of attention heads per layer."""

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        """Check that each head has an even width."""
        if self.width % (2 * self.heads):
            nearest = max(1, round(self.width / (2 * self.heads))) * 2 * self.heads
            raise ValueError(
                f"encoder.width = {self.width} does not give encoder.heads = {self.heads} an even width each, which "
                f"rotary positions need. Nearest width: {nearest}."
            )
        return self


PARSER_ENCODERS = {"bilstm": BiLstm, "transformer": TransformerEncoder}


ParserEncoder = Annotated[
    BiLstm | TransformerEncoder,
    Field(discriminator="kind"),
    kind_validator("encoder", PARSER_ENCODERS, default="bilstm"),
]


class Parser(ModelSpec):
    """A dependency parser: the attention head of a relation attends from a word to its dependents (problem B1)."""

    family: Literal["parser"] = "parser"
    model: ClassVar[str] = "lemma.models.parser:ParserModel"
    data_kind: ClassVar[str] = "treebank"
    usage: ClassVar[str] = "a parser, which draws trees. To see one: lemma look parse {} --text '…'"
    vocabulary: Annotated[Size, Letter("V")] = 256
    """Number of words in the vocabulary; training takes it from the treebank."""
    relations: Annotated[Size, Letter("R")] = 40
    """Number of relations, and so of attention heads; training takes it from the treebank."""
    width: Annotated[Size, Letter("d")] = 100
    """Width of the word embedding and of the spelling embedding."""
    buckets: Size = 20_000
    """Number of hash buckets for spelling features: prefixes, suffixes and shape of a word."""
    minimum_count: Size = 2
    """Minimum frequency of a word in the training treebank; rarer words are known by their spelling only."""
    word_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.15
    """Fraction of words dropped in training to make the model use spelling and context too."""
    encoder: ParserEncoder = BiLstm()
    """Sentence encoder: bilstm or transformer."""
    hidden: Annotated[Size, Letter("d_h")] = 200
    """Hidden units of the layers that represent each word as a head and as a dependent (Dozat & Manning 2017)."""
    head_width: Annotated[Size, Letter("w")] = 32
    """Width of the queries and keys of each relation."""
    shared_width: Annotated[int, Field(ge=0), Letter("w_s")] = 128
    """Width of the queries and keys shared by all relations, which score a head regardless of the relation."""
    attention_loss: Annotated[float, Field(ge=0)] = 0.1
    """Weight of the auxiliary loss that trains each attention head to attend along its relation."""


class Graph(ModelSpec):
    """A graph convolutional network (Kipf & Welling 2017): H ← σ(Â H W + b), the last layer to the classes."""

    family: Literal["graph"] = "graph"
    model: ClassVar[str] = "lemma.models.graph:GraphModel"
    data_kind: ClassVar[str] = "graph"
    usage: ClassVar[str] = "a classifier of a graph's nodes, which writes nothing. To evaluate it: lemma evaluate {}"
    features: Annotated[Size, Letter("F")] = 16
    """Number of features per node; training takes it from the graph."""
    hidden: Annotated[Size, Letter("D")] = 64
    """Number of units per hidden layer."""
    classes: Annotated[int, Field(ge=2), Letter("K")] = 2
    """Number of classes; training takes it from the graph."""
    depth: Annotated[Size, Letter("L")] = 2
    """Number of layers: a node sees others up to this many edges away."""
    normalise: Literal["symmetric", "rows", "none", "alone"] = "symmetric"
    """Â: symmetric is D̃^{-1/2} Ã D̃^{-1/2}, of norm 1; rows is D̃^{-1} Ã; none is Ã; alone is I, without edges."""
    bias: bool = True
    """Whether the layers have biases."""


FAMILIES: dict[str, type[ModelSpec]] = {
    **BODIES,
    **{spec.model_fields["family"].default: spec for spec in (Parser, Classifier, DualEncoder, CrossAttention, Graph)},
}


def find_family(name: str) -> type[ModelSpec] | None:
    """Return the spec class of a family, built in or of a plugin; None for an unknown name."""
    return FAMILIES.get(name) or PLUGIN_FAMILIES.find(name)


def family_names() -> list[str]:
    """Return the names of all families, built-in ones first."""
    return [*FAMILIES, *PLUGIN_FAMILIES.names()]
