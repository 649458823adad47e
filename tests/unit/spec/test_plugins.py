"""What other packages bring is found by name, and a package that is broken breaks nothing else."""

import warnings
from pathlib import Path

import pytest

from lemma.errors import PackageError, RunError, SpecError
from lemma.models.build import build
from lemma.runs.folder import RunFolder
from lemma.spec.base import to_toml
from lemma.spec.choose import choose, describe_settings, read_model, uses_plugins
from lemma.spec.models import Classifier, Decoder, Lstm
from lemma.spec.recipe import Recipe

FAMILY = """
from typing import ClassVar, Literal
from lemma.spec.models import NewFamily
class Added(NewFamily):
    \"\"\"A family of a test.\"\"\"
    model: ClassVar[str] = "{module}:Model"
    recipe: ClassVar[dict] = {{"learning_rate": 0.5}}
    family: Literal["{name}"] = "{name}"
    width: int = 3
"""
KIND = """
from typing import ClassVar, Literal
from lemma.spec.{module} import {base}
class Added({base}):
    {words}
    kind: Literal["{name}"] = "{name}"
    size: float = 1.0
"""


class Shop:
    """Installs packages of one module each, by hand: nothing but their metadata is needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, module: str, source: str, group: str, *names: str, attribute: str = "Added") -> None:
        metadata = self.folder / f"{module}-1.5.dist-info"
        metadata.mkdir()
        (self.folder / f"{module}.py").write_text(source, encoding="utf-8")
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.5\n")
        lines = [f"[lemma.{group}]", *(f"{name} = {module}:{attribute}" for name in names)]
        (metadata / "entry_points.txt").write_text("\n".join(lines))

    def family(self, module: str, name: str) -> None:
        self.install(module, FAMILY.format(module=module, name=name), "families", name)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    (tmp_path / "site").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "site")
    return Shop(tmp_path / "site")


def test_a_family_is_chosen_by_its_name_with_its_recipe(shop: Shop) -> None:
    shop.family("first_family", "quick")
    choice = choose("quick", {"width": 5, "steps": 7})
    assert (choice.model.family, choice.model.width) == ("quick", 5)
    assert (choice.recipe.learning_rate, choice.recipe.steps) == (0.5, 7)
    assert read_model(choice.model.to_dict(), "here") == choice.model
    assert "width = 3" in [row.title for row in describe_settings("quick")]
    body = Classifier(body="quick")
    assert body.to_dict()["body"] == {"vocabulary": 256, "family": "quick", "width": 3}
    assert Classifier.read(body.to_dict(), "here") == body


def test_a_slip_is_told_with_the_names_of_other_packages(shop: Shop) -> None:
    shop.family("second_family", "quick")
    shop.install(
        "a_kind", KIND.format(module="positions", base="NewPositions", words="", name="wavy"), "positions", "wavy"
    )
    for act, guess in (
        (lambda: choose("quik"), "quick"),
        (lambda: choose("lstm", {"width": 4}, classify=True).model.replace(body="qick"), "quick"),
        (lambda: Decoder(positions="wawy"), "wavy"),
        (lambda: read_model({"family": "quikc"}, "spec.toml"), "quick"),
    ):
        with pytest.raises(ValueError, match=f"Did you mean '{guess}'.*Choices: .*{guess}"):
            act()


def test_settings_of_positions_are_read_and_written(shop: Shop) -> None:
    shop.install(
        "b_kind", KIND.format(module="positions", base="NewPositions", words="", name="wobbly"), "positions", "wobbly"
    )
    spec = choose("decoder", {"positions": "wobbly", "positions.size": 2}).model
    assert spec.to_dict()["positions"] == {"kind": "wobbly", "size": 2.0}
    assert read_model(spec.to_dict(), "here") == spec
    with pytest.raises(SpecError, match=r"wobbly.size = 'big'"):
        choose("decoder", {"positions": "wobbly", "positions.size": "big"})


@pytest.mark.parametrize("source", ["import no_such_module", "1 / 0", "raise SystemExit(3)", "Added = 5", "x = 1"])
def test_a_broken_package_is_named_and_disturbs_nobody_else(shop: Shop, source: str) -> None:
    module = f"broken_{abs(hash(source))}"
    shop.install(module, source, "families", "cracked")
    with pytest.raises(PackageError, match=f"{module} 1.5"):
        choose("cracked")
    assert choose("lstm").model == Lstm()
    with pytest.raises(SpecError, match="Did you mean 'cracked'"):  # names are listed without being loaded
        choose("craked")


@pytest.mark.parametrize("wrong", ["module:Model", "nowhere.at.all:Model", "json:loads", "json"])
def test_a_model_that_is_not_where_it_is_said_to_be_is_told(shop: Shop, wrong: str) -> None:
    module = f"misled_{abs(hash(wrong))}"
    source = FAMILY.format(module=module, name="misled").replace(f"{module}:Model", wrong)
    shop.install(module, source, "families", "misled")
    with pytest.raises(PackageError, match=f"{module} 1.5"):
        build(choose("misled").model)


def test_a_spec_that_bears_another_name_than_its_entry_point_is_refused(shop: Shop) -> None:
    shop.install("misnamed", FAMILY.format(module="misnamed", name="lstm"), "families", "other")
    with pytest.raises(PackageError, match=r"misnamed 1.5 .* lacks the line: family: Literal\['other'\]"):
        choose("other")


def test_lemmas_own_names_win_and_a_clash_is_told(shop: Shop) -> None:
    source = FAMILY.format(module="greedy", name="lstm")
    shop.install("greedy", source, "families", "lstm", "classifier")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose("lstm").model == Lstm()
    with (
        pytest.warns(
            UserWarning, match="greedy 1.5 brings a family '(lstm|classifier)', which is a name of Lemma's own"
        ),
        pytest.raises(SpecError, match="unknown model 'classifier'"),
    ):
        choose("classifier")


def test_one_name_from_two_packages_is_refused(shop: Shop) -> None:
    for module in ("one_of_two", "two_of_two"):
        shop.family(module, "twice")
    with pytest.raises(PackageError, match=r"two packages, one_of_two 1.5 and two_of_two 1.5"):
        choose("twice")


def test_a_spec_knows_whether_another_package_brings_a_part_of_it(shop: Shop) -> None:
    shop.family("brought", "brought")
    spec = choose("brought").model
    assert uses_plugins(spec) and uses_plugins(Classifier(body=spec))
    assert not uses_plugins(Decoder())


def test_a_run_of_a_family_that_is_not_installed_says_so(tmp_path: Path) -> None:
    for number, (table, description) in enumerate(
        (
            ({"family": "gone"}, "family is 'gone'"),
            ({"family": "decoder", "positions": {"kind": "gone"}}, "positions is 'gone'"),
            ({"family": "classifier", "body": {"family": "gone"}}, "family is 'gone'"),
        )
    ):
        run = tmp_path / f"run-{number}"
        run.mkdir()
        (run / "spec.toml").write_text(to_toml(table))
        (run / "recipe.toml").write_text("")
        with pytest.raises(RunError, match=f"{description}.*the package that brings it is not installed"):
            RunFolder.open(run)


def test_an_objective_is_read_only_where_it_is_used(shop: Shop) -> None:
    recipe = Recipe.read({"objective": {"kind": "gone", "gamma": 2}}, "recipe")
    assert Recipe.read(recipe.to_dict(), "recipe") == recipe
    assert Recipe().to_dict()["objective"] == "causal"
    with pytest.raises(SpecError, match="that package is not installed"):
        recipe.objective.resolve()
    words = 'loss: ClassVar[str] = "a_loss:loss"'
    shop.install(
        "a_loss", KIND.format(module="recipe", base="NewObjective", words=words, name="sharp"), "objectives", "sharp"
    )
    result = choose("lstm", {"objective": "sharp", "objective.size": 3}).recipe.objective.resolve()
    assert result.settings() == {"size": 3.0}
    with pytest.raises(SpecError, match="causal has no settings; got size"):
        choose("lstm", {"objective": "causal", "objective.size": 3})


def test_an_objective_is_for_language_models_and_an_encoders_is_its_own() -> None:
    with pytest.raises(SpecError, match=r"recipe.objective has no effect on a model of the family tree"):
        choose("tree", {"objective": "causal"})
    assert choose("encoder", {"objective": "both"}).model.objective == "both"
    assert choose("encoder", {"objective": "both"}, classify=True).model.body.objective == "both"
    assert [row.where for row in describe_settings("encoder") if row.word == "objective"] == ["model"]
