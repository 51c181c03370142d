"""Which worker goes to which node: hand-made clusters."""

import math
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import srl
from srl.api import find_experiment
from srl.core.errors import ConfigError
from srl.launch.graph.hosts import asks_over
from srl.launch.graph.placing import Node, check_sharing, hosts_of_places, place, place_late
from srl.launch.graph.plan import LATE, WorkerPlan, deal_gpus, make_plan

HEAD = Node("a", "10.0.0.1", cores=4, is_here=True)
BIG = Node("b", "10.0.0.2", cores=16, marks=frozenset({"big"}))
GPUS = Node("c", "10.0.0.3", cores=8, gpus=2)


def plan_of(**options):
    words = {"launcher": "ray", **options}
    return make_plan(find_experiment("toy/identity", srl.api._to_arguments(words)))


def placed(plan, nodes, **wanted):
    places = place(plan, nodes, wanted)
    return {p.node.address.rpartition(".")[2]: sorted(p.workers) for p in places}


def test_all_go_to_one_node_where_there_is_one():
    assert placed(plan_of(actors__count=3), [HEAD]) == {
        "1": ["actor-0", "actor-1", "actor-2", "trainer-0"]
    }


def test_trainer_goes_where_the_controller_is_and_actors_where_most_cores_are():
    found = placed(plan_of(actors__count=13), [HEAD, BIG])
    assert found["1"] == ["trainer-0"]
    assert len(found["2"]) == 13
    found = placed(plan_of(actors__count=18), [HEAD, BIG])
    assert (len(found["1"]), len(found["2"])) == (4, 15)


def test_trainer_does_not_follow_actors_to_the_nodes_that_were_named_for_them():
    found = placed(plan_of(actors__count=2), [HEAD, BIG], actor=("big",))
    assert found == {"1": ["trainer-0"], "2": ["actor-0", "actor-1"]}


def test_trainer_and_policy_workers_on_gpus_go_where_gpus_are():
    options = {"trainers__device": "cuda", "policies__device": "cuda", "policies__count": 2}
    plan = plan_of(actors__count=6, inference="shm", **options)
    found = placed(plan, [HEAD, BIG, GPUS])
    assert found["3"] == ["policy-0", "policy-1", "trainer-0"]
    assert len(found["2"]) == 6
    with pytest.raises(ConfigError, match=r"1 trainer worker of 1 core and 1 GPUs each: there was"):
        place(plan, [HEAD, BIG], {})


def test_buffers_go_where_their_trainers_are():
    words = {"launcher": "ray", "actors__count": 4, "trainers__count": 2, "buffers__count": 4}
    plan = make_plan(find_experiment("cartpole-dqn", srl.api._to_arguments(words)))
    small = [Node(n, f"10.0.0.{n}", cores=3) for n in "12"]
    found = placed(plan, [*small, BIG], trainer=("10.0.0.1", "10.0.0.2"))
    for trainer in (0, 1):
        place_of = next(names for names in found.values() if f"trainer-{trainer}" in names)
        assert {f"buffer-{trainer}", f"buffer-{trainer + 2}"} <= set(place_of)
    with pytest.raises(ConfigError, match=r"too little for 4 buffer workers of 1 core each"):
        place(plan, [Node("1", "10.0.0.1", cores=2), BIG], {"trainer": ("10.0.0.1",)})


def test_trainer_goes_where_its_buffers_have_room():
    words = {"launcher": "ray", "actors__count": 2, "buffers__count": 2}
    plan = make_plan(find_experiment("cartpole-dqn", srl.api._to_arguments(words)))
    head = Node("1", "10.0.0.1", cores=2, is_here=True)
    assert {"trainer-0", "buffer-0", "buffer-1"} <= set(placed(plan, [head, BIG])["2"])
    with pytest.raises(
        ConfigError, match=r"2 buffer .* room for 0 beside their trainers; .* --buf"
    ):
        place(plan, [head], {})
    trainers = {**words, "trainers__count": 2}  # the second does not take the room of the first's
    plan = make_plan(find_experiment("cartpole-dqn", srl.api._to_arguments(trainers)))
    found = placed(plan, [Node("1", "10.0.0.1", cores=3, is_here=True), BIG])
    assert found["1"] == ["buffer-0", "trainer-0"]
    assert {"buffer-1", "trainer-1"} <= set(found["2"])


def test_gpus_that_are_set_aside_are_nobody_elses():
    options = {"trainers__device": "cuda", "policies__device": "cuda", "policies__count": 2}
    plan = plan_of(inference="shm", policies__gpus=1, **options)
    with pytest.raises(ConfigError, match=r"2 policy workers .* there was room for 1"):
        place(plan, [GPUS], {})
    half = plan_of(inference="shm", policies__gpus=0.5, **options)
    assert place(half, [GPUS], {})[0].gpus == 2.0


@pytest.mark.parametrize(
    ("options", "taken", "devices"),
    [
        ({"policies__gpus": 1.0, "policies__count": 3}, 4, ["cuda", "cuda:1", "cuda:2", "cuda:3"]),
        ({"policies__gpus": 0.5, "policies__count": 1}, 2, ["cuda", "cuda:1"]),
        ({"policies__gpus": 0.5, "policies__count": 3}, 3, ["cuda", "cuda:1", "cuda:1", "cuda:2"]),
        ({"policies__gpus": 0.25, "trainers__gpus": 0.5, "policies__count": 2}, 1, ["cuda"] * 3),
        ({"policies__gpus": 0.6, "policies__count": 3}, 4, ["cuda", "cuda:1", "cuda:2", "cuda:3"]),
        (
            {"trainers__gpus": 0.5, "policies__gpus": 0.75, "policies__count": 2},
            3,
            ["cuda:2", "cuda", "cuda:1"],
        ),
        ({"policies__gpus": 0.1, "policies__count": 10}, 2, ["cuda", *["cuda:1"] * 10]),
        ({"policies__gpus": 0.25, "trainers__gpus": 0.25}, 0.5, ["cuda"] * 2),
        ({"policies__count": 2}, 1, ["cuda"] * 3),
        (
            {"trainers__count": 2, "trainers__gpus": 0.5, "actors__count": 2, "policies__count": 2},
            2,
            ["cuda:0", "cuda:1", "cuda:0", "cuda:1"],
        ),
    ],
)
def test_gpus_of_a_host_are_dealt_out_by_shares(options, taken, devices):
    words = {"trainers__device": "cuda", "policies__device": "cuda", "inference": "shm"}
    plan = plan_of(launcher="ray", **words, **options)
    many = Node("c", "10.0.0.3", cores=32, gpus=8)
    assert place(plan, [many], {})[0].gpus == taken
    workers = (*plan.of_kind("trainer"), *plan.of_kind("policy"))
    assert [plan.device(worker) for worker in workers] == devices


SHARES = st.one_of(
    st.floats(0.01, 3.0), st.sampled_from([0.1, 0.2, 0.25, 1 / 3, 0.5, 0.7, 1.0, 2.0])
)


@given(st.lists(SHARES, max_size=12), st.randoms())
def test_no_gpu_is_dealt_out_twice_nor_beyond_those_set_aside(shares, random):
    numbers, aside = deal_gpus(shares)
    given_away = [0.0] * math.ceil(aside)
    for first, share in zip(numbers, shares, strict=True):
        number, left = first, share
        while left > 1e-9:
            part = min(left, 1.0)
            given_away[number] += part  # raises beyond those
            number, left = number + 1, left - part
    assert all(0 < taken < 1 + 1e-6 for taken in given_away)
    assert math.isclose(sum(given_away), sum(shares), abs_tol=1e-6)
    random.shuffle(shares)
    assert math.isclose(deal_gpus(shares)[1], aside), "whoever was placed first"


CUDA = {"trainers__device": "cuda", "policies__device": "cuda", "inference": "shm"}


ON_GPUS = plan_of(policies__count=8, **CUDA)


@given(st.floats(0.01, 1.0), st.floats(0.01, 1.0), st.integers(1, 8))
def test_workers_of_a_place_have_the_gpus_that_were_set_aside_there(trainer, policy, count):
    shares, words = {"trainer": trainer, "policy": policy}, ON_GPUS.experiment
    plan = msgspec.structs.replace(
        ON_GPUS,
        workers=(*ON_GPUS.of_kind("trainer"), *ON_GPUS.of_kind("policy")[:count]),
        experiment={
            **words,
            "trainers": {**words["trainers"], "gpus": trainer},
            "policies": {**words["policies"], "gpus": policy},
        },
    )
    nodes = [Node("b", "10.0.0.2", cores=8, gpus=3), Node("c", "10.0.0.3", cores=16, gpus=20)]
    places = place(plan, nodes, {})
    plan = msgspec.structs.replace(plan, hosts=hosts_of_places(plan, places))
    for at in places:
        taken = [0.0] * math.ceil(at.gpus)
        for worker in map(plan.worker, at.workers):
            number = int(plan.device(worker).partition(":")[2] or 0)
            taken[number] += shares[worker.kind]  # raises beyond those
        assert all(0 < share < 1 + 1e-6 for share in taken)
        assert at.gpus <= at.node.gpus


def test_trainer_goes_where_nodes_are_named_for_those_who_share_its_gpu():
    other = Node("d", "10.0.0.4", cores=8, gpus=2, is_here=True)
    plan = plan_of(actors__count=2, **CUDA)
    found = placed(plan, [other, GPUS], policy=("10.0.0.3",))
    assert {"trainer-0", "policy-0"} <= set(found["3"])
    found = placed(plan, [GPUS], policy=("10.0.0.3",), actor=("10.0.0.3",))
    assert {"trainer-0", "policy-0"} <= set(found["3"])
    many = plan_of(actors__count=7, actors__max=7, **CUDA)  # they may have what is left
    found = placed(many, [GPUS, BIG], trainer=("10.0.0.3",), actor=("10.0.0.3", "big"))
    assert {"trainer-0", "policy-0"} <= set(found["3"])


def test_trainer_goes_where_those_who_share_its_gpu_have_room():
    small = Node("d", "10.0.0.4", cores=2, gpus=2, is_here=True)
    plan = plan_of(policies__count=2, **CUDA)
    assert set(placed(plan, [small, GPUS])["3"]) >= {"trainer-0", "policy-0", "policy-1"}
    with pytest.raises(ConfigError, match=r"beside a trainer's GPU .*--policies\.gpus 1") as caught:
        place(plan, [small], {})
    assert "room for 1;" in str(caught.value)


def test_other_nodes_for_policy_workers_than_for_those_whose_gpus_they_share_are_refused():
    other = Node("d", "10.0.0.4", cores=8, gpus=2, marks=frozenset({"play"}))
    plan, trainer = plan_of(**CUDA), ("10.0.0.3",)
    with pytest.raises(ConfigError, match=r"--ray\.policies play names no .* --policies\.gpus 1"):
        check_sharing(plan, [GPUS, other], {"trainer": trainer, "policy": ("play",)})
    for nodes, policy in (([GPUS, other], trainer), ([GPUS, other], ()), ([GPUS], ("play",))):
        check_sharing(plan, nodes, {"trainer": trainer, "policy": policy})
    own = plan_of(policies__gpus=0.5, **CUDA)
    wanted = {"trainer": trainer, "policy": ("play",)}
    check_sharing(own, [GPUS, other], wanted)
    assert placed(own, [GPUS, other], **wanted)["4"][-1] == "policy-0"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policies__device": "cuda"}, r"policies\.device is 'cuda'.*use --policies\.gpus 1"),
        (
            {"trainers__device": "cuda", "trainers__gpus": 0.0},
            r"trainers\.device is 'cuda'.*use --trainers\.gpus 1",
        ),
    ],
)
def test_gpus_that_are_never_set_aside_are_refused_before_nodes_are_asked_for(options, words):
    with pytest.raises(ConfigError, match=words):
        plan_of(**options)
    plan_of(**{**options, "launcher": "local"})  # where shares mean nothing
    plan_of(policies__device="cuda", policies__gpus=0.5)
    plan_of(trainers__device="cuda", trainers__gpus=0.0, trainers__count=2, actors__count=2)


def test_nodes_can_be_named_by_address_and_by_resource():
    plan = plan_of(actors__count=2, inference="shm")
    wanted = {"actor": ("big",), "policy": ("10.0.0.3",), "trainer": ("10.0.0.1",)}
    found = placed(plan, [HEAD, BIG, GPUS], **wanted)
    assert found == {"1": ["trainer-0"], "2": ["actor-0", "actor-1"], "3": ["policy-0"]}


def test_first_host_is_the_trainers():
    plan = plan_of(inference="shm")
    places = place(plan, [HEAD, BIG], {"trainer": ("big",), "policy": ("10.0.0.1",)})
    assert [p.node for p in places] == [BIG, HEAD]
    assert hosts_of_places(plan, places) == {"policy-0": 1}


def test_too_little_says_what_there_is_and_what_to_do():
    with pytest.raises(ConfigError) as caught:
        place(plan_of(actors__count=30), [HEAD, BIG], {})
    words = str(caught.value)
    assert "30 actor workers of 1 core each: there was room for 19" in words
    assert "10.0.0.1 (4 cores), 10.0.0.2 (16 cores)" in words
    assert "all workers together need 31 cores" in words
    assert "--actors.count" in words


def test_a_mark_that_no_node_has_is_named():
    with pytest.raises(ConfigError) as caught:
        place(plan_of(), [HEAD, BIG], {"trainer": ("nosuch",)})
    words = str(caught.value)
    assert "--ray.trainers asks for (nosuch)" in words
    assert "their marks big" in words


def test_too_few_gpus_are_counted_and_a_long_list_of_nodes_is_cut():
    many = [Node(str(n), f"10.0.1.{n}", cores=8.0, gpus=1.0) for n in range(20)]
    with pytest.raises(ConfigError) as caught:
        place(plan_of(trainers__device="cuda", trainers__gpus=4.0), many, {})
    words = str(caught.value)
    assert "and 4 GPUs" in words
    assert "--trainers.gpus" in words
    assert "10.0.1.7 (8 cores, 1 GPUs) and 12 more" in words


def test_actors_that_are_not_needed_wait_for_nodes_that_join():
    plan = plan_of(actors__count=3, actors__max=9)
    hosts = hosts_of_places(plan, place(plan, [HEAD], {}))
    late = [f"actor-{number}" for number in range(3, 9)]
    assert hosts == dict.fromkeys(late, LATE)
    small = Node("d", "10.0.0.4", cores=2.5)
    nodes = [small, Node("e", "10.0.0.5", cores=0.5), BIG]
    found = {p.node.id: (p.workers, p.cores) for p in place_late(plan, late, nodes, ())}
    assert found == {"d": (late[:2], 2.0), "b": (late[2:], 4.0)}
    found = {p.node.id: p.workers for p in place_late(plan, late, nodes, ["big"])}
    assert found == {"b": late}
    with pytest.raises(ConfigError, match=r"3 actor workers .* room for 1; .* need 4 cores"):
        place(plan, [Node("a", "10.0.0.1", cores=2, is_here=True)], {})


def test_only_a_cluster_has_actors_that_come_later():
    assert len(plan_of(launcher="local", actors__count=3, actors__max=9).of_kind("actor")) == 3
    assert not plan_of(actors__count=3).late
    with pytest.raises(ConfigError, match=r"actors\.max"):
        plan_of(actors__count=3, actors__max=2)


def test_named_node_that_has_no_room_is_said():
    with pytest.raises(ConfigError, match=r"room for 15 on big"):
        place(plan_of(actors__count=20), [HEAD, BIG], {"actor": ("big",), "trainer": ("big",)})


@pytest.mark.parametrize(
    ("hosts", "asked"),
    [
        ({}, ("shm", [0, 1])),
        ({"actor-0": 1, "actor-1": 1}, ("tcp", [0, 1])),
        ({"actor-1": 1}, ("shm", [0, 1])),
        ({"actor-0": 1, "policy-0": 1}, ("shm", [0])),
        ({"actor-0": 1, "actor-1": 1, "policy-0": 1}, ("tcp", [0, 1])),  # nobody is near policy-1
        ({"actor-0": 1, "policy-0": 1, "policy-1": 2}, ("shm", [0])),
    ],
)
def test_actors_ask_policy_workers_of_their_host_unless_others_idle(hosts, asked):
    plan = plan_of(actors__count=2, inference="shm", policies__count=2)
    plan = msgspec.structs.replace(plan, hosts=hosts)
    assert asks_over(plan, plan.routes[0], 0) == asked
    everyone = {i for actor in (0, 1) for i in asks_over(plan, plan.routes[0], actor)[1]}
    assert everyone == {0, 1}


@pytest.mark.parametrize("cores", [(4, 16, 8), (7, 7, 7, 7), (3.5, 5, 9, 1, 9)])
def test_every_actor_goes_where_most_cores_are_left_and_to_the_first_of_equals(cores):
    nodes = [Node(str(i), f"10.0.0.{i}", cores=n, is_here=not i) for i, n in enumerate(cores)]
    plan = plan_of(actors__count=int(sum(cores)) - 4, actors__threads=1)
    found = {name: p.node.id for p in place(plan, nodes, {}) for name in p.workers}
    free = list(cores)
    free[int(found["trainer-0"])] -= 1
    for actor in plan.of_kind("actor"):
        most = free.index(max(free))
        assert found[actor.name] == str(most)
        free[most] -= 1


def test_thousands_of_actors_are_placed_at_once():
    nodes = [Node(str(i), f"10.0.0.{i}", cores=256, is_here=not i) for i in range(64)]
    plan = plan_of()
    actors = tuple(WorkerPlan(f"actor-{i}", "actor", i) for i in range(16_000))
    plan = msgspec.structs.replace(plan, workers=(*plan.of_kind("trainer"), *actors))
    start = time.process_time()
    assert sum(len(p.workers) for p in place(plan, nodes, {})) == 16_001
    assert time.process_time() - start < 1.0  # 5 s with a look at each node for each
