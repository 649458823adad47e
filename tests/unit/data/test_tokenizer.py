import json
import threading
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from lemma.data.tokenizers import BytePairEncoder, Tokenizer, train_tokenizer
from lemma.errors import DataError, RunError
from lemma.spec.data import BytePairs, Characters, Words


def test_unknown_character_is_named_with_code_point_and_offset() -> None:
    tokenizer = train_tokenizer(Characters(), ["abc"])
    expected = r"the character '€' \(U\+20AC\) at offset 3 is not among the 3 characters"
    with pytest.raises(DataError, match=expected):
        tokenizer.encode("abc€")


@pytest.mark.parametrize("spec", [Characters(), Words(), BytePairs()])
def test_unpaired_surrogate_is_rejected(spec: Characters | Words | BytePairs) -> None:
    with pytest.raises(DataError, match=r"offset 4: half a surrogate pair \(U\+DC80\)"):
        train_tokenizer(spec, ["new text"]).encode("new \udc80 text")


def test_encoder_recovers_after_a_library_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = BytePairEncoder(tokenizers.Tokenizer.from_str(train_tokenizer(BytePairs(), ["some text"]).json))
    before = encoder.encode_batch(["some text"])[0].tolist()
    with monkeypatch.context() as patch, pytest.raises(AttributeError):
        patch.setattr(encoder, "_engine", None)
        encoder.encode_batch(["some more text"])[0]
    assert encoder.encode_batch(["some text"])[0].tolist() == before
    assert len(encoder.encode_batch(["some more text"])[0]) == 14


def test_words_join_with_spaces_and_lines_with_newlines() -> None:
    tokenizer = train_tokenizer(Words(), ["to be or not ##be"])
    assert tokenizer.decode(tokenizer.encode("  to\tbe \n\nor not ##be zebra\r\n")) == "to be\n\nor not ##be <unk>\n"


def changed(tokenizer: Tokenizer, path: tuple[str, ...], value: object) -> str:
    plan = json.loads(tokenizer.json)
    inner = plan
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return json.dumps(plan)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("normalizer",), {"type": "Lowercase"}, "cannot encode a text"),
        (("pre_tokenizer", "behavior"), "MergedWithPrevious", "cannot encode a text"),
        (("model", "vocab"), {"a": 0, "b": 2}, "the ids are not 0 to 1, each once"),
        (("model", "vocab"), {"a": 0, "bc": 1}, "the vocabulary is not one of characters"),
        (("model", "vocab"), {}, "the ids are not"),
        (("model",), {"type": "Oracle"}, "not a tokenizer of the tokenizers library"),
    ],
)
def test_changed_tokenizer_file_is_rejected(tmp_path: Path, path: tuple[str, ...], value: object, message: str) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(changed(train_tokenizer(Characters(), ["ab"]), path, value))
    with pytest.raises(DataError, match=f"tokenizer.json: .*{message}"):
        Tokenizer.load(file)


def test_word_tokenizer_without_unk_is_rejected() -> None:
    with pytest.raises(DataError, match="the vocabulary is not one of words"):
        Tokenizer(changed(train_tokenizer(Words(), ["a"]), ("model", "vocab"), {"a": 0, "<eos>": 1}))


def test_tokenizer_parsing_special_tokens_counts_as_pretrained() -> None:
    engine = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert Tokenizer(engine.to_str()).kind == "byte-pairs"
    engine.add_special_tokens(["<|end|>"])
    assert Tokenizer(engine.to_str()).kind == "pretrained"


@pytest.mark.parametrize(
    ("path", "value"), [(("normalizer",), {"type": "Lowercase"}), (("pre_tokenizer", "behavior"), "MergedWithPrevious")]
)
def test_custom_pipeline_counts_as_pretrained(path: tuple[str, ...], value: object) -> None:
    assert Tokenizer(changed(train_tokenizer(Words(), ["a b"]), path, value)).kind == "pretrained"


def test_missing_and_undecodable_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such tokenizer file"):
        Tokenizer.load(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_bytes(b"\xff")
    with pytest.raises(DataError, match="cannot be read as a tokenizer file"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_tokenizer_is_thread_safe() -> None:
    tokenizer = train_tokenizer(BytePairs(), ["the cat"])
    texts = [" ".join(f"w{thread}x{number}" for number in range(3000)) for thread in range(8)]
    results: dict[str, str] = {}

    def encode(text: str) -> None:
        results[text] = tokenizer.decode(tokenizer.encode(text))

    threads = [threading.Thread(target=encode, args=(text,)) for text in texts]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert results == {text: text for text in texts}


def test_sampling_defaults_are_checked_only_on_use() -> None:
    content = train_tokenizer(Characters(), ["ab"]).json
    assert "top_k" not in Tokenizer(content, "x", generation={"top_k": -1}).sampling
    tokenizer = Tokenizer(content, "x", generation={"repetition_penalty": 0})
    assert len(tokenizer.encode("ab")) == 2
    with pytest.raises(RunError, match="repetition_penalty = 0"):
        _ = tokenizer.sampling
