from srl.telemetry.bottleneck import name_bottleneck, shares


def test_shares_sum_to_one_largest_first():
    assert shares({"a": 1.0, "b": 3.0}) == {"b": 0.75, "a": 0.25}
    assert shares({}) == {}


def test_bottleneck_is_learning_when_actors_wait_for_leave():
    words = name_bottleneck(
        {
            "actor": {"env": 20, "inference": 10, "wait_for_credit": 70},
            "trainer": {"learn": 95, "wait_for_batch": 5},
        }
    )
    assert words.startswith("learning: the trainer works 95%")


def test_bottleneck_is_inference_when_actors_wait_for_actions():
    words = name_bottleneck(
        {
            "actor": {"env": 30, "wait_for_action": 60, "wait_for_credit": 10},
            "policy": {"forward": 90, "wait_for_requests": 10},
            "trainer": {"learn": 20, "wait_for_batch": 80},
        }
    )
    assert words.startswith("inference: actors wait 60%")
    assert "busy 90%" in words


def test_bottleneck_is_sampling_when_the_trainer_starves():
    words = name_bottleneck(
        {
            "actor": {"env": 80, "inference": 20},
            "trainer": {"learn": 20, "wait_for_batch": 80},
        }
    )
    assert words.startswith("sampling: the trainer waits 80%")
    assert "env (80%)" in words


def test_bottleneck_is_the_cores_when_nobody_waits():
    actor = {"env": 62, "inference": 30, "wait_for_credit": 8}
    words = name_bottleneck({"actor": actor, "trainer": {"learn": 95, "wait_for_batch": 5}})
    assert words.startswith("the cores: nobody waits for another (the trainer 5%")
    assert "actors 8%" in words
    actor = {"env": 60, "inference": 25, "wait_for_credit": 5, "wait_for_action": 10}
    words = name_bottleneck({"actor": actor, "trainer": {"learn": 95, "wait_for_batch": 5}})
    assert words.startswith("sampling")


def test_time_that_one_rank_waits_for_another_is_not_work():
    words = name_bottleneck(
        {
            "actor": {"env": 80, "inference": 20},
            "trainer": {"learn": 40, "wait_for_batch": 30, "wait_for_ranks": 30},
        }
    )
    assert words.startswith("sampling: the trainer waits 60%")


def test_bottleneck_without_reports_is_not_known():
    assert name_bottleneck({}) == "not known yet"


def test_learning_that_draws_from_replay_is_told_who_may_do_that():
    actor = {"env": 20, "wait_for_credit": 80}
    words = name_bottleneck({"actor": actor, "trainer": {"learn": 70, "draw": 25, "keep": 5}})
    assert words.startswith("learning: the trainer works 100% of its time (30% for replay, which")
    assert "--buffers.count 1" in words
    words = name_bottleneck({"actor": actor, "trainer": {"learn": 85, "draw": 15}})
    assert "--buffers.count" not in words


def test_bottleneck_of_one_process_is_what_takes_most_of_its_time():
    splits = {"actor": {"env": 10, "inference": 20}, "trainer": {"learn": 60, "draw": 10}}
    words = name_bottleneck(splits, takes_turns=True)
    assert words.startswith("one process: trainers take 70% of its time, learn alone 60%")
    assert name_bottleneck({}, takes_turns=True) == "not known yet"
