import json
import resource
import shutil
import tempfile
import tomllib
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from srl.launch.folder import RunFolder
from srl.launch.host.owner import this_process, write_owner
from srl.tools import doctor
from srl.tools.doctor import EXTRAS, examine, leftovers
from srl.tools.leftovers import dead_socket_folders, sweep

ROOT = Path(__file__).parent.parent.parent


def die(path):
    """Write down an owner that is dead."""
    path.write_text(json.dumps(asdict(replace(this_process(), started=1))))


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """A TMPDIR of this test's own, short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="srlt-"))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def made(place, name, *, controller=None, agent=None):
    folder = place / name
    folder.mkdir()
    for write, file in ((controller, "controller.json"), (agent, "node-agent.json")):
        if write:
            write(folder / file)
    return folder


def mine(folders, place):
    """Those of this test: /tmp may hold others'."""
    return [folder for folder in folders if folder.parent == place]


def test_every_extra_is_known_to_doctor():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"]) - {"dev"}


def test_examine_has_a_line_for_everything():
    findings = {finding.about: finding for finding in examine()}
    assert {
        *("python", "srl", "packages", "extras", "gpu", "cores", "memory", "shared memory"),
        *("descriptors", "sockets", "malloc"),
    } <= set(findings)
    assert "torch 2." in findings["packages"].words
    assert findings["shared memory"].level == "ok"
    assert findings["sockets"].level == "ok"


def test_package_that_is_too_old_needs_attention(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.0.1")
    findings = {finding.about: finding for finding in examine()}
    assert str(findings["numpy"]).startswith("attention  numpy: 0.0.1 is installed, SRL needs num")
    assert findings["packages"].level == "note"


def test_package_versions_are_compared_as_numbers():
    assert doctor._numbers("2.13.0+cpu") > doctor._numbers("2.4")
    assert doctor._parse("gymnasium[mujoco]>=1.1") == ("gymnasium", "1.1")
    assert doctor._parse("numpy") == ("numpy", "0")


def test_few_descriptors_need_attention(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    findings = {finding.about: finding for finding in examine()}
    assert findings["descriptors"].level == "attention"
    assert "ulimit -n 4096" in findings["descriptors"].words


def test_long_tmpdir_is_noted(tmp_path, monkeypatch):
    long = tmp_path / ("long" * 20)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    findings = {finding.about: finding for finding in examine()}
    assert findings["sockets"].level == "note"
    assert "too long for the path of a socket: /tmp is used" in findings["sockets"].words


def test_quota_below_the_cores_is_noted(monkeypatch):
    monkeypatch.setattr(doctor, "cpu_quota", lambda: 0.5)
    findings = {finding.about: finding for finding in examine()}
    assert "the cgroup allows only 0.5 at a time" in findings["cores"].words


def test_socket_folder_is_dead_only_where_every_owner_is(temporary):
    made(temporary, "srl-live", controller=write_owner, agent=write_owner)
    made(temporary, "srl-agent-lives", controller=die, agent=write_owner)
    made(temporary, "srl-starting", controller=write_owner)
    made(temporary, "srl-thesis")
    made(temporary, "other", controller=die)
    dead = [made(temporary, "srl-a", controller=die, agent=die)]
    dead += [made(temporary, "srl-b", agent=die)]
    (temporary / "srl-link").symlink_to(dead[0])
    assert mine(dead_socket_folders(), temporary) == dead


def test_sweep_removes_the_dead_and_nothing_else(temporary):
    live = made(temporary, "srl-live", controller=write_owner)
    dead = made(temporary, "srl-dead", controller=die)
    assert sweep([live, dead]) == [dead]
    assert [folder.name for folder in temporary.iterdir()] == ["srl-live"]


def test_leftovers_are_listed_then_swept(temporary, monkeypatch):
    dead = made(temporary, "srl-dead", controller=die)
    monkeypatch.setattr(doctor, "dead_socket_folders", lambda: [dead] if dead.exists() else [])
    (finding,) = leftovers([], is_sweeping=False)
    assert finding.level == "attention"
    assert "'srl doctor --sweep' removes it" in finding.words
    assert dead.exists()
    first, last = leftovers([], is_sweeping=True)
    assert first.words.startswith(f"removed {dead}")
    assert (last.level, last.words) == ("ok", "none")
    assert not dead.exists()


def test_runs_that_died_are_found_three_levels_down(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "dead_socket_folders", list)
    folders = [RunFolder.create(tmp_path / "runs" / "cartpole" / name) for name in "abc"]
    for folder in folders:
        folder.write("config.json", {})
        folder.write("summary.json", {"status": "running"})
    folders[1].lock()
    (folders[2].path / "summary.json").write_text("{")
    findings = list(leftovers([tmp_path / "runs"], is_sweeping=False))
    assert [finding.level for finding in findings] == ["attention", "attention"]
    assert f"{folders[0].path} said it was running; now it says failed" in findings[0].words
    assert "cannot be read" in findings[1].words
    folders[1].unlock()
    assert [f.read("summary.json")["status"] for f in folders[:2]] == ["failed", "running"]
    (nothing,) = leftovers([tmp_path / "nowhere"], is_sweeping=False)
    assert nothing.level == "ok"
