import pytest
from hypothesis import given
from hypothesis import strategies as st

from srl.core.errors import StreamError
from srl.transport.codec import FORMAT, HEADER, Header, Kind, pack, unpack

# magic, format, kind 4 and padding; sender; incarnation; sequence; a; b; c; d; digest
GOLDEN = bytes.fromhex(
    "53524c03"
    "04000000"
    "04030201"
    "08070605"
    "100f0e0d0c0b0a09"
    "feffffffffffffff"
    "0200000000000000"
    "0300000000000000"
    "ffffffffffffff7f"
    "6469676573742121"
)
HEADER_OF_GOLDEN = Header(
    Kind.REQUEST,
    sender=0x01020304,
    incarnation=0x05060708,
    sequence=0x090A0B0C0D0E0F10,
    a=-2,
    b=2,
    c=3,
    d=2**63 - 1,
    digest=b"digest!!",
)

NUMBERS = st.integers(-(2**63), 2**63 - 1)
HEADERS = st.builds(
    Header,
    kind=st.sampled_from(Kind),
    sender=st.integers(0, 2**32 - 1),
    incarnation=st.integers(0, 2**32 - 1),
    sequence=st.integers(0, 2**64 - 1),
    a=NUMBERS,
    b=NUMBERS,
    c=NUMBERS,
    d=NUMBERS,
    digest=st.binary(min_size=8, max_size=8),
)


def test_wire_format_is_frozen():
    assert FORMAT == 3
    assert pack(HEADER_OF_GOLDEN) == GOLDEN
    assert unpack(GOLDEN) == HEADER_OF_GOLDEN


def test_kinds_are_frozen():
    assert {kind.name: kind.value for kind in Kind} == {
        "HELLO": 1,
        "WELCOME": 2,
        "REFUSED": 3,
        "REQUEST": 4,
        "REPLY": 5,
        "BLOCK": 6,
        "CREDIT": 7,
        "ABANDON": 8,
        "GOODBYE": 9,
        "NEWS": 10,
        "FETCH": 11,
        "WEIGHTS": 12,
    }


@given(HEADERS)
def test_header_comes_back_as_it_was_packed(header):
    assert unpack(pack(header)) == header
    assert isinstance(unpack(pack(header)).kind, Kind)


@pytest.mark.parametrize("version", [v for v in range(256) if v != FORMAT])
def test_other_format_is_refused_by_its_number(version):
    data = GOLDEN[:3] + bytes([version]) + GOLDEN[4:]
    with pytest.raises(StreamError, match=f"format {version}"):
        unpack(data)


@pytest.mark.parametrize("kind", [0, *range(13, 256)])
def test_unknown_kind_is_refused_by_its_number(kind):
    with pytest.raises(StreamError, match=f"kind of message {kind}"):
        unpack(GOLDEN[:4] + bytes([kind]) + GOLDEN[5:])


@pytest.mark.parametrize("size", [0, 1, 63, 65, 640])
def test_header_of_another_size_is_refused(size):
    with pytest.raises(StreamError, match="64 bytes"):
        unpack((GOLDEN * 10)[:size])


def test_foreign_magic_is_refused():
    with pytest.raises(StreamError, match="not a message of SRL"):
        unpack(b"XYZ" + GOLDEN[3:])


@given(st.binary(min_size=HEADER.size, max_size=HEADER.size))
def test_random_bytes_are_a_header_or_are_refused(data):
    try:
        header = unpack(data)
    except StreamError:
        return
    assert data[:3] == b"SRL"
    assert header.kind in Kind
