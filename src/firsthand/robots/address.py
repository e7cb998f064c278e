"""Names of robots that are addresses; no network is imported for telling one."""


def is_address(name: str) -> bool:
    """Whether a robot's name is `tcp/host:port`, `tls/host:port` or `NAME@tcp/host:port`."""
    return name.rpartition("@")[2].startswith(("tcp/", "tls/"))


def full_name(name: str) -> str:
    """The name as a run keeps it: an address is asked which robot it is, so that the run can be read without it."""
    if not is_address(name):
        return name
    from .remote import RemoteAddress

    return RemoteAddress.parse(name).full_name()
