"""The run folder: atomic files, checkpoints, integrity, and the way back to a model."""

from lemma.data.atomic import replacing, write_atomically
from lemma.runs.based import adaptation_of, first_model, plain_weights, run_hash
from lemma.runs.checkpoint import Checkpoint, drop_after, latest_good, save
from lemma.runs.folder import RunFolder
from lemma.runs.load import Run, load
from lemma.runs.lock import only_writer
from lemma.runs.metrics import Metrics
from lemma.runs.weights import put_weights, refuse_other_spec, weights_of

__all__ = [
    "Checkpoint",
    "Metrics",
    "Run",
    "RunFolder",
    "adaptation_of",
    "drop_after",
    "first_model",
    "latest_good",
    "load",
    "only_writer",
    "plain_weights",
    "put_weights",
    "refuse_other_spec",
    "replacing",
    "run_hash",
    "save",
    "weights_of",
    "write_atomically",
]
