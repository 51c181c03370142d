from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from srl.core.algorithm import Records
from srl.core.block import ALIGNMENT, Block, Layout, aligned, route_layout, route_spec
from srl.core.env import AgentSpec, Discrete, Observation
from srl.core.errors import SpecError
from srl.core.spec import Field, Spec

AGENT = AgentSpec((Observation("obs", (3,), "float32"),), Discrete(2))
ROUTE = Layout(route_spec(AGENT, Records(Spec((AGENT.action.field,)))), rows=2, lanes=6, envs=3)

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
    assert rows is block.observation_rows(AGENT, 1)  # a slot's views are made once
    assert rows is not block.observation_rows(AGENT, 0)
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


STATE = Spec((Field("state.h", (), "float32", "chunk"),))
STACKED = AgentSpec((Observation("obs", (), "int64", stack=3),), Discrete(2))
CENTRAL = AgentSpec(
    (Observation("obs", (), "float32"),), Discrete(2), (Observation("all", (2,), "float32"),)
)


def _long(agent=AGENT, *, rollout=6, chunk=2, burn_in=3, lanes=2):
    records = Records(Spec((agent.action.field,)), STATE, chunk, burn_in)
    layout = route_layout(agent, records, rollout=rollout, lanes=lanes, envs=lanes)
    return Block.allocate(layout), Block.allocate(replace(layout, rows=burn_in + 1))


def test_states_are_recorded_where_chunks_start_and_the_latest_is_last():
    block, _ = _long()  # rows 0..9, chunks of 2: states at rows 0, 2, 4, 6, 8, and the latest
    assert block["state.h"].shape == (6, 2)
    for t in range(10):
        block["state.h"][-1] = 10 + t
        block.record_state(["state.h"], t)
    assert block["state.h"][:, 0].tolist() == [10, 12, 14, 16, 18, 19]


def test_rows_of_a_burn_in_repeat_the_end_of_the_block_before():
    block, carry = _long()
    rows = np.arange(10)[:, None]
    block["obs"][:] = rows[..., None]
    block["action"][:] = rows
    block["state.h"][:] = np.array([0, 2, 4, 6, 8, 9])[:, None]
    block["episode"][:], block["step"][:] = 5, 7
    block["first"][4, 1] = True
    carry.continue_from(block)
    following, _ = _long()
    following.begin_with(carry)
    assert following["obs"][:4, 0, 0].tolist() == [6, 7, 8, 9]
    assert following["action"][:4, 0].tolist() == [6, 7, 8, 9]
    assert following["state.h"][[0, 1, -1], 0].tolist() == [6, 8, 9]
    assert following["episode"].tolist() == [5, 6]
    assert following["step"].tolist() == [13, 2]


def test_a_stack_holds_the_newest_rows_and_zeros_before_its_episode():
    records = Records(Spec((STACKED.action.field,)))
    layout = route_layout(STACKED, records, rollout=4, lanes=2, envs=2)
    block = Block.allocate(layout)
    assert block["obs"].shape == (7, 2)  # two rows of context
    block["obs"][:] = np.arange(1, 8)[:, None]
    block["step"][:] = [1, 9]
    block["first"][3, 1] = True
    seen = [block.inputs(["obs"], t)["obs"].tolist() for t in range(5)]
    assert [lanes[0] for lanes in seen] == [[0, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6], [5, 6, 7]]
    assert [lanes[1] for lanes in seen] == [[1, 2, 3], [2, 3, 4], [3, 4, 5], [0, 0, 6], [0, 6, 7]]
    block.observation_rows(STACKED, 2).obs["obs"][:] = 0
    assert block["obs"][4].tolist() == [0, 0]


def test_stacking_one_lane_leaves_its_rows_as_they_are():
    records = Records(Spec((STACKED.action.field,)))
    block = Block.allocate(route_layout(STACKED, records, rollout=4, lanes=1, envs=1))
    block["obs"][:] = np.arange(1, 8)[:, None]
    block["first"][2] = True
    assert block.inputs(["obs"], 2)["obs"].tolist() == [[0, 0, 5]]
    assert block["obs"][:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_what_an_env_shares_is_shown_to_each_of_its_agents():
    records = Records(Spec((CENTRAL.action.field,)))
    block = Block.allocate(route_layout(CENTRAL, records, rollout=1, lanes=4, envs=2))
    block.observation_rows(CENTRAL, 0).central["all"][:] = [[1, 2], [3, 4]]
    assert block.inputs(["all"], 0)["all"].tolist() == [[1, 2], [1, 2], [3, 4], [3, 4]]
