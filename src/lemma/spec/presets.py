"""Models by name: the families with good defaults, those of the problems, and those of other packages."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lemma.errors import SpecError, unknown
from lemma.spec.base import Spec
from lemma.spec.data import BytePairs, Characters, Words
from lemma.spec.models import (
    FAMILIES,
    NEW_FAMILIES,
    Attentive,
    Decoder,
    DualEncoder,
    Encoder,
    EncoderDecoder,
    FeedForward,
    Graph,
    Gru,
    Lstm,
    ModelSpec,
    NewFamily,
    Parser,
    Rnn,
    TableA5,
    Tree,
)
from lemma.spec.positions import NewPositions, Sinusoidal


@dataclass(frozen=True)
class Preset:
    """A named model, with its recipe settings and tokenizer."""

    model: ModelSpec
    about: str
    recipe: dict[str, Any] = field(default_factory=dict)
    tokenizer: Characters | Words | BytePairs | None = None


PRESETS: dict[str, Preset] = {
    "feed-forward": Preset(FeedForward(), "Bengio's feed-forward model over a window of words"),
    "attentive": Preset(Attentive(), "the same window read by one attention head"),
    "rnn": Preset(Rnn(), "simple recurrent network", {"learning_rate": 1e-3}),
    "lstm": Preset(Lstm(), "long short-term memory", {"learning_rate": 4e-3}),
    "gru": Preset(Gru(), "gated recurrent unit", {"learning_rate": 4e-3}),
    "decoder": Preset(Decoder(), "pre-norm decoder-only Transformer"),
    "encoder": Preset(
        Encoder(),
        "Transformer that sees all tokens and learns masked ones",
        {"learning_rate": 1e-3, "warm_up": 200},  # with a higher rate it long predicts only token frequencies
    ),
    "encoder-decoder": Preset(
        EncoderDecoder(),
        "Transformer that reads a source and writes its target; learns --pairs",
        {
            "steps": 2000,
            "batch": 64,
            "learning_rate": 1e-3,
            "warm_up": 200,
            "beta2": 0.98,
            "dropout": 0.1,
            "label_smoothing": 0.1,
        },
        BytePairs(vocabulary=4096),
    ),
    "transformer-c5": Preset(
        EncoderDecoder(
            vocabulary=30_000,
            width=1024,
            heads=4,
            attention_width=768,
            feed_forward=512,
            context=2048,
            encoder_depth=12,
            decoder_depth=8,
            positions=Sinusoidal(),
            norm_place="post",
            activation="relu",
        ),
        "problem C5: 139,994,112 parameters, attention width 768 in a stream of 1,024",
        {"batch": 32, "learning_rate": 5e-4, "warm_up": 1000, "beta2": 0.98, "dropout": 0.1, "label_smoothing": 0.1},
        BytePairs(vocabulary=30_000 - 3),
    ),
    "tree": Preset(
        Tree(),
        "graph convolution over a sentence's dependency tree; a body: learns --labels with --parser",
        {"learning_rate": 4e-3, "dropout": 0.3},
        Words(minimum_count=2),
    ),
    "dual-encoder": Preset(
        DualEncoder(),
        "images and texts in one space, by a patch Transformer and a text body; learns --images",
        {
            "steps": 5000,
            "batch": 128,
            "learning_rate": 2e-3,
            "final_rate": 0.01,
            "warm_up": 100,
            "weight_decay": 0.05,
            "beta2": 0.98,
            "label_smoothing": 0.1,
            "keep": "last",  # held-out captions do not measure how well seen ones are learned
        },
    ),
    "graph": Preset(
        Graph(),
        "problem D4: two layers of graph convolution that classify nodes; learns a --graph",
        {
            "steps": 400,
            "learning_rate": 0.01,
            "warm_up": 0,
            "final_rate": 1.0,
            "beta2": 0.999,
            "weight_decay": 1.0,  # few labels, many weights: chosen with dropout among six on Cora's splits 1 to 6
            "dropout": 0.8,
            "evaluate_every": 10,
            "checkpoint_every": 100,
            "precision": "float32",
        },
    ),
    "penn-rnn": Preset(
        Rnn(vocabulary=10_000, width=256, hidden=512),
        "problem D5: word-level RNN, embedding 256, hidden 512",
        {"dropout": 0.1, "sequence_length": 10, "batch": 128, "learning_rate": 1e-3, "patience": 3},
        Words(vocabulary=10_000),
    ),
    "table-a5": Preset(
        TableA5(),
        "problem A5: 9,721,596 parameters at two layers, 14,980,860 at four",
        {"learning_rate": 5e-4, "warm_up": 100},
        Words(vocabulary=7676),
    ),
    "parser": Preset(
        Parser(),
        "problem B1: one attention head per relation, over a BiLSTM; learns a --treebank",
        {
            "steps": 3600,
            "learning_rate": 2e-3,
            "final_rate": 0.02,
            "warm_up": 200,
            "weight_decay": 0.01,
            "beta2": 0.9,
            "clip": 5.0,
            "dropout": 0.33,
            "keep": "last",  # the validation loss rises before the validation scores fall
            "precision": "float32",
        },
    ),
}


OWN = {*PRESETS, *FAMILIES}
"""Names that other packages cannot give to a family."""


def preset(name: str) -> Preset:
    """Return the preset of that name, or say which names there are."""
    found = find_preset(name)
    if found is None:
        raise SpecError(unknown("model", name, preset_names()))
    return found


def find_preset(name: str) -> Preset | None:
    """The preset of that name, Lemma's own or another package's; None for an unknown name."""
    if name in PRESETS:
        return PRESETS[name]
    family = NEW_FAMILIES.find(name)
    if family is None:
        return None
    about = (family.__doc__ or "").strip().partition("\n")[0]
    with NEW_FAMILIES.blaming(name):
        return Preset(family.model_validate({}), about, dict(family.recipe), family.tokenizer)


def preset_names() -> list[str]:
    """All models known by name, Lemma's own first."""
    return [*PRESETS, *NEW_FAMILIES.others()]


def brought_sources(spec: Spec) -> str | None:
    """The hash of every other package that this spec uses; empty if none, None if one has no sources.

    >>> from lemma.spec.models import Decoder
    >>> brought_sources(Decoder())
    ''
    """
    hashes = {package: _hash(package) for package in sorted(set(_packages(spec)))}
    return None if None in hashes.values() else "".join(f" {package} {found}" for package, found in hashes.items())


def _packages(spec: Spec) -> Iterator[str]:
    """The packages of the plugin classes of a spec, and of the modules that these name."""
    if isinstance(spec, NewFamily | NewPositions):
        named = [spec.model] if isinstance(spec, NewFamily) else [spec.adds, spec.rotates, spec.biases]
        for module in (type(spec).__module__, *named):
            if isinstance(module, str) and module:
                yield module.partition(".")[0].partition(":")[0]
    for name in type(spec).model_fields:
        if isinstance(value := getattr(spec, name), Spec):
            yield from _packages(value)


def _hash(package: str) -> str | None:
    """The hash of a package's Python files, or of the one file that a module is."""
    try:
        found = find_spec(package)
    except (ImportError, ValueError):  # such as __main__
        return None
    if found is None or not found.has_location:
        return None
    folders = [Path(folder) for folder in found.submodule_search_locations or ()]
    files = sorted(path for folder in folders for path in folder.rglob("*.py")) or [Path(str(found.origin))]
    return sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()
