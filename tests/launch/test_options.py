import re

import pytest

from srl.api import find_experiment
from srl.core.errors import ConfigError
from srl.launch.graph.options import help_text, option_names


def test_options_override_every_kind_of_field():
    words = "--actors.count 3 --algorithm.learning-rate 1e-4 --algorithm.hidden 32 16"
    words += " --stop.return 300 --stop.env-steps None --algorithm.normalise-observations True"
    experiment = find_experiment("cartpole", words.split())
    assert experiment.actors.count == 3
    assert experiment.algorithm.learning_rate == 1e-4
    assert experiment.algorithm.hidden == (32, 16)
    assert experiment.stop.return_ == 300
    assert experiment.stop.env_steps is None
    assert experiment.algorithm.normalise_observations is True


def test_options_accept_an_equals_sign():
    assert find_experiment("cartpole", ["--seed=5", "--stop.return=9"]).stop.return_ == 9


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--actors.cuont", "3"], "did you mean --actors.count"),
        (["--actor.count", "3"], "did you mean --actors.count"),
        (["--algorithm.learning_ratee", "3"], "did you mean --algorithm.learning-rate"),
        (["--actors.count", "many"], "actors.count"),
        (["--launcher", "cloud"], "launcher"),
        (["--actors.count", "0"], "actors.count must be at least 1, got 0"),
        (["--algorithm.clip", "-1"], "algorithm.clip must be > 0"),
        (["--env.options", "{"], "env.options is not JSON"),
    ],
)
def test_options_that_are_wrong_are_refused_in_words(words, message):
    with pytest.raises(ConfigError) as error:
        find_experiment("cartpole", words)
    assert message in str(error.value)
    assert "╭" not in str(error.value)


def test_help_lists_every_option_with_its_text():
    experiment = find_experiment("cartpole")
    text = help_text(experiment, "srl train cartpole")
    for name in option_names(experiment):
        assert f"--{name}" in text
    assert "Env transitions, over all actors" in " ".join(text.split()).replace("│ │ ", "")


def test_help_lists_nothing_that_is_refused():
    text = help_text(find_experiment("toy/match"), "srl train toy/match")
    listed = set(re.findall(r"^  --([a-z][a-z0-9.-]*)", text, flags=re.MULTILINE))
    assert listed == set(option_names(find_experiment("toy/match")))
    assert "routes" not in text
    assert not text.rstrip().endswith("---")
