"""A Ray cluster that grows: Ray's own autoscaler, whose new nodes are more processes of the same host.

What `ray.cluster_utils.AutoscalingCluster` does, which ends every other Ray of this machine first and needs a file that
Ray's packages have not. The host is a network namespace (`srl/testing/hosts.py`), so that all of it ends with that.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from srl.testing.hosts import Hosts, address

_PORT = 6379
_STORE_BYTES = 80 << 20
_EMPTY = (
    "initialization_commands",
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "head_start_ray_commands",
    "worker_start_ray_commands",
    "cluster_synced_files",
    "rsync_exclude",
    "rsync_filter",
)


class AutoscalingHost:
    """A head, and an autoscaler that adds nodes when there is too little."""

    def __init__(self, head_cores: int, node: dict[str, float], *, most_nodes: int) -> None:
        """Start the head; nodes have the resources `node`."""
        self.place = Path(tempfile.mkdtemp(prefix="srla-"))
        self.address = f"{address(1)}:{_PORT}"
        self.environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": os.urandom(32).hex(),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_FAKE_CLUSTER": "1",
            "RAY_enable_autoscaler_v2": "0",  # which needs a file that Ray's packages have not
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
            "TMPDIR": str(self.place),
        }
        provider: dict[str, Any] = {"type": "fake_multinode", "gcs_address": self.address}
        provider |= {"use_node_id_as_ip": True, "disable_node_updaters": True}
        provider |= {"disable_launch_config_check": True}
        more = {"resources": {**node, "object_store_memory": _STORE_BYTES}, "node_config": {}}
        head = {"resources": {"CPU": head_cores}, "node_config": {}, "max_workers": 0}
        config: dict[str, Any] = {
            "cluster_name": "growing",
            "max_workers": most_nodes,
            "upscaling_speed": 1.0,
            "idle_timeout_minutes": 0.2,
            "provider": provider,
            "head_node_type": "ray.head.default",
            "available_node_types": {
                "ray.head.default": head,
                "more": {**more, "min_workers": 0, "max_workers": most_nodes},
            },
            "auth": {},
            "docker": {},
            "file_mounts": {},
            "file_mounts_sync_continuously": False,
            **{name: [] for name in _EMPTY},
        }
        path = self.place / "cluster.json"
        path.write_text(json.dumps(config))
        words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--head"]
        words += ["--port", str(_PORT), "--node-ip-address", address(1)]
        words += ["--num-cpus", str(head_cores), "--object-store-memory", str(_STORE_BYTES)]
        words += ["--include-dashboard", "false", "--temp-dir", str(self.place / "ray")]
        words += ["--autoscaling-config", str(path), "--disable-usage-stats"]
        self._hosts = Hosts(1)
        self._head = self.start(words, self.place / "ray.log")
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        deadline = time.monotonic() + 60
        while not self.cores():
            if time.monotonic() > deadline:
                raise RuntimeError((self.place / "ray.log").read_text())
            time.sleep(0.5)

    def cores(self) -> list[float]:
        """Of each node that lives; none where Ray does not answer."""
        script = f"import ray; ray.init({self.address!r}, log_to_driver=False)\n"
        script += "print([n['Resources'].get('CPU', 0.0) for n in ray.nodes() if n['Alive']])"
        done = subprocess.run(
            self._hosts.command(1, [sys.executable, "-c", script]),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return [] if done.returncode else json.loads(done.stdout.splitlines()[-1])

    def start(self, words: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
        """Start a command on the host."""
        with log.open("wb") as file:
            return subprocess.Popen(
                self._hosts.command(1, words),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    def close(self) -> None:
        """End all, and remove the host."""
        self._hosts.close()
        self._head.kill()
        self._head.wait(10)
        shutil.rmtree(self.place, ignore_errors=True)
