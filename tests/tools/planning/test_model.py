import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from srl.tools.planning.model import Costs, Crew, Setup, Team, predict

COSTS = Costs(
    env=10.0,
    call=100.0,
    inference=((1, 50.0), (10, 10.0), (100, 2.0)),
    update=20.0,
    update_cpu=20.0,
    ask=30.0,
    serve=60.0,
    answer_seconds=1e-4,
    block_bytes=100.0,
    request_bytes=50.0,
    weights_bytes=1e6,
)


def setup(**changed):
    facts = {
        "crews": (Crew(1, 0),),
        "servers": (),
        "trainers": (Team(1, 0),),
        "machines": (100.0,),
        "machine_of": (0,),
        "groups": 1,
        "envs": 10,
        "batch": 10_000,
        "rollout": 100,
    }
    return Setup(**{**facts, **changed})


def costs(**changed):
    return Costs(**{**{f: getattr(COSTS, f) for f in COSTS.__struct_fields__}, **changed})


def test_inference_between_measured_sizes_is_on_a_line_of_the_logarithm():
    assert COSTS.inference_us(10) == 10.0
    assert COSTS.inference_us(math.sqrt(1000)) == pytest.approx(6.0)
    assert COSTS.inference_us(1000) == 2.0
    assert costs(inference=((8, 4.0),)).inference_us(2) == 16.0  # what a batch of 8 costs


def test_one_actor_that_answers_itself():
    # a step of 10 envs: 100 + 10 x 10 + 10 rows x 10 = 300 us
    found = predict(setup(), COSTS)
    assert found.env_steps_per_second == pytest.approx(10 / 300e-6, rel=1e-3)
    assert found.bottleneck.startswith("sampling")
    assert found.limits["learning"] == pytest.approx(50_000)
    assert (found.mean_rows, found.network) == (0.0, {0: 0.0})


def test_four_actors_are_held_back_by_the_trainer():
    found = predict(setup(crews=(Crew(4, 0),)), COSTS)
    assert found.env_steps_per_second == pytest.approx(50_000)  # 20 us each
    assert found.bottleneck.startswith("learning")
    assert found.staleness == 1.0


def test_two_cores_are_shared():
    # 30 us of actors and 20 us of the trainer an env step: 92 % of 2 cores make 36,800 of them
    found = predict(setup(crews=(Crew(2, 0),), machines=(2.0,)), COSTS)
    assert found.env_steps_per_second == pytest.approx(36_800, rel=0.01)
    assert found.load[0] == pytest.approx(0.92, rel=0.01)


def test_trainers_that_share_minibatches_pay_for_smaller_ones_and_for_their_sums():
    # minibatches of 100 rows, 10 us a row; of 50 rows each, 16 us a row: 1.6 x 20 us, by two of them
    learn = ((50, 16.0), (100, 10.0))
    two = setup(crews=(Crew(50, 0),), trainers=(Team(2, 0),), minibatch=100, minibatches=100)
    shared = 1.6 * 20e-6 * (1 + 0.1 * 0.577) / 2
    found = predict(two, costs(learn=learn))
    assert found.env_steps_per_second == pytest.approx(1 / shared, rel=0.01)
    # a sum of gradients an update, that is every 100 env steps
    found = predict(two, costs(learn=learn, exchange_seconds=1e-3, exchange=500.0))
    assert found.env_steps_per_second == pytest.approx(1 / (shared + 1e-5), rel=0.01)
    one = predict(setup(crews=(Crew(50, 0),)), costs(learn=learn, exchange_seconds=1.0))
    assert one.env_steps_per_second == pytest.approx(50_000)


def test_sums_of_gradients_wait_for_cores_that_others_keep_busy():
    facts = {"trainers": (Team(2, 0),), "minibatches": 100, "max_staleness": 1}
    slow = costs(exchange_seconds=1e-2, exchange=0.0)
    quiet = predict(setup(crews=(Crew(4, 0),), machines=(1000.0,), **facts), slow)
    found = predict(setup(crews=(Crew(4, 0),), machines=(2.0,), **facts), slow)
    own = 20e-6 * (1 + 0.1 * 0.577) / 2
    assert quiet.limits["learning"] == pytest.approx(1 / (own + 1e-4), rel=0.01)
    others = found.env_steps_per_second * 30e-6 / 2  # an env step of an actor takes 30 us
    assert found.limits["learning"] == pytest.approx(1 / (own + 1e-4 / (1 - others)), rel=0.01)


def test_a_crowd_before_slow_answers_is_solved_for():
    """Requests that pile up make the next turn so slow that nobody asks: the steps must get shorter."""
    crowd = setup(crews=(Crew(500, 0, (0,)),), servers=(Team(1, 0),), batch=10**7)
    found = predict(crowd, costs(serve=800.0))
    assert found.env_steps_per_second == pytest.approx(found.limits["sampling"], rel=0.01)
    assert found.bottleneck.startswith("inference")


def test_an_env_that_sleeps_takes_no_core():
    found = predict(setup(machines=(1.0,)), costs(env_idle=1000.0))
    assert found.env_steps_per_second == pytest.approx(10 / 10_300e-6, rel=1e-3)
    assert found.load[0] < 0.1


def test_without_staleness_sampling_and_learning_take_turns():
    found = predict(setup(max_staleness=0), COSTS)
    assert found.env_steps_per_second == pytest.approx(1 / (30e-6 + 20e-6), rel=1e-3)


def test_one_group_waits_for_its_answers_and_many_do_not():
    asking = setup(crews=(Crew(1, 1, (0,), is_far=True),), servers=(Team(1, 0),))
    asking = Setup(**{**vars(asking), "machine_of": (0, 0), "latency_seconds": 0.02})
    free = costs(env_idle=500.0, far_ask=30.0, far_serve=60.0)
    # a turn: 100 + 10 x 10 + 30 of the core, and 5,000 asleep; an answer: 60 + 10 rows x 10 us, 40 ms on the way
    alone = predict(asking, free)
    assert alone.env_steps_per_second == pytest.approx(10 / (5.23e-3 + 0.04 + 0.16e-3), rel=0.02)
    assert alone.bottleneck.startswith("inference")
    ring = predict(Setup(**{**vars(asking), "groups": 20}), free)
    assert ring.env_steps_per_second == pytest.approx(10 / 5.23e-3, rel=0.05)


def test_policy_workers_answer_together_what_came_meanwhile():
    crowd = setup(crews=(Crew(20, 0, (0,)),), servers=(Team(1, 0),), batch=10**6)
    found = predict(crowd, costs(update=0.1, update_cpu=0.1))
    assert found.mean_rows > 50
    more = predict(
        Setup(**{**vars(crowd), "servers": (Team(4, 0),)}), costs(update=0.1, update_cpu=0.1)
    )
    assert more.env_steps_per_second > 1.3 * found.env_steps_per_second


def test_the_network_is_full():
    far = setup(
        crews=(Crew(50, 1, sends_far=1.0),),
        machine_of=(0, 1),
        machines=(100.0, 100.0),
        bandwidth=1e6,
    )
    found = predict(far, costs(update=0.1, update_cpu=0.1))
    # 100 bytes an env step into the trainer's host, and 1 MB of weights out of it each 10,000
    assert found.env_steps_per_second == pytest.approx(1e6 / 100, rel=0.01)
    assert found.bottleneck.startswith("the network")
    assert found.network[0] == pytest.approx(1e6, rel=0.01)


def test_groups_that_may_not_all_be_under_way():
    crowd = setup(crews=(Crew(40, 0),), machines=(100.0,), batch=10_000)  # 10 blocks; 20 under way
    found = predict(crowd, costs(update=0.1, update_cpu=0.1))
    assert found.env_steps_per_second == pytest.approx(20 * 10 / 300e-6, rel=0.01)


def test_trainers_that_learn_together_wait_for_the_last_and_for_gradients():
    one = predict(setup(crews=(Crew(64, 0),), batch=10**6), COSTS)
    two = predict(setup(crews=(Crew(64, 0),), trainers=(Team(2, 0),), batch=10**6), COSTS)
    assert 1.8 < two.env_steps_per_second / one.env_steps_per_second < 2.0
    apart = setup(
        crews=(Crew(64, 0),),
        trainers=(Team(1, 0), Team(1, 1)),
        machine_of=(0, 1),
        machines=(100.0, 100.0),
        batch=10**6,
        minibatches=100,
        bandwidth=1e8,
    )
    # 2 x 1 MB at 100 MB/s, 100 times, for a million env steps: 2 us more an env step
    slower = 1 / predict(apart, COSTS).limits["learning"] - 1 / two.limits["learning"]
    assert slower == pytest.approx(2e-6 + 0.5 * 0.5 * COSTS.far_receive * 1e-6, rel=0.01)


@settings(deadline=None, max_examples=30)
@given(
    actors=st.integers(1, 64),
    cores=st.floats(1, 128),
    groups=st.integers(1, 8),
    policies=st.integers(0, 4),
    staleness=st.integers(0, 3),
)
def test_more_cores_never_hurt_and_no_machine_does_more_than_it_can(
    actors, cores, groups, policies, staleness
):
    servers = (Team(policies, 0),) if policies else ()
    crews = (Crew(actors, 0, (0,) if policies else ()),)
    facts = {"crews": crews, "servers": servers, "groups": groups, "max_staleness": staleness}
    small = predict(setup(**facts, machines=(cores,)), COSTS)
    large = predict(setup(**facts, machines=(2 * cores,)), COSTS)
    assert 0 < small.env_steps_per_second <= large.env_steps_per_second * 1.02
    assert small.load[0] <= 1.03
    assert small.env_steps_per_second <= min(small.limits.values()) * 1.03
