"""Opening a link: addresses, certificates and permissions. Loopback, or TLS with certificates."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zenoh

from .messages import HEAD, MAX_HEADER, MAX_PAYLOAD
from .spec import SpecError

TO_ROBOT_KEY, FROM_ROBOT_KEY = "firsthand/1/to_robot", "firsthand/1/from_robot"
OPERATOR_KEY = "firsthand/1/operator"
"""What comes over this key is an operator's; where there are certificates, only those named `operator` get in."""


ALLOWED = "allowed"
"""The file in the robot's folder of certificates that names those that have not been revoked."""


class LinkError(Exception):
    """The other side cannot be reached, does not answer, or cannot be understood."""


class NoAnswer(LinkError):
    """The other side does not answer."""


class VersionMismatch(LinkError):
    """The other side speaks another version of the messages; trying again does not help."""


@dataclass(frozen=True)
class Security:
    """Certificates for a link that leaves this computer; see scripts/make_certificates.sh."""

    authority: Path
    """Certificate of the authority that both sides trust."""
    certificate: Path
    """This side's certificate."""
    key: Path
    """Its private key."""
    trainers: tuple[str, ...] = ("trainer",)
    """On the robot: common names of the certificates that may train."""
    operators: tuple[str, ...] = ("operator",)
    """On the robot: common names of the certificates that may operate."""

    def __post_init__(self) -> None:
        for name in ("authority", "certificate", "key"):
            if not getattr(self, name).is_file():
                raise SpecError(f"the {name} file {getattr(self, name)} does not exist")

    @staticmethod
    def in_folder(folder: str | Path, name: str) -> Security:
        """The files that scripts/make_certificates.sh makes for `name` (robot, trainer or operator)."""
        folder = Path(folder)
        allowed = read_allowed(folder / ALLOWED)
        return Security(
            folder / "ca.pem",
            folder / f"{name}.pem",
            folder / f"{name}.key",
            allowed.get("trainer", ("trainer",)),
            allowed.get("operator", ("operator",)),
        )


def read_allowed(path: Path) -> dict[str, tuple[str, ...]]:
    """Which common names may train and operate, from the file that names those that have not been revoked.

    A line has `trainer` or `operator` and then the names; where the file is not there, those are the names. A role
    without a line may do nothing.
    """
    if not path.exists():
        return {}
    try:
        lines = [line.split() for line in path.read_text(encoding="ascii").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"the file of allowed certificates {path} cannot be read: {error}") from None
    found: dict[str, tuple[str, ...]] = {"trainer": (), "operator": ()}
    for role, *names in lines:
        if role not in found or not all(name == role or name.startswith(f"{role}.") for name in names):
            raise SpecError(
                f"{path} has the line {' '.join([role, *names])[:60]!r}, but must have lines like `trainer trainer.2` "
                "and `operator operator`"
            )
        found[role] += tuple(names)
    return found


def check_address(address: str, security: Security | None) -> None:
    """Raise `SpecError` unless the address is loopback, or tls with certificates."""
    protocol, _, place = address.partition("/")
    host, _, port = place.rpartition(":")
    if protocol not in ("tcp", "tls") or not host or not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise SpecError(f"the address is {address!r}, but must be given as tcp/host:port or tls/host:port")
    if protocol == "tls":
        if security is None:
            raise SpecError(f"the address {address} needs certificates: give --certificates FOLDER")
        return
    try:
        local = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        local = host == "localhost"
    if not local:
        raise SpecError(
            f"the address {address} leaves this computer without encryption; use tls/{place} and --certificates FOLDER"
        )


def split_address(address: str) -> tuple[str, int]:
    """Host and port of an address that `check_address` has passed."""
    host, _, port = address.partition("/")[2].rpartition(":")
    return host.strip("[]"), int(port)


def access_rules(trainers: Sequence[str], operators: Sequence[str]) -> dict[str, Any]:
    """Who may do what on the robot's end, by the common name of the certificate; everything else is dropped."""
    roles = {"trainer": list(trainers), "operator": list(operators)}
    duties = {"trainer": "train", "operator": "operate"}
    present = [role for role in roles if roles[role]]

    def rule(name: str, message: str, flow: str, key: str) -> dict[str, Any]:
        return {"id": name, "messages": [message], "flows": [flow], "permission": "allow", "key_exprs": [key]}

    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": [
            rule("train", "put", "ingress", TO_ROBOT_KEY),
            rule("operate", "put", "ingress", OPERATOR_KEY),
            rule("listen", "declare_subscriber", "ingress", FROM_ROBOT_KEY),
            rule("answer", "put", "egress", FROM_ROBOT_KEY),
            rule("announce", "declare_subscriber", "egress", "firsthand/1/*"),
        ],
        "subjects": [{"id": role, "cert_common_names": roles[role]} for role in present],
        "policies": [{"rules": [duties[role], "listen", "answer", "announce"], "subjects": [role]} for role in present],
    }


def open_session(mode: str, address: str, security: Security | None) -> zenoh.Session:
    """Join the network as the robot (`peer`) or as a trainer or operator (`client`)."""
    check_address(address, security)
    config = zenoh.Config()
    settings: dict[str, Any] = {
        "mode": mode,
        ("listen" if mode == "peer" else "connect") + "/endpoints": [address],
        "scouting/multicast/enabled": False,
        "scouting/gossip/enabled": False,
        "transport/link/rx/max_message_size": HEAD.size + MAX_HEADER + MAX_PAYLOAD + 4096,
        # With it, each session that sends something long takes 16 MB of locked memory, and a killed one leaves them.
        "transport/shared_memory/enabled": False,
    }
    if mode == "client":
        settings["listen/endpoints"] = []
    if security is not None:
        ours = {"listen_private_key": security.key, "listen_certificate": security.certificate}
        if mode == "client":
            ours = {"connect_private_key": security.key, "connect_certificate": security.certificate}
        settings["transport/link/tls"] = {
            "root_ca_certificate": str(security.authority),
            "enable_mtls": True,
            "close_link_on_expiration": True,
            **{name: str(path) for name, path in ours.items()},
        }
        if mode == "peer":
            settings["access_control"] = access_rules(security.trainers, security.operators)
    for name, value in settings.items():
        config.insert_json5(name, json.dumps(value))
    try:
        return zenoh.open(config)
    except zenoh.ZError as error:
        if mode == "client":
            raise LinkError(f"no program answers at {address}") from None
        raise LinkError(f"cannot listen at {address}: {str(error).split(' at /')[0]}") from None
