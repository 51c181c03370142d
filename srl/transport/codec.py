"""The wire format: a fixed header of 64 bytes, then raw frames. Nothing is ever executed.

    offset  0  magic "SRL"          3 bytes
            3  format               uint8     refused where it is not ours
            4  kind                 uint8     one of Kind
            8  sender               uint32    index of the worker on its side of the stream
           12  incarnation          uint32    how often that worker was started
           16  sequence             uint64    of this sender and kind: loss and repeats are counted
           24  a, b, c, d           4 x int64 what they mean depends on the kind
           56  digest               8 bytes   of the Spec both sides agreed on; zeros where none

A small frame that is the only one follows its header in the same part, and a large one comes in several
(`sockets.py`). The format number changes with any change of these bytes; tests hold a golden copy.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from srl.core.errors import StreamError

FORMAT = 3
HEADER = struct.Struct("<3sBB3xIIQqqqq8s")
_MAGIC = b"SRL"
NO_DIGEST = bytes(8)


class Kind(IntEnum):
    """What a message is; its four numbers follow in the comment."""

    HELLO = 1  # client to server; a: its number, b: blocks abandoned; frame 1 is the Spec's JSON
    WELCOME = 2  # server to client: the Specs agree
    REFUSED = 3  # server to client; frame 1 says why, naming the field
    REQUEST = 4  # a: slot, b: row, c: group, d: lowest version the answer may have
    REPLY = 5  # sequence of the request; a: version, c: group
    BLOCK = (
        6  # a: slot, b: generation; over a network frame 1 is the block (c is 1: compressed), and
        #             sequence its number
    )
    CREDIT = (
        7  # a: blocks the producer may ever have started, b: lowest version of new rows; over a
    )
    #             network c: the last hello seen, and frame 1 what was received and taken
    ABANDON = 8  # a: blocks this producer started and will never send, in all
    GOODBYE = 9  # the sender leaves and expects nothing more
    NEWS = 10  # a: the latest version, c: the last hello seen
    FETCH = 11  # a: the version the sender has, -1: none
    WEIGHTS = (
        12  # a: version, b: the version it is to be laid over; frame 1: which tensors, then these
    )


_KINDS = {kind.value: kind for kind in Kind}


class Header(NamedTuple):
    """The header of one message."""

    kind: Kind
    sender: int
    incarnation: int
    sequence: int
    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0
    digest: bytes = NO_DIGEST


def pack(header: Header) -> bytes:
    """The 64 bytes of a header."""
    return HEADER.pack(_MAGIC, FORMAT, *header)


def unpack(data: bytes | memoryview) -> Header:
    """The header in `data`; raises StreamError where these are not the bytes of one."""
    if len(data) != HEADER.size:
        raise StreamError(f"a header has {HEADER.size} bytes, got {len(data)}")
    magic, version, number, sender, incarnation, sequence, a, b, c, d, digest = HEADER.unpack(data)
    if magic != _MAGIC:
        raise StreamError("not a message of SRL")
    if version != FORMAT:
        raise StreamError(f"message format {version}, this SRL speaks {FORMAT}")
    kind = _KINDS.get(number)
    if kind is None:
        raise StreamError(f"unknown kind of message {number}")
    return Header(kind, sender, incarnation, sequence, a, b, c, d, digest)
