"""The gated transformer: against one written with loops, and acting against learning."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from srl.core.errors import SpecError
from srl.nets.gtrxl import (
    COUNT,
    ROWS,
    Gate,
    GatedTransformer,
    gtrxl_state,
    visible_rows,
    waves,
)

D, H, HEADS = 3, 8, 2


def make(layers=2, length=4, seed=0):
    torch.manual_seed(seed)
    net = GatedTransformer(D, H, layers=layers, heads=HEADS, length=length)
    for weight in net.parameters():  # not the zeros and ones that some begin with
        weight.data += 0.3 * torch.randn_like(weight)
    return net


def zeros(num_lanes, layers=2, length=4):
    rows = torch.zeros(num_lanes, layers, length, H)
    return {ROWS: rows, COUNT: torch.zeros(num_lanes, dtype=torch.int32)}


def one_by_one(net, x, first, state):
    """Each row by a call of its own."""
    rows = []
    for t in range(len(x)):
        y, state = net(x[t : t + 1], first[t : t + 1], state)
        rows.append(y)
    return torch.cat(rows), state


def twin(net, x, begins):
    """One sequence `[K, D]` with loops over rows, heads and numbers, without a state."""
    weights = dict(net.named_parameters())

    def norm(row, name):
        centred = row - row.mean()
        scaled = centred / torch.sqrt((centred**2).mean() + 1e-5)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def linear(row, name):
        return row @ weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def gate(x, y, name):
        r, z = linear(torch.cat([x, y]), f"{name}.gates").sigmoid().split(H)
        h = linear(torch.cat([r * x, y]), f"{name}.candidate").tanh()
        return (1 - z) * x + z * h

    d = H // HEADS
    inputs = [linear(row, "embedding") for row in x]
    for i in range(len(net.layers)):
        of = f"layers.{i}.attention"
        normed = [norm(row, f"layers.{i}.attention_norm") for row in inputs]
        outputs = []
        for t, row in enumerate(inputs):
            began = max(s for s in range(t + 1) if begins[s] or s == 0)
            seen = range(max(began, t - net.length), t + 1)
            looked = []
            for head in range(HEADS):
                part = slice(head * d, head * d + d)
                query = (normed[t] @ weights[f"{of}.query"])[part]
                scores = []
                for s in seen:
                    key = (normed[s] @ weights[f"{of}.key"])[part]
                    age = (waves(net.length + 1, H)[t - s] @ weights[f"{of}.distance"])[part]
                    by_content = (query + weights[f"{of}.content_bias"][part]) @ key
                    by_age = (query + weights[f"{of}.distance_bias"][part]) @ age
                    scores.append((by_content + by_age) / math.sqrt(d))
                total = sum(score.exp() for score in scores)
                values = [(normed[s] @ weights[f"{of}.value"])[part] for s in seen]
                shares = [score.exp() / total for score in scores]
                looked.append(sum(a * v for a, v in zip(shares, values, strict=True)))
            y = (torch.cat(looked) @ weights[f"{of}.output"]).relu()
            x1 = gate(row, y, f"layers.{i}.attention_gate")
            wide = linear(norm(x1, f"layers.{i}.wide_norm"), f"layers.{i}.wide").relu()
            y = linear(wide, f"layers.{i}.narrow").relu()
            outputs.append(gate(x1, y, f"layers.{i}.wide_gate"))
        inputs = outputs
    return torch.stack(inputs)


@pytest.mark.parametrize("length", [1, 3, 9])
def test_it_is_the_twin_with_loops(length):
    net = make(length=length)
    x = torch.randn(7, 2, D)
    first = torch.zeros(7, 2, dtype=torch.bool)
    first[3, 0] = first[4, 0] = first[6, 1] = True
    y, _ = net(x, first, zeros(2, 2, length))
    for lane in range(2):
        expected = twin(net, x[:, lane], first[:, lane].tolist())
        torch.testing.assert_close(y[:, lane], expected, rtol=1e-4, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(
    num_rows=st.integers(1, 9),
    length=st.integers(1, 6),
    layers=st.integers(1, 3),
    warm_up=st.integers(0, 8),
    ends=st.sampled_from([0.0, 0.2, 0.7]),
    seed=st.integers(0, 1000),
)
def test_acting_row_by_row_is_learning_over_a_chunk(num_rows, length, layers, warm_up, ends, seed):
    net = make(layers, length, seed)
    lanes = 3
    with torch.no_grad():
        past = torch.randn(warm_up, lanes, D), torch.rand(warm_up, lanes) < ends
        state = zeros(lanes, layers, length)
        if warm_up:
            _, state = one_by_one(net, *past, state)
        x, first = torch.randn(num_rows, lanes, D), torch.rand(num_rows, lanes) < ends
        acted, after = one_by_one(net, x, first, state)
        learned, end = net(x, first, state)
    torch.testing.assert_close(learned, acted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(end[ROWS], after[ROWS], rtol=1e-4, atol=1e-5)
    assert end[COUNT].tolist() == after[COUNT].tolist()
    assert {name: x.dtype for name, x in end.items()} == {n: x.dtype for n, x in state.items()}


def test_an_episode_begins_as_if_nothing_had_been():
    net = make()
    x = torch.randn(6, 1, D)
    first = torch.zeros(6, 1, dtype=torch.bool)
    first[2] = True
    full = {ROWS: torch.randn(1, 2, 4, H), COUNT: torch.tensor([4], dtype=torch.int32)}
    with torch.no_grad():
        whole, after = net(x, first, full)
        alone, fresh = net(x[2:], first[2:], zeros(1))
    torch.testing.assert_close(whole[2:], alone)
    assert after[COUNT].tolist() == fresh[COUNT].tolist() == [4]
    first[5] = True
    assert net(x, first, full)[1][COUNT].tolist() == [1]


def test_rows_that_are_not_counted_have_no_influence():
    net = make()
    x, first = torch.randn(3, 1, D), torch.zeros(3, 1, dtype=torch.bool)
    state = zeros(1) | {COUNT: torch.tensor([2], dtype=torch.int32)}
    state[ROWS][:, :, 2:] = torch.randn(2, H)
    other = {ROWS: state[ROWS].clone(), COUNT: state[COUNT]}
    other[ROWS][:, :, :2] = 1e6
    assert torch.equal(net(x, first, state)[0], net(x, first, other)[0])
    other[ROWS][:, :, 2:] = torch.randn(2, H)
    assert not torch.allclose(net(x, first, state)[0], net(x, first, other)[0])


def test_visible_rows_by_hand():
    first = torch.tensor([[False, True], [False, False], [True, False]])
    visible = visible_rows(first, torch.tensor([1, 2]), 2).int()
    assert visible.tolist() == [
        [[0, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 0, 0, 1]],
        [[0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 1, 1, 1]],
    ]


def test_waves_by_hand():
    expected = [[0, 0, 1, 1], [math.sin(1), math.sin(0.01), math.cos(1), math.cos(0.01)]]
    torch.testing.assert_close(waves(2, 4), torch.tensor(expected))
    assert waves(3, 5).shape == (3, 5)


def test_gate_by_hand_and_near_the_identity_to_begin_with():
    gate = Gate(1)
    for layer in (gate.gates, gate.candidate):
        layer.weight.data.fill_(1)
    x, y = torch.tensor([[0.5]]), torch.tensor([[1.0]])
    r, z = 1 / (1 + math.exp(-1.5)), 1 / (1 + math.exp(0.5))
    expected = (1 - z) * 0.5 + z * math.tanh(r * 0.5 + 1)
    assert gate(x, y).item() == pytest.approx(expected)
    torch.manual_seed(0)
    net = GatedTransformer(D, 16, layers=3, heads=4, length=4)
    x, first = torch.randn(5, 64, D), torch.zeros(5, 64, dtype=torch.bool)
    state = {
        field.name: torch.zeros(64, *field.shape, dtype=getattr(torch, field.dtype))
        for field in gtrxl_state(16, 3, 4)
    }
    y, _ = net(x, first, state)
    embedded = net.embedding(x.flatten(0, 1)).view_as(y)
    both = torch.stack([y.flatten(), embedded.flatten()])
    assert torch.corrcoef(both)[0, 1] > 0.8


def test_gradients_reach_every_weight_and_every_row_that_is_seen():
    net = make(length=3)
    x = torch.randn(6, 1, D, requires_grad=True)
    first = torch.zeros(6, 1, dtype=torch.bool)
    first[1] = True
    y, _ = net(x, first, zeros(1, 2, 3))
    y[-1].sum().backward()
    assert x.grad is not None
    assert [bool(row.abs().sum() > 0) for row in x.grad] == [False, True, True, True, True, True]
    for name, weight in net.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.abs().sum() > 0, name
    one = make(layers=1, length=3)  # two layers see twice as far
    x.grad = None
    one(x, first, zeros(1, 1, 3))[0][-1].sum().backward()
    assert [bool(row.abs().sum() > 0) for row in x.grad] == [False, False, True, True, True, True]


def test_rows_and_firsts_must_be_as_many():
    with pytest.raises(SpecError, match="2 rows of features, but 1 of `first`"):
        make()(torch.zeros(2, 1, D), torch.zeros(1, 1, dtype=torch.bool), zeros(1))
