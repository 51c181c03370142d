"""What it costs two trainers of this host to add their gradients up, when they do nothing else.

python -m srl.tools.planning.exchange FILE RANK BYTES
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from srl.core.errors import WorkerError
from srl.launch.host.process import thread_environment
from srl.learning.parallel import OnOneHost, TrainerGroup

_TIMES, _WARM_UP = 300, 30
_PATIENCE_SECONDS = 60.0


def exchange_seconds(nbytes: int) -> tuple[float, float]:
    """Of one exchange of so many bytes: seconds that pass, and seconds of cores of each."""
    with tempfile.TemporaryDirectory(prefix="srl-") as folder:
        program = [sys.executable, "-P", "-m", "srl.tools.planning.exchange", f"{folder}/meeting"]
        ranks = [
            subprocess.Popen(
                [*program, str(rank), str(nbytes)],
                stdout=subprocess.PIPE,
                env=thread_environment(1),
            )
            for rank in range(2)
        ]
        try:
            said = [rank.communicate(timeout=_PATIENCE_SECONDS)[0] for rank in ranks]
        except subprocess.TimeoutExpired as error:
            raise WorkerError("two processes that exchange gradients did not end") from error
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait(5)
        if any(rank.returncode for rank in ranks):
            raise WorkerError("two processes could not exchange gradients")
    wall, cpu = zip(*(json.loads(words) for words in said), strict=True)
    return max(wall), sum(cpu) / len(cpu)


def main() -> int:
    """One of the two: exchange, and say what it took."""
    file, rank, nbytes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    group = TrainerGroup(OnOneHost(file), life=1, policy="", rank=rank, size=2, device="cpu")
    gradient = torch.zeros(max(1, nbytes // 4))
    for _ in range(_WARM_UP):
        group.learner.sum_(gradient)
    start, busy = time.perf_counter(), time.process_time()
    for _ in range(_TIMES):
        group.learner.sum_(gradient)
    found = time.perf_counter() - start, time.process_time() - busy
    sys.stdout.write(json.dumps([seconds / _TIMES for seconds in found]))
    sys.stdout.flush()
    group.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
