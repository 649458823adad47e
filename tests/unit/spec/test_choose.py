import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemma.errors import SpecError
from lemma.spec.base import parse_settings, to_toml
from lemma.spec.choose import PRESETS, choose, describe_settings
from lemma.spec.models import Decoder
from lemma.spec.recipe import Recipe


def test_values_are_toml_literals_or_plain_text() -> None:
    words = parse_settings(["a=1", "b=2.5", "c=true", "d=plain text", 'e="quoted"', "f=[1, 2]", "g=", "h=x=y"])
    assert words == {"a": 1, "b": 2.5, "c": True, "d": "plain text", "e": "quoted", "f": [1, 2], "g": "", "h": "x=y"}


@pytest.mark.parametrize("word", ["width", "=3", "  =3"])
def test_a_word_without_key_or_value_is_refused(word: str) -> None:
    with pytest.raises(SpecError, match="key=value"):
        parse_settings([word])


def test_a_value_cannot_smuggle_in_a_second_key() -> None:
    assert parse_settings(["width=1\nheads = 2"])["width"] == "1\nheads = 2"


@pytest.mark.parametrize("text", ["__import__('os').system('true')", "1+1", "lambda: 0"])
def test_nothing_is_evaluated(text: str) -> None:
    assert parse_settings([f"width={text}"])["width"] == text


@pytest.mark.parametrize(
    ("model", "words", "message"),
    [
        ("lsmt", {}, "Did you mean 'lstm'"),
        ("decoder", {"widht": 8}, "Did you mean 'width'"),
        ("decoder", {"held_ou": 0.1}, "Did you mean 'held_out'"),
        ("decoder", {"positions": "rotory"}, "Known: none, learned, sinusoidal"),
        ("decoder", {"positions": "sinusodal"}, "Did you mean 'sinusoidal'"),
        ("decoder", {"heads": 12, "width": 500}, "does not divide decoder.width = 500. Nearest widths: 492, 504"),
        ("decoder", {"heads": 5, "attention_width": 12}, "does not divide decoder.attention_width = 12"),
        ("decoder", {"depth": 0}, "decoder.depth = 0"),
        ("decoder", {"depth": "four"}, "decoder.depth = 'four'"),
        ("lstm", {"tied": True}, "lstm.tied needs lstm.hidden = lstm.width"),
        ("lstm", {"heads": 2}, "the setting = 'heads' is unknown"),
        ("lstm", {"dropout": 1.5}, "dropout = 1.5"),
        ("lstm", {"tokenizer": "wrods"}, "Did you mean 'words'"),
        ("parser", {"tokenizer": "words"}, "the setting = 'tokenizer' is unknown"),
        ("parser", {"held_out": 2}, "held_out = 2"),
        ("nowhere.toml", {}, "no such file"),
    ],
)
def test_a_wrong_word_says_what_was_expected(model: str, words: dict, message: str) -> None:
    with pytest.raises(SpecError, match=message.replace("(", r"\(")):
        choose(model, words)


def test_settings_without_effect_are_not_listed_where_no_text_is_read() -> None:
    idle = {"mask_rate", "augment", "objective", "sequence_length"}
    for model in ("parser", "graph"):
        assert not idle & {row.word for row in describe_settings(model)}
    assert "label_smoothing" in {row.word for row in describe_settings("graph")}


def test_letters_are_second_names() -> None:
    by_letter = choose("decoder", {"d": 64, "L": 2, "h": 2, "d_ff": 100, "T": 32}).model
    by_name = choose("decoder", {"width": 64, "depth": 2, "heads": 2, "feed_forward": 100, "context": 32}).model
    assert by_letter == by_name
    assert Decoder.model_validate({"d": 64}).width == 64


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"optimizer": "muon", "optimizer.momentun": 0.9}, "recipe.optimizer.muon: the setting = 'momentun' is unknown."
         " Did you mean 'momentum'? Known: learning_rate, momentum."),
        ({"optimizer": "adamw", "optimizer.learning_rate": 0.1}, "recipe.optimizer.adamw has no settings, so none "
         "called 'learning_rate'. Leave it out, or say learning_rate=…, which is of the recipe."),
        ({"positions": "rotary", "positions.bas": 3}, "decoder.positions.rotary: the setting = 'bas' is unknown. Did "
         "you mean 'base'?"),
        ({"optimizer": 3}, "optimizer = '3' is unknown. Known: adamw, muon, custom."),
        ({"compile": "maybe"}, "recipe.compile = 'maybe': input should be 'auto', True or False."),
        ({"positions": "learned", "positions.base": 3}, "decoder.positions.learned has no settings, so none called "
         "'base'. Leave it out."),
    ],
)  # fmt: skip
def test_a_wrong_setting_inside_a_choice_is_compared_with_those_of_that_choice(words: dict, said: str) -> None:
    with pytest.raises(SpecError, match=re.escape(said)):
        choose("decoder", words)


def test_a_name_and_its_letter_together_are_refused() -> None:
    with pytest.raises(ValueError, match="width is given twice"):
        Decoder.model_validate({"d": 64, "width": 32})


def test_vocabulary_reaches_the_tokenizer_where_it_has_a_size() -> None:
    assert choose("lstm", {"V": 500}).tokenizer.vocabulary == 500
    assert choose("lstm", {"tokenizer": "words", "minimum_count": 3}).tokenizer.minimum_count == 3


def test_dotted_words_reach_into_a_choice_in_either_order() -> None:
    for words in (
        {"positions": "sinusoidal", "positions.base": 500},
        {"positions.base": 500, "positions": "sinusoidal"},
    ):
        assert choose("decoder", words).model.positions.base == 500


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_toml(name: str, tmp_path) -> None:
    chosen = choose(name)
    tables = {"recipe": chosen.recipe.to_dict(), "tokenizer": chosen.tokenizer.to_dict()}
    path = tmp_path / "model.toml"
    path.write_text(to_toml({**chosen.model.to_dict(), **tables}), encoding="utf-8")
    assert choose(str(path)) == chosen


def test_a_spec_file_names_its_mistake(tmp_path) -> None:
    path = tmp_path / "model.toml"
    for text, message in [
        ("width = 3", "'family' is missing"),
        ('family = "lstn"', "Did you mean 'lstm'"),
        ('family = "lstm"\nhiden = 3', "Did you mean 'hidden'"),
        ("family = ", "not valid TOML"),
        ('family = "lstm"\n[recipe]\nstep = 3', "Did you mean 'steps'"),
    ]:
        path.write_text(text, encoding="utf-8")
        with pytest.raises(SpecError, match=message):
            choose(str(path))


text = st.text(st.characters(exclude_categories=["Cs"]))
plain = st.recursive(
    st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(text, plain | st.dictionaries(text, plain, max_size=3), max_size=4))
def test_toml_out_is_toml_in(table: dict) -> None:
    assert tomllib.loads(to_toml(table)) == table


def test_a_spec_is_frozen_and_every_field_has_its_sentence() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Recipe().steps = 3  # pyright: ignore[reportAttributeAccessIssue]
    for kind in (Recipe, Decoder):
        silent = [name for name, field in kind.model_fields.items() if not field.description and name != "family"]
        assert not silent


@pytest.mark.parametrize(
    ("former", "now"),
    [("stretch", "sequence_length"), ("focus", "entropy_penalty"), ("near_max", "distance_max")],
)
def test_a_setting_of_version_0_1_is_told_its_name_now_and_files_with_it_are_still_read(former: str, now: str) -> None:
    with pytest.raises(SpecError, match=f"'{former}' is called '{now}' now. Say {now}=2"):
        choose("decoder", {former: 2})
    assert getattr(Recipe.read({former: 2}, "recipe.toml"), now) == 2
