"""`srl bench peers` with fake peers: small scripts in real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from srl.core.errors import ConfigError
from srl.tools.bench import peers
from srl.tools.bench.command import find
from srl.tools.bench.peer_environments import Environments
from srl.tools.bench.peer_results import Results, median, ratio_of
from srl.tools.bench.peer_settings import default_folder, read_settings
from srl.tools.bench.peer_windows import WindowError, run_window
from srl.tools.bench.peers import Comparison, Protocol
from srl.tools.bench.workloads import WORKLOADS

PROTOCOL = Protocol(screen_seconds=0.1, window_seconds=0.2, rounds=2, limit_seconds=60)

STEADY = """
import argparse, json, pathlib
p = argparse.ArgumentParser()
p.add_argument("--rate", type=float); p.add_argument("--say"); p.add_argument("--log")
a, _ = p.parse_known_args()
with open(a.log, "a") as f: f.write(a.say + "\\n")
print("starting")
print(json.dumps({"steps_s": a.rate, "iters": 3}))
"""


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """Environments are made once for all tests: an empty one takes seconds."""
    return tmp_path_factory.mktemp("cache")


class Fakes:
    """A folder of peers, what runs of it logged, and how to run it."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder, self.cache = folder, cache
        self.log = folder / "log"
        self.sides = {}
        self.settings = {}
        self.variants = {"own": {"about": "as they come"}}
        self.environments = {"bare": []}

    def side(self, name, *rates, script=STEADY, environment="bare", **more):
        (self.folder / f"run_{name}.py").write_text(script)
        self.sides[name] = {"name": name, "environment": environment, "script": f"run_{name}.py"}
        self.settings[name] = [
            {"label": f"at {rate}", "args": self.args(name, rate), **more} for rate in rates
        ]

    def args(self, name, rate):
        return f"--rate {rate} --say {name}-{rate} --log {self.log}"

    def write(self):
        self.log.write_text("")
        workload = {"settings": self.settings, "variants": self.variants}
        whole = {
            "constraints": [],
            "environments": self.environments,
            "sides": self.sides,
            "workloads": {"toy": workload},
        }
        (self.folder / "settings.json").write_text(json.dumps(whole))

    def run(self, *, again=False, protocol=PROTOCOL, **more):
        self.write()
        settings = read_settings(self.folder)
        comparison = Comparison(
            "toy",
            settings,
            folder=self.folder,
            environments=Environments(settings, self.folder, self.cache, lambda _: None),
            results=Results(self.folder / "toy.json", "toy", again=again),
            protocol=protocol,
            **more,
        )
        return comparison.run()

    @property
    def ran(self):
        return self.log.read_text().split()

    @property
    def windows(self):
        return json.loads((self.folder / "toy.json").read_text())["windows"]


@pytest.fixture
def fakes(tmp_path, cache):
    made = Fakes(tmp_path, cache)
    made.side("srl", 300, 600)
    return made


@pytest.mark.slow
def test_screens_all_then_plays_rounds_in_turn_with_the_best_two(fakes):
    fakes.side("slow", 100)
    fakes.side("fast", 50, 200)
    fakes.side("mid", 150)
    found = fakes.run()["own"]["sides"]
    screened = ["srl-300", "srl-600", "slow-100", "fast-50", "fast-200", "mid-150"]
    assert fakes.ran == screened + ["srl-600", "fast-200", "mid-150"] * 2
    assert found["fast"]["ours_over_it"]["ratios"] == [3.0, 3.0]
    assert found["mid"]["ours_over_it"]["median"] == 4.0
    assert found["srl"]["median"] == 600
    assert found["srl"]["screened"] == {"at 600": 600.0, "at 300": 300.0}
    assert found["slow"]["screen"] == 100
    assert "ours_over_it" not in found["slow"]


def test_a_second_call_measures_what_is_missing(fakes):
    fakes.side("one", 200)
    fakes.run(protocol=Protocol(screen_seconds=0.1, window_seconds=0.2, rounds=1))
    assert len(fakes.ran) == 5
    again = fakes.run()
    assert fakes.ran == ["srl-600", "one-200"]
    assert again["own"]["sides"]["one"]["ours_over_it"]["ratios"] == [3.0, 3.0]
    fakes.run()
    assert fakes.ran == []
    assert len(fakes.windows) == 7
    assert [w.get("round") for w in fakes.windows if w["stage"] == "round"] == [0, 0, 1, 1]
    fakes.run(again=True)
    assert len(fakes.ran) == len(fakes.windows) == 7


def test_a_run_broken_off_keeps_its_windows(fakes, monkeypatch):
    fakes.side("one", 200)
    calls = []

    def until_the_third(*args, **more):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return run_window(*args, **more)

    monkeypatch.setattr(peers, "run_window", until_the_third)
    with pytest.raises(KeyboardInterrupt):
        fakes.run()
    assert len(fakes.windows) == 2
    fakes.run()
    assert fakes.ran == ["one-200"] + ["srl-600", "one-200"] * 2


@pytest.mark.slow
def test_windows_of_other_code_or_another_host_are_in_no_ratio(fakes, monkeypatch):
    fakes.side("one", 200)
    fakes.run()
    monkeypatch.setattr(peers, "code_digest", lambda: "other code")
    fakes.run()
    # The peer's screening does not depend on our code; ours does, and so do all rounds.
    assert fakes.ran == ["srl-300", "srl-600"] + ["srl-600", "one-200"] * 2
    facts = peers.host()
    monkeypatch.setattr(peers, "host", lambda: {**facts, "cpu": "another"})
    found = fakes.run()
    assert len(fakes.ran) == 7
    assert found["own"]["host"].startswith("another, ")
    assert found["own"]["sides"]["one"]["ours_over_it"]["ratios"] == [3.0, 3.0]
    assert {w["host"].split(",")[0] for w in fakes.windows} == {"another", facts["cpu"]}


@pytest.mark.slow
def test_a_changed_setting_is_measured_anew(fakes):
    fakes.side("one", 200)
    fakes.run()
    fakes.side("one", 400)
    found = fakes.run()
    assert fakes.ran == ["one-400"] * 3
    assert found["own"]["sides"]["one"]["ours_over_it"]["ratios"] == [1.5, 1.5]


@pytest.mark.slow
def test_a_peer_that_does_not_install_is_recorded_and_skipped(fakes):
    fakes.environments["broken"] = [["pip", "--no-index", "no-such-package-of-srl"]]
    fakes.side("one", 200)
    fakes.side("two", 300, 500, environment="broken")
    found = fakes.run()["own"]["sides"]
    assert "two-300" not in fakes.ran
    assert found["two"]["failed"].startswith("not installed: ")
    assert "no-such-package-of-srl" in found["two"]["failed"]
    assert found["one"]["ours_over_it"]["ratios"] == [3.0, 3.0]
    assert [w["failed"] for w in fakes.windows if w["side"] == "two"] == [
        found["two"]["failed"]
    ] * 2


@pytest.mark.slow
def test_a_peer_that_hangs_is_ended_and_recorded(fakes):
    pid = fakes.folder / "pid"
    hang = f"import os, time; print('still here', flush=True)\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\n"
    fakes.side("one", 200, script=hang + "time.sleep(600)")
    found = fakes.run(protocol=Protocol(screen_seconds=0.1, rounds=1, limit_seconds=5))
    assert found["own"]["sides"]["one"]["failed"] == "no rate within 5 s: still here"
    assert not Path(f"/proc/{pid.read_text()}").exists()


def test_sigterm_ends_the_window_too(fakes):
    pid = fakes.folder / "pid"
    hang = f"import os, time\nopen({str(pid)!r} + '-', 'w').write(str(os.getpid()))\n"
    hang += f"os.rename({str(pid)!r} + '-', {str(pid)!r})\ntime.sleep(600)"
    fakes.side("srl", 1, script=hang)
    fakes.write()
    code = "import sys; from srl.tools.bench import peers; sys.exit(peers.main(sys.argv[1:]))"
    options = ["--scripts", fakes.folder, "--cache", fakes.cache, "--out", fakes.folder]
    command = [sys.executable, "-c", code, "toy", *map(str, options)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as bench:
        deadline = time.monotonic() + 90
        while not pid.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        bench.send_signal(signal.SIGTERM)
        assert bench.wait(60) != 0
    assert not Path(f"/proc/{pid.read_text()}").exists()


def test_a_peer_that_fails_says_why(fakes):
    fakes.side("one", 200, script="import sys; sys.exit('no display')")
    found = fakes.run()
    assert found["own"]["sides"]["one"]["failed"] == "ended with 1: no display"
    assert fakes.ran == ["srl-300", "srl-600", "srl-600", "srl-600"]


CHILDREN = """
import json, os, signal, subprocess, sys, time
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
keep = "import time; time.sleep(600)"
shell = [sys.executable, "-c", f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {keep!r}], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)"]
orphan = int(subprocess.run(shell, capture_output=True, check=True).stdout)
child = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.read(1)
open(f"/dev/shm/torch_{os.getpid()}_1_2", "w").close()
print(json.dumps({"steps_s": 1, "pids": [os.getpid(), orphan, child.pid]}), flush=True)
time.sleep(600)
"""


def test_what_a_peer_leaves_behind_is_ended(tmp_path):
    script = tmp_path / "children.py"
    script.write_text(CHILDREN)
    found = run_window([sys.executable, str(script)], {}, limit=60)
    assert len(found["pids"]) == 3
    assert [pid for pid in found["pids"] if Path(f"/proc/{pid}").exists()] == []
    assert not Path(f"/dev/shm/torch_{found['pids'][0]}_1_2").exists()


def test_other_children_of_this_process_are_spared(tmp_path):
    script = tmp_path / "peer.py"
    script.write_text("print('{\"steps_s\": 5}')")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as mine:
        assert run_window([sys.executable, str(script)], {}, limit=60) == {"steps_s": 5}
        assert mine.poll() is None
        mine.communicate(b"\n")
    assert mine.returncode == 0


def test_windows_get_their_own_variables_only(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    script = tmp_path / "peer.py"
    script.write_text("import json, os; print(json.dumps({'steps_s': 5, **os.environ}))")
    found = run_window([sys.executable, str(script)], {"GOMP_SPINCOUNT": "0"}, limit=60)
    assert found["GOMP_SPINCOUNT"] == "0"
    assert "OMP_NUM_THREADS" not in found
    assert not Path(found["TMPDIR"]).exists()


def test_a_line_without_a_rate_is_no_result(tmp_path):
    script = tmp_path / "peer.py"
    script.write_text("print('{\"steps\": 5}'); print('{not json'); print('[1]')")
    with pytest.raises(WindowError, match="ended with 0"):
        run_window([sys.executable, str(script)], {}, limit=60)


def test_a_rate_of_nothing_is_no_rate(tmp_path):
    script = tmp_path / "peer.py"
    script.write_text("print('{\"steps_s\": 0}')")
    with pytest.raises(WindowError, match="no step was learned from"):
        run_window([sys.executable, str(script)], {}, limit=60)


@pytest.mark.slow
def test_variants_change_both_sides_and_keep_the_finalists(fakes):
    fakes.side("fast", 200)
    fakes.side("mid", 150)
    ours = [{"label": "fp32", "args": fakes.args("srl", 400)}]
    fakes.variants["equal"] = {
        "about": "equal",
        "env": {"MALLOC_TOP_PAD_": "1"},
        "peers": ["fast"],
        "args": {"fast": "--rate 250 --say fast-equal"},
        "settings": {"srl": ours},
    }
    found = fakes.run()
    assert fakes.ran[-4:] == ["srl-400", "fast-equal"] * 2  # one setting each: nothing to screen
    assert list(found["equal"]["sides"]) == ["srl", "fast"]
    assert found["equal"]["sides"]["fast"]["ours_over_it"]["ratios"] == [1.6, 1.6]
    equal = [w for w in fakes.windows if w["variant"] == "equal"]
    assert [w["env"] for w in equal] == [{"MALLOC_TOP_PAD_": "1"}] * 4
    assert found["own"]["sides"]["fast"]["ours_over_it"]["ratios"] == [3.0, 3.0]


@pytest.mark.slow
def test_a_variant_can_be_left_for_later(fakes):
    fakes.side("one", 200)
    fakes.variants["equal"] = {"about": "equal", "env": {"A": "1"}}
    fakes.run(variants=["own"])
    assert len(fakes.ran) == 7
    fakes.run(variants=["equal"])
    assert fakes.ran == ["srl-600", "one-200"] * 2
    kept = json.loads((fakes.folder / "toy.json").read_text())["summary"]
    assert list(kept) == ["own", "equal"]


def test_ratios_are_those_of_each_round():
    # Logarithms ln 2, ln 2, 2 ln 2: mean 4/3 ln 2, deviation ln 2 / sqrt 3, so the half width is
    # 4.303 ln 2 / 3: from 2 ** (4/3 - 1.4343) to 2 ** (4/3 + 1.4343).
    found = ratio_of([2.0, 4.0, 8.0], [1.0, 2.0, 2.0])
    assert found["ratios"] == [2.0, 2.0, 4.0]
    assert found["median"] == 2.0
    assert found["interval"] == pytest.approx((0.9324, 6.8101), abs=2e-3)


def test_rounds_with_a_side_missing_count_for_nothing():
    assert ratio_of([2.0, None, 6.0], [1.0, 1.0, None]) == {
        "ratios": [2.0],
        "median": 2.0,
        "interval": None,
    }
    assert ratio_of([None], [1.0])["median"] is None
    assert median([None, 3.0, 1.0]) == 2.0


def test_equal_ratios_have_a_narrow_interval():
    assert ratio_of([3.0, 6.0], [2.0, 4.0])["interval"] == (1.5, 1.5)


def test_bad_input_is_refused(fakes, tmp_path):
    with pytest.raises(ConfigError, match="'nobody' is not of this workload"):
        fakes.run(peers=["nobody"])
    with pytest.raises(ConfigError, match=r"'pong'.*there are toy"):
        peers.main(["pong", "--scripts", str(fakes.folder)])
    with pytest.raises(ConfigError, match="unknown option --fast"):
        peers.main(["toy", "--scripts", str(fakes.folder), "--fast"])
    (tmp_path / "toy.json").write_text("{")
    with pytest.raises(ConfigError, match="--again begins it anew"):
        fakes.run()


def test_the_command_writes_json_table_and_plot(fakes, capsys):
    fakes.side("one", 200, note="not the same work")
    with pytest.raises(ConfigError, match="a checkout"):
        peers.main(["toy", "--scripts", str(fakes.folder)])
    fakes.run(protocol=Protocol(screen_seconds=1, window_seconds=2, rounds=1))
    options = ["--scripts", str(fakes.folder), "--cache", str(fakes.cache), "--window", "2"]
    options += ["--out", str(fakes.folder), "--screen-window", "1", "--rounds", "1"]
    assert peers.main(["toy", *options]) == 0
    printed = capsys.readouterr().out
    assert "3.00" in printed
    assert "as they come" in printed
    assert (fakes.folder / "toy-own.svg").read_text().startswith("<svg")


def test_the_committed_settings_are_whole():
    folder = default_folder()
    settings = read_settings(folder)
    assert set(settings.workloads) == {name for name, w in WORKLOADS.items() if w.env}
    for side in settings.sides.values():
        assert (folder / side.script).is_file()
    for steps in settings.environments.values():
        assert all((folder / words[0]).is_file() for kind, *words in steps if kind == "run")
        assert steps[0] == ("pip", "torch==2.13.0")


def test_the_committed_settings_do_the_work_of_the_workload():
    for name, how in read_settings(default_folder()).workloads.items():
        workload = WORKLOADS[name]
        for side, tried in how.settings.items():
            for words in (setting.words for setting in tried):
                asked = dict(pairwise(words))
                if side in ("srl", "rllib_appo", "rllib_impala"):
                    continue  # ours takes the workload's own numbers; these two have no epochs
                if side == "sample_factory":
                    assert f"--num_epochs={workload.epochs}" in words
                    assert f"--batch_size={workload.minibatch}" in words
                    continue
                assert asked["--env"] == workload.env
                assert asked["--epochs"] == str(workload.epochs)
                assert asked["--mb"] == str(workload.minibatch)


@pytest.mark.parametrize("name", ["pong-4", "pong-1", "cartpole-gym"])
def test_the_committed_settings_of_ours_are_options_that_there_are(name):
    how = read_settings(default_folder()).workloads[name]
    every = [how.settings, *(variant.settings for variant in how.variants.values())]
    for setting in [setting for settings in every for setting in settings.get("srl", ())]:
        experiment = find(name, setting.words)
        assert experiment.algorithm.minibatch_size == WORKLOADS[name].minibatch
        assert experiment.algorithm.epochs == WORKLOADS[name].epochs
        # every side chooses its number of envs, as many steps of each are a batch
        envs = experiment.actors.count * experiment.actors.envs
        assert experiment.algorithm.rollout == WORKLOADS[name].rollout
        assert experiment.algorithm.batch_size == envs * WORKLOADS[name].rollout


def test_busy_cores_is_a_number_of_cores():
    assert 0 <= peers.busy_cores() <= (os.cpu_count() or 1)
