"""Untrained runs of every kind that can be served, determined by their seed."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from lemma.data.tokenizers import train_tokenizer
from lemma.models.build import build
from lemma.runs.checkpoint import named_weights
from lemma.runs.folder import RunFolder
from lemma.spec.data import BytePairs, Characters, DataSpec, LabelsSpec, PairsSpec
from lemma.spec.models import Classifier, Decoder, EncoderDecoder, FeedForward, Gru, Lstm, ModelSpec
from lemma.spec.recipe import Recipe

LINES = ["the cat sat on the mat, and the dog?\n", "THE END: a cat & a dog\n", "naïve café, 10 € 😀 日本\n"]
TEXT = DataSpec(text=("shakespeare",))
SUMMARY = {
    "family": "feed-forward",
    "steps": 3,
    "perplexity": 12.25,
    "parameters": 1234,
    "samples": ["<b>a sample</b>"],
}
KINDS: dict[str, tuple[ModelSpec, Any, Any, tuple[str, ...]]] = {
    "trigram": (FeedForward(width=6, hidden=9, context=3), Characters(), TEXT, ()),
    "decoder": (Decoder(width=16, depth=1, heads=2, context=12), Characters(), TEXT, ()),
    "bytes": (Lstm(width=8, hidden=12), BytePairs(vocabulary=259), TEXT, ()),
    "mood": (Classifier(classes=2, body=Gru(width=6, hidden=8)), Characters(), LabelsSpec(labels="x"), ("good", "bad")),
    "spanish": (
        EncoderDecoder(width=16, encoder_depth=1, decoder_depth=1, heads=2, context=12),
        Characters(),
        PairsSpec(pairs="x"),
        (),
    ),
}


def untrained(folder: Path, kind: str) -> Path:
    """Write such a run as finished, with large weights for non-uniform predictions."""
    spec, words, data, labels = KINDS[kind]
    tokenizer = train_tokenizer(words, LINES)
    sized = spec.with_data_sizes({"vocabulary": tokenizer.vocabulary + (3 if kind == "spanish" else 0)})
    torch.manual_seed(5)
    model = build(sized, 0.0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    run = RunFolder(folder / kind, sized, Recipe(device="cpu"), data, "0").create(tokenizer, labels=labels)
    run.finish(named_weights(model, include_frozen=True), SUMMARY)
    return folder / kind


@contextmanager
def running(*runs: Any, **settings: Any) -> Iterator[str]:
    """Run a server in a thread on a free port and yield its address; `running.server` is the latest."""
    import uvicorn

    from lemma.api import application
    from lemma.serving.server import Server, TimeoutProtocol, bind

    bound, built = bind("127.0.0.1", 0), application(*runs, **settings)
    config = uvicorn.Config(built, http=TimeoutProtocol, log_level="critical", timeout_graceful_shutdown=5)
    server = running.server = Server(config, built.state.service, lambda: None)  # pyright: ignore[reportFunctionMemberAccess]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    server.should_exit = True
    thread.join(10)
