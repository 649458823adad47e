"""The typed keyword arguments of the verbs are the fields of the specs, with their types."""

import re

from lemma.generation.beam import Beam
from lemma.generation.sampling import Sampling
from tools.keywords import STUB, write_stub


def test_typed_settings_match_spec_fields() -> None:
    assert STUB.read_text(encoding="utf-8") == write_stub(), "run python -m tools.keywords"


def test_sampling_settings_match_sampling_and_beam_fields() -> None:
    declared = STUB.read_text(encoding="utf-8").partition("class SamplingSettings")[2].partition("class ")[0]
    fields = set(Sampling.__dataclass_fields__) | {"beam", "length_penalty"}
    assert {"beam", "length_penalty"} <= set(Beam.__dataclass_fields__)
    assert set(re.findall(r"^    (\w+):", declared, re.M)) == fields - {"samples"}  # a separate argument
