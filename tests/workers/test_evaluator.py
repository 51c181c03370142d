import numpy as np
import pytest

from srl.core.env import EnvRequest
from srl.core.experiment import EnvConfig
from srl.core.repro import EnvOrigin
from srl.envs.toy import ToyFamily
from srl.learning.versions import VersionStore, read_weights
from srl.rollout.match import Match, Player
from srl.rollout.quarantine import Recovery
from srl.streams.parameters.inline import InlineParameters
from srl.testing.fakes import FakePolicy
from srl.workers.evaluator import Evaluator


class Envs:
    """Makes envs of the toy `identity`, and counts those that are open."""

    def __init__(self, num_envs=3, agents=1, sets=None):
        self.made = self.open = 0
        self._request = EnvRequest(
            name="identity",
            options={"agents": agents},
            wrappers=(),
            num_envs=num_envs,
            seed=0,
            first_env=0,
            reseed="episode",
            sets=sets,
        )

    def __call__(self):
        env = ToyFamily().make_batch(self._request)
        self.made, self.open = self.made + 1, self.open + 1
        close = env.close

        def count_and_close():
            self.open -= 1
            close()

        env.close = count_and_close
        return env


ORIGIN = EnvOrigin(config=EnvConfig(name="toy/counter"), seed=0, first_env=0)


def player(env, name="main", agents=(0,), counts=True):
    agent = next(iter(env.spec.agents.values()))
    return Player(name, agent, FakePolicy(agent), agents, counts)


def make(folder, parameters, envs, *, every=1, episodes=2):
    policy = player(envs())
    return Evaluator(
        "evaluator-0",
        Recovery(lambda *_: ORIGIN, lambda _: envs()),
        [policy],
        {"main": parameters},
        episodes_per_lane=episodes,
        every=every,
        folder=folder,
    )


def publish(parameters, version):
    parameters.publish({"weight": np.float32(version)}, version)


def play(evaluator):
    """Step until it has evaluated something; how many steps that took."""
    for step in range(1, 10_000):
        assert evaluator.step()
        if evaluator.telemetry.evaluations:
            return step
    raise AssertionError("no end")


def test_nothing_to_do_before_the_first_version(tmp_path):
    evaluator = make(tmp_path, InlineParameters(), Envs())
    evaluator.open()
    assert not evaluator.step()
    assert evaluator.waiting == "wait_for_version"


def test_version_is_pinned_while_it_is_played(tmp_path):
    parameters, envs = InlineParameters(), Envs()
    evaluator = make(tmp_path, parameters, envs)
    publish(parameters, 4)
    evaluator.step()
    publish(parameters, 9)
    play(evaluator)
    (found,) = evaluator.telemetry.take_evaluations()
    assert (found.policy, found.version, found.eval_episodes) == ("main", 4, 6)
    assert read_weights(tmp_path / found.file)[1]["weight"] == 4
    play(evaluator)
    (found,) = evaluator.telemetry.take_evaluations()
    assert found.version == 9
    assert not evaluator.step(), "nothing newer is there"
    assert evaluator.telemetry.counters["evaluations"] == 2
    assert not evaluator.telemetry.episodes, "not of the training"
    assert "env_steps" not in evaluator.telemetry.counters
    evaluator.close()
    assert envs.open == 1, "the test's own"


def test_every_version_plays_the_same_episodes(tmp_path):
    parameters, envs = InlineParameters(), Envs()
    evaluator = make(tmp_path, parameters, envs)
    found = []
    for version in (0, 2, 4):  # weights of which the fake makes the same actions
        publish(parameters, version)
        play(evaluator)
        found += evaluator.telemetry.take_evaluations()
    assert len({(f.eval_return, f.eval_std) for f in found}) == 1
    match = Match(envs(), [player(envs())], episodes_per_lane=2)
    match.begin()
    while match.step():
        pass
    returns = match.returns()["main"]
    assert (found[0].eval_return, found[0].eval_std) == (np.mean(returns), np.std(returns))
    assert len(returns) == 6


def test_every_leaves_versions_out(tmp_path):
    parameters = InlineParameters()
    evaluator = make(tmp_path, parameters, Envs(), every=5)
    played = []
    for version in range(12):
        publish(parameters, version)
        if evaluator.step():
            play(evaluator)
            played += [found.version for found in evaluator.telemetry.take_evaluations()]
    assert played == [0, 5, 10]


@pytest.mark.parametrize("steps", [1, 7, 20])
def test_saved_evaluation_goes_on_where_it_was(tmp_path, steps):
    parameters = InlineParameters()
    publish(parameters, 3)
    one = make(tmp_path, parameters, Envs())
    for _ in range(steps):
        one.step()
    state = {name: array.copy() for name, array in one.save().items()}
    publish(parameters, 8)
    rest = play(one)

    two = make(tmp_path, parameters, Envs())
    two.load(state)
    two.open()
    assert play(two) == rest
    (first,), (second,) = (e.telemetry.take_evaluations() for e in (one, two))
    assert first._replace(created=0) == second._replace(created=0)
    assert first.version == 3


def test_saved_evaluation_of_another_shape_starts_over_with_its_version(tmp_path):
    parameters = InlineParameters()
    publish(parameters, 3)
    one = make(tmp_path, parameters, Envs())
    one.step()
    state = one.save()
    publish(parameters, 8)
    two = make(tmp_path, parameters, Envs(num_envs=2))
    two.load(state)
    play(two)
    (found,) = two.telemetry.take_evaluations()
    assert (found.version, found.eval_episodes) == (3, 4)
    assert two.telemetry.counters["evaluations_started_over"] == 1


def test_what_was_played_before_is_not_played_again_after_load(tmp_path):
    parameters = InlineParameters()
    publish(parameters, 3)
    one = make(tmp_path, parameters, Envs())
    play(one)
    two = make(tmp_path, parameters, Envs())
    two.load(one.save())
    assert not two.step()


def test_several_policies_are_played_together_and_kept_apart(tmp_path):
    envs = Envs(agents=3, sets=((0, 2), (1,)))
    red, blue = InlineParameters(), InlineParameters()
    players = [player(envs(), "red", (0, 2)), player(envs(), "blue", (1,))]
    evaluator = Evaluator(
        "evaluator-0",
        Recovery(lambda *_: ORIGIN, lambda _: envs()),
        players,
        {"red": red, "blue": blue},
        episodes_per_lane=1,
        every=1,
        folder=tmp_path,
    )
    publish(red, 5)
    assert not evaluator.step(), "blue has no version yet"
    publish(blue, 2)
    play(evaluator)
    found = evaluator.telemetry.take_evaluations()
    assert [(f.policy, f.version, f.eval_episodes) for f in found] == [
        ("red", 5, 6),
        ("blue", 2, 3),
    ]
    publish(blue, 3)
    play(evaluator)
    assert [f.version for f in evaluator.telemetry.take_evaluations()] == [5, 3]


def test_policy_that_does_not_count_plays_but_is_not_reported(tmp_path):
    envs = Envs(agents=2, sets=((0,), (1,)))
    parameters = InlineParameters()
    players = [player(envs(), "main", (0,)), player(envs(), "frozen", (1,), counts=False)]
    evaluator = Evaluator(
        "evaluator-0",
        Recovery(lambda *_: ORIGIN, lambda _: envs()),
        players,
        {"main": parameters},
        episodes_per_lane=2,
        every=1,
        folder=tmp_path,
    )
    publish(parameters, 1)
    play(evaluator)
    (found,) = evaluator.telemetry.take_evaluations()
    assert (found.policy, found.eval_episodes) == ("main", 6)
    assert players[1].policy.batches, "it was asked for actions"
    assert VersionStore(tmp_path).repair() == []
    assert VersionStore(tmp_path).policies() == ["main"]


def test_episodes_are_the_same_number_a_lane(tmp_path):
    envs = Envs(num_envs=4)
    match = Match(envs(), [player(envs())], episodes_per_lane=3)
    match.begin()
    steps = 0
    while match.step():
        steps += 1
    assert [len(lane) for lane in match.episodes()["main"]] == [3] * 4
    lengths = [e.length for e in match.episodes()["main"][0]]
    assert steps == sum(lengths) + 2, "two resets lie between three episodes"
    assert not match.step()
