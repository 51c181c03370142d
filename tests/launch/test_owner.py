import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from srl.launch.host.owner import is_alive, read_owner, this_process, write_owner


def write(path, **changes):
    """Write down this process, in parts another one."""
    path.write_text(json.dumps(asdict(replace(this_process(), **changes))))


def test_owner_that_lives_is_alive(tmp_path):
    write_owner(tmp_path / "owner.json")
    assert read_owner(tmp_path / "owner.json") == this_process()
    assert is_alive(tmp_path / "owner.json")
    assert os.listdir(tmp_path) == ["owner.json"]


def test_owner_that_ended_is_dead(tmp_path):
    path = tmp_path / "owner.json"
    program = f"from pathlib import Path; from srl.launch.host.owner import *; write_owner(Path({str(path)!r}))"
    child = subprocess.Popen([sys.executable, "-c", program])
    child.wait(timeout=60)
    assert read_owner(path).pid == child.pid
    assert not is_alive(path)


def test_owner_that_is_a_zombie_is_dead(tmp_path):
    path = tmp_path / "owner.json"
    program = f"from pathlib import Path; from srl.launch.host.owner import *; write_owner(Path({str(path)!r})); print()"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
        assert child.stdout.read()  # to its end: the child has closed everything
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not is_alive(path)


def test_owner_whose_pid_is_used_again_is_dead(tmp_path):
    write(tmp_path / "owner.json", started=this_process().started - 1)
    assert not is_alive(tmp_path / "owner.json")


def test_owner_before_a_reboot_is_dead(tmp_path):
    write(tmp_path / "owner.json", boot="another")
    assert not is_alive(tmp_path / "owner.json")


@pytest.mark.parametrize(
    "elsewhere", [{"host": "elsewhere", "boot": "another"}, {"namespace": "pid:[1]"}]
)
def test_owner_that_cannot_be_seen_counts_as_alive(tmp_path, elsewhere):
    write(tmp_path / "owner.json", pid=2**22 + 1, **elsewhere)
    assert is_alive(tmp_path / "owner.json")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": "x"}'])
def test_owner_that_cannot_be_read_is_none(tmp_path, text):
    (tmp_path / "owner.json").write_text(text)
    assert read_owner(tmp_path / "owner.json") is None
    assert not is_alive(tmp_path / "owner.json")
    assert not is_alive(tmp_path / "nowhere.json")
