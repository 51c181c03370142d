"""Replay: what is drawn is what happened, as often as it should be."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from srl.core.algorithm import Records
from srl.core.block import Block, route_layout
from srl.core.env import AgentSpec, Discrete, Observation
from srl.core.errors import CheckpointError, ConfigError, WorkerError
from srl.core.replay import ReplayConfig, Window
from srl.core.spec import Field, Spec
from srl.learning.replay.limiter import RateLimiter
from srl.learning.replay.replay import Replay
from srl.learning.replay.selectors import Drawn
from srl.learning.replay.sum_tree import SumTree
from srl.learning.replay.table import rows_of_track, table_bytes
from srl.learning.staging import HostMemory, allocate
from srl.nets.chunks import Chunks

T, L = 6, 3
STATE = Spec((Field("state.mark", (), "float32", "chunk"),))


class Lanes:
    """Lanes of two groups that count their rows: every number tells where it is from."""

    def __init__(self, *, stack=1, chunk=1, seed=0, groups=2):
        self.agent = AgentSpec((Observation("obs", (2,), "float32", stack=stack),), Discrete(2))
        self.records = Records(Spec((Field("action", (), "int64"),)), STATE, chunk)
        self.layout = route_layout(self.agent, self.records, rollout=T, lanes=L, envs=L)
        self.groups, self.stack, self.chunk = groups, stack, chunk
        self.rng = np.random.default_rng(seed)
        self.rows = {}
        """Every row of a lane that was ever kept, by field."""
        self.heads = {}
        self.carried = {}

    def block(self, group, *, lost=False):
        """The next block of a group; one that is lost is not kept."""
        block = Block.allocate(self.layout)
        fields = block.fields
        lanes = np.arange(L) + group * L
        before = self.carried.get(group)
        fields["lane"][:] = lanes
        if before is None:
            fields["episode"][:], fields["step"][:] = 0, 0
            fields["first"][0] = fields["valid"][0] = True
            fields["obs"][: self.stack] = self.rng.normal(size=(self.stack, L, 2))
        else:
            last = before.layout.rows - 1
            fields["episode"][:] = before.episodes_at(last)
            fields["step"][:] = before.steps_at(last)
            for name in ("first", "valid"):
                fields[name][0] = before[name][-1]
            fields["obs"][: self.stack] = before["obs"][-self.stack :]
        fields["acting"][:] = True
        for t in range(T):
            ends = (self.rng.random(L) < 0.2) & fields["valid"][t]
            fields["terminated"][t] = ends & (self.rng.random(L) < 0.5)
            fields["truncated"][t] = ends & ~fields["terminated"][t]
            fields["reward"][t] = self.rng.normal(size=L)
            fields["action"][t] = self.rng.integers(2, size=L)
            fields["obs"][t + self.stack] = self.rng.normal(size=(L, 2))
            fields["valid"][t + 1] = ~ends
            fields["first"][t + 1] = ~fields["valid"][t]
        fields["state.mark"][:] = self.rng.normal(size=fields["state.mark"].shape)
        self.carried[group] = block
        if not lost:
            self._note(block, lanes)
        return block

    def _note(self, block, lanes):
        for column, lane in enumerate(lanes.tolist()):
            rows = self.rows.setdefault(lane, [])
            for t in range(T):
                row = {
                    name: block[name][t + (self.stack - 1 if name == "obs" else 0), column].copy()
                    for name in ("obs", "reward", "first", "valid", "terminated", "truncated")
                }
                row["id"] = (int(block.episodes_at(t)[column]), int(block.steps_at(t)[column]))
                row["mark"] = block["state.mark"][t // self.chunk, column]
                rows.append(row)


def make(lanes, window, capacity=10_000, seed=0, **options):
    config = ReplayConfig(**{"capacity": capacity, "batch": 64, "warm_up": 0} | options)
    return Replay(config, window, lanes.layout, groups=lanes.groups, seed=seed)


def arrays_of(replay):
    return allocate(replay.layout, HostMemory())


def follows(row, after):
    """Whether a row is the one after another of its lane."""
    (episode, step), (other, later) = row["id"], after["id"]
    return (other, later) == (episode, step + 1) or (other, later) == (episode + 1, 0)


def check_windows(lanes, window, out, kept):
    """Every window is a run of rows of one lane, all of which are among the newest `kept`."""
    found = set()
    for column in range(out["reward"].shape[1]):
        rows = lanes.rows[int(out["lane"][column])]
        name = (int(out["episode"][column]), int(out["step"][column]))
        start = next(i for i, row in enumerate(rows) if row["id"] == name)
        assert start >= len(rows) - kept
        here = rows[start : start + window.rows]
        assert len(here) == window.rows
        assert all(follows(a, b) for a, b in pairwise(here))
        for field in ("reward", "first", "valid", "terminated", "truncated"):
            assert [row[field] for row in here] == out[field][:, column].tolist(), field
        for t, row in enumerate(here):
            depth = min(lanes.stack - 1, row["id"][1])
            for back in range(depth + 1):
                seen = out["obs"][t + lanes.stack - 1 - back, column]
                np.testing.assert_array_equal(seen, rows[start + t - back]["obs"])
        if window.length == 1:
            assert here[window.burn_in]["valid"]
        assert start % window.stride == 0
        np.testing.assert_array_equal(out["state.mark"][0, column], here[0]["mark"])
        found.add((int(out["lane"][column]), start))
    return found


KINDS = ["uniform", "prioritised"]
WINDOWS = [
    Window(),
    Window(ahead=3),
    Window(length=3, ahead=1, burn_in=3, stride=3),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", WINDOWS, ids=["step", "n-step", "sequence"])
@pytest.mark.parametrize("stack", [1, 3])
def test_windows_are_what_happened(kind, window, stack):
    """Also where blocks were lost, and where the oldest rows were replaced many times."""
    lanes = Lanes(stack=stack, chunk=3 if window.stride > 1 else 1)
    replay = make(lanes, window, capacity=5 * T * 2 * L, kind=kind)
    out, rng = arrays_of(replay), np.random.default_rng(1)
    kept, drawn = 5 * T, 0
    for _ in range(30):
        group = int(rng.integers(2))
        lost = rng.random() < 0.1
        block = lanes.block(group, lost=lost)
        if not lost:
            replay.insert(block)
        replay.limiter.drawn = 0  # as often as it likes
        if replay.draw(out):
            drawn += 1
            check_windows(lanes, window, out, kept)
    assert drawn > 20
    assert replay.size == sum(min(len(rows), kept) for rows in lanes.rows.values())


def test_a_learner_is_shown_the_stacks_that_were_there_to_act_on():
    """Of every row of a window, also of what it is bootstrapped from; nothing from before an episode began."""
    lanes, window = Lanes(stack=3), Window(ahead=2)
    replay = make(lanes, window, capacity=8 * T * L)
    for _ in range(6):  # a third of it is replaced
        for group in range(2):
            replay.insert(lanes.block(group))
    out = arrays_of(replay)
    assert replay.draw(out)
    chunks, began = Chunks(out, lanes.agent, lanes.records, torch.device("cpu")), 0
    for column in range(chunks.num_lanes):
        rows = lanes.rows[int(out["lane"][column])]
        name = (int(out["episode"][column]), int(out["step"][column]))
        start = next(i for i, row in enumerate(rows) if row["id"] == name)
        for t in range(window.rows):
            shown = chunks.observe(torch.tensor([t * chunks.num_lanes + column]), ["obs"])["obs"]
            depth, wanted = min(2, rows[start + t]["id"][1]), np.zeros((3, 2), np.float32)
            for back in range(depth + 1):
                wanted[2 - back] = rows[start + t - back]["obs"]
            np.testing.assert_array_equal(shown[0].numpy(), wanted)
            began += depth < 2
    assert began > 10


@pytest.mark.parametrize("kind", KINDS)
def test_every_window_is_drawn_and_all_alike(kind):
    """A chi-squared test of 40,000 draws, and no window is left out."""
    lanes, window = Lanes(), Window(ahead=2)
    replay = make(lanes, window, kind=kind, batch=1000)
    for _ in range(4):
        for group in range(2):
            replay.insert(lanes.block(group))
    out = arrays_of(replay)
    counts = {}
    for _ in range(40):
        replay.limiter.drawn = 0
        assert replay.draw(out)
        for name in zip(out["lane"], out["episode"], out["step"], strict=True):
            counts[name] = counts.get(name, 0) + 1
    rows = [(lane, row, i) for lane, rows in lanes.rows.items() for i, row in enumerate(rows)]
    usable = [(lane, *row["id"]) for lane, row, i in rows if row["valid"] and i + 3 <= 4 * T]
    assert set(counts) == set(usable)
    expected = 40_000 / len(usable)
    chi = sum((n - expected) ** 2 / expected for n in counts.values())
    assert chi < len(usable) + 5 * np.sqrt(2 * len(usable))


@pytest.mark.parametrize("at_once", [1 << 20, 50])
def test_few_rows_that_are_acted_on_are_drawn_and_all_alike(monkeypatch, at_once):
    """Of 720 windows 10 are of use: most of a draw comes from a list of them."""
    monkeypatch.setattr("srl.learning.replay.selectors._AT_ONCE", at_once)
    lanes, window = Lanes(), Window()
    replay = make(lanes, window, batch=1000)
    chosen = set(np.random.default_rng(1).choice(720, 10, replace=False).tolist())
    acted, names = np.zeros(720, bool), set()
    acted[list(chosen)] = True
    for number in range(20):
        for group in range(2):
            block, at = lanes.block(group), (number * 2 + group) * T * L
            block["valid"][:], block["acting"][:] = True, False
            block["acting"][:-1] = acted[at : at + T * L].reshape(T, L)
            replay.insert(block)
            for t, lane in np.argwhere(block["acting"][:-1]):
                ids = block.episodes_at(t)[lane], block.steps_at(t)[lane]
                names.add((int(block["lane"][lane]), *map(int, ids)))
    out, counts = arrays_of(replay), {}
    for _ in range(20):
        replay.limiter.drawn = 0
        assert replay.draw(out)
        for name in zip(out["lane"], out["episode"], out["step"], strict=True):
            counts[name] = counts.get(name, 0) + 1
    assert set(counts) <= names  # a window at the end has no row after it
    assert len(counts) >= len(names) - 1
    expected = 20_000 / len(counts)
    chi = sum((n - expected) ** 2 / expected for n in counts.values())
    assert chi < len(counts) + 5 * np.sqrt(2 * len(counts))


def test_where_nobody_acts_nothing_is_drawn():
    lanes = Lanes(groups=1)
    replay = make(lanes, Window(), batch=4)
    for _ in range(3):
        block = lanes.block(0)
        block["acting"][:] = False
        replay.insert(block)
        assert not replay.draw(arrays_of(replay))


def test_prioritised_drawing_is_proportional():
    lanes, window = Lanes(), Window()
    replay = make(lanes, window, kind="prioritised", batch=1000, priority_exponent=0.5)
    for _ in range(4):
        replay.insert(lanes.block(0))
    out = arrays_of(replay)
    assert replay.draw(out)
    items = np.unique(out["item"])
    priorities = np.random.default_rng(0).uniform(0.1, 9, len(items))
    for _ in range(3):  # until all have been drawn, and have got one
        replay.limiter.drawn = 0
        replay.draw(out)
        items = np.union1d(items, out["item"])
    priorities = np.random.default_rng(0).uniform(0.1, 9, len(items))
    replay.update(items, priorities)
    counts = dict.fromkeys(items.tolist(), 0)
    rounds = 60
    for _ in range(rounds):
        replay.limiter.drawn = 0
        replay.draw(out)
        for item in out["item"].tolist():
            counts[item] += 1
    weights = np.sqrt(priorities)
    expected = weights / weights.sum() * 1000 * rounds
    chi = ((np.array([counts[i] for i in items.tolist()]) - expected) ** 2 / expected).sum()
    assert chi < len(items) + 5 * np.sqrt(2 * len(items))
    chances = weights / weights.mean()
    known = dict(zip(items.tolist(), chances, strict=True))
    np.testing.assert_allclose(out["chance"], [known[i] for i in out["item"].tolist()], rtol=1e-5)


def test_new_windows_have_the_highest_priority_so_far():
    lanes = Lanes(groups=1)
    replay = make(lanes, Window(), kind="prioritised", batch=500)
    replay.insert(lanes.block(0))
    out = arrays_of(replay)
    replay.draw(out)
    replay.update(out["item"], np.full(500, 1e-3))
    replay.insert(lanes.block(0))
    replay.limiter.drawn = 0
    replay.draw(out)
    new = np.mean(out["episode"] * 100 + out["step"] >= 0)
    assert new == 1
    assert np.mean(out["chance"]) > 1  # the new ones, which are few of all, are most of those drawn


def test_priorities_of_what_is_gone_change_nothing():
    lanes = Lanes(groups=1)
    replay = make(lanes, Window(), kind="prioritised", capacity=2 * T * L, batch=50)
    replay.insert(lanes.block(0))
    out = arrays_of(replay)
    assert replay.draw(out)
    items = out["item"].copy()
    for _ in range(4):
        replay.insert(lanes.block(0))
    tree = replay._selector._tree
    before = tree.values.copy()
    replay.update(items, np.full(50, 1e6))
    np.testing.assert_array_equal(tree.values, before)


def test_fifo_draws_each_window_so_many_times_in_order():
    lanes, window = Lanes(groups=1), Window(length=T - 1, ahead=1, stride=T)
    replay = make(lanes, window, kind="fifo", batch=L, samples_per_insert=2, tolerance=1000.0)
    out, seen = arrays_of(replay), []
    for _ in range(3):
        replay.insert(lanes.block(0))
    while replay.draw(out):
        seen.append(sorted(out["item"].tolist()))
    first, second, third = seen[0], seen[1], seen[2]
    assert seen == [first, second, third, first, second, third]
    assert first < second < third


def test_fifo_does_not_wait_for_rows_that_begin_no_window():
    lanes = Lanes(groups=1)
    replay = make(lanes, Window(ahead=2), kind="fifo", batch=L, samples_per_insert=1)
    out, drawn = arrays_of(replay), 0
    for sent in range(1, 200):
        assert replay.limiter.blocks_allowed() >= sent, (
            "actors wait for the learner, and it for them"
        )
        replay.insert(lanes.block(0, lost=sent % 7 == 0))
        while replay.draw(out):
            drawn += L
    assert drawn > 100 * T


def test_a_window_without_an_error_keeps_a_little_priority():
    lanes = Lanes(groups=1)
    replay = make(lanes, Window(), kind="prioritised", batch=4, priority_exponent=1.0)
    replay.insert(lanes.block(0))
    tree = replay._selector._tree
    items = np.flatnonzero(tree.values)[:1]  # the first track: leaf and row are the same
    assert items[0] < T
    replay.update(items, np.zeros(1, np.float32))
    assert tree.values[items] == [1e-6]


def test_priorities_that_are_not_finite_change_nothing():
    lanes = Lanes(groups=1)
    replay = make(lanes, Window(), kind="prioritised", batch=4)
    replay.insert(lanes.block(0))
    replay.insert(lanes.block(0))
    out = arrays_of(replay)
    assert replay.draw(out)
    replay.update(out["item"], np.array([np.nan, np.inf, 2.0, np.nan]))
    replay.limiter.drawn = 0
    assert replay.draw(out)
    assert np.isfinite(out["chance"]).all()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"capacity": 9 * T * L}, r"3 lanes of 30 rows.* this run 3 of 54"),
        ({"capacity": 9 * T * L, "kind": "prioritised"}, "of kind uniform, and this run one of"),
        ({"kind": "prioritised"}, "of kind uniform, and this run one of kind prioritised"),
    ],
)
def test_other_options_than_the_checkpoint_has_are_refused(changed, words):
    lanes = Lanes(groups=1)
    saved = make(lanes, Window(), capacity=5 * T * L)
    for _ in range(12):
        saved.insert(lanes.block(0))
    with pytest.raises(CheckpointError, match=words):
        make(lanes, Window(), **({"capacity": 5 * T * L} | changed)).load(
            saved.save(), continues=True
        )


def test_priorities_of_windows_that_are_now_too_long_are_not_taken_over():
    lanes = Lanes(groups=1)
    saved = make(lanes, Window(), kind="prioritised", batch=4)
    for number in range(9):
        saved.insert(lanes.block(0, lost=number in (3, 6)))
    window = Window(length=2, ahead=4)
    loaded = make(lanes, window, kind="prioritised", batch=4)
    loaded.load(saved.save(), continues=False)
    selector, table = loaded._selector, loaded._table
    tracks, starts = selector._windows(np.flatnonzero(selector._tree.values))
    assert len(starts) == selector._count > 0
    assert (starts + window.rows <= table.written[tracks]).all()
    assert table.is_usable(window, tracks, starts).all()
    again = make(lanes, Window(), kind="prioritised", batch=4)
    again.load(saved.save(), continues=False)
    assert (again._selector._tree.values == saved._selector._tree.values).all()


def test_rows_that_were_not_saved_are_not_missed():
    lanes = Lanes(groups=1)
    unsaved = make(lanes, Window(), saved=False)
    unsaved.insert(lanes.block(0))
    other = make(lanes, Window())
    other.load(unsaved.save(), continues=True)
    assert (other.size, other.limiter.inserted) == (0, 0)


def test_saved_and_loaded_it_draws_the_same():
    for kind in ("uniform", "prioritised", "fifo"):
        window = Window(length=T - 1, ahead=1, stride=T) if kind == "fifo" else Window(ahead=2)
        lanes = Lanes()
        options = {"kind": kind, "batch": 8, "capacity": 5 * T * 2 * L}
        one, other = make(lanes, window, **options), make(lanes, window, seed=9, **options)
        a, b = arrays_of(one), arrays_of(other)
        for _ in range(7):
            for group in range(2):
                one.insert(lanes.block(group))
            one.limiter.drawn = 0
            one.draw(a)
            one.update(a["item"], np.abs(a["reward"][0]))
        other.load(one.save(), continues=True)
        for _ in range(3):
            block = lanes.block(0)
            one.insert(block)
            other.insert(block)
            for replay, out in ((one, a), (other, b)):
                replay.limiter.drawn = 0
                assert replay.draw(out)
            for name in a:
                np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.mark.parametrize("kind", ["uniform", "prioritised", "fifo"])
def test_longer_windows_than_before_are_drawn_of_rows_that_are_there(kind):
    lanes = Lanes(groups=1)
    options = {"kind": kind, "batch": 4, "samples_per_insert": 4, "tolerance": 1000.0}
    short = make(lanes, Window(), **options)
    long = Window(length=1, ahead=4)
    other = make(lanes, long, **options)
    for _ in range(2):
        short.insert(lanes.block(0))
    other.load(short.save(), continues=True)
    out, drawn = arrays_of(other), set()
    for _ in range(4):
        while other.draw(out):
            tracks, starts = out["item"] >> 40, out["item"] & ((1 << 40) - 1)
            drawn |= set(starts.tolist())
            assert (starts + long.rows <= other._table.written[tracks]).all()
        other.insert(lanes.block(0))
    assert max(drawn) >= 4 * T, "rows that came later begin windows, too"


def test_what_comes_after_a_restart_is_not_joined_to_what_came_before():
    lanes = Lanes(groups=1)
    one, other = make(lanes, Window(ahead=2)), make(lanes, Window(ahead=2))
    one.insert(lanes.block(0))
    other.load(one.save(), continues=False)
    other.insert(lanes.block(0))
    assert int(other._table._arrays["run"][0, T]) == 0


def test_checkpoint_of_another_shape_is_refused():
    few, many = Lanes(groups=1), Lanes(groups=2)
    saved = make(few, Window())
    saved.insert(few.block(0))
    with pytest.raises(CheckpointError, match="replay"):
        make(many, Window()).load(saved.save(), continues=True)


def test_rows_in_a_file_are_the_same_and_leave_nothing_behind(tmp_path):
    lanes, window = Lanes(stack=3), Window(ahead=2)
    config = ReplayConfig(capacity=1000, batch=32, warm_up=0)
    in_file = replace(config, storage="file")
    one = Replay(config, window, lanes.layout, groups=2, seed=0)
    other = Replay(in_file, window, lanes.layout, groups=2, seed=0, folder=tmp_path)
    a, b = arrays_of(one), arrays_of(other)
    for _ in range(5):
        block = lanes.block(0)
        one.insert(block)
        other.insert(block)
    assert one.draw(a)
    assert other.draw(b)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)
    assert list(tmp_path.iterdir()) == []


def flip(batch, rng):
    batch["reward"][...] = -batch["reward"]


def say_so(batch, rng):
    return batch


def break_it(batch, rng):
    batch["reward"][0, 0] = np.nan


@pytest.mark.parametrize(
    ("name", "words"),
    [("say_so", "say_so returned dict: it is to change"), ("break_it", "break_it left numbers in")],
)
def test_function_that_relabels_wrongly_is_named(name, words):
    lanes = Lanes(groups=1)
    replay = make(lanes, Window(), batch=8, relabel=f"{__file__}:{name}")
    replay.insert(lanes.block(0))
    with pytest.raises(WorkerError, match=words):
        replay.draw(arrays_of(replay))


def test_what_is_drawn_is_relabelled():
    lanes = Lanes()
    plain = make(lanes, Window())
    changed = make(lanes, Window(), relabel=f"{__file__}:flip")
    a, b = arrays_of(plain), arrays_of(changed)
    for _ in range(2):
        block = lanes.block(0)
        plain.insert(block)
        changed.insert(block)
    assert plain.draw(a)
    assert changed.draw(b)
    np.testing.assert_array_equal(a["reward"], -b["reward"])


def test_a_million_atari_transitions_fit_8_gb():
    agent = AgentSpec((Observation("obs", (84, 84), "uint8", stack=4),), Discrete(6))
    records = Records(Spec((Field("action", (), "int64"),)))
    layout = route_layout(agent, records, rollout=32, lanes=16, envs=16)
    rows = rows_of_track(1_000_000, 16, 32)
    assert rows * 16 >= 1_000_000
    assert table_bytes(layout, 16, rows) < 8e9


# the limiter


def limiter(**options):
    values = {
        "samples_per_insert": 4.0,
        "warm_up": 100,
        "tolerance": None,
        "insert_rows": 10,
        "inserters": 3,
        "drawn": 32,
    }
    return RateLimiter(**values | options)


def test_nothing_is_drawn_before_it_is_warm():
    one = limiter()
    one.inserted = 99
    assert not one.may_draw(32)
    one.inserted = 100
    assert one.may_draw(32)


@pytest.mark.parametrize("rates", [(4.0, 0.5), (0.5, 4.0)])
def test_rate_that_changes_holds_from_then_on(rates):
    before, after = rates
    lanes, options = Lanes(groups=1), {"batch": 10, "warm_up": 2 * T * L}
    one = make(lanes, Window(), samples_per_insert=before, **options)
    other = make(lanes, Window(), samples_per_insert=after, **options)

    def play(replay, blocks):
        """Windows drawn while so many blocks come."""
        out, drawn = arrays_of(replay), 0
        for _ in range(blocks):
            replay.insert(lanes.block(0))
            while replay.draw(out):
                drawn += 10
        return drawn

    play(one, 20)
    other.load(one.save(), continues=True)
    assert play(other, 20) == pytest.approx(20 * T * L * after, abs=10 + T * L * after)


def test_priorities_go_to_another_exponent():
    lanes = Lanes(groups=1)

    def prioritised(exponent):
        return make(lanes, Window(), kind="prioritised", priority_exponent=exponent, batch=20)

    one, half, none, again = (prioritised(e) for e in (1.0, 0.5, 0.0, 0.5))
    one.insert(lanes.block(0))
    out = arrays_of(one)
    assert one.draw(out)
    one.update(out["item"], np.linspace(0.25, 4.0, 20))
    priorities = one._selector._tree.values
    half.load(one.save(), continues=True)
    np.testing.assert_allclose(half._selector._tree.values, np.sqrt(priorities))
    none.load(half.save(), continues=True)
    np.testing.assert_allclose(none._selector._tree.values, priorities > 0)
    again.load(none.save(), continues=True)  # all as new ones
    np.testing.assert_allclose(again._selector._tree.values, 2.0 * (priorities > 0))


def test_tolerance_that_would_stop_everything_is_refused():
    with pytest.raises(ConfigError, match=r"replay\.tolerance .* at least 16"):
        limiter(tolerance=15.0)
    limiter(tolerance=16.0)


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.05, 40),
    st.integers(0, 300),
    st.integers(1, 200),
    st.integers(1, 8),
    st.integers(1, 300),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_rate_is_held_and_nobody_waits_for_ever(
    rate, warm_up, rows, inserters, drawn, least, random
):
    """Rows come in blocks that were allowed, in any order with draws; one of the two can always go on."""
    tolerance = drawn / 2 + 1e-6 if least else None
    one = limiter(
        samples_per_insert=rate,
        warm_up=warm_up,
        tolerance=tolerance,
        insert_rows=rows,
        inserters=inserters,
        drawn=drawn,
    )
    for _ in range(200):
        may = [one.inserted < one.blocks_allowed() * rows, one.may_draw(drawn)]
        assert any(may)
        if may[0] and (not may[1] or random.random() < 0.5):
            one.inserted += rows
        else:
            one.drawn += drawn
    slack = (tolerance or drawn + rate * rows * inserters) + rate * rows + 1e-6
    ahead = (one.inserted - warm_up) * rate - one.drawn
    assert ahead <= slack
    assert ahead >= -slack or not one.drawn


@settings(max_examples=30, deadline=None)
@example(  # by one bit
    kind="uniform",
    window=Window(1, 10, 20),
    groups=1,
    shards=1,
    warm_up=0,
    rate=0.1,
    least=True,
    lost=0.0,
    seed=0,
)
@given(
    kind=st.sampled_from(["uniform", "prioritised", "fifo"]),
    window=st.builds(Window, st.integers(1, 8), st.integers(1, 30), st.integers(0, 20)),
    groups=st.integers(1, 6),
    shards=st.integers(1, 2),
    warm_up=st.integers(0, 200),
    rate=st.sampled_from([0.1, 1.0, 8.0]),
    least=st.booleans(),
    lost=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 100),
)
def test_windows_of_any_length_are_drawn_however_few_blocks_may_begin(
    kind, window, groups, shards, warm_up, rate, least, lost, seed
):
    """Blocks come as they are allowed, from any group; some are lost, and are allowed again."""
    lanes, rng = Lanes(groups=groups, seed=seed), np.random.default_rng(seed)
    config = ReplayConfig(
        kind=kind,
        capacity=10_000,
        batch=4 * shards,
        warm_up=warm_up,
        samples_per_insert=max(1.0, rate) if kind == "fifo" else rate,
        tolerance=2.0 * shards if least else None,
    )
    replay = Replay(config, window, lanes.layout, groups=groups, shards=shards, seed=seed)
    out, draws = arrays_of(replay), 0
    for _ in range(40 * groups):
        while replay.draw(out):
            draws += 1
        assert replay.limiter.inserted < replay.limiter.blocks_allowed() * T * L, "all wait"
        is_lost = rng.random() < lost
        block = lanes.block(int(rng.integers(groups)), lost=is_lost)
        if not is_lost:
            replay.insert(block)
    if not lost:
        assert draws


def test_nothing_is_drawn_before_every_lane_has_a_window():
    lanes = Lanes(groups=2)
    replay = make(lanes, Window(ahead=2 * T), batch=4)  # of three blocks
    out = arrays_of(replay)
    for number in range(6):
        assert not replay.draw(out)
        assert replay.limiter.blocks_allowed() > number
        replay.insert(lanes.block(number % 2))
    assert replay.draw(out)


# the sum tree


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 200), st.randoms(use_true_random=False))
def test_tree_finds_what_a_loop_would(size, random):
    tree, values = SumTree(size), np.zeros(size)
    rng = np.random.default_rng(random.randrange(2**32))
    for _ in range(5):
        leaves = rng.integers(size, size=int(rng.integers(1, 100)))
        new = rng.choice([0.0, 1.0, rng.random()], size=len(leaves))
        tree.set(leaves, new)
        for leaf, value in zip(leaves, new, strict=True):
            values[leaf] = value
        np.testing.assert_array_equal(tree.values, values)
        assert tree.total == pytest.approx(values.sum())
        if not values.sum():
            continue
        wanted = rng.random(20) * tree.total
        sums = np.cumsum(values)
        for leaf, number in zip(tree.find(wanted), wanted, strict=True):
            assert values[leaf] > 0
            assert sums[leaf] - values[leaf] - 1e-9 <= number <= sums[leaf] + 1e-9


def test_tree_never_draws_what_has_no_priority():
    """Even at the very end, where rounding may leave more than there is."""
    tree = SumTree(100)
    tree.set(np.array([3, 40]), np.array([0.1, 0.2]))
    assert set(tree.find(np.array([0.0, 0.05, 0.15, tree.total, tree.total * 1.01]))) == {3, 40}


def test_items_name_track_and_row():
    drawn = Drawn(np.array([5]), np.array([123456789]), np.ones(1))
    assert (int(drawn.items()[0]) >> 40, int(drawn.items()[0]) & (2**40 - 1)) == (5, 123456789)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"capacity": 0}, "capacity"),
        ({"samples_per_insert": 0}, "samples_per_insert"),
        ({"kind": "fifo", "samples_per_insert": 1.5}, "whole number"),
        ({"priority_exponent": 1.5}, "priority_exponent"),
        ({"warm_up": 11, "capacity": 10}, "warm_up"),
        ({"tolerance": float("nan")}, "tolerance must be at least 0, got nan"),
        ({"tolerance": float("inf")}, "tolerance must be at least 0, got inf"),
    ],
)
def test_impossible_options_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        ReplayConfig(**options)
