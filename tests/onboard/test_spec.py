"""The control specification and the policy file: what is written is read back, and nothing wrong gets in."""

import copy
import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save

from firsthand.tasks.excavator import excavator_task
from firsthand_onboard import ControlSpec, NumpyPolicy, SpecError, load_policy, policy_to_bytes
from firsthand_onboard.policy import expected_shapes

SPEC = excavator_task(hidden=(6, 5)).spec
NAN, INF = float("nan"), float("inf")


def random_layers(spec: ControlSpec, seed: int = 0, dtype: type = np.float32):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=w).astype(dtype), rng.normal(size=b).astype(dtype)) for w, b in expected_shapes(spec)]


def without_jax(statement: str) -> None:
    code = f"{statement}\nimport sys\nassert 'jax' not in sys.modules, 'jax was imported'"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_onboard_package_does_not_import_jax():
    without_jax(
        "import importlib, pkgutil, firsthand_onboard\n"
        "for module in pkgutil.walk_packages(firsthand_onboard.__path__, 'firsthand_onboard.'):\n"
        "    if not module.name.endswith('__main__'):\n"
        "        importlib.import_module(module.name)"
    )


@pytest.mark.parametrize("which", ["chain", "selected"])
def test_a_specification_is_read_back_as_it_was_written(which, toy_spec):
    spec = SPEC if which == "chain" else toy_spec
    again = ControlSpec.from_json(spec.to_json())
    assert again == spec
    assert again.digest() == spec.digest()
    assert again.to_json() == spec.to_json()
    assert hash(again) == hash(spec)  # a static field of the networks


def test_the_order_of_keys_does_not_matter():
    data = json.loads(SPEC.to_json())
    backwards = json.dumps(dict(reversed(list(data.items()))), indent=3)
    assert ControlSpec.from_json(backwards).digest() == SPEC.digest()


def test_equal_specifications_have_equal_digests():
    whole = dataclasses.replace(SPEC, period_s=1)
    point = dataclasses.replace(SPEC, period_s=1.0)
    assert whole == point
    assert whole.digest() == point.digest()


def paths(data, prefix=()):
    """Every leaf of nested dicts and lists."""
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from paths(value, (*prefix, key))
    else:
        yield prefix, data


def changed(path, value) -> str:
    """The excavator's specification as JSON with one entry changed."""
    data = copy.deepcopy(json.loads(SPEC.to_json()))
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return json.dumps(data)


def test_any_change_changes_the_digest():
    digests = {SPEC.digest()}
    numbers = [(path, value) for path, value in paths(json.loads(SPEC.to_json())) if isinstance(value, float)]
    assert len(numbers) > 40
    for path, value in numbers:
        digests.add(ControlSpec.from_json(changed(path, value * (1 + 1e-9) + 1e-12)).digest())
    assert len(digests) == 1 + len(numbers)


WRONG = [
    # path, value, what the message must name
    (("period_s",), 0.0, "period_s"),
    (("period_s",), -0.04, "period_s"),
    (("period_s",), NAN, "period_s"),
    (("period_s",), INF, "period_s"),
    (("preview",), [], "preview"),
    (("preview",), [0, 2], "preview"),
    (("preview",), [2, 2], "preview"),
    (("preview",), [4, 2], "preview"),
    (("preview",), [-1, 2], "preview"),
    (("layout", "measured"), [], "layout.measured"),
    (("layout", "commands"), [], "layout.commands"),
    (("layout", "command_memory"), 0, "layout.command_memory"),
    (("layout", "measurement_memory"), -1, "layout.measurement_memory"),
    (("layout", "position"), [], "layout.position"),
    (("layout", "position"), [0, 1, 2, 8], "layout.position"),
    (("layout", "position"), [0, 1, 2, -1], "layout.position"),
    (("layout", "position"), [0, 1, 2, 2], "layout.position"),
    (("layout", "velocity"), [4, 5, 6], "layout.velocity"),
    (("layout", "velocity"), [4, 5, 6, 6], "layout.velocity"),
    (("layout", "velocity"), [3, 4, 5, 6], "layout.velocity"),
    (("layout", "velocity"), [4, 5, 6, 80], "layout.velocity"),
    (("kinematics", "kind"), "spherical", "kinematics.kind"),
    (("kinematics", "base"), [NAN, 0.5], "kinematics.base"),
    (("kinematics", "joints"), [], "kinematics.joints"),
    (("kinematics", "joints"), [{"kind": "revolute", "along": 1.0}], "kinematics.joints"),
    (("kinematics", "joints", 0, "kind"), "ball", "joint.kind"),
    (("kinematics", "joints", 0, "along"), INF, "joint.offset"),
    (("kinematics", "joints", 2, "perpendicular"), NAN, "joint.offset"),
    (("scales", "measured_center"), [0.0] * 7, "scales.measured_center"),
    (("scales", "measured_center"), [NAN] * 8, "scales.measured_center"),
    (("scales", "measured_scale"), [1.0] * 9, "scales.measured_scale"),
    (("scales", "measured_scale"), [0.0] * 8, "scales.measured_scale"),
    (("scales", "change_scale"), [1.0] * 7 + [-1.0], "scales.change_scale"),
    (("scales", "change_scale"), [1.0] * 7, "scales.change_scale"),
    (("scales", "error"), 0.0, "scales.error"),
    (("scales", "preview"), -1.0, "scales.preview"),
    (("limits", "command_low"), [-1.0] * 3, "limits.command"),
    (("limits", "command_low"), [1.0] * 4, "limits.command_low"),
    (("limits", "command_high"), [1.0] * 5, "limits.command_high"),
    (("limits", "command_high"), [NAN] * 4, "limits.command_high"),
    (("limits", "position_low"), [-INF] * 4, "limits.position_low"),
    (("limits", "position_low"), [9.0] * 4, "limits.position_low"),
    (("limits", "position_high"), [9.0] * 3, "limits.position_high"),
    (("reference", "space"), "joint", "reference.space"),
    (("reference", "steps"), 1, "reference.steps"),
    (("reference", "rate_low"), [-1.0] * 3, "reference.rate_low"),
    (("reference", "rate_low"), [-1.0, -1.0, 0.0, -1.0], "reference.rate_low"),
    (("reference", "rate_low"), [-INF] * 4, "reference.rate_low"),
    (("reference", "rate_high"), [1.0] * 2, "reference.rate_high"),
    (("reference", "rate_high"), [1.0, 1.0, 1.0, 0.0], "reference.rate_high"),
    (("reference", "rate_high"), [NAN] * 4, "reference.rate_high"),
    (("policy", "hidden"), [], "policy.hidden"),
    (("policy", "hidden"), [8, 0], "policy.hidden"),
    (("policy", "hidden"), [8.0], "policy.hidden"),
]


def label(case) -> str:
    path, value, _ = case
    return f"{'.'.join(map(str, path))}={value}"[:60]


@pytest.mark.parametrize("case", WRONG, ids=label)
def test_a_wrong_value_is_refused_by_name(case):
    path, value, name = case
    with pytest.raises(SpecError) as refusal:
        ControlSpec.from_json(changed(path, value))
    assert name in str(refusal.value)
    assert "\n" not in str(refusal.value)


NOT_CHECKED = [
    (("robot",), 5, "robot"),
    (("preview",), [1.5, 2.5], "preview"),
    (("layout", "measured"), "abcdefgh", "layout.measured"),
    (("layout", "measured"), [1] * 8, "layout.measured"),
    (("layout", "command_memory"), 1.5, "layout.command_memory"),
    (("layout", "measurement_memory"), 0.5, "layout.measurement_memory"),
    (("layout", "position"), [0, 1, 2, 2.5], "layout.position"),
    (("kinematics", "base"), [1.0, 2.0, 3.0], "kinematics.base"),
    (("kinematics", "base"), [1.0], "kinematics.base"),
    (("reference", "steps"), 125.5, "reference.steps"),
    (("policy", "hidden"), [True], "policy.hidden"),
    # Refused, but without the field's name:
    (("period_s",), "0.04", "period_s"),
    (("period_s",), None, "period_s"),
    (("preview",), 3, "preview"),
    (("layout", "command_memory"), "8", "layout.command_memory"),
    (("layout", "position"), 3, "layout.position"),
    (("kinematics", "base"), 5, "kinematics.base"),
    (("limits", "command_low"), ["a"] * 4, "limits.command_low"),
    (("reference", "rate_low"), -1.0, "reference.rate_low"),
    (("policy",), None, "policy"),
]


@pytest.mark.parametrize("case", NOT_CHECKED, ids=label)
def test_a_value_of_the_wrong_kind_is_refused_by_name(case):
    path, value, name = case
    with pytest.raises(SpecError) as refusal:
        ControlSpec.from_json(changed(path, value))
    assert name in str(refusal.value)


def test_an_output_that_is_not_measured_is_refused(toy_spec):
    data = json.loads(toy_spec.to_json())
    for indices in ([0, 2], [-1, 0], []):
        data["kinematics"]["indices"] = indices
        with pytest.raises(SpecError, match=r"kinematics\.indices"):
            ControlSpec.from_json(json.dumps(data))


@pytest.mark.parametrize(
    "part", ["layout", "kinematics", "scales", "limits", "reference", "policy", "period_s", "robot"]
)
def test_a_missing_part_is_named(part):
    data = json.loads(SPEC.to_json())
    del data[part]
    with pytest.raises(SpecError, match=part):
        ControlSpec.from_json(json.dumps(data))


@pytest.mark.parametrize(("part", "field"), [("layout", "commands"), ("scales", "error"), ("limits", "command_low")])
def test_a_missing_field_is_named(part, field):
    data = json.loads(SPEC.to_json())
    del data[part][field]
    with pytest.raises(SpecError, match=field):
        ControlSpec.from_json(json.dumps(data))


@pytest.mark.parametrize("path", [("surprise",), ("layout", "surprise"), ("scales", "surprise")])
def test_an_unknown_field_is_named(path):
    with pytest.raises(SpecError, match="surprise"):
        ControlSpec.from_json(changed(path, 1))


@pytest.mark.parametrize("version", [None, 0, 2, "1", [1]])
def test_another_format_is_refused(version):
    with pytest.raises(SpecError, match=r"format .*this program reads format 1"):
        ControlSpec.from_json(changed(("format",), version))


@pytest.mark.parametrize("text", ["", "{", "nonsense", "null", "[]", "3", '"text"', "{}", '{"format": 1}', '{"a": 1,}'])
def test_malformed_json_is_refused(text):
    with pytest.raises(SpecError, match="control specification"):
        ControlSpec.from_json(text)


def test_deeply_nested_json_is_refused():
    with pytest.raises(SpecError):
        ControlSpec.from_json("[" * 100_000)


def cut_anywhere(text: str):
    return [text[:n] for n in range(0, len(text), 97)]


def test_json_cut_anywhere_is_refused():
    for text in cut_anywhere(SPEC.to_json()):
        with pytest.raises(SpecError):
            ControlSpec.from_json(text)


# The policy file


@pytest.fixture(scope="module")
def blob():
    return policy_to_bytes(SPEC, random_layers(SPEC))


def loaded(tmp_path, data: bytes) -> NumpyPolicy:
    path = tmp_path / "policy.safetensors"
    path.write_bytes(data)
    return load_policy(path)


def test_a_policy_is_read_back_as_it_was_written(tmp_path, blob):
    policy = loaded(tmp_path, blob)
    assert policy.spec == SPEC
    for (weight, bias), (expected_weight, expected_bias) in zip(policy.layers, random_layers(SPEC), strict=True):
        np.testing.assert_array_equal(weight, expected_weight)
        np.testing.assert_array_equal(bias, expected_bias)
        assert weight.dtype == bias.dtype == np.float32
    state, preview = np.zeros(SPEC.layout.size), np.zeros((9, 2))
    np.testing.assert_array_equal(policy(state, preview), NumpyPolicy(SPEC, random_layers(SPEC))(state, preview))


def test_a_policy_file_cut_anywhere_is_refused(tmp_path, blob):
    for length in [0, 1, 7, 8, 9, *range(50, len(blob), 211), len(blob) - 1]:
        with pytest.raises(SpecError, match=r"policy\.safetensors"):
            loaded(tmp_path, blob[:length])


def test_garbage_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    for length in (1, 8, 100, 5000):
        with pytest.raises(SpecError, match=r"policy\.safetensors"):
            loaded(tmp_path, rng.bytes(length))


def test_a_damaged_header_is_refused(tmp_path, blob):
    """Any single damaged byte of the header either is refused as a SpecError or leaves a valid, finite policy."""
    header = int.from_bytes(blob[:8], "little")
    for at in range(0, 8 + header, 23):
        damaged = bytearray(blob)
        damaged[at] ^= 0x01
        try:
            policy = loaded(tmp_path, bytes(damaged))
        except SpecError:
            continue
        assert all(np.all(np.isfinite(weight)) for weight, _ in policy.layers)


@pytest.mark.parametrize("name", ["missing.safetensors", "."])
def test_a_file_that_is_not_there_is_refused(tmp_path, name):
    with pytest.raises(SpecError, match="cannot be read as a policy"):
        load_policy(tmp_path / name)


def tensors(spec=SPEC):
    return {
        f"policy.{i}.{name}": array
        for i, layer in enumerate(random_layers(spec))
        for name, array in zip(("weight", "bias"), layer, strict=True)
    }


def test_a_file_without_a_specification_is_refused(tmp_path):
    with pytest.raises(SpecError, match="holds no control specification"):
        loaded(tmp_path, save(tensors()))
    with pytest.raises(SpecError, match="not JSON"):
        loaded(tmp_path, save(tensors(), metadata={"control_spec": "what?"}))


@pytest.mark.parametrize("name", ["policy.0.weight", "policy.2.bias"])
def test_a_file_that_lacks_a_tensor_is_refused(tmp_path, name):
    fewer = {key: value for key, value in tensors().items() if key != name}
    with pytest.raises(SpecError, match=name):
        loaded(tmp_path, save(fewer, metadata={"control_spec": SPEC.to_json()}))


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("name", ["policy.0.weight", "policy.1.bias", "policy.2.weight"])
def test_weights_that_are_not_finite_are_refused(tmp_path, bad, name):
    broken = tensors()
    broken[name].flat[3] = bad
    layers = [(broken[f"policy.{i}.weight"], broken[f"policy.{i}.bias"]) for i in range(3)]
    match = rf"{name} holds a value that is not finite"
    with pytest.raises(SpecError, match=match):
        NumpyPolicy(SPEC, layers)
    with pytest.raises(SpecError, match=match):
        policy_to_bytes(SPEC, layers)
    with pytest.raises(SpecError, match=match):
        loaded(tmp_path, save(broken, metadata={"control_spec": SPEC.to_json()}))


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("way", ["made", "written", "read"])
def test_weights_that_overflow_in_float32_are_refused(tmp_path, way):
    layers = random_layers(SPEC, dtype=np.float64)
    layers[1][0][2, 1] = 1e300
    named = {
        f"policy.{i}.{name}": array
        for i, layer in enumerate(layers)
        for name, array in zip(("weight", "bias"), layer, strict=True)
    }
    ways = {
        "made": lambda: NumpyPolicy(SPEC, layers),
        "written": lambda: policy_to_bytes(SPEC, layers),
        "read": lambda: loaded(tmp_path, save(named, metadata={"control_spec": SPEC.to_json()})),
    }
    with pytest.raises(SpecError, match=r"policy\.1\.weight"):
        ways[way]()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda layers: layers[:-1], "2 layers, but the specification asks for 3"),
        (lambda layers: [*layers, layers[-1]], "4 layers"),
        (lambda layers: [(layers[0][0].T, layers[0][1]), *layers[1:]], r"policy\.0\.weight has shape"),
        (lambda layers: [*layers[:2], (layers[2][0], layers[2][1][:-1])], r"policy\.2\.bias has shape"),
    ],
)
def test_layers_of_another_shape_are_refused(change, message):
    with pytest.raises(SpecError, match=message):
        NumpyPolicy(SPEC, change(random_layers(SPEC)))
    with pytest.raises(SpecError, match=message):
        policy_to_bytes(SPEC, change(random_layers(SPEC)))
