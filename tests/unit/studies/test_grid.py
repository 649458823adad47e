from pathlib import Path
from typing import Any

import pytest

from lemma.errors import SpecError
from lemma.spec.data import DataSpec
from lemma.spec.models import TableA5
from lemma.spec.studies import ComparedModel, GridStudy, read_study
from lemma.studies.grid import expand_grid


def study(**words: Any) -> GridStudy:
    return GridStudy(
        **{"name": "s", "data": DataSpec(text=("a.txt",)), "models": (ComparedModel(model="lstm"),), **words}
    )


def test_cells_are_ordered_by_model_grid_and_seed() -> None:
    cells = expand_grid(study(models=(ComparedModel(model="lstm"), ComparedModel(model="gru")), grid={"depth": (1, 2)}))
    assert [cell.name for cell in cells] == [
        f"{model}-depth-{depth}-seed-{seed}" for model in ("lstm", "gru") for depth in (1, 2) for seed in (1, 2)
    ]
    assert [(cell.model.to_dict()["depth"], cell.recipe.seed) for cell in cells[:4]] == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_cell_name_lists_its_settings() -> None:
    (cell,) = expand_grid(study(grid={"depth": (2,), "learning_rate": (0.001,)}, seeds=(7,)))
    assert str(cell) == "lstm, depth=2, learning_rate=0.001, seed 7"
    assert cell.name == "lstm-depth-2-learning_rate-0.001-seed-7"


def test_grid_settings_reach_recipe_and_spec() -> None:
    cells = expand_grid(study(grid={"D": (8,), "batch": (3, 5)}, seeds=(1,)))
    assert [(cell.model.to_dict()["hidden"], cell.recipe.batch) for cell in cells] == [(8, 3), (8, 5)]
    assert cells[0].fixed_sizes == {"hidden"}


def test_shared_settings_apply_to_models_that_accept_them() -> None:
    models = (ComparedModel(model="feed-forward"), ComparedModel(model="lstm", settings={"depth": 3}))
    window, recurrent = expand_grid(study(models=models, settings={"context": 5, "depth": 2, "steps": 9}, seeds=(1,)))
    assert window.model.to_dict()["context"] == 5
    assert recurrent.model.to_dict()["depth"] == 3, "a model's own word wins"
    assert {window.recipe.steps, recurrent.recipe.steps} == {9}


def test_table_a5_expands_into_four_exact_cells() -> None:
    cells = expand_grid(read_study("table-a5", {"seeds": [1]}))
    assert [cell.point_text for cell in cells] == [
        "depth=2, context=3",
        "depth=2, context=5",
        "depth=4, context=3",
        "depth=4, context=5",
    ]
    assert all(isinstance(cell.model, TableA5) and cell.model.vocabulary == 7676 for cell in cells)


def test_spec_file_is_a_compared_model(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('family = "gru"\nhidden = 33\n[recipe]\nbatch = 2\n')
    (cell,) = expand_grid(study(models=(ComparedModel(model=str(file), name="my own"),), seeds=(1,)))
    assert (cell.name, cell.model.to_dict()["hidden"], cell.recipe.batch) == ("my-own-seed-1", 33, 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"grid": {"heads": (1, 2)}}, "study.grid: lstm: unknown setting 'heads'"),
        ({"grid": {"dept": (1, 2)}}, "Did you mean 'depth'"),
        ({"settings": {"botch": 3}}, "study.settings: unknown setting 'botch'. Did you mean 'batch'"),
        (
            {"models": (ComparedModel(model="rnn", settings={"heads": 2}),)},
            "study.models: rnn: unknown setting 'heads'",
        ),
        ({"models": (ComparedModel(model="lsmt"),)}, "Did you mean 'lstm'"),
        ({"grid": {"seed": (1, 2)}}, "seeds=[1,2,3]"),
        ({"settings": {"V": 300}}, "data.tokenizer.vocabulary"),
        ({"grid": {"D": (4,)}, "models": (ComparedModel(model="rnn", settings={"hidden": 2}),)}, "rnn sets hidden"),
        ({"grid": {"hidden": (0,)}}, "hidden = 0"),
        (
            {"models": (ComparedModel(model="rnn", name="a b"), ComparedModel(model="rnn", name="a-b"))},
            "the folder a-b-seed-1",
        ),
    ],
)
def test_invalid_grids_are_explained(words: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as mistake:
        expand_grid(study(**words))
    assert message in str(mistake.value)
