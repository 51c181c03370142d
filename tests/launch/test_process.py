"""Allocator and threads of the processes that compute."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from srl.launch.host.process import thread_environment, use_threads

FAULTS = """
import resource, sys
from srl.launch.host.process import use_allocator
assert use_allocator(sys.argv[1]) is (sys.argv[1] == "tuned")
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    bytearray(48 << 20)  # above what malloc keeps by itself
before = faults()
for _ in range(20):
    bytearray(48 << 20)
print(faults() - before)
"""


def faults(allocator: str) -> int:
    result = subprocess.run(
        [sys.executable, "-c", FAULTS, allocator], check=True, capture_output=True, text=True
    )
    return int(result.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_tuned_allocator_takes_no_new_pages_for_large_arrays() -> None:
    by_default = faults("default")
    assert by_default >= 20 * 24  # each array anew: pages of 4 KB, or of 2 MB where those are used
    assert faults("tuned") < by_default / 10


def test_environment_names_the_threads_and_keeps_what_the_user_chose() -> None:
    mine = {"HOME": "/here", "OMP_NUM_THREADS": "7", "OMP_WAIT_POLICY": "ACTIVE"}
    found = thread_environment(3, mine)
    assert found["OMP_NUM_THREADS"] == found["MKL_NUM_THREADS"] == "3"
    assert found["OPENBLAS_NUM_THREADS"] == "3"
    assert (found["HOME"], found["OMP_WAIT_POLICY"]) == ("/here", "ACTIVE")
    assert thread_environment(1, {})["OMP_WAIT_POLICY"] == "PASSIVE"


def test_torch_computes_with_the_threads_it_is_told() -> None:
    before = torch.get_num_threads()
    try:
        use_threads(before + 1)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_every_kind_of_worker_has_its_own_threads(start_run: Any) -> None:
    run = start_run(
        *("cartpole", "--launcher", "local", "--inference", "shm", "--threads", "2"),
        *("--actors.threads", "1", "--policies.threads", "3"),
    )
    run.wait_for_rows(1)
    for worker, threads in (("actor-0", 1), ("policy-0", 3), ("trainer-0", 2)):
        environment = (Path("/proc") / str(run.pid_of(worker)) / "environ").read_bytes()
        assert f"OMP_NUM_THREADS={threads}".encode() in environment.split(b"\0"), worker
