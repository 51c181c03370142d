"""Envs that fail while an actor plays them: the rows that are left, and what becomes of the env.

`Failing` shows [step, episode since it was built] and has 4 steps an episode, that is 5 rows. Env
11 is due to fail in step 2 of its second episode: acting on row 6 of its lane fails, so that

    row      0 1 2 3 4 | 5 6 | 7     | 8 9 10 11 12 | 13 ...
    step     0 1 2 3 4 | 0 1 | blank | 0 1  2  3  4 |  0      of a new env, in its third episode

and rows 5 and 6, as far as they were not sent before, are not learned from.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from srl.core.block import Layout, route_spec
from srl.core.env import Env, EnvRequest, EnvSpec, episode_seed
from srl.core.errors import EnvError
from srl.core.experiment import EnvConfig
from srl.core.fault import EnvFault
from srl.core.names import load_object
from srl.core.repro import EnvOrigin, Repro
from srl.core.telemetry import Telemetry
from srl.envs.gym import GymFamily
from srl.rollout.lanes import RouteEnds
from srl.rollout.quarantine import MAX_NOTES, Quarantine, Recovery
from srl.streams.inference.inline import InlineInference
from srl.streams.parameters.inline import InlineParameters
from srl.streams.samples.inline import InlineSamples
from srl.testing.fakes import FakePolicy
from srl.transport.arena import Arena
from srl.transport.blocks import BlockArena, block_arena_bytes
from srl.workers.actor import Actor

FILE = Path(__file__).parents[1] / "bad_envs.py"
FAILING, BREAKING = (load_object(f"{FILE}:{name}") for name in ("Failing", "Breaking"))
SEED, FIRST_ENV, ENVS = 3, 10, 2
SECOND = episode_seed(SEED, 11, 1)
Fields = dict[str, np.ndarray]


class Rollout:
    """An actor of one group of two envs, of a family `wrap`, and what it delivers."""

    def __init__(
        self,
        wrap: Callable[[EnvRequest], Env],
        *,
        rollout: int,
        max_failures: int = 5,
        failure_window: int = 10,
        groups: int = 1,
        **options: Any,
    ) -> None:
        self.built: list[EnvRequest] = []
        config = EnvConfig(
            name="own",
            options=json.dumps(options),
            max_failures=max_failures,
            failure_window=failure_window,
        )

        def origin(group: int, rebuilds: int) -> EnvOrigin:
            seed = SEED + 100 * rebuilds
            return EnvOrigin(config=config, seed=seed, first_env=FIRST_ENV + ENVS * group)

        def make(of: EnvOrigin) -> Env:
            self.built.append(
                EnvRequest(
                    name="own",
                    options=options,
                    wrappers=(),
                    num_envs=ENVS,
                    seed=of.seed,
                    first_env=of.first_env,
                    reseed="episode",
                )
            )
            return wrap(self.built[-1])

        envs = [make(origin(group, 0)) for group in range(groups)]
        (self.agent,) = envs[0].spec.agents.values()
        policy, parameters = FakePolicy(self.agent), InlineParameters()
        parameters.publish({"weight": np.zeros((), np.float32)}, 0)
        layout = Layout(route_spec(self.agent, policy.records), rollout + 1, ENVS, ENVS)
        buffer = Arena.heap(block_arena_bytes(layout, 1, groups + 1)).buffer
        arena = BlockArena(buffer, layout, 1, groups + 1)
        for slot in range(groups + 1):
            for array in arena.block(0, slot).fields.values():
                array.fill(1)  # what is not written shows
        self.stream = InlineSamples(arena)
        inference = InlineInference(policy, parameters, ("obs", "first"))
        ends = RouteEnds(
            self.agent, (0,), layout, self.stream.producer(0), inference, policy.records
        )
        recovery = Recovery(origin, make)
        self.actor = Actor("actor-0", envs, [ends], first_env=FIRST_ENV, recovery=recovery)

    def blocks(self, number: int, given_back: int = 0) -> list[Fields]:
        """The first `number` blocks, copied; of those granted some are given back."""
        found: list[Fields] = []
        self.stream.consumer().grant({0: number + given_back}, 0)
        self.actor.open()
        while len(found) < number:
            assert self.actor.step() or self.stream.queue
            found += self.drain()
        return found

    def drain(self) -> list[Fields]:
        consumer, found = self.stream.consumer(), []
        for delivery in consumer.recv(100):
            found.append({name: array.copy() for name, array in delivery.block.fields.items()})
            consumer.take(delivery, dropped=False)
        return found


def failing(request: EnvRequest) -> Env:
    return GymFamily.wrap(FAILING, request)


def numbers(mask: np.ndarray) -> list[int]:
    return np.flatnonzero(mask).tolist()


@pytest.mark.parametrize("how", ["raise", "nan", "reward"])
def test_only_the_failed_env_is_rebuilt_and_its_unfinished_rows_are_not_valid(how):
    made = Rollout(failing, rollout=16, of=[SECOND], how=how)
    (block,) = made.blocks(1)
    # env 10: three whole episodes of 5 rows, as if nothing had happened
    assert block["obs"][:, 0, 0].tolist() == [0, 1, 2, 3, 4] * 3 + [0, 1]
    assert block["obs"][:, 0, 1].tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 2
    assert numbers(~block["valid"][:, 0]) == [4, 9, 14]
    assert numbers(block["first"][:, 0]) == [0, 5, 10, 15]
    assert block["acting"][:, 0].all()
    # env 11
    assert block["obs"][:, 1, 0].tolist() == [0, 1, 2, 3, 4, 0, 1, 0, 0, 1, 2, 3, 4, 0, 1, 2, 3]
    assert block["obs"][8:, 1, 1].tolist() == [0] * 5 + [1] * 4  # of an env that is new
    assert numbers(~block["valid"][:, 1]) == [4, 5, 6, 7, 12]
    assert numbers(block["first"][:, 1]) == [0, 5, 8, 13]
    assert numbers(~block["acting"][:, 1]) == [5, 6, 7]
    assert block["reward"][:16, 1].tolist() == [1, 2, 3, 4, 0, 1, 0, 0, 1, 2, 3, 4, 0, 1, 2, 3]
    assert numbers(block["terminated"][:16, 1]) == [3, 11]
    assert not block["truncated"][:16].any()


def test_episode_that_failed_is_neither_counted_nor_are_its_rewards():
    made = Rollout(failing, rollout=16, of=[SECOND])
    made.blocks(1)
    telemetry = made.actor.telemetry
    assert [tuple(e) for e in telemetry.take_episodes()] == [(10.0, 4, "main")] * 5
    # of rows 0 to 15: 13 of env 10; of env 11 eleven, and row 5, which was an env step
    assert telemetry.counters["env_steps"] == 13 + 12
    assert telemetry.counters["env_failures"] == telemetry.counters["env_rebuilds"] == 1
    assert telemetry.counters["envs_parked"] == 0


def test_rows_that_were_sent_stay_and_those_of_the_next_block_begin_blank():
    made = Rollout(failing, rollout=6, of=[SECOND])
    blocks = made.blocks(3)  # rows 0 to 6, 6 to 12, 12 to 18
    assert numbers(~blocks[0]["valid"][:, 1]) == [4]
    assert numbers(~blocks[1]["valid"][:, 1]) == [0, 1, 6]  # rows 6, 7 and the final one, 12
    assert numbers(blocks[1]["first"][:, 1]) == [2]
    assert blocks[1]["obs"][:, 1, 0].tolist() == [1, 0, 0, 1, 2, 3, 4]
    np.testing.assert_array_equal(blocks[2]["episode"], [2, 2])  # as counted by first rows


def test_blank_row_at_the_end_of_a_block_is_carried():
    made = Rollout(failing, rollout=7, of=[SECOND])
    blocks = made.blocks(2)  # rows 0 to 7, 7 to 14
    assert numbers(~blocks[0]["valid"][:, 1]) == [4, 5, 6, 7]
    assert blocks[1]["obs"][:, 1, 0].tolist() == [0, 0, 1, 2, 3, 4, 0, 1]
    assert numbers(blocks[1]["first"][:, 1]) == [1, 6]
    assert numbers(~blocks[1]["valid"][:, 1]) == [0, 5]


def test_env_that_fails_in_a_reset_tries_its_next_episode():
    made = Rollout(failing, rollout=9, of=[SECOND], at=0)
    (block,) = made.blocks(1)
    assert block["obs"][:, 1, 0].tolist() == [0, 1, 2, 3, 4, 0, 0, 1, 2, 3]
    assert numbers(~block["valid"][:, 1]) == [4, 5]  # the episode that ended before is whole
    assert numbers(block["first"][:, 1]) == [0, 6]
    assert len(made.actor.telemetry.take_episodes()) == 2 + 1
    assert made.actor.telemetry.counters["env_failures"] == 1


def test_env_that_fails_in_its_first_reset_does_not_stop_the_others():
    made = Rollout(failing, rollout=3, of=[episode_seed(SEED, 10, 0)], at=0)
    (block,) = made.blocks(1)
    assert block["valid"].T.tolist() == [[False, True, True, True], [True] * 4]
    assert block["first"].T.tolist() == [[False, True, False, False], [True, False, False, False]]
    assert block["obs"][:, 0, 0].tolist() == [0, 0, 1, 2]


def test_note_of_a_failure_says_everything_and_holds_its_repro_file():
    made = Rollout(failing, rollout=16, of=[SECOND])
    (block,) = made.blocks(1)
    (note,) = made.actor.telemetry.take_notes()
    assert "env 'own' failed in step: RuntimeError('out of fuel')" in note.message
    assert f"env 11 of the run (lane 1 of its batch), seed {SECOND}, episode 1" in note.message
    assert "step 2, last action" in note.message
    assert "it is rebuilt" in note.message
    assert 'raise RuntimeError("out of fuel")' in note.traceback
    ((name, text),) = note.files
    assert name == "repro-env-11-episode-1.json"
    assert f"srl repro errors/{name}" in note.message
    repro = Repro.from_json(text)
    assert (repro.seed, repro.first_env, repro.episode, repro.num_envs) == (SEED, 11, 1, 1)
    assert (repro.kind, repro.reset_seed, repro.step) == ("RuntimeError", SECOND, 2)
    assert repro.note == ""
    assert repro.config.keywords() == {"of": [SECOND]}
    assert repro.actions == {"agent_0": block["action"][5:7, 1, None].tolist()}


def test_env_that_keeps_failing_is_parked_and_the_others_go_on():
    seeds = [episode_seed(SEED, 11, k) for k in range(100)]
    made = Rollout(failing, rollout=8, of=seeds, max_failures=2)
    blocks = made.blocks(3)
    # each episode fails in step 2: two rows and a blank one; the third is the last
    assert blocks[0]["obs"][:, 1, 0].tolist() == [0, 1, 0] * 3
    assert numbers(blocks[0]["first"][:, 1]) == [0, 3, 6]
    for block in blocks[1:]:
        assert not block["first"][:, 1].any()
        assert not block["obs"][:, 1].any()
        assert not block["reward"][:8, 1].any()
    for block in blocks:
        assert not block["valid"][:, 1].any()
        assert not block["acting"][:, 1].any()
    assert blocks[2]["obs"][:, 0, 0].tolist() == [1, 2, 3, 4, 0, 1, 2, 3, 4]
    counters = made.actor.telemetry.counters
    assert (counters["env_failures"], counters["env_rebuilds"]) == (3, 2)
    assert counters["envs_parked"] == 1
    notes = made.actor.telemetry.take_notes()
    assert ["parked" in note.message for note in notes] == [False, False, True]


def test_failures_far_apart_do_not_park():
    seeds = [episode_seed(SEED, 11, k) for k in range(0, 100, 4)]  # of 10 episodes, 2 or 3
    made = Rollout(failing, rollout=400, of=seeds, max_failures=3, failure_window=10)
    made.blocks(1)
    assert made.actor.telemetry.counters["env_failures"] > 15
    assert made.actor.telemetry.counters["envs_parked"] == 0


def test_actor_whose_envs_are_all_parked_stops_with_a_reason():
    made = Rollout(failing, rollout=8, every=1, max_failures=1)
    with pytest.raises(EnvError, match="all 2 envs of actor-0 keep failing and are parked") as e:
        made.blocks(2)
    assert "out of fuel" in str(e.value)
    assert made.stream.abandoned[0] == 1
    made.actor.close()


def test_group_that_is_out_leaves_the_blocks_to_the_others():
    seeds = [episode_seed(SEED, env, k) for env in (10, 11) for k in range(9)]
    made = Rollout(failing, rollout=8, of=seeds, max_failures=1, groups=2)
    blocks = made.blocks(4, given_back=1)
    assert all(block["lane"].tolist() == [12, 13] for block in blocks)
    assert made.actor.telemetry.counters["envs_parked"] == 2


def test_failures_are_told_a_limited_number_of_times_and_all_counted():
    made = Rollout(failing, rollout=200, every=1, max_failures=1000, failure_window=1000)
    made.blocks(1)
    notes = made.actor.telemetry.take_notes()
    assert len(notes) == MAX_NOTES
    assert "further failures here are only counted" in notes[-1].message
    assert made.actor.telemetry.counters["env_failures"] == 2 * 66 + 2


def test_without_a_recovery_the_first_failure_is_raised():
    made = Rollout(failing, rollout=16, of=[SECOND])
    group = made.actor._ring[0]
    group.quarantine = None
    with pytest.raises(EnvError, match="out of fuel") as caught:
        made.blocks(1)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_batch_that_raises_is_rebuilt_whole_with_other_seeds():
    made = Rollout(BREAKING.make_batch, rollout=12, at=5, max_failures=100)
    (block,) = made.blocks(1)
    # its fifth step, on row 4, fails; row 5 is the first of a new batch, whose fifth is on row 9
    assert numbers(block["first"][:, 0]) == numbers(block["first"][:, 1]) == [0, 5, 10]
    assert numbers(~block["valid"][:, 0]) == list(range(10))
    assert numbers(~block["acting"][:, 1]) == list(range(10))
    assert not block["reward"][[4, 9]].any()
    assert [request.seed for request in made.built] == [SEED, SEED + 100, SEED + 200]
    counters = made.actor.telemetry.counters
    assert counters["env_failures"] == counters["env_rebuilds"] == 2
    assert counters["env_steps"] == 2 * (12 - 2)
    first, second = (Repro.from_json(n.files[0][1]) for n in made.actor.telemetry.take_notes())
    assert (first.is_batch, first.num_envs, first.seed, first.step) == (True, 2, SEED, 5)
    assert first.actions == {"agent_0": block["action"][0:5].tolist()}
    assert second.actions == {"agent_0": block["action"][5:10].tolist()}
    assert (first.note, second.note) == ("", "")
    assert (first.kind, second.seed) == ("RuntimeError", SEED + 100)


def test_batch_keeps_the_episodes_it_had_finished_and_says_what_its_file_lacks():
    made = Rollout(BREAKING.make_batch, rollout=20, at=30)
    blocks = made.blocks(2)  # rows 0 to 20, 20 to 40; episodes have 17 rows, it fails on row 29
    assert numbers(~blocks[0]["valid"][:, 0]) == [16]
    assert numbers(~blocks[1]["valid"][:, 0]) == list(range(10))
    assert numbers(blocks[1]["first"][:, 0]) == [10]
    (note,) = made.actor.telemetry.take_notes()
    repro = Repro.from_json(note.files[0][1])
    assert "older than the block" in repro.note
    assert repro.step == len(repro.actions["agent_0"]) == 10


def test_batch_that_cannot_be_rebuilt_is_parked_and_the_actor_stops():
    def wrap(request):
        if request.seed != SEED:
            raise RuntimeError("no licence left")
        return BREAKING.make_batch(request)

    made = Rollout(wrap, rollout=8, at=3, max_failures=3)
    with pytest.raises(EnvError, match=r"all 2 envs of actor-0 .* no licence left"):
        made.blocks(1)
    assert made.actor.telemetry.counters["env_failures"] == 4
    assert made.actor.telemetry.counters["envs_parked"] == 2
    assert made.stream.abandoned[0] == 1


CASES = {
    "envs": (
        failing,
        {"counts": False, "of": [SECOND, *(episode_seed(SEED, 10, k) for k in range(9))]},
    ),
    "batch": (BREAKING.make_batch, {"at": 11}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("interrupted_after", [1, 3, 6, 7, 8, 9, 11, 12, 20, 25])
def test_saved_and_loaded_actor_goes_on_with_the_same_rows(case, interrupted_after):
    wrap, options = CASES[case]
    options = {**options, "max_failures": 2 if case == "envs" else 100, "rollout": 4}
    expected = Rollout(wrap, **options).blocks(7)
    first = Rollout(wrap, **options)
    first.stream.consumer().grant({0: 7}, 0)
    first.actor.open()
    got = []
    for _ in range(interrupted_after):
        first.actor.step()
        got += first.drain()
    second = Rollout(wrap, **options)
    second.stream.load(first.stream.save())
    second.actor.load(first.actor.save())
    second.actor.open()
    assert second.actor.telemetry.counters["envs_not_restored"] == 0
    while len(got) < 7:
        assert second.actor.step() or second.stream.queue
        got += second.drain()
    for block, wanted in zip(got, expected, strict=True):
        for name in ("obs", "first", "valid", "acting", "episode", "step"):
            np.testing.assert_array_equal(block[name], wanted[name], err_msg=name)
        for name in ("reward", "terminated", "action"):
            np.testing.assert_array_equal(block[name][:-1], wanted[name][:-1], err_msg=name)


def test_state_of_a_group_without_failures_has_no_trace_of_them():
    made = Rollout(failing, rollout=4)
    made.blocks(2)
    assert not [name for name in made.actor.save() if "quarantine" in name]


def fault_of(env, episode):
    return EnvFault(
        env=env, kind="X", what="w", message="m", seed=0, episode=episode, step=0, actions={}
    )


def test_window_counts_episodes_not_failures():
    config = EnvConfig(name="own", max_failures=2, failure_window=5)
    origin = EnvOrigin(config=config, seed=0, first_env=0)
    kept = Quarantine(Recovery(lambda *_: origin, lambda _: None), Telemetry(), 0, 1)

    class Spec:
        spec = EnvSpec("own", 1, {}, "")

    parked = [kept.take(Spec(), [fault_of(0, e)], EnvError("x")) for e in (0, 4, 9, 10, 14, 14)]
    # lately: [0] [0, 4] [9] (4 is five episodes ago) [9, 10] [10, 14] [10, 14, 14]
    assert parked == [[], [], [], [], [], [0]]
