"""Names of robots that are addresses. Recognising one imports no network code."""

from collections.abc import Sequence

from ..errors import UserError


def is_address(name: str) -> bool:
    """Whether a robot's name is `tcp/host:port`, `tls/host:port` or `NAME@tcp/host:port`."""
    return name.rpartition("@")[2].startswith(("tcp/", "tls/"))


def is_fleet(name: str) -> bool:
    """Whether a robot's name is that of several machines: `NAME@tcp/host:port,tcp/host:port`."""
    return is_address(name) and "," in name.rpartition("@")[2]


def join_addresses(names: Sequence[str]) -> str:
    """The machines that a command line names one by one, as the name of one robot."""
    if len(names) == 1:
        return names[0]
    parts = [name.rpartition("@") for name in names]
    for name, (robot, _, address) in zip(names, parts, strict=True):
        if not is_address(name):
            raise UserError(f"ROBOT is {name!r}, but only machines (tcp/host:port) learn together; name one robot.")
        if robot != parts[0][0]:
            raise UserError(f"ROBOT is {name!r} beside {names[0]!r}, but machines that learn together are of one kind.")
        if [other for _, _, other in parts].count(address) > 1:
            raise UserError(f"ROBOT names {address} more than once.")
    return (f"{parts[0][0]}@" if parts[0][0] else "") + ",".join(address for _, _, address in parts)


def full_name(name: str) -> str:
    """The name as a run keeps it: an address is asked which robot it is, so that the run can be read without it."""
    if not is_address(name):
        return name
    if is_fleet(name):
        from .fleet import FleetAddress

        return FleetAddress.parse(name).full_name()
    from .remote import RemoteAddress

    return RemoteAddress.parse(name).full_name()
