"""The safetensors file that carries its own SHA-256."""

import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load as plain_load
from safetensors.numpy import save as plain_save

import firsthand.runs
from firsthand.runs import packed

ARRAYS = {
    "weights": np.arange(6, dtype=np.float32).reshape(2, 3),
    "key": np.array([1, 2], np.uint32),
    "done": np.array(True),
    "empty": np.zeros((0, 3)),
}
INFO = {"episode": 12, "best": math.inf, "name": 'Größe "x"', "nested": {"list": [1, 2.5, None]}}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype and a[name].shape == b[name].shape and a[name].tobytes() == b[name].tobytes()
        for name in a
    )


def test_round_trip() -> None:
    arrays, info = packed.unpack(packed.pack(ARRAYS, INFO))
    assert same(arrays, ARRAYS)
    assert info == INFO
    arrays["weights"][0, 0] = 9  # What is loaded can be changed.


def test_info_keeps_every_number_exactly() -> None:
    info = {"a": 0.1 + 0.2, "b": -0.0, "c": 2**70, "d": -math.inf, "e": 5e-324}
    restored = packed.unpack(packed.pack({}, info))[1]
    assert repr(restored) == repr(info)
    assert math.isnan(packed.unpack(packed.pack({}, {"x": math.nan}))[1]["x"])
    assert packed.unpack(packed.pack({}, {"x": np.float32(0.1), "y": np.arange(2)}))[1] == {
        "x": float(np.float32(0.1)),
        "y": [0, 1],
    }


def test_any_safetensors_reader_can_read_it() -> None:
    assert same(plain_load(packed.pack(ARRAYS, INFO)), ARRAYS)


def test_equal_content_gives_equal_bytes_in_every_process() -> None:
    program = (
        "import sys, numpy as np; from firsthand.runs import packed;"
        "sys.stdout.buffer.write(packed.pack({'b': np.ones(2), 'a': np.zeros(3)}, {'y': 1, 'x': 2}))"
    )
    outputs = {subprocess.check_output([sys.executable, "-c", program]) for _ in range(3)}
    assert len(outputs) == 1


def test_every_single_flipped_bit_is_noticed() -> None:
    good = packed.pack(ARRAYS, INFO)
    for position in range(len(good)):
        for bit in range(8):
            bad = bytearray(good)
            bad[position] ^= 1 << bit
            with pytest.raises(packed.DamagedFile):
                packed.unpack(bytes(bad))


def test_every_truncation_and_any_addition_is_noticed() -> None:
    good = packed.pack(ARRAYS, INFO)
    for length in range(len(good)):
        with pytest.raises(packed.DamagedFile):
            packed.unpack(good[:length])
    for tail in (b"\0", b" ", good):
        with pytest.raises(packed.DamagedFile):
            packed.unpack(good + tail)


def test_a_safetensors_file_of_another_program_is_refused() -> None:
    for metadata in (None, {"firsthand": "x"}, {"firsthand": "[]"}, {"firsthand": '{"sha256": 1, "info": 2}'}):
        with pytest.raises(packed.DamagedFile):
            packed.unpack(plain_save({"a": np.zeros(2)}, metadata))


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"__metadata__": np.zeros(1)}, "keeps that name"),
        ({"a": np.array([object()])}, "'a' has the type object"),
        ({"a": np.zeros(2, np.complex128)}, "complex128"),
    ],
)
def test_what_cannot_be_stored_is_refused(arrays, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        packed.pack(arrays, {})


def test_info_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError, match=r"info\.a\.b is a object"):
        packed.pack({}, {"a": {"b": object()}})
    with pytest.raises(TypeError, match=r"info\.a has the key 1"):
        packed.pack({}, {"a": {1: 2}})


def test_nothing_in_the_package_can_run_what_it_loads() -> None:
    for file in Path(firsthand.runs.__file__).parent.glob("*.py"):
        found = re.search(r"pickle|marshal|shelve|joblib|\beval\(|\bexec\(|np\.load|torch", file.read_text())
        assert found is None, f"{file.name}: {found}"
