"""Signatures prove who made a policy: what is unsigned, signed by another, or changed afterwards does not run."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firsthand_onboard import ControlSpec, SpecError
from firsthand_onboard.jobs import PolicyStore, policy_digest
from firsthand_onboard.messages import Message, Refusal
from firsthand_onboard.policy_file import load_controller, policy_to_bytes
from firsthand_onboard.signing import SUFFIX, Signer, SigningKey
from onboard_runtime.processes import random_policy

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_certificates.sh"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two folders of the script that makes certificates: ours, and a stranger's."""
    ours, theirs = tmp_path_factory.mktemp("ours"), tmp_path_factory.mktemp("theirs")
    for folder in (ours, theirs):
        subprocess.run(["sh", str(SCRIPT), str(folder), "127.0.0.1"], check=True, capture_output=True)
    return ours, theirs


def sent(spec: ControlSpec, arrays: dict[str, np.ndarray], **body: Any) -> Message:
    about = {"spec": spec.digest(), "digest": policy_digest(arrays), **body}
    return Message("policy", "", "", "", 0, body=about, arrays=arrays)


def test_a_robot_with_a_signer_runs_only_its_policies(toy_spec: ControlSpec, keys: tuple[Path, Path]) -> None:
    ours, theirs = keys
    arrays = random_policy(toy_spec)
    spec, digest = toy_spec.digest(), policy_digest(arrays)
    store = PolicyStore(toy_spec, Signer(ours / "policy.pub"))
    signature = SigningKey(ours / "policy.key").sign_policy(spec, digest)
    assert store.add(sent(toy_spec, arrays, signature=signature)) == digest

    other = {**arrays, "policy.0.bias": arrays["policy.0.bias"] + 1}
    with pytest.raises(Refusal, match="the policy is not signed, and this robot runs only policies of its signer"):
        store.add(sent(toy_spec, other))
    stranger = SigningKey(theirs / "policy.key").sign_policy(spec, policy_digest(other))
    elsewhere = SigningKey(ours / "policy.key").sign_policy("0" * 64, policy_digest(other))  # of another robot
    file = SigningKey(ours / "policy.key").sign(policy_digest(other).encode()).hex()  # not of a policy
    for wrong in (stranger, elsewhere, file, signature, "", "zz", 5, [signature], 128 * "0", signature + "00"):
        with pytest.raises(Refusal, match="signed by somebody else"):
            store.add(sent(toy_spec, other, signature=wrong))
    assert store.find(policy_digest(other)) is None
    assert PolicyStore(toy_spec).add(sent(toy_spec, other)) == policy_digest(other)  # where no signer is configured


def test_a_file_is_checked_with_the_signature_beside_it(
    toy_spec: ControlSpec, keys: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = keys
    arrays = random_policy(toy_spec)
    layers = [(arrays[f"policy.{i}.weight"], arrays[f"policy.{i}.bias"]) for i in range(len(arrays) // 2)]
    file, signer = tmp_path / "policy.safetensors", Signer(ours / "policy.pub")
    file.write_bytes(policy_to_bytes(toy_spec, layers))
    with pytest.raises(SpecError, match="is not signed"):
        load_controller(file, signer)
    beside = Path(f"{file}{SUFFIX}")
    beside.write_bytes(SigningKey(ours / "policy.key").sign(file.read_bytes()))
    assert load_controller(file, signer).policy.spec == toy_spec
    openssl = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", str(ours / "policy.pub"), "-rawin"]
    subprocess.run([*openssl, "-in", str(file), "-sigfile", str(beside)], check=True, capture_output=True)
    with pytest.raises(SpecError, match="not that of the configured signer"):
        load_controller(file, Signer(theirs / "policy.pub"))
    with monkeypatch.context() as patch:  # another file is put in its place right after the check
        check = signer.check
        patch.setattr(signer, "check", lambda path, content: (check(path, content), file.write_bytes(b"other")))
        whole = file.read_bytes()
        assert load_controller(file, signer).policy.spec == toy_spec
    file.write_bytes(whole)
    data = bytearray(whole)
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(SpecError, match="was changed"):
        load_controller(file, signer)


def test_what_is_no_key_is_one_sentence(keys: tuple[Path, Path], tmp_path: Path) -> None:
    ours, _ = keys
    with pytest.raises(SpecError, match="is not a public key in PEM"):
        Signer(ours / "allowed")
    with pytest.raises(SpecError, match="is not a private key in PEM"):
        SigningKey(ours / "policy.pub")
    with pytest.raises(SpecError, match="must hold an Ed25519 key"):
        SigningKey(ours / "trainer.key")
    with pytest.raises(SpecError, match="cannot be read"):
        Signer(tmp_path)


def test_without_the_package_it_is_said_how_to_get_it(keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(SpecError, match=r"pip install 'firsthand-onboard\[signing\]'"):
        Signer(keys[0] / "policy.pub")
