"""What an installation is made of: hashes of every pinned package, and a bill of materials."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_pinned_package_has_its_hashes() -> None:
    lock = load("lock_hashes")
    text = (ROOT / "constraints-hashes.txt").read_text()
    pins = lock.read_pins((ROOT / "constraints.txt").read_text())
    assert lock.describe_difference(pins, lock.read_pins(text)) == ""
    entries = re.split(r"\n(?=\S)", text)[1:]
    assert len(entries) == len(pins)
    for entry in entries:
        assert re.fullmatch(r"\S+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+", entry.rstrip("\n")), entry[:80]
    assert "://" not in text, "no index is named"


def test_hashes_are_those_of_files_that_can_be_used() -> None:
    lock = load("lock_hashes")
    a, b, c, d, e = (64 * digit for digit in "abcde")
    links = [
        f"https://host/some_thing-1.2-cp311-cp311-win_amd64.whl#sha256={a}",
        f"../some_thing-1.2-cp38-abi3-macosx_11_0_arm64.whl#sha256={b}",
        f"some_thing-1.2-cp38-cp38-linux_x86_64.whl#sha256={c}",  # of a Python that is too old
        f"some_thing-1.2.1-py3-none-any.whl#sha256={d}",  # another version
        f"some_thing-1.2.tar.gz#sha256={e}",
        "some_thing-1.2-py3-none-any.whl",  # without a hash
        "nonsense.whl#sha256=" + a,
    ]
    assert lock.choose_hashes(links, "some-thing", "1.2") == [a, b]
    assert lock.choose_hashes(links[4:], "some-thing", "1.2") == [e]
    assert lock.choose_hashes(links, "some-thing", "3") == []
    assert "some-thing" in lock.describe_difference({"some-thing": "1.2"}, {})


def test_the_bill_of_materials_names_what_is_installed() -> None:
    sbom = load("make_sbom")
    made = sbom.make_sbom({"firsthand": frozenset(), "firsthand-onboard": frozenset()})
    assert made == json.loads(json.dumps(sbom.make_sbom({"firsthand": frozenset(), "firsthand-onboard": frozenset()})))
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    assert made["metadata"]["component"]["name"] == "firsthand"
    names = {component["name"]: component for component in made["components"]}
    assert {"firsthand-onboard", "jax", "jaxlib", "numpy", "safetensors", "eclipse-zenoh", "equinox"} <= set(names)
    assert "pytest" not in names
    assert names["numpy"]["purl"] == f"pkg:pypi/numpy@{names['numpy']['version']}"
    assert names["numpy"]["properties"], "the hashes of the pinned version"
    refs = {component["bom-ref"] for component in (made["metadata"]["component"], *made["components"])}
    assert {entry["ref"] for entry in made["dependencies"]} == refs
    assert all(set(entry["dependsOn"]) <= refs for entry in made["dependencies"])
    with pytest.raises(ValueError, match="not installed here: no-such-thing"):
        sbom.make_sbom({"no-such-thing": frozenset()})
