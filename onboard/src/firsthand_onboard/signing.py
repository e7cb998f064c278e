"""Signatures of policies: who made them. A checksum finds damage; only a signature proves an origin.

Ed25519 keys as PEM files, `policy.key` for the trainer and `policy.pub` for the robot, as
scripts/make_certificates.sh makes them. A policy that is sent is signed together with its control
specification. The signature of a file is in a file of its own beside it, which OpenSSL can check, too:

    openssl pkeyutl -verify -pubin -inkey policy.pub -rawin -in FILE -sigfile FILE.sig

A signature says who made a policy, not when: an old policy of the same signer passes as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .spec import SpecError

PRIVATE, PUBLIC = "policy.key", "policy.pub"
"""Names of the keys in a folder of certificates."""
SUFFIX = ".sig"
MAX_KEY_BYTES = 64 << 10
_TITLE = "firsthand policy 1"
"""What is signed begins with it, so that nothing else that this key has signed passes for a policy."""


class SigningKey:
    """The private key of the trainer that makes policies."""

    def __init__(self, path: str | Path) -> None:
        serialization, ed25519, _, unsupported = _cryptography()
        try:
            key = serialization.load_pem_private_key(_read(Path(path)), password=None)
        except (ValueError, TypeError, unsupported) as error:
            raise SpecError(f"{path} is not a private key in PEM without a password: {error}") from None
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            raise SpecError(f"{path} holds a {type(key).__name__}, but must hold an Ed25519 key")
        self._key = key

    def sign(self, data: bytes) -> bytes:
        """The signature of a file's content."""
        return self._key.sign(data)

    def sign_policy(self, spec: str, policy: str) -> str:
        """The signature of a policy, as hexadecimal digits; specification and weights are named by their digests."""
        return self.sign(_policy_text(spec, policy)).hex()


class Signer:
    """The public key of the one whose policies are accepted."""

    def __init__(self, path: str | Path) -> None:
        serialization, ed25519, self._wrong, unsupported = _cryptography()
        try:
            key = serialization.load_pem_public_key(_read(Path(path)))
        except (ValueError, unsupported) as error:
            raise SpecError(f"{path} is not a public key in PEM: {error}") from None
        if not isinstance(key, ed25519.Ed25519PublicKey):
            raise SpecError(f"{path} holds a {type(key).__name__}, but must hold an Ed25519 key")
        self._key = key

    def has_signed(self, data: bytes, signature: bytes) -> bool:
        """Whether the signature is this signer's, of this content."""
        try:
            self._key.verify(signature, data)
        except self._wrong:
            return False
        return True

    def has_signed_policy(self, spec: str, policy: str, signature: object) -> bool:
        """The same for a policy that was sent; anything that is not a signature is a wrong one."""
        try:
            signed = bytes.fromhex(signature) if isinstance(signature, str) else b""
        except ValueError:
            return False
        return self.has_signed(_policy_text(spec, policy), signed)

    def check(self, path: str | Path, data: bytes) -> None:
        """Raise `SpecError` unless this signer has signed the file with this content.

        The caller uses this content: a file that is read again may have changed.
        """
        beside = Path(f"{path}{SUFFIX}")
        if not beside.is_file():
            raise SpecError(f"{path} is not signed: there is no {beside.name} beside it")
        try:
            signature = beside.read_bytes()[:1024]
        except OSError as error:
            raise SpecError(f"the signature {beside} cannot be read: {error.strerror}") from None
        if not self.has_signed(data, signature):
            raise SpecError(f"the signature in {beside} is not that of the configured signer, or {path} was changed")


def _policy_text(spec: str, policy: str) -> bytes:
    return f"{_TITLE} {spec} {policy}".encode()


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_KEY_BYTES)
    except OSError as error:
        raise SpecError(f"the key file {path} cannot be read: {error}") from None


def _cryptography() -> tuple[Any, Any, type[Exception], type[Exception]]:
    """Loaded only where something is signed."""
    try:
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise SpecError(
            "signed policies need the package cryptography: pip install 'firsthand-onboard[signing]'"
        ) from None
    return serialization, ed25519, InvalidSignature, UnsupportedAlgorithm
