"""What `firsthand simulator fit` says about the logs it was given."""

from pathlib import Path

import pytest

from firsthand.cli import main
from firsthand.logs.csv_file import column_names
from firsthand.tasks.excavator import excavator_task


def test_fit_says_what_is_refused_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    names = column_names(excavator_task().spec)
    rows = [[f"{0.04 * k:.2f}", "-0.8", "1.2", "0.6", "0.8", *8 * ["0"], "x"] for k in range(30)]
    rows[10][1] = "nan"
    rows[20][9] = "5"
    lines = [",".join(row) for row in ([*names, "remark"], *rows)]
    Path("log.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(SystemExit):
        main(["simulator", "fit", "log.csv", "--robot", "excavator", "--out", "sim"])
    said = capsys.readouterr()
    for words in ("1: a value is missing or not a number", "1: a command is outside its range"):
        assert words in said.err
    assert "columns not used: remark" in said.err
    assert "log.csv" in said.err
    assert not said.out
