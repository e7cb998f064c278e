"""The exported ros2_control package: compiled against stubs of ROS 2, its update held to the C policy."""

import dataclasses
import itertools
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
import yaml

from firsthand.errors import UserError
from firsthand.export.card import ModelCard
from firsthand.export.ros2_control import ros2_control_files
from firsthand_onboard import ControlSpec

STUBS = Path(__file__).parent / "ros2_stubs"


def layers(spec: ControlSpec) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    sizes = (spec.observation_size, *spec.policy.hidden, spec.layout.num_commands)
    return [
        (rng.normal(size=(out, into)).astype(np.float32), rng.normal(size=out).astype(np.float32))
        for into, out in itertools.pairwise(sizes)
    ]


def write_package(folder: Path, spec: ControlSpec) -> Path:
    card = ModelCard.of(spec, layers(spec), run="a run", episode=3, tracking_error=0.012)
    for name, text in ros2_control_files(spec, layers(spec), card).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / "toy_controller"


def test_update_is_the_c_policy_inside_its_limits(toy_spec: ControlSpec, tmp_path: Path) -> None:
    compilers = shutil.which("gcc"), shutil.which("g++")
    if not all(compilers):
        pytest.skip("there is no gcc and g++ on this machine")
    package = write_package(tmp_path, toy_spec)
    include = [f"-I{package / 'include'}", f"-I{package / 'include' / 'toy_controller'}"]
    strict = ["-Wall", "-Wextra", "-Werror", "-O0"]
    policy, program = tmp_path / "policy.o", tmp_path / "run"
    subprocess.run(
        ["gcc", "-std=c99", *strict, *include, "-c", package / "src" / "toy_policy.c", "-o", policy], check=True
    )
    sources = [package / "src" / "controller.cpp", STUBS / "run_controller.cpp"]
    command = ["g++", "-std=c++17", *strict, *include, f"-I{STUBS}", *sources, policy, "-lm", "-o", program]
    subprocess.run(command, check=True)
    found = subprocess.run([program], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-500:]


def test_the_package_is_whole(toy_spec: ControlSpec, tmp_path: Path) -> None:
    package = write_package(tmp_path, toy_spec)
    parameters = yaml.safe_load((package / "config" / "toy_controller.yaml").read_text())
    own = parameters["toy_controller"]["ros__parameters"]
    assert own["command_low"] == list(toy_spec.limits.command_low)
    assert own["state_interfaces"] == ["p0/position", "p1/position"]
    assert isinstance(own["max_missing"], int)
    assert isinstance(own["max_pause"], float)  # ROS 2 refuses a whole number for a parameter declared as double
    manager = parameters["controller_manager"]["ros__parameters"]
    assert manager["update_rate"] == 20
    plugin = ElementTree.parse(package / "toy_controller.xml").getroot().find("class")
    assert plugin is not None
    assert plugin.attrib["name"] == manager["toy_controller"]["type"] == "toy_controller/ToyController"
    assert plugin.attrib["type"] == "toy_controller::ToyController"
    assert ElementTree.parse(package / "package.xml").getroot().findtext("name") == "toy_controller"
    listed = (package / "CMakeLists.txt").read_text()
    for file in package.rglob("*.c*"):
        assert str(file.relative_to(package)) in listed or file.suffix == ".cmake"


def test_a_robot_whose_neutral_is_unknown_is_refused(toy_spec: ControlSpec, tmp_path: Path) -> None:
    limits = dataclasses.replace(toy_spec.limits, command_low=(0.5, -2.0))
    with pytest.raises(UserError, match="needs to know how the robot stands still"):
        write_package(tmp_path, dataclasses.replace(toy_spec, limits=limits))


@pytest.mark.parametrize(
    "name",
    ["{commands}); injected(", '"); injected("', "{card}", "a\nb", "??/", "\\", "\U0001f600", "\ud800", "\x00 \x7f"],
)
def test_names_inject_nothing_into_the_controller(name: str, toy_spec: ControlSpec, tmp_path: Path) -> None:
    """Names of quantities and commands come from whoever made the run; one may even look like a place to be filled."""
    names = {
        part: tuple(f"{name}{i}" for i in range(len(getattr(toy_spec.layout, part))))
        for part in ("measured", "commands")
    }
    spec = dataclasses.replace(toy_spec, layout=dataclasses.replace(toy_spec.layout, **names))
    package = write_package(tmp_path, spec)
    own = yaml.safe_load((package / "config" / "toy_controller.yaml").read_text())["toy_controller"]["ros__parameters"]
    whole = name.encode(errors="replace").decode()
    assert own["command_interfaces"] == [f"{whole}{i}/effort" for i in range(len(names["commands"]))]
    for file in package.rglob("*.?pp"):
        lines = [line for line in file.read_text().splitlines() if not line.startswith("//")]
        assert "injected(" not in "".join(lines)
        assert all(line.isascii() and line.isprintable() for line in lines)
    if shutil.which("g++"):
        include = [f"-I{package / 'include'}", f"-I{package / 'include' / 'toy_controller'}", f"-I{STUBS}"]
        strict = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
        subprocess.run(["g++", *strict, *include, package / "src" / "controller.cpp"], check=True)
