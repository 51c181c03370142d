"""The folder of a run's sockets: its place, its name, and whose it is."""

import tempfile
from pathlib import Path

from srl.core.errors import ConfigError
from srl.launch.host.owner import write_owner

SOCKET_PREFIX = "srl-"
"""How the names of socket folders begin."""
SOCKET_OWNERS = ("controller.json", "node-agent.json")
"""Files of a socket folder that say whose it is."""
LONGEST_FOLDER = 60
"""Bytes that the path of the folder above may have: a socket's path has at most 107."""


def socket_place() -> str:
    """The folder that folders of sockets are made in: the usual one, where its path is short."""
    usual = tempfile.gettempdir()
    return usual if len(usual) < LONGEST_FOLDER else "/tmp"


def make_socket_folder() -> Path:
    """A new folder for this user alone, owned by this process."""
    made = Path(tempfile.mkdtemp(prefix=SOCKET_PREFIX, dir=socket_place()))
    write_owner(made / SOCKET_OWNERS[0])
    return made


def check_sockets() -> None:
    """Raise ConfigError where no folder for sockets can be made."""
    try:
        with tempfile.TemporaryDirectory(prefix=f"{SOCKET_PREFIX}probe-", dir=socket_place()) as it:
            write_owner(Path(it) / SOCKET_OWNERS[0])
    except OSError as error:
        raise ConfigError(
            f"no folder for sockets can be made ({error}): set TMPDIR to a short path of a disk "
            "that has room and can be written"
        ) from error
