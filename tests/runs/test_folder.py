import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from firsthand.errors import UserError
from firsthand.runs import RunFolder
from firsthand.runs.checkpoints import CheckpointFolder

CONFIG = {"seed": 1, "episodes": 10, "learner": {"eta": 0.5, "layers": (64, 64)}, "limit": math.inf}
PROVENANCE = {"started_utc": "2026-01-01T00:00:00+00:00"}


def state(k: int) -> dict[str, np.ndarray]:
    return {"weights": np.full(3, float(k)), "key": np.array([k, 0], np.uint32)}


@pytest.fixture
def run(tmp_path: Path):
    with RunFolder.create(tmp_path / "run", CONFIG, provenance=PROVENANCE) as run:
        yield run


# Creating and opening.


def test_config_json_has_format_config_and_provenance(run: RunFolder) -> None:
    content = json.loads((run.path / "config.json").read_text())
    assert list(content) == ["format", "config", "provenance", "sha256"]
    assert content["format"] == 2
    assert content["config"]["learner"] == {"eta": 0.5, "layers": [64, 64]}
    assert float(content["config"]["limit"]) == math.inf
    assert content["provenance"] == PROVENANCE
    opened = RunFolder.open(run.path)
    assert opened.config == run.config == content["config"]
    assert opened.provenance == PROVENANCE
    assert opened.identity == run.identity
    assert opened.report_dir == run.path / "report"
    assert opened.report_dir.is_dir()


def test_a_new_run_may_be_nested_and_its_folder_may_be_there_if_empty(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "a" / "b" / "c", {}, provenance={}).close()
    (tmp_path / "empty").mkdir()
    RunFolder.create(tmp_path / "empty", {}, provenance={}).close()


def test_a_run_without_a_finished_episode_does_not_block_the_next_try(run: RunFolder) -> None:
    with pytest.raises(UserError):  # it is still going on
        RunFolder.create(run.path, {"robot": "another"}, provenance={})
    run.close()
    with RunFolder.create(run.path, {"robot": "another"}, provenance={}) as again:
        assert again.config == {"robot": "another"}


def test_create_refuses_what_it_would_mix_with(run: RunFolder, tmp_path: Path) -> None:
    run.append_metrics({"episode": 1})
    run.close()
    with pytest.raises(UserError, match=r"already holds a run \(started 2026-.*\); add --resume, or .* another --out"):
        RunFolder.create(run.path, CONFIG, provenance={})
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    with pytest.raises(UserError, match="not empty and holds no run; give another --out"):
        RunFolder.create(tmp_path / "photos", CONFIG, provenance={})
    assert os.listdir(tmp_path / "photos") == ["cat.jpg"]
    with pytest.raises(UserError, match="is a file; give another --out"):
        RunFolder.create(tmp_path / "photos" / "cat.jpg", CONFIG, provenance={})
    with pytest.raises(UserError, match=r"cannot make the folder .*: a part of its path is a file"):
        RunFolder.create(tmp_path / "photos" / "cat.jpg" / "run", CONFIG, provenance={})


def test_a_run_with_a_damaged_config_is_not_overwritten(run: RunFolder) -> None:
    run.close()
    (run.path / "config.json").write_text("{")
    with pytest.raises(UserError, match="already holds a run; add --resume"):
        RunFolder.create(run.path, CONFIG, provenance={})


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root may write everywhere")
def test_a_place_without_permission(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir(mode=0o555)
    program = (
        "import sys; from firsthand.runs import RunFolder\n"
        "try: RunFolder.create(sys.argv[1], {}, provenance={})\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    # Root is refused nothing, so root gives up that power first.
    drop = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-all"] if os.geteuid() == 0 else []
    output = subprocess.check_output([*drop, sys.executable, "-c", program, str(place / "run")], text=True)
    assert output == f"UserError cannot make the folder {place / 'run'}: permission denied.\n"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "is not a run: it has no config.json"),
        ("", "is damaged: it is not JSON"),
        ('{"format": 2, "config', "is damaged: it is not JSON"),
        (b"\xff\xfe\x00", "is damaged: it is not JSON"),
        ("[]", "has no field 'format'"),
        ('{"name": "some other program"}', "has no field 'format'"),
        ('{"format": 1}', "has the format 1, and this version of firsthand reads 2"),
        ('{"format": 2, "config": 3}', "'config' and 'provenance' must be objects"),
    ],
)
def test_open_says_what_is_wrong(tmp_path: Path, content, sentence: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=sentence):
        RunFolder.open(tmp_path)


def test_open_a_path_that_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        RunFolder.open(tmp_path / "nothing")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file, not the folder of a run"):
        RunFolder.open(tmp_path / "file")


def test_the_first_different_field_is_named(run: RunFolder) -> None:
    run.check_same_config(CONFIG)
    run.check_same_config({**CONFIG, "episodes": 99})
    run.check_same_config({**CONFIG, "learner": {}}, ignore=("learner", "episodes"))
    with pytest.raises(UserError, match=r"learner\.eta = 0\.5, and now it is 0\.7"):
        run.check_same_config({**CONFIG, "learner": {"eta": 0.7, "layers": [1]}})
    with pytest.raises(UserError, match=r"learner\.layers = \[64, 64\], and now it is \[64\]"):
        run.check_same_config({**CONFIG, "learner": {"eta": 0.5, "layers": [64]}})
    with pytest.raises(UserError, match=r'limit = "inf", and now it is 3'):
        run.check_same_config({**CONFIG, "limit": 3})
    with pytest.raises(UserError, match=r"noise = \(not given\), and now it is 1"):
        run.check_same_config({**CONFIG, "noise": 1})
    with pytest.raises(UserError, match=r"seed = 1, and now it is \(not given\)"):
        run.check_same_config({name: value for name, value in CONFIG.items() if name != "seed"})
    with pytest.raises(UserError, match="seed = 1, and now it is true"):
        run.check_same_config({**CONFIG, "seed": True})


def test_a_run_that_lacks_a_setting_was_started_by_an_earlier_version(tmp_path) -> None:
    with RunFolder.create(
        tmp_path / "run", {**CONFIG, "settings": {"model": {"steps": 5}}}, provenance=PROVENANCE
    ) as run:
        now = {**CONFIG, "settings": {"model": {"steps": 5}, "refinement": {"lag": 0.0}}}
        with pytest.raises(
            UserError, match=r"by an earlier version of firsthand, which had no setting refinement\.lag"
        ):
            run.check_same_config(now)


# The lock.


def test_two_writers_are_refused_and_readers_are_not(run: RunFolder) -> None:
    with pytest.raises(UserError, match=f"is being written by process {os.getpid()}"):
        RunFolder.open(run.path, writer=True)
    reader = RunFolder.open(run.path)
    for write in (
        lambda: reader.save_episode(1, {}, {}),
        lambda: reader.save_checkpoint(1, {}, {}),
        lambda: reader.save_best({}, {}),
        lambda: reader.append_metrics({"episode": 1}),
        lambda: reader.truncate_metrics(1),
        lambda: reader.drop_episodes(1),
        lambda: reader.rewind(1),
    ):
        with pytest.raises(RuntimeError, match="open for reading"):
            write()
    run.close()
    RunFolder.open(run.path, writer=True).close()


def test_the_lock_dies_with_its_process(run: RunFolder) -> None:
    run.close()
    program = (
        "import sys, time; from firsthand.runs import RunFolder\n"
        "run = RunFolder.open(sys.argv[1], writer=True); print('locked', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(run.path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(UserError, match=f"is being written by process {process.pid};"):
            RunFolder.open(run.path, writer=True)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    RunFolder.open(run.path, writer=True).close()


def test_a_writer_clears_away_temporary_files_and_a_reader_does_not(run: RunFolder) -> None:
    run.close()
    leftover = run.path / "checkpoints" / ".000001.safetensors.0123abcd.tmp"
    leftover.touch()
    RunFolder.open(run.path)
    assert leftover.exists()
    RunFolder.open(run.path, writer=True).close()
    assert not leftover.exists()


# Metrics.


def test_metrics_are_valid_json_lines(run: RunFolder) -> None:
    run.append_metrics({"episode": 1, "loss": np.float32(0.5), "bad": math.nan, "worse": [math.inf, 1]})
    run.append_metrics({"episode": 2, "loss": 0.25})
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    assert lines[0].startswith('{"episode": 1, "loss": 0.5, "bad": null, "worse": [null, 1], "sha256": "')
    assert run.read_metrics()[0] == {"episode": 1, "loss": 0.5, "bad": None, "worse": [None, 1]}
    assert [line["episode"] for line in run.read_metrics()] == [1, 2]
    with pytest.raises(ValueError, match="'episode'"):
        run.append_metrics({"loss": 1})


def test_no_metrics_yet(run: RunFolder) -> None:
    assert run.read_metrics() == []
    run.truncate_metrics(5)
    assert run.read_metrics() == []


@pytest.mark.parametrize("torn", [b"{", b'{"episode": 4, "loss": 0.1}', b"\0\0\0"])
def test_a_torn_last_line_is_ignored_and_then_dropped(run: RunFolder, torn: bytes) -> None:
    for k in (1, 2, 3):
        run.append_metrics({"episode": k})
    file = run.path / "metrics.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + torn)
    assert [line["episode"] for line in run.read_metrics()] == [1, 2, 3]
    run.truncate_metrics(after_episode=3)
    assert file.read_bytes() == whole
    file.write_bytes(whole + torn)
    run.append_metrics({"episode": 4})
    assert [line["episode"] for line in run.read_metrics()] == [1, 2, 3, 4]
    run.truncate_metrics(after_episode=2)
    assert [line["episode"] for line in run.read_metrics()] == [1, 2]


def test_a_damaged_line_in_the_middle_is_named(run: RunFolder) -> None:
    (run.path / "metrics.jsonl").write_text('{"episode": 1}\nrubbish\n{"episode": 3}\n')
    with pytest.raises(UserError, match=r"line 2 of .*metrics\.jsonl is damaged; remove that line. Curves then lack"):
        run.read_metrics()


# Episodes.


def test_episodes_are_append_only(run: RunFolder) -> None:
    for k in (1, 2, 1_000_000, 3):
        run.save_episode(k, state(k), {"k": k})
    assert run.episodes() == [1, 2, 3, 1_000_000]
    assert (run.path / "episodes" / "000002.safetensors").exists()
    arrays, info = run.load_episode(2)
    assert info == {"k": 2}
    assert np.array_equal(arrays["weights"], state(2)["weights"])
    with pytest.raises(FileExistsError, match="rewind"):
        run.save_episode(2, state(9), {})
    run.drop_episodes(after=2)
    assert run.episodes() == [1, 2]
    run.save_episode(3, state(3), {})


def test_a_missing_or_damaged_episode_is_named(run: RunFolder) -> None:
    with pytest.raises(UserError, match="has no episode 7"):
        run.load_episode(7)
    run.save_episode(1, state(1), {})
    flip_a_bit(run.path / "episodes" / "000001.safetensors")
    with pytest.raises(UserError, match=r"000001\.safetensors is damaged: its content does not match its SHA-256"):
        run.load_episode(1)


# Checkpoints.


def flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-3] ^= 4
    file.write_bytes(data)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def test_the_newest_checkpoints_are_kept(run: RunFolder) -> None:
    for k in range(1, 6):
        run.save_checkpoint(k, state(k), {"k": k})
    assert run.checkpoints() == [3, 4, 5]
    episode, arrays, info, notes = run.load_checkpoint()
    assert (episode, info, notes) == (5, {"k": 5}, [])
    assert np.array_equal(arrays["weights"], state(5)["weights"])
    assert arrays["key"].dtype == np.uint32
    assert run.load_checkpoint(4).arrays["weights"][0] == 4
    with pytest.raises(UserError, match="has no checkpoint of episode 1; it has 3, 4, 5"):
        run.load_checkpoint(1)
    run.save_checkpoint(6, state(6), {}, keep=1)
    assert run.checkpoints() == [6]
    with pytest.raises(ValueError, match="keep"):
        run.save_checkpoint(7, state(7), {}, keep=0)


def test_no_checkpoint_yet(run: RunFolder) -> None:
    assert run.checkpoints() == []
    with pytest.raises(UserError, match="stopped before its first"):
        run.load_checkpoint()


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (flip_a_bit, "does not match its SHA-256"),
        (cut, "cut short"),
        (lambda file: file.write_bytes(b""), "it is empty"),
        (lambda file: file.write_text("hello, this is a text"), "not a safetensors file"),
        (lambda file: (file.unlink(), file.mkdir()), "a folder has that name"),
    ],
)
def test_a_damaged_checkpoint_is_skipped_with_a_note(run: RunFolder, damage, why: str) -> None:
    for k in (1, 2, 3):
        run.save_checkpoint(k, state(k), {})
    files = [run.path / "checkpoints" / f"00000{k}.safetensors" for k in (1, 2, 3)]
    damage(files[2])
    loaded = run.load_checkpoint()
    assert loaded.episode == 2
    assert len(loaded.notes) == 1
    assert loaded.notes[0].startswith(f"{files[2]} is damaged (")
    assert why in loaded.notes[0]
    assert loaded.notes[0].endswith(f"; using {files[1]} instead.")
    damage(files[1])
    assert run.load_checkpoint().episode == 1
    assert len(run.load_checkpoint().notes) == 2
    damage(files[0])
    with pytest.raises(UserError, match=r"no checkpoint in .* can be used \(000003\.safetensors: .*000001"):
        run.load_checkpoint()


def test_going_back_to_an_older_checkpoint(run: RunFolder) -> None:
    for k in (1, 2, 3):
        run.save_episode(k, state(k), {})
        run.append_metrics({"episode": k})
        run.save_checkpoint(k, state(k), {})
    flip_a_bit(run.path / "checkpoints" / "000003.safetensors")
    with pytest.raises(ValueError, match="rewind"):
        run.save_checkpoint(2, state(2), {}, keep=1)
    run.rewind(run.load_checkpoint().episode)
    assert run.checkpoints() == run.episodes() == [line["episode"] for line in run.read_metrics()] == [1, 2]
    run.save_checkpoint(3, state(3), {})
    assert run.load_checkpoint().notes == []
    run.rewind(-1)
    assert run.checkpoints() == run.episodes() == run.read_metrics() == []


def test_a_new_checkpoint_is_durable_before_an_old_one_goes(run: RunFolder, monkeypatch) -> None:
    run.save_checkpoint(1, state(1), {}, keep=1)
    steps = []
    for name in ("replace", "fsync", "unlink"):
        original = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *args, name=name, original=original: (steps.append(name), original(*args))[1]
        )
    run.save_checkpoint(2, state(2), {}, keep=1)
    assert steps == ["fsync", "replace", "fsync", "unlink"]


def test_a_reader_that_is_overtaken_by_the_writer_finds_the_newer_one(run: RunFolder, monkeypatch) -> None:
    run.save_checkpoint(1, state(1), {}, keep=1)
    reader = RunFolder.open(run.path)
    original = CheckpointFolder.numbers

    def then_overtaken(self: CheckpointFolder) -> list[int]:
        numbers = original(self)
        monkeypatch.setattr(CheckpointFolder, "numbers", original)
        run.save_checkpoint(2, state(2), {}, keep=1)
        return numbers

    monkeypatch.setattr(CheckpointFolder, "numbers", then_overtaken)
    loaded = reader.load_checkpoint()
    assert (loaded.episode, loaded.notes) == (2, [])


# The best policy.


def test_the_best_policy(run: RunFolder) -> None:
    assert run.load_best() is None
    run.save_best(state(1), {"k": 1})
    run.save_best(state(2), {"k": 2})
    best = run.load_best()
    assert best is not None
    assert best[1] == {"k": 2}
    assert best[0]["weights"][0] == 2
    flip_a_bit(run.path / "best.safetensors")
    with pytest.raises(UserError, match=r"best\.safetensors is damaged"):
        run.load_best()


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl"])
def test_a_flipped_bit_is_noticed_in_one_sentence(name: str, run: RunFolder) -> None:
    for episode in (1, 2):
        run.append_metrics({"episode": episode, "authority": 0.5, "note": "é"})
    file = run.path / name
    whole = file.read_bytes()
    for bit in range(0, 8 * len(whole), 3):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        with pytest.raises(UserError, match=rf"{name}|is not a run") as caught:
            RunFolder.open(run.path).read_metrics()
        assert "\n" not in str(caught.value)
    file.write_bytes(whole)
    assert [row["episode"] for row in RunFolder.open(run.path).read_metrics()] == [1, 2]


def test_a_run_without_checksums_is_read_and_goes_on_with_them(run: RunFolder) -> None:
    content = json.loads((run.path / "config.json").read_text())
    del content["sha256"]
    (run.path / "config.json").write_text(json.dumps(content, indent=2))
    (run.path / "metrics.jsonl").write_text('{"episode": 1, "loss": 0.5}\n{"episode": 2}\n')
    run.close()
    with RunFolder.open(run.path, writer=True) as again:
        again.append_metrics({"episode": 3})
        assert again.read_metrics() == [{"episode": 1, "loss": 0.5}, {"episode": 2}, {"episode": 3}]
        again.rewind(1)
        assert again.read_metrics() == [{"episode": 1, "loss": 0.5}]


def test_a_torn_line_is_dropped_wherever_it_was_torn(run: RunFolder) -> None:
    for episode in (1, 2):
        run.append_metrics({"episode": episode, "loss": 0.25})
    file = run.path / "metrics.jsonl"
    whole = file.read_bytes()
    for size in range(whole.index(b"\n") + 1, len(whole)):
        file.write_bytes(whole[:size])
        assert [row["episode"] for row in run.read_metrics()] == [1]


@pytest.mark.parametrize(
    "line", ["[" * 100_000, '{"episode": 1' + 400 * "0" + "}", '{"episode": true}', '{"episode": -1}', "[]", "3"]
)
def test_a_strange_line_of_metrics_is_one_sentence(line: str, run: RunFolder) -> None:
    (run.path / "metrics.jsonl").write_text(line + "\n")
    with pytest.raises(UserError, match=r"line 1 of .*metrics\.jsonl is damaged"):
        run.read_metrics()


@pytest.mark.parametrize("kind", ["symlink", "hard link", "dangling", "fifo"])
@pytest.mark.parametrize("name", ["lock", "metrics.jsonl"])
def test_what_is_no_file_of_the_run_is_neither_changed_nor_waited_for(name: str, kind: str, run: RunFolder) -> None:
    run.close()
    precious, place = run.path.parent / "precious", run.path / name
    precious.write_text("mine")
    place.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "hard link":
        os.link(precious, place)
    else:
        place.symlink_to(precious if kind == "symlink" else run.path.parent / "nothing")
    with pytest.raises(UserError, match="must be an ordinary file"), RunFolder.open(run.path, writer=True) as again:
        again.append_metrics({"episode": 1})
    assert precious.read_text() == "mine"
    assert not (run.path.parent / "nothing").exists()


@pytest.mark.parametrize("name", ["report", "episodes", "checkpoints"])
def test_a_folder_of_the_run_that_is_a_link_is_refused(name: str, run: RunFolder) -> None:
    run.close()
    (run.path.parent / "elsewhere").mkdir()
    (run.path / name).rmdir()
    (run.path / name).symlink_to(run.path.parent / "elsewhere")
    with pytest.raises(UserError, match=rf"{name} is a link, and must be a folder of its own"):
        RunFolder.open(run.path, writer=True)


def read_all(path: Path) -> None:
    opened = RunFolder.open(path)
    opened.read_metrics()
    opened.load_best()
    opened.load_episode(1)


@pytest.mark.parametrize("place", ["config.json", "metrics.jsonl", "best.safetensors", "episodes/000001.safetensors"])
def test_a_pipe_or_a_device_is_not_read(place: str, run: RunFolder) -> None:
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        (run.path / place).unlink(missing_ok=True)
        make(run.path / place)
        with pytest.raises(UserError, match="must be an ordinary file"):
            read_all(run.path)


@pytest.mark.parametrize("place", ["config.json", "metrics.jsonl", "best.safetensors", "episodes/000001.safetensors"])
def test_a_file_of_few_bytes_on_the_disk_and_many_to_read_is_refused_by_its_size(place: str, run: RunFolder) -> None:
    with (run.path / place).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match=rf"{place}: it has 1099511627776 bytes, and at most \d+ make sense"):
        read_all(run.path)
