"""The command line: what it prints, what it refuses, and with which exit code."""

import importlib.util
import json
import shutil
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from srl import catalog, cli
from srl.launch.folder import RunFolder
from srl.learning.checkpoint import list_checkpoints, read_manifest

HERE = Path(__file__).parent
FAULTY = f"{HERE / 'bad_envs.py'}:experiment"
FAULTS = {
    "nan": "not finite",
    "reward": "reward nan",
    "shape": "float32[2]",
    "dtype": "float64[3]",
    "reset": "failed in reset: RuntimeError('the simulator is on fire')",
    "step": "failed in step: RuntimeError('the simulator is on fire')",
}


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def srl(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    """Runs `srl ...` in this process, in an empty folder."""
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)

    def run(*words: object) -> Outcome:
        monkeypatch.setattr("sys.path", ["", *__import__("sys").path])
        code = cli.main([str(word) for word in words])
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return run


@pytest.fixture
def refuses(srl: Any) -> Callable[..., str]:
    """Runs a command that must be refused; returns its one paragraph."""

    def run(*words: object) -> str:
        outcome = srl(*words)
        assert outcome.code == 2, outcome
        assert outcome.out == ""
        assert outcome.err.startswith("srl: ")
        assert "\n" not in outcome.err.rstrip("\n"), "more than one paragraph"
        assert "Traceback" not in outcome.err
        assert list(Path.cwd().iterdir()) == [], "something was started"
        return outcome.err

    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished inline run."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    words = ["train", FAULTY, "--launcher", "inline", "--out", str(folder), "--seed", "3"]
    assert cli.main([*words, "--stop.env-steps", "500"]) == 0
    return folder


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return shutil.copytree(finished, tmp_path / "copy")


def state_of(run: Path) -> Path:
    return next((run / "checkpoints").iterdir()) / "state-inline.safetensors"


# --- names and options


def test_no_command_shows_the_usage(srl: Any) -> None:
    outcome = srl()
    assert outcome.code == 2
    assert "usage: srl COMMAND" in outcome.out


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_shows_the_usage(srl: Any, word: str) -> None:
    outcome = srl(word)
    assert outcome.code == 0
    assert all(f"srl {command}" in outcome.out for command in cli.COMMANDS)


def test_unknown_command_is_refused(refuses: Any) -> None:
    assert "unknown command 'trian': did you mean 'train'?" in refuses("trian", "cartpole")


@pytest.mark.parametrize("command", ["train", "resume", "eval", "explain", "inspect", "check-env"])
def test_missing_name_is_refused(refuses: Any, command: str) -> None:
    assert f"srl {command}" in refuses(command)


def test_unknown_experiment_is_refused(refuses: Any) -> None:
    message = refuses("train", "cartpool")
    assert "unknown experiment 'cartpool': did you mean 'cartpole'?" in message


def test_name_without_an_env_family_is_refused(refuses: Any) -> None:
    message = refuses("train", "attari/pong")
    assert "unknown experiment 'attari/pong': did you mean" in message
    assert "an env family of atari, envpool, gym, pettingzoo, toy" in message


def test_experiment_of_a_missing_file_is_refused(refuses: Any) -> None:
    assert "there is no file 'nowhere.py'" in refuses("train", "nowhere.py:experiment")


def test_object_that_is_no_experiment_is_refused(refuses: Any) -> None:
    assert "does not return an Experiment" in refuses("train", "srl.catalog:ENVS")


def test_unknown_env_is_refused(refuses: Any) -> None:
    assert "did you mean 'CartPole-v1'?" in refuses("train", "gym/CartPol-v1")


def test_unknown_option_is_refused(refuses: Any) -> None:
    message = refuses("train", "cartpole", "--actors.cuont", "2")
    assert "unknown option --actors.cuont: did you mean --actors.count?" in message


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--actors.count", "0", "actors.count must be at least 1, got 0"),
        ("--actors.envs", "-4", "actors.envs must be at least 1, got -4"),
        ("--max-staleness", "-1", "max-staleness must be at least 0, got -1"),
        ("--seed", "-1", "seed must be at least 0, got -1"),
        ("--checkpoint.seconds", "0", "checkpoint.seconds must be at least 0.1, got 0"),
        ("--algorithm.discount", "1.5", "discount must be in 0..1, got 1.5"),
        ("--algorithm.learning-rate", "-1", "must be > 0, got -1"),
        ("--trainers.count", "0", "trainers.count must be at least 1, got 0"),
        ("--trainers.count", "3", "must be a multiple of trainers.count (3)"),
        ("--actors.inline", "1", "actors.inline must be 0 or more and less than actors.count (1)"),
        ("--buffers.count", "-1", "buffers.count must be at least 0, got -1"),
        ("--buffers.count", "1", "learns each block once, and has nothing to keep"),
    ],
)
def test_value_out_of_range_is_refused(refuses: Any, option: str, value: str, words: str) -> None:
    assert words in refuses("train", "cartpole", option, value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--buffers.count 3", "actors.count (1) must be a multiple of buffers.count (3)"),
        (
            "--buffers.count 1 --actors.count 2 --trainers.count 2",
            "buffers.count (1) must be a multiple of trainers.count (2)",
        ),
        (
            "--buffers.count 3 --actors.count 3 --algorithm.replay.batch 64",
            "cannot be drawn equally by 3 (buffers.count, or trainers.count)",
        ),
    ],
)
def test_buffers_that_cannot_share_are_refused(refuses: Any, options: str, words: str) -> None:
    assert words in refuses("train", "cartpole-dqn", *options.split())


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--actors.count", "many"),
        ("--actors.count", "1.5"),
        ("--algorithm.learning-rate", "fast"),
        ("--launcher", "moon"),
        ("--inference", "telepathy"),
        ("--stop.return", "high"),
    ],
)
def test_value_of_the_wrong_type_is_refused(refuses: Any, option: str, value: str) -> None:
    message = refuses("train", "cartpole", option, value)
    assert option in message
    assert value in message


def test_option_without_a_value_is_refused(refuses: Any) -> None:
    assert "--seed" in refuses("train", "cartpole", "--seed")


def test_word_that_is_no_option_is_refused(refuses: Any) -> None:
    assert "quickly" in refuses("train", "cartpole", "quickly")


def test_impossible_combination_is_refused(refuses: Any) -> None:
    message = refuses("train", "cartpole", "--launcher", "inline", "--inference", "shm")
    assert "launcher inline runs in one process" in message
    message = refuses("train", "cartpole", "--launcher", "local", "--samples", "inline")
    assert "samples cannot be inline" in message


def test_batch_that_is_no_multiple_of_a_block_is_refused(refuses: Any) -> None:
    message = refuses("train", "cartpole", "--algorithm.batch-size", "1056")
    assert "must be a multiple of the rows of a block" in message
    assert "for example 1024 or 1536" in message


GUARDED = ("--env.name", f"{HERE / 'bad_envs.py'}:Guarded", "--env.options", '{"fault": "none"}')
UNGUARDED = ("--env.name", f"{HERE / 'bad_envs.py'}:Batch", "--env.options", '{"fault": "mask"}')
HUGE = ("--algorithm.replay.capacity", "1000000000000")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cartpole-dqn", "--env.name", "gym/Pendulum-v1"), "are Box: use sac or td3 for real"),
        (("pendulum-sac", "--env.name", "gym/CartPole-v1"), "are Discrete: use dqn for one"),
        (("cartpole", "--algorithm.burn-in", "4"), "burn_in must be 0 without algorithm.memory"),
        (("cartpole", "--algorithm.memory-size", "8"), "memory_size must be 64 without algorithm"),
        (("cartpole-dqn", "--algorithm.chunk", "8"), "chunk must be 16 without algorithm.memory"),
        (("pendulum-sac", "--algorithm.memory", "lstm"), "unknown option --algorithm.memory"),
        (("cartpole-dqn", *HUGE), " of it for replay buffers); but only "),
        (
            ("cartpole-dqn", *HUGE, "--algorithm.replay.storage", "file"),
            "left: use a smaller --algorithm.replay.capacity, or another --algorithm.replay.folder",
        ),
        (("cartpole-dqn", *GUARDED), "'obs.action_mask': every action is masked out"),
        (("cartpole", *GUARDED), "'obs.action_mask': every action is masked out"),
        (("cartpole", *UNGUARDED), "'action_mask': every action is masked out"),
    ],
)
def test_algorithm_that_does_not_fit_is_refused(refuses: Any, words: Any, said: str) -> None:
    assert said in refuses("train", *words)


def test_env_options_that_are_not_json_are_refused(refuses: Any) -> None:
    message = refuses("train", "cartpole", "--env.options", "{render: 1}")
    assert "env.options is not JSON" in message
    assert "must be a JSON object" in refuses("train", "cartpole", "--env.options", "[1]")


@pytest.mark.parametrize("option", ["--env.clip-rewards", "--env.scale-rewards"])
def test_rewards_cannot_be_changed_to_nothing(refuses: Any, option: str) -> None:
    message = refuses("train", "cartpole", option, "0")
    assert f"{option[2:]} must be above 0, got 0" in message


def test_env_options_that_the_env_does_not_take_are_refused(refuses: Any) -> None:
    message = refuses("train", "cartpole", "--env.options", '{"gravity": 1}')
    assert "cannot be built with the options {'gravity': 1}" in message


@pytest.mark.parametrize(
    ("env", "module", "extra"),
    [
        ("ALE/Pong-v5", "ale_py", "really-scalable-rl[atari]"),
        ("HalfCheetah-v5", "mujoco", "really-scalable-rl[mujoco]"),
    ],
)
def test_env_of_a_missing_extra_is_refused(refuses: Any, env: str, module: str, extra: str) -> None:
    if importlib.util.find_spec(module):
        pytest.skip(f"{module} is installed")
    assert f"pip install '{extra}'" in refuses("train", f"gym/{env}")


def test_arena_that_is_too_small_is_refused(refuses: Any) -> None:
    message = refuses("train", "cartpole", "--arena-megabytes", "0.01")
    assert "arena-megabytes 0.01 is too small" in message
    assert "1 actors x (2 groups being filled + 4 waiting" in message
    assert " MB a block = " in message


@pytest.mark.parametrize("option", ["--trainers.device", "--policies.device"])
def test_device_that_is_not_there_is_refused(refuses: Any, option: str) -> None:
    import torch

    assert "must be cpu, cuda or cuda:N" in refuses("train", "cartpole", option, "tpu")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    message = refuses("train", "cartpole", "--inference", "shm", option, "cuda")
    assert "torch finds no CUDA device here" in message


# --- folders and checkpoints


def test_output_folder_below_a_file_is_refused(refuses: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    message = refuses("train", "cartpole", "--out", tmp_path / "file" / "run")
    assert "cannot be written" in message


def test_output_folder_in_proc_is_refused(refuses: Any) -> None:
    assert "cannot be written" in refuses("train", "cartpole", "--out", "/proc/srl/run")


def test_output_folder_that_is_not_empty_is_refused(refuses: Any, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    message = refuses("train", "cartpole", "--out", tmp_path / "full")
    assert "is not empty" in message
    assert f"srl resume {tmp_path / 'full'}" in message
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("command", ["resume", "eval"])
def test_folder_that_is_no_run_is_refused(refuses: Any, tmp_path: Path, command: str) -> None:
    assert "is not a run folder" in refuses(command, tmp_path)


def test_folder_that_is_no_checkpoint_is_refused(refuses: Any, tmp_path: Path) -> None:
    assert "is not a checkpoint of SRL" in refuses("inspect", tmp_path)


@pytest.mark.parametrize("command", ["resume", "eval", "inspect"])
def test_run_without_a_checkpoint_is_refused(refuses: Any, copy: Path, command: str) -> None:
    shutil.rmtree(state_of(copy).parent)
    assert "there is no checkpoint in" in refuses(command, copy)


@pytest.mark.parametrize("command", ["resume", "eval", "inspect"])
def test_truncated_checkpoint_is_refused(refuses: Any, copy: Path, command: str) -> None:
    state = state_of(copy)
    state.write_bytes(state.read_bytes()[:-100])
    message = refuses(command, copy)
    assert str(state) in message
    assert "is truncated" in message


@pytest.mark.parametrize("command", ["resume", "eval", "inspect"])
def test_corrupted_checkpoint_is_refused(refuses: Any, copy: Path, command: str) -> None:
    state = state_of(copy)
    data = bytearray(state.read_bytes())
    data[len(data) // 2] ^= 1
    state.write_bytes(data)
    assert "is corrupted" in refuses(command, copy)


@pytest.mark.parametrize("command", ["resume", "eval", "inspect"])
@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"format": 1}'])
def test_damaged_manifest_is_refused(refuses: Any, copy: Path, command: str, text: str) -> None:
    manifest = state_of(copy).with_name("manifest.json")
    manifest.write_text(text)
    assert str(manifest.parent) in refuses(command, copy)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"env": 3}'])
def test_damaged_config_is_refused(refuses: Any, copy: Path, text: str) -> None:
    (copy / "config.json").write_text(text)
    assert "config.json" in refuses("resume", copy)


def test_checkpoint_of_another_network_is_refused(refuses: Any, copy: Path) -> None:
    before = (copy / "config.json").read_text()
    message = refuses("resume", copy, "--algorithm.hidden", "32", "32")
    assert "is of another agent, or of other options of the algorithm" in message
    assert (copy / "config.json").read_text() == before


# --- envs that go wrong


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_env_is_refused_by_the_probe(refuses: Any, fault: str) -> None:
    message = refuses("train", FAULTY, "--env.options", json.dumps({"fault": fault}))
    assert_names_the_env(message, fault)


@pytest.mark.parametrize("fault", FAULTS)
def test_env_that_turns_faulty_is_rebuilt_inline(srl: Any, fault: str) -> None:
    options = json.dumps({"fault": fault, "after": 200})
    words = ("--launcher", "inline", "--env.options", options, "--out", "run")
    outcome = srl("train", FAULTY, *words, "--evaluation.episodes", "0")
    assert outcome.code == 0
    assert_went_on(outcome.err, fault)


@pytest.mark.parametrize("fault", ["nan", "step"])
def test_env_that_turns_faulty_is_rebuilt_local(srl: Any, fault: str) -> None:
    options = json.dumps({"fault": fault, "after": 200})
    words = ("--launcher", "local", "--inference", "inline", "--env.options", options)
    outcome = srl("train", FAULTY, *words, "--out", "run", "--evaluation.episodes", "0")
    assert outcome.code == 0
    assert_went_on(outcome.err, fault)


def assert_went_on(said: str, fault: str) -> None:
    assert_names_the_env(said, fault)
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["env_failures"] == summary["env_rebuilds"] >= 8  # each of 8 envs, at least once
    assert summary["envs_parked"] == 0
    notes = Path("run/errors/notes.txt").read_text()
    assert_names_the_env(notes, fault)
    assert notes.startswith("actor-0: env ")
    assert len(list(Path("run/errors").glob("repro-env-*.json"))) == min(
        20, summary["env_failures"]
    )


KEEPS_FAILING = ("--env.max-failures", "0", "--env.options")


@pytest.mark.parametrize("fault", FAULTS)
def test_env_that_keeps_failing_fails_the_run_inline(srl: Any, fault: str) -> None:
    options = json.dumps({"fault": fault, "after": 200})
    words = ("--launcher", "inline", *KEEPS_FAILING, options, "--out", "run")
    outcome = srl("train", FAULTY, *words)
    assert outcome.code == 3
    assert_failed(outcome.err, fault)


@pytest.mark.parametrize("fault", ["nan", "step"])
def test_env_that_keeps_failing_fails_the_run_local(srl: Any, fault: str) -> None:
    options = json.dumps({"fault": fault, "after": 200})
    words = ("--launcher", "local", "--inference", "inline", *KEEPS_FAILING, options)
    outcome = srl("train", FAULTY, *words, "--out", "run")
    assert outcome.code == 3
    assert_failed(outcome.err, fault)


def assert_failed(said: str, fault: str) -> None:
    assert_names_the_env(said, fault)
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["status"] == "failed"
    assert "all 8 envs of actor-0 keep failing and are parked" in summary["reason"]
    assert_names_the_env(summary["reason"], fault)
    assert_names_the_env(Path("run/errors/actor-0.txt").read_text(), fault)
    assert summary["env_failures"] == summary["envs_parked"] == 8


@pytest.fixture
def repro_of(srl: Any) -> Callable[..., Path]:
    """A repro file of a run of `Failing`, whose env fails in one of five episodes."""

    def make(*words: object, **options: Any) -> Path:
        name = f"{HERE / 'bad_envs.py'}:Failing"
        given = json.dumps({"every": 5, "counts": False, **options})
        # with seed 23 the first episodes, that are probed, are whole
        words = ("--env.name", name, "--env.options", given, "--seed", 23, *words)
        words = (*words, "--launcher", "inline", "--out", "run", "--evaluation.episodes", "0")
        assert srl("train", FAULTY, *words, "--stop.env-steps", "500").code == 0
        return sorted(Path("run/errors").glob("repro-*.json"))[0]

    return make


def test_repro_file_of_a_run_shows_the_failure_again(srl: Any, repro_of: Any) -> None:
    outcome = srl("repro", repro_of())
    assert outcome.code == 0
    assert outcome.out.count("RuntimeError('out of fuel')") == 2  # then and now
    assert "reproduced: RuntimeError" in outcome.out
    assert "may not come again" not in outcome.out


def test_repro_of_an_env_that_was_mended_says_so(srl: Any, repro_of: Any) -> None:
    path = repro_of()
    path.write_text(path.read_text().replace('\\"every\\": 5', '\\"every\\": 0'))
    outcome = srl("repro", path)
    assert outcome.code == 1
    assert "not reproduced: it did not fail" in outcome.out


def test_repro_of_episodes_without_a_seed_of_their_own_says_so(srl: Any, repro_of: Any) -> None:
    # seeded at start only: the seed decides over all episodes until the env is built again
    repro_of("--env.reseed", "start", "--env.max-failures", "100", at=3)
    notes = [json.loads(p.read_text())["note"] for p in Path("run/errors").glob("repro-*.json")]
    assert "" in notes  # the first episode after a seed can be shown again


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "no repro file"),
        ('{"format": 7}', "its format is 7, this version reads 1"),
        ('{"format": 1}', "'env' must be of type dict"),
    ],
)
def test_bad_repro_file_is_refused(refuses: Any, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "repro.json"
    path.write_text(text)
    message = refuses("repro", path)
    assert said in message
    assert str(path) in message


def test_missing_repro_file_and_bad_options_are_refused(
    refuses: Any, repro_of: Any, tmp_path: Path
) -> None:
    assert "cannot be read" in refuses("repro", "nowhere.json")
    assert "srl repro FILE" in refuses("repro")
    path = repro_of().rename(tmp_path / "repro.json")
    shutil.rmtree("run")
    assert "must be above 0" in refuses("repro", path, "--timeout-seconds", "0")
    assert "needs a number" in refuses("repro", path, "--timeout-seconds", "x")
    data = json.loads(path.read_text())
    for changed, said in (
        ({"actions": {"nobody": []}}, "actions of ['nobody'], not of ['agent_0']"),
        ({"actions": {"agent_0": [[["x"]]]}}, "the actions of 'agent_0' do not fit"),
        ({"num_envs": 0}, "must not be negative"),
        ({"step": "3"}, "'step' must be of type int"),
        ({"env": {"title": "x"}}, "'env' is not that of an experiment"),
    ):
        path.write_text(json.dumps(data | changed))
        assert said in refuses("repro", path)


def assert_names_the_env(message: str, fault: str) -> None:
    assert FAULTS[fault] in message
    assert "bad_envs.py:Faulty" in message
    assert "lane" in message
    assert "seed" in message
    if fault != "reset":
        assert "action" in message


# --- what the commands print


def test_run_that_misses_the_return_asked_for_exits_1(srl: Any) -> None:
    words = ("--launcher", "inline", "--stop.env-steps", "500", "--stop.return", "11")
    outcome = srl("train", FAULTY, *words, "--out", "run")
    assert outcome.code == 1
    assert "the final evaluation gave 10.0, asked for 11.0" in outcome.err
    assert json.loads(Path("run/summary.json").read_text())["status"] == "completed"


def test_run_without_evaluation_is_judged_by_its_mean_return(srl: Any) -> None:
    words = ("--launcher", "inline", "--evaluation.episodes", "0")
    words += ("--stop.env-steps", "500", "--stop.return")
    assert srl("train", FAULTY, *words, "10", "--out", "run").code == 0
    outcome = srl("train", FAULTY, *words, "11", "--out", "other")
    assert outcome.code == 1
    assert "the mean return of the last episodes is 10.0, asked for 11.0" in outcome.err


def test_run_that_reaches_the_return_asked_for_exits_0(srl: Any) -> None:
    words = ("--launcher", "inline", "--stop.return", "10")
    outcome = srl("train", FAULTY, *words)
    assert outcome.code == 0
    last = json.loads(outcome.out.splitlines()[-1])
    assert last["status"] == "completed"
    assert last["reason"] == "stop.return 10 reached"
    assert last["eval_return"] == 10
    assert Path(last["folder"]).parent == Path("runs/faulty")


def test_list_names_everything(srl: Any) -> None:
    outcome = srl("list")
    assert outcome.code == 0
    for name in (*catalog.EXPERIMENTS, *(f"{family}/..." for family in catalog.ENVS)):
        assert name in outcome.out


def test_explain_draws_the_graph(srl: Any) -> None:
    words = ("--actors.count", "2", "--inference", "shm", "--policies.count", "3")
    outcome = srl("explain", "cartpole", *words)
    assert outcome.code == 0
    for line in (
        "cartpole: PPOConfig on gym/CartPole-v1",
        "2 x actor    32 envs in 2 groups each",
        "3 x policy   on cpu",
        "1 x trainer  on cpu",
        "actors == inference/main (shm) ==> policy workers main",
        "trainer main -- parameters/main (shm) --> policy workers main",
        "actors -- samples/main (shm) --> trainer main",
        "block: 32 + 1 rows x 16 lanes",
        "batch: 2 blocks = 1024 rows",
        "samples/main:",
        "stops at: env-steps 150000",
    ):
        assert line in outcome.out
    assert list(Path.cwd().iterdir()) == []


def test_train_help_lists_every_option(srl: Any) -> None:
    outcome = srl("train", "cartpole", "--help")
    assert outcome.code == 0
    for option in (
        *("--launcher", "--out", "--seed", "--actors.count", "--actors.envs", "--actors.groups"),
        *("--policies.count", "--trainers.count", "--inference", "--samples", "--max-staleness"),
        *("--stop.env-steps", "--stop.seconds", "--stop.return", "--checkpoint.seconds"),
        *("--trainers.device", "--policies.device", "--threads", "--env.options"),
        *("--env.wrappers", "--init-from", "--algorithm.learning-rate", "--allocator"),
        *("--actors.threads", "--policies.threads", "--trainers.threads"),
    ):
        assert f"{option} " in outcome.out, option
    assert "--stop.return_" not in outcome.out
    assert list(Path.cwd().iterdir()) == []


def test_inspect_says_what_a_checkpoint_holds(srl: Any, finished: Path) -> None:
    outcome = srl("inspect", finished)
    assert outcome.code == 0
    for words in (
        "whole (checksum verified)",
        "restored:",
        "not restored:",
        "trainer-0",
        "learner.weights/policy_head.logits.weight float32[8, 2]",
    ):
        assert words in outcome.out
    alone = srl("inspect", state_of(finished).parent).out
    assert outcome.out.endswith(f"newest\n\n{alone}")


def checkpointed(folder: Path) -> Path:
    """A finished inline run with a checkpoint every tenth of a second: 100 episodes and more."""
    words = ["train", FAULTY, "--launcher", "inline", "--out", str(folder), "--seed", "3"]
    words += [
        "--checkpoint.seconds",
        "0.1",
        "--checkpoint.keep",
        "1000",
        "--stop.env-steps",
        "4000",
    ]
    assert cli.main([*words, "--evaluation.episodes", "0"]) == 0
    return folder


@pytest.fixture(scope="module")
def often(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpointed(tmp_path_factory.mktemp("often") / "run")


def test_inspect_lists_every_checkpoint_of_a_run(srl: Any, often: Path) -> None:
    paths = list_checkpoints(often / "checkpoints")
    out = srl("inspect", often, "--verify").out
    head, columns, *rows = out.splitlines()[: len(paths) + 2]
    assert head == f"{len(paths)} checkpoints in {often / 'checkpoints'}:"
    assert columns.split() == [
        *("checkpoint", "versions", "env", "steps", "MB", "written", "format", "return")
    ]
    for path, row in zip(paths, rows, strict=True):
        manifest = read_manifest(path)
        name, version, env_steps, *_ = row.split()
        steps = manifest["progress"]["totals"]["env_steps"]
        assert (name, version, env_steps) == (path.name, str(manifest["version"]), str(steps))
        assert row.endswith("verified")
    assert rows[-1].endswith("10.0 (episodes)  newest, best, verified")  # of equals the newest
    summary = json.loads((often / "summary.json").read_text())["checkpoints"]
    assert (summary["best"], summary["best_return"]) == (paths[-1].name, 10.0)
    # more than there are where the last one replaced a periodic one of the same version
    assert summary["written"] == read_manifest(paths[-1])["serial"] >= len(paths)
    assert summary["failed"] == 0


def test_inspect_names_the_checkpoints_that_are_damaged(
    srl: Any, refuses: Any, often: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(often, tmp_path / "copy")
    first, second, *_ = list_checkpoints(copy / "checkpoints")
    state = first / "state-inline.safetensors"
    state.write_bytes(state.read_bytes()[:-1])
    assert srl("inspect", copy).code == 0  # the newest is whole
    outcome = srl("inspect", copy, "--verify")
    assert outcome.code == 2
    assert f"are damaged: {first.name}\n" in outcome.err
    assert "is truncated" in outcome.err
    assert f"{second.name}" in outcome.err
    (first / "manifest.json").write_text('{"format": 2}')
    assert str(first) in refuses("inspect", copy)  # it might be the newest


@pytest.mark.parametrize("option", [("--from", "VERSION"), ("--from=VERSION",)])
def test_run_goes_on_from_an_older_checkpoint(
    srl: Any, often: Path, tmp_path: Path, option: tuple[str, ...]
) -> None:
    copy = shutil.copytree(often, tmp_path / "copy")
    first, *_, last = list_checkpoints(copy / "checkpoints")
    version, serial = read_manifest(first)["version"], read_manifest(last)["serial"]
    words = [word.replace("VERSION", str(version)) for word in option]
    outcome = srl("resume", copy, *words, "--stop.env-steps", "4000", "--checkpoint.keep", "3")
    assert outcome.code == 0
    rows = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    assert [row["version"] for row in rows] == list(range(1, len(rows) + 1))
    whole = [json.loads(line) for line in (often / "metrics.jsonl").read_text().splitlines()]
    assert [row | {"time": None} for row in rows] == [row | {"time": None} for row in whole]
    # those of the future it left go as it writes its own: it is not resumed from there
    newest = list_checkpoints(copy / "checkpoints")[-1]
    assert read_manifest(newest)["serial"] > serial


def test_run_goes_on_from_its_best_checkpoint(srl: Any, often: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(often, tmp_path / "copy")
    assert srl("resume", copy, "--from", "best", "--stop.env-steps", "4100").code == 0


@pytest.mark.parametrize("name", ["4321", "bset", "-1", ""])
def test_checkpoint_that_is_not_there_is_refused(refuses: Any, often: Path, name: str) -> None:
    message = refuses("resume", often, f"--from={name}")
    assert f"there is no checkpoint {name!r}" in message
    assert "latest, best, and those of versions " in message


def test_run_without_a_best_checkpoint_says_so(refuses: Any, finished: Path) -> None:
    assert "there is no checkpoint 'best'" in refuses("resume", finished, "--from", "best")
    assert "--from needs a value" in refuses("resume", finished, "--from")


def test_eval_plays_the_newest_checkpoint(srl: Any, finished: Path) -> None:
    outcome = srl("eval", finished, "--episodes", "7")
    assert outcome.code == 0
    expected = {"eval_return": 10.0, "episodes": 7, "lowest": 10.0, "highest": 10.0}
    assert json.loads(outcome.out) == expected


@pytest.mark.parametrize("words", [("--episodes", "few"), ("--episodes",), ("--speed", "2")])
def test_eval_with_bad_options_is_refused(
    refuses: Any, finished: Path, words: tuple[str, ...]
) -> None:
    assert words[0] in refuses("eval", finished, *words)


def test_resume_goes_on_with_changed_options(srl: Any, copy: Path) -> None:
    words = ("--stop.env-steps", "900", "--algorithm.learning-rate", "0.0001")
    outcome = srl("resume", copy, *words)
    assert outcome.code == 0
    assert json.loads(outcome.out.splitlines()[-1])["env_steps"] >= 900
    config = json.loads((copy / "config.json").read_text())
    assert config["algorithm"]["learning_rate"] == 0.0001


@pytest.mark.parametrize("family", catalog.ENVS)
def test_every_env_family_of_the_catalogue_is_there(family: str) -> None:
    from srl.core.names import load_object

    assert hasattr(load_object(catalog.ENVS[family]), "make_batch")


# --- sinks


def test_wandb_that_is_not_installed_is_refused(refuses: Any) -> None:
    if importlib.util.find_spec("wandb"):
        pytest.skip("wandb is installed")
    assert "pip install wandb" in refuses("train", "cartpole", "--metrics.wandb", "project")


def test_prometheus_port_in_use_is_refused(refuses: Any) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        message = refuses("train", "cartpole", "--metrics.prometheus-port", port)
    assert f"metrics.prometheus-port {port} of 127.0.0.1 cannot be opened" in message


def test_prometheus_endpoint_lives_as_long_as_the_run(srl: Any) -> None:
    words = ("--launcher", "inline", "--stop.env-steps", "500", "--metrics.prometheus-port", "0")
    outcome = srl("train", FAULTY, *words)
    assert outcome.code == 0
    assert "metrics for Prometheus: http://127.0.0.1:" in outcome.out + outcome.err
    names = [thread.name for thread in threading.enumerate()]
    assert not any("serve_forever" in name for name in names)


# --- doctor and runs that are running or dead


def test_doctor_finds_nothing_in_an_empty_folder(srl: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("srl.tools.doctor.dead_socket_folders", list)
    outcome = srl("doctor")
    lines = outcome.out.splitlines()
    assert all(line.startswith(("ok ", "note ", "attention ")) for line in lines)
    assert outcome.code == int(any(line.startswith("attention") for line in lines))
    assert "ok         leftovers: none" in lines


def test_doctor_turns_a_dead_run_into_a_failed_one(srl: Any, copy: Path) -> None:
    kill(copy)
    outcome = srl("doctor", copy.parent)
    assert outcome.code == 1
    assert f"{copy} said it was running; now it says failed" in outcome.out
    summary = json.loads((copy / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["env_steps"] >= 500
    assert "died without a word" in summary["reason"]


@pytest.mark.parametrize("words", [("--swep",), ("nowhere",)])
def test_doctor_with_bad_arguments_is_refused(refuses: Any, words: tuple[str, ...]) -> None:
    assert words[0] in refuses("doctor", *words)


def test_resume_of_a_running_run_is_refused(refuses: Any, copy: Path) -> None:
    running = RunFolder(copy)
    running.lock()
    before = (copy / "summary.json").read_text()
    assert f"{copy} is being run by process " in refuses("resume", copy)
    running.unlock()
    assert (copy / "summary.json").read_text() == before


def test_resume_of_a_dead_run_goes_on(srl: Any, copy: Path) -> None:
    kill(copy)
    assert srl("resume", copy, "--stop.env-steps", "900").code == 0
    assert json.loads((copy / "summary.json").read_text())["status"] == "completed"


def kill(run: Path) -> None:
    """Leave the run as a controller that was killed does."""
    summary = json.loads((run / "summary.json").read_text())
    facts = {"status": "running", "env_steps": 0}
    (run / "summary.json").write_text(json.dumps(summary | facts))


# --- check-env


def test_check_env_of_a_sound_env_exits_0(srl: Any) -> None:
    outcome = srl("check-env", "toy/identity", "--env.options", '{"agents": 2}')
    assert outcome.code == 0
    for line in ("ok         playing", "ok         save and load", "ok         sets of agents"):
        assert line in outcome.out
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_check_env_of_a_faulty_env_exits_3(srl: Any, fault: str) -> None:
    options = json.dumps({"fault": fault, "after": 20})
    outcome = srl("check-env", FAULTY, "--env.options", options)
    assert outcome.code == 3
    (problem,) = (line for line in outcome.out.splitlines() if line.startswith("problem"))
    assert problem.startswith("problem    playing: ")
    assert_names_the_env(problem, fault)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gym/CartPol-v1", "did you mean 'CartPole-v1'?"),
        ("cartpool", "did you mean 'cartpole'?"),
        ("nowhere.py:Env", "there is no file 'nowhere.py'"),
        ("gin/Tonic", "unknown env 'gin/Tonic'"),
    ],
)
def test_check_env_of_an_env_that_is_not_there_is_refused(
    refuses: Any, name: str, words: str
) -> None:
    assert words in refuses("check-env", name)
