"""Where metrics go: JSON lines for programs, TensorBoard, Prometheus and W&B for people.

Every sink is told the same three things: a row for each learned batch, one for each evaluated
version, and now and then the state of the whole run (the facts of `summary.json`). Each keeps what
it has a use for.
"""

import hmac
import importlib
import importlib.util
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

from srl.core.errors import ConfigError
from srl.core.experiment import MetricsConfig
from srl.telemetry.files import RecordFile, Writes, replace_file

_LEAST_TOKEN = 16
"""Characters."""


class Sink(Protocol):
    """Takes in the metrics of one run; called from the controller's thread."""

    def write(self, row: Mapping[str, Any], clock: Mapping[str, Any]) -> None:
        """Take one learned batch; all that depends on the clock is in `clock`."""
        ...

    def write_evaluation(self, row: Mapping[str, Any]) -> None:
        """Take one evaluated version."""
        ...

    def show(self, state: Mapping[str, Any]) -> None:
        """Take the state of the run, about once a second; its names are those of summary.json."""
        ...

    def close(self) -> None:
        """Keep what was taken and free everything."""
        ...


def check_metrics(config: MetricsConfig) -> None:
    """Raise ConfigError, before anything is started, where a sink that was asked for cannot be."""
    if config.wandb is not None and importlib.util.find_spec("wandb") is None:
        raise ConfigError(
            f"metrics.wandb is {config.wandb!r}, but W&B is not installed: pip install wandb"
        )
    if config.prometheus_port:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((config.prometheus_address, config.prometheus_port))
            except OSError as error:
                raise _port_error(config, error) from error
    _read_token(config)


class JsonLines:
    """One line a learned batch. All that depends on the clock is under `time`."""

    def __init__(self, path: Path, writes: Writes, *, versions: Mapping[str, int] | None) -> None:
        """Append to `path`; what a run resumed with these `versions` learns again is removed."""
        if versions is not None and path.exists():
            rows = list(read_rows(path))
            kept = [row for row in rows if row["version"] <= versions.get(row["policy"], 0)]
            replace_file(path, "".join(json.dumps(row) + "\n" for row in kept).encode())
        self._file = RecordFile(path)
        self._name = path.name
        self._writes = writes

    def write(self, row: Mapping[str, Any], clock: Mapping[str, Any]) -> None:
        """Write one row."""
        line = json.dumps({**row, "time": clock}).encode() + b"\n"
        self._writes.attempt(self._name, self._file.write, line)

    def write_evaluation(self, row: Mapping[str, Any]) -> None:
        """Nothing: evaluations have a file of their own."""

    def show(self, state: Mapping[str, Any]) -> None:
        """Nothing: the state at the end is in summary.json."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a metrics file; half a line, left by a run that was killed, is no row."""
    for line in path.read_text().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield {"policy": "main", **row}  # runs of one policy did not name it once


class TensorBoard:
    """Scalars over env steps, in TensorBoard's own event files."""

    def __init__(self, folder: Path, writes: Writes) -> None:
        # Not TensorBoard's own writer: its thread dies of a full disk, and says nothing.
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue] - generated
        from tensorboard.summary.writer.record_writer import RecordWriter

        name = f"events.out.tfevents.{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}"
        number = len(list(folder.glob(f"{name}*")))
        self._file = RecordFile(folder / f"{name}.{number}")
        self._name = f"{folder.name}/"
        self._writer = RecordWriter(self._file)
        self._writes = writes
        first = Event(wall_time=time.time(), file_version="brain.Event:2")
        self._writer.write(first.SerializeToString())

    def write(self, row: Mapping[str, Any], clock: Mapping[str, Any]) -> None:
        """Write the numbers of one row."""
        self._write(_numbers(row, clock), int(row["env_steps"]))

    def write_evaluation(self, row: Mapping[str, Any]) -> None:
        """Write the numbers of one evaluation."""
        self._write(_evaluation_numbers(row), int(row["env_steps"]))

    def _write(self, numbers: Mapping[str, float], step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue] - generated
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue] - generated

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in numbers.items()]
        event = Event(wall_time=time.time(), step=step)
        event.summary.value.extend(values)
        self._writes.attempt(self._name, self._writer.write, event.SerializeToString())

    def show(self, state: Mapping[str, Any]) -> None:
        """Nothing: TensorBoard draws rows."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Prometheus:
    """The state of the run as text at http://ADDRESS:PORT/metrics, from a thread of its own."""

    def __init__(self, config: MetricsConfig, experiment: str) -> None:
        """Open the endpoint; port 0 takes a free one. Raises ConfigError where it is in use."""
        self._experiment = experiment
        port = config.prometheus_port or 0
        self._evaluations: dict[str, Mapping[str, Any]] = {}
        """Policy to its last one."""
        self._page = _Page(_read_token(config))
        self._host = config.prometheus_address
        try:
            self._server = ThreadingHTTPServer((self._host, port), self._page.handler())
        except OSError as error:
            raise _port_error(config, error) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where it is read."""
        return f"http://{self._host}:{self._server.server_address[1]}/metrics"

    def write(self, row: Mapping[str, Any], clock: Mapping[str, Any]) -> None:
        """Nothing: a scraper asks for the state."""

    def write_evaluation(self, row: Mapping[str, Any]) -> None:
        """Keep it for the page."""
        self._evaluations[str(row["policy"])] = row

    def show(self, state: Mapping[str, Any]) -> None:
        """Put this state on the page."""
        self._page.text = exposition(state, self._experiment, self._evaluations)

    def close(self) -> None:
        """Close the endpoint."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)


class _Page:
    """The text that is shown: replaced whole by the controller, read by the server's threads."""

    def __init__(self, token: str | None) -> None:
        self.text = ""
        self._wanted = None if token is None else f"Bearer {token}".encode()

    def is_for(self, authorization: str) -> bool:
        """Whether who shows this may read it."""
        return self._wanted is None or hmac.compare_digest(authorization.encode(), self._wanted)

    def handler(self) -> type[BaseHTTPRequestHandler]:
        """A handler of requests for this page."""
        page = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 5
            """Seconds a scraper may take to ask."""

            def do_GET(self) -> None:
                if self.path.partition("?")[0] != "/metrics":
                    self.send_error(HTTPStatus.NOT_FOUND, "the metrics are at /metrics")
                    return
                if not page.is_for(self.headers.get("Authorization", "")):
                    self.send_error(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong")
                    return
                body = page.text.encode()
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's
                """Nothing: scrapes are not news."""

        return Handler


class WandB:
    """Rows over env steps in a project of Weights & Biases; a resumed run goes on there."""

    def __init__(self, project: str, folder: Path, config: Mapping[str, Any]) -> None:
        wandb = importlib.import_module("wandb")
        note = folder / "wandb.json"
        known = json.loads(note.read_text())["id"] if note.is_file() else None
        try:
            self._run = wandb.init(
                project=project,
                name=folder.name,
                group=str(config.get("name")),
                dir=str(folder),
                config=dict(config),
                id=known,
                resume="allow",
            )
        except Exception as error:  # whatever W&B raises: not logged in, no network, bad name
            raise ConfigError(f"W&B cannot open the project {project!r}: {error}") from error
        note.write_text(json.dumps({"id": self._run.id}) + "\n")
        # Not W&B's own step, which must grow: a resumed run learns some batches again.
        self._run.define_metric("*", step_metric="train/env_steps")

    def write(self, row: Mapping[str, Any], clock: Mapping[str, Any]) -> None:
        """Log the numbers of one row."""
        self._run.log(_numbers(row, clock))

    def write_evaluation(self, row: Mapping[str, Any]) -> None:
        """Log the numbers of one evaluation, at the env steps of its version."""
        self._run.log(_evaluation_numbers(row) | {"train/env_steps": row["env_steps"]})

    def show(self, state: Mapping[str, Any]) -> None:
        """Keep the state as the run's summary."""
        self._run.summary.update({k: v for k, v in state.items() if k != "time_split"})

    def close(self) -> None:
        """Finish the run there."""
        self._run.finish()


_SHARED = ("env_steps", "agent_steps")
"""What a row says of the whole run, not of its policy."""
_TOTALS = {
    "env_steps": "Env transitions.",
    "agent_steps": "Env transitions, over all lanes.",
    "train_samples": "Valid rows learned from, once an epoch.",
    "skipped_batches": "Batches skipped for a number that is not finite.",
    "episodes": "Episodes that ended.",
    "updates": "Optimiser steps.",
    "worker_restarts": "Workers that were started again.",
}
_GAUGES = {
    "version": "Version of the parameters.",
    "seconds": "Seconds the run has taken, over all of its starts.",
    "env_steps_per_second": "Env transitions a second, over the whole run.",
    "mean_return": "Mean raw return of the last 100 episodes.",
    "staleness_mean": "Mean staleness of the blocks learned, in versions.",
    "staleness_max": "Highest staleness of a block learned, in versions.",
}


_POLICY_GAUGES = {
    "version": "Version of a policy.",
    "mean_return": "Mean raw return of the last 100 episodes of a policy.",
    "episodes": "Episodes of a policy that ended.",
}
_EVALUATION_GAUGES = {
    "eval_return": "Mean raw return of the newest evaluation.",
    "eval_version": "Version of the parameters of the newest evaluation.",
}


def exposition(
    state: Mapping[str, Any], experiment: str, evaluations: Mapping[str, Mapping[str, Any]]
) -> str:
    """The numbers of a run's state, and each policy's last evaluation, in Prometheus' text format."""
    run = {"experiment": experiment}
    lines = []
    for name, words in _TOTALS.items():
        lines += _metric(f"srl_{name}_total", "counter", words, [(run, state.get(name))])
    for name, words in _GAUGES.items():
        lines += _metric(f"srl_{name}", "gauge", words, [(run, state.get(name))])
    for name, words in _POLICY_GAUGES.items():
        samples = [
            (run | {"policy": policy}, facts.get(name))
            for policy, facts in state.get("policies", {}).items()
        ]
        lines += _metric(f"srl_policy_{name}", "gauge", words, samples)
    for name, words in _EVALUATION_GAUGES.items():
        samples = [
            (run | {"policy": policy}, row[name if name in row else "version"])
            for policy, row in evaluations.items()
        ]
        lines += _metric(f"srl_{name}", "gauge", words, samples)
    ledger = {k.removeprefix("blocks_"): v for k, v in state.items() if k.startswith("blocks_")}
    blocks = [(run | {"state": name}, value) for name, value in ledger.items()]
    lines += _metric("srl_blocks", "gauge", "The ledger: what became of every block.", blocks)
    seconds = [
        (run | {"worker": kind, "part": part}, value)
        for kind, split in state.get("time_split", {}).items()
        for part, value in split.items()
    ]
    sizes = [
        (run | {"worker": kind}, facts["megabytes"])
        for kind, facts in state.get("memory", {}).get("largest", {}).items()
    ]
    words = "Memory of its own of the largest worker of a kind."
    lines += _metric("srl_worker_megabytes", "gauge", words, sizes)
    words = "Where the time of a kind of worker went."
    lines += _metric("srl_worker_seconds_total", "counter", words, seconds)
    return "\n".join(lines) + "\n"


def _metric(
    name: str, kind: str, words: str, samples: Sequence[tuple[Mapping[str, str], Any]]
) -> list[str]:
    """One metric's lines; none where nothing of it is known yet."""
    shown = [f"{name}{_labels(of)} {float(value)!r}" for of, value in samples if _is_number(value)]
    return [f"# HELP {name} {words}", f"# TYPE {name} {kind}", *shown] if shown else []


def _labels(labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return "{" + inside + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _numbers(row: Mapping[str, Any], clock: Mapping[str, Any]) -> dict[str, float]:
    """What is a number of a row, by the names charts have; of policies but main, below theirs."""
    place = "train" if row["policy"] == "main" else f"train/{row['policy']}"
    named = {f"{'train' if k in _SHARED else place}/{k}": v for k, v in row.items()}
    named |= {f"time/{k}": v for k, v in clock.items()}
    return {name: float(value) for name, value in named.items() if _is_number(value)}


def _evaluation_numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """What is a number of an evaluation, by the names charts have: `eval/return`."""
    place = "eval" if row["policy"] == "main" else f"eval/{row['policy']}"
    named = {k.removeprefix("eval_"): v for k, v in row.items() if k != "env_steps"}
    return {f"{place}/{k}": float(v) for k, v in named.items() if _is_number(v)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _read_token(config: MetricsConfig) -> str | None:
    """What who reads the endpoint must know; None: nothing."""
    if config.prometheus_token_file is None:
        return None
    try:
        token = Path(config.prometheus_token_file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"metrics.prometheus-token-file {config.prometheus_token_file} cannot be read: {error}"
        ) from error
    if len(token) < _LEAST_TOKEN:
        raise ConfigError(
            f"metrics.prometheus-token-file {config.prometheus_token_file} has a token of {len(token)} "
            f"characters: use {_LEAST_TOKEN} or more (`openssl rand -hex 32`)"
        )
    return token


def _port_error(config: MetricsConfig, error: OSError) -> ConfigError:
    port, address = config.prometheus_port, config.prometheus_address
    return ConfigError(
        f"metrics.prometheus-port {port} of {address} cannot be opened ({error.strerror}): choose "
        "another, or 0 for a free one"
    )
