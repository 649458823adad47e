"""Plugins of other packages: lookup by name, and isolation of broken packages."""

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


class PluginInstaller:
    """Installs single-module packages by writing the module and its metadata."""

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
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginInstaller:
    (tmp_path / "site").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "site")
    return PluginInstaller(tmp_path / "site")


def test_plugin_family_is_chosen_by_name_with_its_recipe(plugins: PluginInstaller) -> None:
    plugins.family("first_family", "quick")
    choice = choose("quick", {"width": 5, "steps": 7})
    assert (choice.model.family, choice.model.width) == ("quick", 5)
    assert (choice.recipe.learning_rate, choice.recipe.steps) == (0.5, 7)
    assert read_model(choice.model.to_dict(), "here") == choice.model
    assert "width = 3" in [row.title for row in describe_settings("quick")]
    body = Classifier(body="quick")
    assert body.to_dict()["body"] == {"vocabulary": 256, "family": "quick", "width": 3}
    assert Classifier.read(body.to_dict(), "here") == body


def test_unknown_name_error_lists_plugin_names(plugins: PluginInstaller) -> None:
    plugins.family("second_family", "quick")
    plugins.install(
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


def test_plugin_position_settings_round_trip(plugins: PluginInstaller) -> None:
    plugins.install(
        "b_kind", KIND.format(module="positions", base="NewPositions", words="", name="wobbly"), "positions", "wobbly"
    )
    spec = choose("decoder", {"positions": "wobbly", "positions.size": 2}).model
    assert spec.to_dict()["positions"] == {"kind": "wobbly", "size": 2.0}
    assert read_model(spec.to_dict(), "here") == spec
    with pytest.raises(SpecError, match=r"wobbly.size = 'big'"):
        choose("decoder", {"positions": "wobbly", "positions.size": "big"})


@pytest.mark.parametrize("source", ["import no_such_module", "1 / 0", "raise SystemExit(3)", "Added = 5", "x = 1"])
def test_broken_plugin_is_reported_and_isolated(plugins: PluginInstaller, source: str) -> None:
    module = f"broken_{abs(hash(source))}"
    plugins.install(module, source, "families", "cracked")
    with pytest.raises(PackageError, match=f"{module} 1.5"):
        choose("cracked")
    assert choose("lstm").model == Lstm()
    with pytest.raises(SpecError, match="Did you mean 'cracked'"):  # names are listed without being loaded
        choose("craked")


@pytest.mark.parametrize("wrong", ["module:Model", "nowhere.at.all:Model", "json:loads", "json"])
def test_missing_plugin_model_is_reported(plugins: PluginInstaller, wrong: str) -> None:
    module = f"misled_{abs(hash(wrong))}"
    source = FAMILY.format(module=module, name="misled").replace(f"{module}:Model", wrong)
    plugins.install(module, source, "families", "misled")
    with pytest.raises(PackageError, match=f"{module} 1.5"):
        build(choose("misled").model)


def test_plugin_spec_must_match_its_entry_point_name(plugins: PluginInstaller) -> None:
    plugins.install("misnamed", FAMILY.format(module="misnamed", name="lstm"), "families", "other")
    with pytest.raises(PackageError, match=r"misnamed 1.5 .* lacks the line: family: Literal\['other'\]"):
        choose("other")


def test_built_in_names_take_precedence_with_a_warning(plugins: PluginInstaller) -> None:
    source = FAMILY.format(module="greedy", name="lstm")
    plugins.install("greedy", source, "families", "lstm", "classifier")
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


def test_plugin_name_from_two_packages_is_refused(plugins: PluginInstaller) -> None:
    for module in ("one_of_two", "two_of_two"):
        plugins.family(module, "twice")
    with pytest.raises(PackageError, match=r"two packages, one_of_two 1.5 and two_of_two 1.5"):
        choose("twice")


def test_uses_plugins_detects_nested_plugin_parts(plugins: PluginInstaller) -> None:
    plugins.family("brought", "brought")
    spec = choose("brought").model
    assert uses_plugins(spec) and uses_plugins(Classifier(body=spec))
    assert not uses_plugins(Decoder())


def test_run_of_a_missing_plugin_family_is_explained(tmp_path: Path) -> None:
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


def test_objective_settings_apply_only_to_their_objective(plugins: PluginInstaller) -> None:
    recipe = Recipe.read({"objective": {"kind": "gone", "gamma": 2}}, "recipe")
    assert Recipe.read(recipe.to_dict(), "recipe") == recipe
    assert Recipe().to_dict()["objective"] == "causal"
    with pytest.raises(SpecError, match="that package is not installed"):
        recipe.objective.resolve()
    words = 'loss: ClassVar[str] = "a_loss:loss"'
    plugins.install(
        "a_loss", KIND.format(module="recipe", base="NewObjective", words=words, name="sharp"), "objectives", "sharp"
    )
    result = choose("lstm", {"objective": "sharp", "objective.size": 3}).recipe.objective.resolve()
    assert result.settings() == {"size": 3.0}
    with pytest.raises(SpecError, match="causal has no settings; got size"):
        choose("lstm", {"objective": "causal", "objective.size": 3})


def test_encoder_objective_is_a_model_setting() -> None:
    with pytest.raises(SpecError, match=r"recipe.objective has no effect on a model of the family tree"):
        choose("tree", {"objective": "causal"})
    assert choose("encoder", {"objective": "both"}).model.objective == "both"
    assert choose("encoder", {"objective": "both"}, classify=True).model.body.objective == "both"
    assert [row.where for row in describe_settings("encoder") if row.word == "objective"] == ["model"]
