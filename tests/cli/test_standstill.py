"""A run that stops learning, and a start that fails, on the command line."""

from pathlib import Path

import pytest

from firsthand.cli import main
from firsthand.runs import RunFolder
from firsthand.training import TrainingStopped
from firsthand.training.loop import Trainer


def test_a_standstill_says_why_and_how_to_go_on_and_its_empty_folder_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(self: Trainer) -> None:
        raise TrainingStopped("Learning has stopped: no gradient. Try another --seed.")

    monkeypatch.setattr(Trainer, "train", stop)
    for seed in ("0", "1"):  # nothing was learned: the next try, with another seed, is not in the way
        with pytest.raises(SystemExit) as end:
            main(["train", "excavator", "--out", str(tmp_path / "run"), "--seed", seed, "--no-report"])
        assert end.value.code == 1
        said = " ".join(capsys.readouterr().err.split())
        assert "Learning has stopped: no gradient. Try another --seed." in said
        assert "--resume --keep-going" in said
    assert RunFolder.open(tmp_path / "run").config["seed"] == 1
