"""The contract of every kind of tokenizer."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from lemma.data.tokenizers import Tokenizer, train_tokenizer
from lemma.errors import DataError
from lemma.spec.data import BytePairs, Characters, Words

SPECS = {"characters": Characters(), "words": Words(minimum_count=2), "byte-pairs": BytePairs(vocabulary=320)}
TRAINING = [
    "The cat's hat, the cat's mat:\n\n  the hat sat\ton the mat.\r\n" * 4,
    "Größe, naïve 中文 🙂 <eos> <unk> a<eos>b ##x 12 345!\n" * 3 + "seldom\n",
]
TEXTS = ["the cat sat", "", "\n", " \n\n a<eos>b <eos>\r\n", "Größe 🙂🙂\t##x  <unk>", "".join(TRAINING)]
UNSEEN = "zebra Ж <eos> quiz"


@pytest.fixture(params=SPECS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(SPECS[request.param], TRAINING)


def texts_for(tokenizer: Tokenizer) -> list[str]:
    return TEXTS if tokenizer.kind == "characters" else [*TEXTS, UNSEEN]


def test_tokenizer_describes_its_kind_and_special_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.kind in SPECS
    assert tokenizer.description == f"{tokenizer.kind}, V = {tokenizer.vocabulary}"
    assert (tokenizer.eos is None) == (tokenizer.kind == "characters")
    assert (tokenizer.unk is None) == (tokenizer.kind != "words")


def test_token_ids_are_int64_within_the_vocabulary(tokenizer: Tokenizer) -> None:
    for text in texts_for(tokenizer):
        ids = tokenizer.encode(text)
        assert ids.dtype == np.int64
        assert ids.ndim == 1
        assert ((ids >= 0) & (ids < tokenizer.vocabulary)).all()


def test_tokenizers_and_transformers_load_it_with_equal_ids(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    foreign = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for text in texts_for(tokenizer):
        ids = tokenizer.encode(text).tolist()
        assert library.encode(text).ids == ids
        assert foreign(text)["input_ids"] == ids
        assert library.decode(ids) == tokenizer.decode(ids)


def test_tokenizer_round_trips_through_its_file(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    loaded = Tokenizer.load(path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == tokenizer.hash == loaded.hash
    assert (loaded.kind, loaded.vocabulary, loaded.eos, loaded.unk) == (
        tokenizer.kind,
        tokenizer.vocabulary,
        tokenizer.eos,
        tokenizer.unk,
    )
    assert [loaded.encode(text).tolist() for text in TEXTS] == [tokenizer.encode(text).tolist() for text in TEXTS]
    assert list(tmp_path.iterdir()) == [path]


def test_skipped_characters_are_counted(tokenizer: Tokenizer) -> None:
    ids, left_out = tokenizer.encode_lossy(UNSEEN)
    if tokenizer.kind == "characters":
        saved = "".join(character for character in UNSEEN if character in "".join(TRAINING))
        assert left_out == len(UNSEEN) - len(saved) > 0
        assert tokenizer.decode(ids) == saved
    else:
        assert left_out == 0
        assert ids.tolist() == tokenizer.encode(UNSEEN).tolist()


def test_eos_is_never_parsed_from_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a<eos>b").tolist()
    assert tokenizer.eos not in ids
    assert tokenizer.decode(ids) == "a<eos>b"


def test_out_of_range_token_ids_are_rejected(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([]) == ""
    for wrong in (-1, tokenizer.vocabulary):
        with pytest.raises(DataError, match=f"token {wrong} is not one of 0 to {tokenizer.vocabulary - 1}"):
            tokenizer.decode([0, wrong])


PROGRAM = """
import sys
from lemma.data.tokenizers import train_tokenizer
from lemma.spec.data import BytePairs, Characters, Words
text = sys.stdin.read()
for spec in (Characters(), Words(minimum_count=2), BytePairs(vocabulary=320)):
    print(train_tokenizer(spec, [text]).hash)
"""


def test_tokenizer_training_is_deterministic_across_processes() -> None:
    text = "".join(TRAINING) + " ".join(f"w{number * 7919 % 300}" for number in range(900))
    seen = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            input=text.encode(),
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONUTF8": "1"},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout.decode()
        for seed in ("1", "2")
    }
    assert [hashes.split() for hashes in seen] == [[train_tokenizer(spec, [text]).hash for spec in SPECS.values()]]
