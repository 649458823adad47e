"""Out-of-range settings and hostile files are refused quickly with one sentence."""

import json
import time
from pathlib import Path

import pytest

from lemma.data.tokenizers import Tokenizer, train_tokenizer
from lemma.errors import RunError, SpecError
from lemma.files import parse_json, read_json
from lemma.models.build import build
from lemma.spec.base import parse_settings, parse_toml, read_toml
from lemma.spec.choose import choose
from lemma.spec.data import DataSpec, Words
from lemma.spec.models import Lstm


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("width=10000000000", "width = 10000000000: at most 1,000,000,000"),
        ("d=10000000000", "width = 10000000000: at most"),
        ("depth=2000", "depth = 2000: at most 1,000"),
        ("width=true", "width = true: a number is expected, as in width=128"),
        ("learning_rate=false", "learning_rate = false: a number is expected"),
        ("patience=true", "patience = true"),
        ("seed=100000000000000000000", "seed = 100000000000000000000: at most 9,223,372,036,854,775,807"),
        ("width=" + "1" * 5000, "width = '1111"),
        ("width=" + "[" * 5000, r"width = '\[\[\["),
    ],
)
def test_out_of_range_setting_error_is_one_sentence(setting: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        choose("lstm", parse_settings([setting]))
    assert len(str(caught.value)) < 250
    assert choose("lstm", {"compile": True, "seed": 2**63 - 1, "width": 10**9}).recipe.compile is True


def test_enormous_integers_are_refused() -> None:
    with pytest.raises(SpecError, match="seed = a number of more than 4,000 digits: at most"):
        choose("lstm", {"seed": 10**5000})


def test_model_larger_than_memory_is_refused_before_building() -> None:
    with pytest.raises(SpecError, match=r"weights of [\d,]+ GB or more, and this machine has"):
        build(Lstm(width=10**9, hidden=10**9))


HOSTILE_TOML = {
    "dots": ".".join(["a"] * 100_000) + " = 1",  # Python's own parser takes minutes and gigabytes for it
    "quoted dots": " . ".join(['"a"'] * 100_000) + " = 1",
    "arrays": "a = " + "[" * 100_000,
    "tables": "a = " + "{a = " * 100_000,
    "digits": "a = " + "1" * 5000,
    "word": "a" * 500_000,
}


@pytest.mark.parametrize("kind", HOSTILE_TOML)
def test_hostile_toml_is_refused_within_two_seconds(kind: str, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(HOSTILE_TOML[kind])
    start = time.process_time()
    with pytest.raises(SpecError, match=r"spec\.toml: not valid TOML: ") as caught:
        read_toml(tmp_path / "spec.toml")
    assert time.process_time() - start < 2 and len(str(caught.value)) < 500


def test_toml_with_many_dots_is_read() -> None:
    numbers = ", ".join(["0.5"] * 200)
    text = f'a = [{numbers}]\nb = """\n{". " * 200}\nsee a.b.c.d\n"""\nc.d.e = 1\n'
    assert parse_toml(text)["c"] == {"d": {"e": 1}} and len(parse_toml(text)["a"]) == 200


@pytest.mark.parametrize(
    "content", ["[" * 100_000, '{"a": ' * 100_000, '{"a": ' + "1" * 5000 + "}", '"\udcff"', "{", "1"]
)
def test_hostile_json_error_names_the_file(content: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(RunError, match=r"x\.json is damaged"):
        read_json(tmp_path / "x.json")
    assert parse_json('{"a": 1}') == {"a": 1}


def test_tokenizer_file_cannot_enable_enormous_padding(tmp_path: Path) -> None:
    plan = json.loads(train_tokenizer(Words(), ["a b c"]).json)
    plan["padding"] = {
        "strategy": {"Fixed": 10**9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<unk>",
    }
    plan["truncation"] = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(plan))
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    assert tokenizer.decode(tokenizer.encode("a b c")) == "a b c"
    assert len(tokenizer._engine.encode("a b c").ids) == 3


def test_unknown_or_missing_kind_error_lists_known_kinds() -> None:
    with pytest.raises(SpecError, match=r"unknown .*tokenizer.kind 'byte-pair'. Did you mean 'byte-pairs'"):
        DataSpec.read({"text": ["a"], "tokenizer": {"kind": "byte-pair"}}, "study")
    with pytest.raises(SpecError, match="it must say its kind"):
        DataSpec.read({"text": ["a"], "tokenizer": {"vocabulary": 280}}, "study")


def test_error_message_length_is_bounded() -> None:
    assert len(str(SpecError("a value of " + "9" * 10**6))) < 3000
