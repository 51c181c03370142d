import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from srl.core.block import ALIGNMENT, Block, Layout, aligned, route_spec
from srl.core.env import AgentSpec, Discrete, Observation
from srl.core.errors import SpecError
from srl.core.spec import Field, Spec

AGENT = AgentSpec((Observation("obs", (3,), "float32"),), Discrete(2))
ROUTE = Layout(route_spec(AGENT, Spec((AGENT.action.field,))), rows=2, lanes=6, envs=3)

DTYPES = st.sampled_from(["bool", "uint8", "int16", "float32", "int64", "float64"])
SHAPES = st.lists(st.integers(0, 4), max_size=2).map(tuple)
FIELDS = st.tuples(SHAPES, DTYPES, st.sampled_from(["lane", "env", "head"]))


@st.composite
def layouts(draw):
    fields = [Field(f"f{i}", *rest) for i, rest in enumerate(draw(st.lists(FIELDS, max_size=6)))]
    envs = draw(st.integers(1, 3))
    lanes = envs * draw(st.integers(1, 3))
    return Layout(Spec(tuple(fields)), draw(st.integers(0, 4)), lanes, envs)


def test_layout_of_a_route_is_frozen():
    # 6 lanes x int64 = 48 -> 64; obs 2x6x3x4 = 144 -> 192; bools 12 -> 64; int64 96 -> 128.
    assert ROUTE.offsets == {
        "lane": 0,
        "episode": 64,
        "step": 128,
        "obs": 192,
        "first": 384,
        "valid": 448,
        "acting": 512,
        "action": 576,
        "version": 704,
        "reward": 832,
        "terminated": 896,
        "truncated": 960,
    }
    assert ROUTE.nbytes == 1024


def test_block_bytes_are_frozen():
    layout = Layout(Spec((Field("a", (), "int16", "head"), Field("b", (2,), "uint8"))), 2, 1, 1)
    block = Block.allocate(layout)
    block["a"][:] = 0x0102
    block["b"][:] = [[[1, 2]], [[3, 4]]]
    expected = b"\x02\x01" + bytes(62) + b"\x01\x02\x03\x04" + bytes(60)
    assert block.buffer.tobytes() == expected


@given(layouts())
def test_layout_fields_are_aligned_and_never_overlap(layout):
    ends = [0]
    for field in layout.spec:
        start = layout.offsets[field.name]
        assert start % ALIGNMENT == 0
        assert start >= ends[-1]
        ends.append(start + int(np.prod(layout.shape_of(field))) * np.dtype(field.dtype).itemsize)
    assert layout.nbytes == aligned(ends[-1]) or ends[-1] == ends[0]
    assert layout.nbytes >= ends[-1]


@given(layouts())
def test_block_fields_are_views_of_one_buffer_that_keep_what_is_written(layout):
    block = Block.allocate(layout)
    for number, field in enumerate(layout.spec):
        view = block[field.name]
        assert view.shape == layout.shape_of(field)
        assert view.dtype == field.dtype
        assert view.size == 0 or np.shares_memory(view, block.buffer)
        view.fill(number % 2 if field.dtype == "bool" else number + 1)
    other = Block(layout, block.buffer.copy())
    for number, field in enumerate(layout.spec):
        assert (other[field.name] == (number % 2 if field.dtype == "bool" else number + 1)).all()


def test_block_allocate_is_aligned_and_zero():
    block = Block.allocate(ROUTE)
    assert block.buffer.ctypes.data % ALIGNMENT == 0
    assert not block.buffer.any()


def test_block_over_too_small_a_buffer_is_refused():
    with pytest.raises(SpecError, match="1024 bytes does not fit 1023"):
        Block(ROUTE, np.zeros(1023, np.uint8))


def test_block_rows_of_an_env_are_views_of_lanes_in_env_order():
    block = Block.allocate(ROUTE)
    rows, outcome = block.observation_rows(AGENT, 1), block.outcome_rows(1)
    rows.obs["obs"][2, 1] = [1, 2, 3]
    rows.first[0, 1] = True
    outcome.reward[1, 0] = 7
    assert block["obs"][1, 5].tolist() == [1, 2, 3]
    assert np.argwhere(block["first"]).tolist() == [[1, 1]]
    assert block["reward"][1, 2] == 7


def test_block_row_gives_views_of_named_fields():
    block = Block.allocate(ROUTE)
    block.row(("action",), 0)["action"][3] = 1
    assert np.argwhere(block["action"]).tolist() == [[0, 3]]
