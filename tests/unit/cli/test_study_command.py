"""Exit status of `lemma study`."""

from pathlib import Path

import pytest

from lemma.cli.main import main
from small_runs import small_text

STUDY = """
name = "tiny"
models = ["rnn"]
seeds = [1, 2]
sample_tokens = 5
settings = { width = 4, hidden = 8, batch = 4, steps = 4, warm_up = 1, clip = 0, activation = "relu", device = "cpu" }
data = { text = ["TEXT"], tokenizer = { kind = "characters" } }
"""


@pytest.mark.parametrize(("rate", "status"), [(1e-3, 0), (1e30, 1)])
def test_study_with_only_failed_runs_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rate: float, status: int
) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "home"))
    (tmp_path / "text.txt").write_text(small_text())
    (tmp_path / "study.toml").write_text(STUDY.replace("TEXT", str(tmp_path / "text.txt")))
    command = ["study", str(tmp_path / "study.toml"), f"settings.learning_rate={rate}", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as left:
        main(command)
    assert int(left.value.code or 0) == status
    assert ("All 2 runs of this study failed" in " ".join(capsys.readouterr().err.split())) == (status == 1)
