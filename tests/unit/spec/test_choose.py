import re
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemma.errors import LemmaError, SpecError
from lemma.spec.base import parse_settings, to_toml
from lemma.spec.choose import PRESETS, Choice, choose, describe_settings
from lemma.spec.data import DATA_SPECS, BytePairs, Words
from lemma.spec.models import Decoder
from lemma.spec.recipe import Recipe
from lemma.spec.settings import SYNONYMS
from lemma.spec.studies import STUDIES, read_study


def test_setting_values_are_toml_literals_or_text() -> None:
    words = parse_settings(["a=1", "b=2.5", "c=true", "d=plain text", 'e="quoted"', "f=[1, 2]", "g=", "h=x=y"])
    assert words == {"a": 1, "b": 2.5, "c": True, "d": "plain text", "e": "quoted", "f": [1, 2], "g": "", "h": "x=y"}


@pytest.mark.parametrize("word", ["width", "=3", "  =3"])
def test_setting_without_key_or_value_is_refused(word: str) -> None:
    with pytest.raises(SpecError, match="key=value"):
        parse_settings([word])


def test_setting_value_cannot_inject_another_key() -> None:
    assert parse_settings(["width=1\nheads = 2"])["width"] == "1\nheads = 2"


@pytest.mark.parametrize("text", ["__import__('os').system('true')", "1+1", "lambda: 0"])
def test_setting_values_are_never_evaluated(text: str) -> None:
    assert parse_settings([f"width={text}"])["width"] == text


@pytest.mark.parametrize(
    ("model", "words", "message"),
    [
        ("lsmt", {}, "Did you mean 'lstm'"),
        ("decoder", {"widht": 8}, "Did you mean 'width'"),
        ("decoder", {"held_ou": 0.1}, "Did you mean 'held_out'"),
        ("decoder", {"positions": "rotory"}, "Choices: none, learned, sinusoidal"),
        ("decoder", {"positions": "sinusodal"}, "Did you mean 'sinusoidal'"),
        ("decoder", {"heads": 12, "width": 500}, "does not divide decoder.width = 500. Nearest widths: 492, 504"),
        ("decoder", {"heads": 5, "attention_width": 12}, "does not divide decoder.attention_width = 12"),
        ("decoder", {"depth": 0}, "decoder.depth = 0"),
        ("decoder", {"depth": "four"}, "decoder.depth = 'four'"),
        ("lstm", {"tied": True}, "lstm.tied needs lstm.hidden = lstm.width"),
        ("lstm", {"heads": 2}, "unknown setting 'heads'"),
        ("lstm", {"dropout": 1.5}, "dropout = 1.5"),
        ("lstm", {"tokenizer": "wrods"}, "Did you mean 'words'"),
        ("parser", {"tokenizer": "words"}, "unknown setting 'tokenizer'"),
        ("parser", {"held_out": 2}, "held_out = 2"),
        ("nowhere.toml", {}, "no such file"),
    ],
)
def test_invalid_setting_error_says_what_is_expected(model: str, words: dict, message: str) -> None:
    with pytest.raises(SpecError, match=message.replace("(", r"\(")):
        choose(model, words)


def test_settings_without_effect_are_not_listed() -> None:
    idle = {"mask_rate", "augment", "objective", "sequence_length"}
    for model in ("parser", "graph"):
        assert not idle & {row.word for row in describe_settings(model)}
    assert "label_smoothing" in {row.word for row in describe_settings("graph")}


def test_symbols_are_aliases_of_settings() -> None:
    by_letter = choose("decoder", {"d": 64, "L": 2, "h": 2, "d_ff": 100, "T": 32}).model
    by_name = choose("decoder", {"width": 64, "depth": 2, "heads": 2, "feed_forward": 100, "context": 32}).model
    assert by_letter == by_name
    assert Decoder.model_validate({"d": 64}).width == 64


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"optimizer": "muon", "optimizer.momentun": 0.9}, "recipe.optimizer.muon: unknown setting 'momentun'."
         " Did you mean 'momentum'? Choices: learning_rate, momentum."),
        ({"optimizer": "adamw", "optimizer.learning_rate": 0.1}, "recipe.optimizer.adamw has no settings, so none "
         "called 'learning_rate'. Leave it out, or say learning_rate=…, which is of the recipe."),
        ({"positions": "rotary", "positions.bas": 3}, "decoder.positions.rotary: unknown setting 'bas'. Did "
         "you mean 'base'?"),
        ({"optimizer": 3}, "unknown optimizer '3'. Choices: adamw, muon, custom."),
        ({"compile": "maybe"}, "recipe.compile = 'maybe': input should be 'auto', True or False."),
        ({"positions": "learned", "positions.base": 3}, "decoder.positions.learned has no settings, so none called "
         "'base'. Leave it out."),
    ],
)  # fmt: skip
def test_nested_setting_error_suggests_settings_of_that_choice(words: dict, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        choose("decoder", words)


def test_setting_given_by_name_and_symbol_is_refused() -> None:
    with pytest.raises(ValueError, match="width is given twice"):
        Decoder.model_validate({"d": 64, "width": 32})


def test_vocabulary_setting_reaches_the_tokenizer() -> None:
    assert choose("lstm", {"V": 500}).tokenizer.vocabulary == 500
    assert choose("lstm", {"tokenizer": "words", "minimum_count": 3}).tokenizer.minimum_count == 3


def test_dotted_settings_reach_nested_specs_in_any_order() -> None:
    for words in (
        {"positions": "sinusoidal", "positions.base": 500},
        {"positions.base": 500, "positions": "sinusoidal"},
    ):
        assert choose("decoder", words).model.positions.base == 500


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_round_trips_through_toml(name: str, tmp_path) -> None:
    choice = choose(name)
    tables = {"recipe": choice.recipe.to_dict(), "tokenizer": choice.tokenizer.to_dict()}
    path = tmp_path / "model.toml"
    path.write_text(to_toml({**choice.model.to_dict(), **tables}), encoding="utf-8")
    assert choose(str(path)) == choice


def test_spec_file_error_describes_the_mistake(tmp_path) -> None:
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
def test_toml_round_trip_preserves_the_table(table: dict) -> None:
    assert tomllib.loads(to_toml(table)) == table


def test_specs_are_frozen_and_every_field_is_described() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Recipe().steps = 3  # pyright: ignore[reportAttributeAccessIssue]
    for kind in (Recipe, Decoder):
        silent = [name for name, field in kind.model_fields.items() if not field.description and name != "family"]
        assert not silent


@pytest.mark.parametrize(
    ("former", "now"),
    [("stretch", "sequence_length"), ("focus", "entropy_penalty"), ("near_max", "distance_max")],
)
def test_renamed_settings_of_version_0_1_are_translated(former: str, now: str) -> None:
    with pytest.raises(SpecError, match=f"'{former}' is called '{now}' now. Type {now}=2"):
        choose("decoder", {former: 2})
    assert getattr(Recipe.read({former: 2}, "recipe.toml"), now) == 2


@pytest.mark.parametrize(
    ("model", "word", "value", "message"),
    [
        ("lstm", "hidden_size", 64, "Type hidden=64"),
        ("decoder", "hidden_size", 64, "Type width=64"),
        ("decoder", "hidden_dim", 64, "Related: width=…: .* feed_forward=…: "),
        ("table-a5", "embedding_dim", 64, "Type embedding=64"),
        ("encoder-decoder", "num_layers", 6, "Type encoder_depth=6 decoder_depth=6"),
        ("decoder", "block_size", 64, "Type context=64"),
        ("decoder", "window_size", 8, "Type window=8"),
        ("lstm", "block_size", 64, "Type sequence_length=64"),
        ("feed-forward", "block_size", 8, "Related: context=…: Length of the n-gram"),
        ("feed-forward", "window_size", 8, "Related: context=…: Length of the n-gram"),
        ("encoder", "window_size", 8, "unknown setting 'window_size'. Choices: "),
        ("rnn", "early_stopping", True, "Related: patience=…: Early stopping after this many evaluations"),
        ("rnn", "warmup", 0.1, "called warm_up here. warm_up=…: Number of linear warm-up steps"),
        ("rnn", "gradient_accumulation_steps", 4, "Related: accumulate=…: .* micro-batches"),
        ("rnn", "num_train_epochs", 3, "Type epochs=3"),
        ("rnn", "tie_weights", True, "Type tied=true"),
    ],
)
def test_only_equivalent_settings_are_suggested(model: str, word: str, value: object, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        choose(model, {word: value})


def test_every_synonym_maps_to_an_existing_setting() -> None:
    settable = {word for name in PRESETS for word in type(choose(name).model).setting_names()}
    settable |= {*Recipe.setting_names(), *Words.setting_names(), "epochs", "rank", "alpha", "targets", "classes"}
    current = {name for names in SYNONYMS.values() for entry in names for name in entry.removeprefix("~").split()}
    assert current <= settable
    assert not [word for word, names in SYNONYMS.items() if word in settable - {"epochs"} or not names]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=8) | st.just("words"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kind", "a", "base"]), inner, max_size=2)
    ),
    max_leaves=4,
)


def setting_names(model: str) -> list[str]:
    choice = choose(model)
    specs = (type(choice.model), Recipe, type(choice.tokenizer), DATA_SPECS[choice.model.data_kind])
    names = [word for spec in specs for word in spec.setting_names()]
    return [
        *names,
        "tokenizer",
        "held_out",
        "tokenizer.kind",
        "positions.base",
        "body.width",
        "optimizer.x",
        "a.b.c",
        "lr",
    ]


@given(st.data(), st.sampled_from(sorted(PRESETS)), st.booleans())
def test_arbitrary_settings_raise_only_lemma_errors(data: st.DataObject, model: str, classify: bool) -> None:
    words = data.draw(st.dictionaries(st.sampled_from(setting_names(model)), VALUES, min_size=1, max_size=3))
    try:
        choose(model, words, classify=classify)
    except LemmaError as error:
        assert str(error)


@pytest.mark.parametrize("value", [[[]], [{}]])
def test_lists_and_tables_in_lists_of_a_study_are_refused(value: list) -> None:
    with pytest.raises(SpecError, match=r"lengths\.0 = .*a valid integer"):
        read_study("length", {"lengths": value})


@given(st.sampled_from(sorted(STUDIES)), st.data())
def test_arbitrary_study_settings_raise_only_lemma_errors(name: str, data: st.DataObject) -> None:
    names = [
        "seeds",
        "models",
        "settings",
        "budget",
        "budget.tokens",
        "grid",
        "grid.width",
        "data",
        "data.text",
        "kind",
    ]
    try:
        read_study(name, data.draw(st.dictionaries(st.sampled_from(names), VALUES, min_size=1, max_size=2)))
    except LemmaError as error:
        assert str(error)


@given(VALUES, st.sampled_from(["recipe", "tokenizer", "family", "positions", "width"]))
def test_arbitrary_spec_files_raise_only_lemma_errors(value: object, name: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.toml"
        try:
            path.write_text(to_toml({"family": "decoder", name: value}), encoding="utf-8")
        except (TypeError, UnicodeEncodeError):  # TOML has no way to write it
            return
        try:
            choose(path)
        except LemmaError as error:
            assert str(error)


def test_tokenizer_setting_may_be_a_table() -> None:
    assert choose("rnn", {"tokenizer": {"kind": "words", "vocabulary": 50}}).tokenizer == Words(vocabulary=50)
    assert choose("rnn", {"tokenizer": "words", "tokenizer.vocabulary": 50}).tokenizer == Words(vocabulary=50)
    for wrong, output in (
        ({"a": 1}, "unknown setting 'a'"),
        ([1], "unknown .*. Choices: characters"),
        ({"kind": []}, "unknown"),
    ):
        with pytest.raises(SpecError, match=output):
            choose("rnn", {"tokenizer": wrong})


@pytest.mark.parametrize("model", [None, 3, {"family": "rnn"}, object()])
def test_invalid_model_error_lists_accepted_types(model: object) -> None:
    with pytest.raises(SpecError, match=r"the name of a preset, a spec file, or a spec.*lemma\.count takes any"):
        choose(model)  # pyright: ignore[reportArgumentType]


def test_decoder_classifier_is_exportable_by_default() -> None:
    assert choose("decoder", classify=True).model.to_dict()["head_bias"] is False
    assert choose("decoder", {"head_bias": True}, classify=True).model.to_dict()["head_bias"] is True
    assert choose("lstm", classify=True).model.to_dict()["head_bias"] is True


def test_tokenizer_setting_preserves_other_preset_settings() -> None:
    assert choose("penn-rnn", {"tokenizer.minimum_count": 2}).tokenizer == Words(vocabulary=10_000, minimum_count=2)
    assert choose("penn-rnn", {"tokenizer": {"kind": "words", "vocabulary": None}}).tokenizer == Words(vocabulary=None)
    assert choose("penn-rnn", {"tokenizer": "words"}).tokenizer == Words(vocabulary=10_000)


def test_choice_without_settings_keeps_its_recipe_as_reference() -> None:
    choice = Choice(Decoder(), Recipe(steps=100, warm_up=30), BytePairs())
    assert choose(choice).reference_recipe == choose(choice, {"steps": 50}).reference_recipe == choice.recipe
    assert choose(choose(choice, {"steps": 50})).reference_recipe == choice.recipe
