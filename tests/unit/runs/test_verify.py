"""Verification of every file of a run: a changed byte is named or harmless."""

import json
import random
import shutil
from pathlib import Path

import pytest

import lemma
from lemma.errors import LemmaError
from lemma.files import data_home
from lemma.runs.folder import RunFolder
from lemma.runs.verify import verify_folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify")
    (folder / "book.txt").write_text("the cat sat on the mat\n" * 200)
    sizes = {"width": 8, "hidden": 8, "vocabulary": 280, "batch": 4, "sequence_length": 8}
    lemma.train("lstm", text=folder / "book.txt", out=folder / "run", steps=4, progress=False, **sizes)
    return folder / "run"


def used(path: Path) -> object:
    """Return the results of everything that reads a finished run."""
    run = lemma.load(path)
    rows = RunFolder.open(path).metrics.rows()
    return run.summary, rows, run.recipe, [tensor.tolist() for tensor in run.module.parameters()], run.tokenizer.hash


def flipped(content: bytes, chance: random.Random) -> bytes:
    index = chance.randrange(len(content))
    return content[:index] + bytes([content[index] ^ 1 << chance.randrange(8)]) + content[index + 1 :]


def test_intact_run_verifies_with_all_files_listed(trained: Path) -> None:
    result = verify_folder(trained)
    assert result.right and {file.state for file in result.files} == {"good"}
    listed = {trained / file.path for file in result.files}
    assert listed == {path for path in trained.rglob("*") if path.is_file()}
    assert verify_folder(trained.parent).files[0].path == "run/spec.toml"


@pytest.mark.filterwarnings("ignore")
def test_flipped_bit_in_any_file_is_named_or_harmless(trained: Path, tmp_path: Path) -> None:
    chance, expected = random.Random(1), used(trained)
    shutil.copytree(trained, tmp_path / "run")
    for file in sorted(path for path in (tmp_path / "run").iterdir() if path.is_file()):
        good = file.read_bytes()
        for damage in [flipped(good, chance) for _ in range(6)] + [good[: chance.randrange(len(good))]]:
            file.write_bytes(damage)
            try:
                assert used(tmp_path / "run") == expected, (file.name, damage)
            except LemmaError as error:
                assert file.name in str(error), (error, damage)
                assert not verify_folder(tmp_path / "run").right
        file.write_bytes(good)


def test_verify_names_damage_and_exits_with_1(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from lemma.cli.main import main

    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    (tmp_path / "run" / "checkpoints" / "step-4" / "state.json").write_text("{}")
    (tmp_path / "run" / ".left.0-1.partial").touch()
    with pytest.raises(SystemExit) as left:
        main(["verify", str(tmp_path / "run"), "--json"])
    output = {file["path"]: file["state"] for file in json.loads(capsys.readouterr().out)["files"]}
    assert left.value.code == 1
    wrong = {path: state for path, state in output.items() if state != "good"}
    assert wrong == {
        "metrics.jsonl": "damaged",
        "checkpoints/step-4/state.json": "damaged",
        ".left.0-1.partial": "left over",
    }


def test_damaged_cache_is_detected_and_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lemma.data.store import prepare_text
    from lemma.spec.data import BytePairs, DataSpec

    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "home"))
    (tmp_path / "book.txt").write_text("the cat sat on the mat\n" * 200)
    spec, chance = DataSpec(text=(str(tmp_path / "book.txt"),), tokenizer=BytePairs(vocabulary=280)), random.Random(2)
    expected = {name: tokens.tolist() for name, tokens in prepare_text(spec).items.items()}
    files = sorted(path for path in data_home().rglob("*") if path.is_file())
    assert len(files) == 3 and lemma.verify().right
    for file in files:
        for _ in range(5):
            file.write_bytes(flipped(file.read_bytes(), chance))
            result = lemma.verify()
            assert [item.path for item in result.files if item.state == "damaged"][:1] == [
                str(file.relative_to(data_home()))
            ]
            assert {name: tokens.tolist() for name, tokens in prepare_text(spec).items.items()} == expected
            assert lemma.verify().right
