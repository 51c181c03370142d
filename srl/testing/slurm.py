"""A Slurm cluster of one node, from Debian's packages: a world of its own on this machine. Needs root.

Its daemons and jobs are in namespaces of their own (processes, network, name), so nothing else of this machine
is seen, reached or ended by them (`ray stop` ends every Ray it sees), and nothing outlives them.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_NEEDS = {
    "munged": "munge",
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "sbatch": "slurm-wlm",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_START_SECONDS = 60.0
_CONFIG = """\
ClusterName=srl
SlurmctldHost=node
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd.log
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
KillWait=30
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
NodeName=node CPUs={cores} RealMemory=4000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES PriorityTier=1 GraceTime=120
PartitionName=urgent Nodes=ALL PriorityTier=2
"""
# names are looked up only where there is a network besides loopback
_DAEMONS = """\
set -e
hostname node
mount --bind "$0/hosts" /etc/hosts
ip link set lo up
ip link add eth0 type veth peer name eth1
ip addr add 10.77.0.1/24 dev eth0
ip link set eth0 up
ip link set eth1 up
munged --foreground --force --key-file "$0/munge/key" --socket "$0/munge/socket" \\
    --pid-file "$0/munge/pid" --log-file "$0/munge/log" --seed-file "$0/munge/seed" &
until [ -S "$0/munge/socket" ]; do sleep 0.1; done
slurmctld -D -c &
slurmd -D &
wait -n
"""


def missing_for_slurm() -> str | None:
    """What a cluster cannot be started for, and what to do; None where it can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "a Slurm of one's own needs root"
    found = {name for name in _NEEDS if shutil.which(name, path=_PATH)}
    packages = sorted({package for name, package in _NEEDS.items() if name not in found})
    return f"missing here: apt-get install {' '.join(packages)}" if packages else None


class Slurm:
    """One node, called `node`, with so many cores (which it may not have, but nobody counts)."""

    def __init__(self, cores: int) -> None:
        """Start it; returns when it takes jobs."""
        self.place = Path(tempfile.mkdtemp(prefix="srls-"))
        self._process: subprocess.Popen[bytes] | None = None
        config = self.place / "slurm.conf"
        self._environment = {**os.environ, "PATH": _PATH, "SLURM_CONF": str(config)}
        try:
            self.place.chmod(0o755)
            for name in ("munge", "state", "spool"):
                (self.place / name).mkdir()
            key = self.place / "munge" / "key"
            key.touch(0o600)
            key.write_bytes(os.urandom(128))
            (self.place / "hosts").write_text("127.0.0.1 localhost\n10.77.0.1 node\n")
            config.write_text(_CONFIG.format(place=self.place, cores=cores))
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        words = ["unshare", "--pid", "--mount", "--net", "--uts", "--ipc", "--fork"]
        words += ["--kill-child", "--mount-proc", "bash", "-c", _DAEMONS, str(self.place)]
        with (self.place / "daemons.log").open("wb") as log:
            self._process = subprocess.Popen(
                words, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + _START_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            done = self._run(["sinfo", "--noheader", "--format", "%T"])
            if done.stdout.strip() == "idle":
                return
            time.sleep(0.2)
        raise RuntimeError(f"Slurm did not start:\n{self.logs()}")

    def run(self, *words: str) -> str:
        """What a command of Slurm's says; raises RuntimeError where it fails."""
        done = self._run(words)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr}\n{self.logs()}")
        return done.stdout.strip()

    def submit(self, words: Sequence[str], environment: Mapping[str, str], folder: Path) -> str:
        """Submit a job, to be run in a folder; its number."""
        given = [f"{name}={value}" for name, value in environment.items()]
        return self.run("env", *given, "sbatch", "--parsable", "--chdir", str(folder), *words)

    def state(self, job: str) -> str:
        """PENDING, RUNNING, COMPLETED, ..."""
        return self._field(job, "JobState")

    def restarts(self, job: str) -> int:
        """How often a job was put back into the queue."""
        return int(self._field(job, "Restarts"))

    def logs(self) -> str:
        """The ends of what the daemons wrote."""
        paths = sorted(self.place.glob("*.log"))
        return "\n".join(f"{path.name}:\n{path.read_text()[-2000:]}" for path in paths)

    def _field(self, job: str, name: str) -> str:
        shown = self.run("scontrol", "--oneliner", "show", "job", job)
        return next(word for word in shown.split() if word.startswith(f"{name}=")).partition("=")[2]

    def _run(self, words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        """Run a command in there."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        first = children.read_text().strip() if self._process.poll() is None else ""
        return subprocess.run(
            ["nsenter", "--target", first or "0", "--all", *words],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def close(self) -> None:
        """End all of it."""
        if self._process is not None:
            self._process.kill()  # and so the first process in there, and so all the others
            self._process.wait(10)
        shutil.rmtree(self.place, ignore_errors=True)
