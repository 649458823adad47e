"""The commands on a Hugging Face folder."""

from pathlib import Path

import pytest

from lemma.cli.main import main
from pretrained_models import TEXT, llama

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    llama(path)
    (path.parent / "text.txt").write_text(TEXT, encoding="utf-8")
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    output = capsys.readouterr()
    assert left.value.code in (0, None), output.err
    return output.out


def error_of(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    assert left.value.code == 2
    return " ".join(capsys.readouterr().err.split())


def test_generate_supports_prompt_and_chat(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "generate", folder, "--prompt", "the cat", "--tokens", 3).startswith("the cat")
    answer = run(capsys, "generate", folder, "--chat", "the cat", "--tokens", 3)
    assert "the cat" not in answer and "<|im_start|>" not in answer
    assert "Leave out the one or the other" in error_of(capsys, "generate", folder, "--chat", "a", "--prompt", "b")


def test_verbs_accept_a_hugging_face_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "d_ff = 40" in run(capsys, "count", folder, "--only", "parameters")
    assert "d_ff = 40" in run(capsys, "count", folder / "config.json", "--only", "parameters")
    assert run(capsys, "check", "number", folder, "parameters", "23,736")
    assert "4 heads" in run(capsys, "look", folder, "--text", "the cat sat", "--layer", 0)
    assert "perplexity" in run(capsys, "evaluate", folder, "--text", folder.parent / "text.txt")
    assert "whose own data are not known" in error_of(capsys, "evaluate", folder)
    assert "not a dual encoder" in error_of(capsys, "search", folder, "--images", "emoji", "--query", "cat")


def test_adapted_pretrained_model_is_exported(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = ("steps=1", "batch=2", "sequence_length=8", "device=cpu")
    words = ("adapt", folder, "--text", folder.parent / "text.txt", "--out", tmp_path / "new", *quick)
    assert "lora" in run(capsys, *words)
    out = run(capsys, "export", tmp_path / "new", "--to", "huggingface", "--out", tmp_path / "hf")
    assert "a folder for transformers: 23,736 parameters" in out
    assert "d_ff = 40" in run(capsys, "count", tmp_path / "hf", "--only", "parameters")
    assert "lemma export" in error_of(capsys, "export", tmp_path / "new", "--to", "huggingface")


def test_data_lists_pretrained_models_with_size_and_licence(capsys: pytest.CaptureFixture[str]) -> None:
    listed = run(capsys, "data")
    assert "smollm2-135m" in listed and "98,362,432" in listed and "Apache-2.0" in listed and "stories15m" in listed


def test_misspelt_pretrained_name_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Did you mean the pretrained model stories15m?" in error_of(capsys, "generate", "stories-15m")
