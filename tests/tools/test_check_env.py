import json
from pathlib import Path

import pytest

from srl.core.errors import ConfigError
from srl.core.experiment import EnvConfig
from srl.core.names import load_object
from srl.tools import check_env
from srl.tools.check_env import Speed, check, find_env, with_options

FILE = Path(__file__).parent / "envs_to_check.py"
BAD = Path(__file__).parents[1] / "bad_envs.py"
BROKEN = load_object(f"{BAD}:BROKEN")


def findings_of(name, **options):
    config = EnvConfig(name=name, options=json.dumps(options))
    return list(check(config, budget_seconds=0.2))


def lines_of(findings, level):
    return {finding.about: finding.words for finding in findings if finding.level == level}


def test_sound_env_has_no_problem():
    findings = findings_of(f"{FILE}:Walk")
    assert lines_of(findings, "problem") == {}
    fine = lines_of(findings, "ok")
    assert fine["build"] == "one agent sees obs float32[2] and does one of 2"
    assert {
        *("playing", "spec", "final observation", "truncation flag", "autoreset"),
        *("finite values", "reproducible seeding", "independent seeding", "save and load"),
    } <= set(fine)
    assert "0 terminated" in fine["episodes"]
    assert fine["episodes"].endswith("after 20 to 20 steps")
    assert "steps/s" in fine["speed"]
    assert "replayed and compared; with local, episodes under way begin anew" in fine["resume"]


@pytest.mark.parametrize(
    ("fault", "about", "words"),
    [
        ("nan", "playing", "not finite"),
        ("dtype", "playing", "float64[2]"),
        ("raises", "playing", "the simulator is on fire"),
        ("unseeded", "reproducible seeding", "two builds with the same seed and actions"),
    ],
)
def test_broken_env_has_a_problem_in_words(fault, about, words):
    problems = lines_of(findings_of(f"{FILE}:Walk", fault=fault), "problem")
    assert words in problems[about]


@pytest.mark.parametrize(("name", "fault", "said"), BROKEN.values(), ids=BROKEN)
def test_env_that_breaks_the_contract_is_told_what_is_wrong_and_nothing_else(name, fault, said):
    problems = lines_of(findings_of(f"{BAD}:{name}", fault=fault), "problem")
    assert problems
    assert all(said in words for words in problems.values()), problems


def test_masks_are_heeded_and_checked():
    for name in (f"{BAD}:Guarded", "toy/masked"):
        findings = findings_of(name)
        assert lines_of(findings, "problem") == {}
        assert "action masks" in lines_of(findings, "ok")
    assert "action masks" not in lines_of(findings_of("toy/identity"), "ok")


def test_what_a_central_critic_sees_is_told():
    fine = lines_of(findings_of("toy/match", central=True), "ok")
    assert fine["build"].endswith("does one of 4; a central critic sees state float32[8]")


def test_env_that_does_not_use_its_seed_is_told():
    notes = lines_of(findings_of(f"{FILE}:Walk", fault="shared seed"), "note")
    assert "no seed changes anything" in notes["independent seeding"]


def test_episodes_that_all_terminate_at_one_length_are_doubted():
    notes = lines_of(findings_of(f"{FILE}:Walk", fault="terminated"), "note")
    assert "if that is a time limit, it must be truncated" in notes["truncation flag"]


def test_slow_seeding_is_answered_with_reseed_start():
    slow = findings_of(f"{FILE}:Walk", fault="slow seed")
    assert "--env.reseed start avoids it" in lines_of(slow, "note")["reset"]
    options = json.dumps({"fault": "slow seed"})
    config = EnvConfig(name=f"{FILE}:Walk", options=options, reseed="start")
    again = list(check(config, budget_seconds=0.2))
    assert "which --env.reseed start avoids" in lines_of(again, "ok")["reset"]
    notes = lines_of(again, "note")
    assert "not restored" in notes["resume"]
    assert "not checked: " in notes["save and load"]


def test_long_episodes_are_named_as_not_seen():
    notes = lines_of(findings_of(f"{FILE}:Walk", limit=10**9), "note")
    assert "not surely seen" in notes["final observation"]
    assert "not surely seen" in notes["truncation flag"]


def test_agents_are_checked_in_sets():
    fine = lines_of(findings_of("toy/identity", agents=2), "ok")
    assert "sets of agents" in fine
    assert fine["build"].startswith("2 agents, the first sees")


def test_env_that_cannot_be_built_is_refused():
    with pytest.raises(ConfigError, match="no licence"):
        findings_of(f"{FILE}:NotBuilt")


@pytest.mark.parametrize(
    ("about", "sentence"),
    [
        ("playing", "it cannot be played: env 'x' failed in reset"),
        ("spec", "spec.restores is empty: say in a sentence what save brings back"),
        ("final observation", "the final observation of an episode must be shown before the next"),
        ("truncation flag", "an episode that ends at its limit of 9 steps must be truncated, not"),
        ("autoreset", "'first' must be True exactly on the row after a reset: agent 0"),
        ("autoreset", "a reset step must be neither terminated nor truncated: agent 0"),
        ("finite values", "observation 'obs' must be below its number of categories: agent 0"),
        ("reproducible seeding", "two builds with the same seed and actions must agree"),
        ("independent seeding", "envs 0 and 1 of a batch must be seeded apart"),
        ("save and load", "load() must bring back the state saved at row 3, as spec.restores says"),
        ("sets of agents", "sets of agents must not change data: of agent 0"),
        ("contract", "something that the contract will check one day"),
    ],
)
def test_sentence_of_the_contract_is_under_its_check(about, sentence):
    findings = list(check_env._judge([sentence], {}, 9))
    assert lines_of(findings, "problem") == {about: sentence}


def test_share_of_a_reset_is_of_reset_and_steps():
    speed = Speed(
        step=0.01,
        seeded_reset=0.25,
        unseeded_reset=0.0,
        steps=150,
        lengths=(50, 100),
        terminated=2,
        truncated=0,
    )
    assert speed.episode_steps == 75
    assert speed.share(0.25) == speed.seeding_share == 0.25


@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("cartpole", "gym/CartPole-v1"),
        ("gym/Anything-v0", "gym/Anything-v0"),
        (f"{FILE}:Walk", f"{FILE}:Walk"),
        (f"{FILE}:make_walk", f"{FILE}:make_walk"),
        ("srl.envs.toy:Identity", "srl.envs.toy:Identity"),
    ],
)
def test_name_is_an_env_or_an_experiment(name, env):
    assert find_env(name).name == env


def test_experiment_brings_the_options_of_its_env():
    config = find_env(f"{FILE}:experiment")
    assert (config.name, config.keywords()) == (f"{FILE}:Walk", {"limit": 12})


def test_unknown_name_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'cartpole'"):
        find_env("cartpool")


def test_options_are_those_of_train():
    words = ["--env.options", '{"a": 1}', "--env.wrappers", "x:Y", "z:W", "--seed=3"]
    config, seed = with_options(EnvConfig(name="gym/X"), words)
    assert (config.keywords(), config.wrappers, seed) == ({"a": 1}, ("x:Y", "z:W"), 3)
    config, _ = with_options(EnvConfig(name="gym/X"), ["--env.reseed", "start"])
    assert config.reseed == "start"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--env.option", "{}"], "unknown option --env.option: did you mean '--env.options'"),
        (["--env.options"], "takes one value, got 0"),
        (["--env.reseed", "never"], "must be episode or start, got 'never'"),
        (["--seed", "-1"], "seed must be a number, 0 or above, got '-1'"),
        (["more"], "takes one name, got 'more' too"),
        (["--env.options", "{"], "env.options is not JSON"),
    ],
)
def test_bad_options_are_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        with_options(EnvConfig(name="gym/X"), words)
