"""The Ray launcher: node agents on the nodes of a Ray cluster.

Ray knows the nodes, sets resources aside, notices dead nodes, and starts one process on each node that
takes part: the one that keeps the link of that host. Everything else is as on one host.
"""

import atexit
import contextlib
import difflib
import importlib.util
import inspect
import ipaddress
import json
import os
import secrets
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from srl.core.errors import ConfigError
from srl.launch.cluster import ClusterLauncher, SubprocessStarter
from srl.launch.graph.placing import (
    Node,
    Place,
    check_sharing,
    hosts_of_places,
    place,
    place_late,
)
from srl.launch.graph.plan import Plan, deal_gpus
from srl.transport.control import Failure, Message

_REACH_SECONDS = 5.0
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How gRPC, by which a cluster's head is spoken to, begins: HTTP/2's preface, and settings, of which there are none."""
_SETTINGS_TYPE = 4
"""Of the frame that it is answered with, in the fourth byte."""
_LOOK_SECONDS = 5.0
"""Between two looks at the cluster's head."""
_HEAD_SECONDS = 20.0
"""It may be silent so long: after a minute of it Ray ends this process without a word."""
_GIVE_BACK_SECONDS = 10.0
_WISH_SECONDS = 30.0
"""Between two wishes for nodes, where the first was met and did not help."""
_MOST_WISHES = 100
"""Actors for whom nodes are wished for at a time, beyond those a run needs."""
_MARK = 0.0001
"""Of a resource by which a node is named: the least that Ray counts."""
_NODE_ID_LENGTH = 56
_SAY_SECONDS = 30.0
_KNOCK_SECONDS = 2.0
"""That a node has to answer before another is taken."""
_ROOM_SECONDS = 10.0
"""That a node has for giving a host the room again that it had there."""
_ANSWER_SECONDS = 10.0
"""That Ray has to say which nodes there are."""
_NOT_OURS = ("CPU", "GPU", "memory", "object_store_memory")
_NODE_ID = "ray.io/node-id"
_KINDS = {"trainer": "trainers", "policy": "policies", "actor": "actors"}
_NOT_LET_IN = (
    "something answers there, but lets this process not in: it needs Ray of the same version, and where the cluster has a token the same "
    "RAY_AUTH_MODE=token and token (~/.ray/auth_token, or RAY_AUTH_TOKEN_PATH)"
)


class RayLauncher(ClusterLauncher):
    """Talks to node agents that Ray has started."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        is_stopped: Callable[[], bool] = lambda: False,
        say: Callable[[str], None] = print,
    ) -> None:
        """Connect to the cluster, choose its nodes and set aside what the workers need.

        Where there is too little, wait for it, tell so by `say`, and end by SystemExit when it `is_stopped`.
        """
        self._cluster = RayCluster(plan.experiment["ray"])
        try:
            places = self._cluster.place(plan, is_stopped, say)
            starters = {host: RayStarter(self._cluster, at) for host, at in enumerate(places)}
            placed = msgspec.structs.replace(plan, hosts=hosts_of_places(plan, places))
            more = RayRecruiter(self._cluster, plan, places)
            super().__init__(
                placed,
                folder,
                starters,
                address=self._cluster.address,
                recruiter=more,
                is_stopped=is_stopped,
            )
        except BaseException:
            self._cluster.close()
            raise

    def poll(self, timeout_seconds: float) -> Sequence[Message]:
        """What workers and agents have said; that the run cannot go on where the cluster's head is gone."""
        lost = self._cluster.look()  # first: who is lost with the head is not looked for there
        messages = super().poll(timeout_seconds)
        return messages if lost is None else [*messages, Failure("ray", lost, "")]

    def close(self) -> None:
        """End all that was started, and give back what was set aside."""
        super().close()
        self._cluster.close()


class RayRecruiter:
    """Finds nodes that have joined the cluster."""

    def __init__(self, cluster: "RayCluster", plan: Plan, places: Sequence[Place]) -> None:
        """Of nodes that are not used, or `places`, yet."""
        self._cluster = cluster
        self._plan = plan
        self._used = {at.node.id for at in places}
        self._wishes: list[Any] = []
        """What an autoscaler sees that there is too little for."""
        self._wish_at = 0.0

    def recruit(self, workers: Sequence[str]) -> Sequence[tuple["RayStarter", Sequence[str]]]:
        """A host on each such node, with as many of the workers as it has room for.

        None while there are wishes, which may have taken a part of a node: all of it is free a look later.
        """
        there = self._cluster.within(_ANSWER_SECONDS, self._cluster.free_nodes) or ()
        free = [node for node in there if node.id not in self._used]
        places = place_late(self._plan, workers, free, self._plan.experiment["ray"]["actors"])
        if self._wishes:
            if places or self._cluster.is_met(*self._wishes):
                self.withdraw()
                self._wish_at = time.monotonic() + _WISH_SECONDS
            return []
        if not places:
            self._wish(workers)
            return []
        self._used |= {at.node.id for at in places}
        self._wish_at = 0.0
        return [(RayStarter(self._cluster, at), at.workers) for at in places]

    def withdraw(self) -> None:
        """Give all wishes back: a host that was lost wants its cores again."""
        for wish in self._wishes:
            self._cluster.give_back(wish)
        self._wishes.clear()

    def _wish(self, workers: Sequence[str]) -> None:
        """Have an autoscaler add nodes for workers."""
        cluster = self._cluster
        if time.monotonic() >= self._wish_at and not cluster.is_local:
            bundles = cluster.bundles(self._plan, workers[:_MOST_WISHES])
            # each for itself: some are better than none
            wishes = [cluster.wish([bundle]) for bundle in bundles]
            self._wishes = [wish for wish in wishes if wish is not None]


class RayCluster:
    """A connection to a Ray cluster, for one run."""

    def __init__(self, options: dict[str, Any]) -> None:
        """Connect, or start a cluster on this host; raises ConfigError where that cannot be."""
        check_ray(options["address"])
        self._options = options
        self._groups: list[Any] = []
        self._doors: dict[str, tuple[str, int]] = {}
        """Node to where its part of Ray listens."""
        address = options["address"]
        if not _is_there_one(address):
            address = "local"
        if address == "local":  # before Ray is imported, or its parts do not agree
            os.environ.setdefault("RAY_AUTH_MODE", "token")
            if os.environ["RAY_AUTH_MODE"] == "token" and not os.environ.get("RAY_AUTH_TOKEN"):
                _make_token()
        import ray

        self.ray: Any = ray
        self.is_local = False
        """It was started here, for this run: no node will join."""
        self._session: Path | None = None
        """What Ray writes about such a one, and leaves behind."""
        self._is_mine = not ray.is_initialized()
        if self._is_mine:
            try:
                with _own_answers_to_signals():
                    self._connect(address)
            except SystemExit:
                ray.shutdown()  # of what has started
                raise
        self.address = str(ray.util.get_node_ip_address())
        """Of this host, as its nodes know it."""
        self._head = str(ray.get_runtime_context().gcs_address)
        self._look_at = 0.0
        self._heard_at = time.monotonic()
        self._is_lost = False
        """Ray does not answer any more, and is not asked."""
        self._is_told = False

    def _connect(self, address: str) -> None:
        how: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        how["runtime_env"] = self._runtime_env()
        try:
            if address != "local":
                with contextlib.suppress(ConnectionError):
                    self.ray.init(address, **how)
                    return
                if address != "auto":
                    raise ConfigError(f"--ray.address {address}: {_NOT_LET_IN}")
            self.ray.init("local", include_dashboard=False, **how)
            self.is_local = True
            self._session = Path(self.ray._private.worker._global_node.get_session_dir_path())
        except (RuntimeError, ValueError, OSError) as error:
            if address == "local":
                raise ConfigError(f"Ray could not be started on this host: {error}") from error
            raise ConfigError(_unreachable(address, str(error))) from error

    def _runtime_env(self) -> dict[str, Any]:
        """What is shipped to nodes; raises ConfigError for what Ray does not know, which it would leave out."""
        given = json.loads(self._options["runtime_env"])
        environment = self.ray.runtime_env.RuntimeEnv
        taken = [*environment.known_fields, *inspect.signature(environment.__init__).parameters]
        known = sorted({name for name in taken if not name.startswith("_")} - {"self", "kwargs"})
        are_there_more = "RAY_RUNTIME_ENV_PLUGINS" in os.environ  # which have fields of their own
        for name in given:
            if name not in known and not are_there_more:
                near = difflib.get_close_matches(name, known, 1)
                hint = f": did you mean {near[0]!r}?" if near else f"; it knows {', '.join(known)}"
                raise ConfigError(f"--ray.runtime-env: Ray knows no {name!r}{hint}")
        return given

    def nodes(self) -> list[Node]:
        """The nodes that live, and what they have."""
        found, here = [], self.ray.get_runtime_context().get_node_id()
        for one in self.ray.nodes():
            has = one["Resources"]
            self._doors[one["NodeID"]] = (one["NodeManagerAddress"], one["NodeManagerPort"])
            if not one["Alive"] or not has.get("CPU"):
                continue
            marks = {name for name in has if name not in _NOT_OURS and not name.startswith("node:")}
            found.append(
                Node(
                    id=one["NodeID"],
                    address=one["NodeManagerAddress"],
                    cores=has["CPU"],
                    gpus=has.get("GPU", 0.0),
                    marks=frozenset(marks),
                    is_here=one["NodeID"] == here,
                )
            )
        return sorted(found, key=lambda node: (not node.is_here, node.address))

    def free_nodes(self) -> list[Node]:
        """The nodes that live, and what nobody has taken of them."""
        free = self.ray._private.state.available_resources_per_node()
        return [
            replace(node, cores=has.get("CPU", 0.0), gpus=has.get("GPU", 0.0))
            for node in self.nodes()
            if (has := free.get(node.id)) is not None
        ]

    def look(self) -> str | None:
        """Why the run cannot go on without the head of the cluster; None while it can. Says it once."""
        now = time.monotonic()
        if now < self._look_at or self._is_told:
            return None
        self._look_at = now + _LOOK_SECONDS
        host, _, port = self._head.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
        except OSError as error:
            if time.monotonic() - self._heard_at <= _HEAD_SECONDS:
                return None
            self._is_lost = self._is_told = True
            return (
                f"the head of the Ray cluster ({self._head}) has not answered for {_HEAD_SECONDS:.0f} s ({error}): "
                "start the cluster again, then `srl resume`"
            )
        self._heard_at = time.monotonic()
        return None

    def place(
        self, plan: Plan, is_stopped: Callable[[], bool], say: Callable[[str], None]
    ) -> list[Place]:
        """Choose hosts for all workers; waits for nodes that may still join, and that others may leave."""
        wanted = {kind: tuple(self._options[name]) for kind, name in _KINDS.items()}
        needed = [worker.name for worker in plan.workers if worker.name not in plan.late]
        # of nodes that join, none has an address that is there already, and any may have a mark
        is_final = not any(map(_is_mark, (*wanted["trainer"], *wanted["policy"])))
        now = time.monotonic()
        deadline, say_at, wish_at, wish = now + self._options["wait_seconds"], now, now, None
        while True:
            if is_final:
                check_sharing(plan, self.nodes(), wanted)
            try:
                check_sharing(plan, self.nodes(), wanted)
                places = place(plan, self.free_nodes(), wanted)
                self.give_back(wish)
                return places
            except ConfigError as error:
                now = time.monotonic()
                if self.is_local or now > deadline:
                    raise
                if now >= say_at:
                    say_at = now + _SAY_SECONDS
                    say(f"waiting for nodes, {deadline - now:.0f} s at most: {error}")
            if is_stopped():
                raise SystemExit
            if wish is not None and self.is_met(wish):  # it has what the run waits for
                self.give_back(wish)
                wish, wish_at = None, now + _WISH_SECONDS
            elif wish is None and now >= wish_at and (bundles := self.bundles(plan, needed)):
                wish = self.wish(bundles)
            time.sleep(1.0)

    def bundles(self, plan: Plan, workers: Sequence[str]) -> list[dict[str, float]]:
        """What workers need, as Ray has it; without those who want nodes that nobody can add, by address."""
        found = []
        for worker in map(plan.worker, workers):
            bundle = {"CPU": float(plan.threads(worker.kind))}
            if gpus := plan.gpus(worker):
                bundle["GPU"] = deal_gpus([gpus])[1]
            if names := self._options.get(_KINDS.get(worker.kind, ""), ()):
                mark = next(filter(_is_mark, names), None)
                if mark is None:
                    continue
                bundle[mark] = _MARK
            found.append(bundle)
        return found

    def wish(self, bundles: Sequence[dict[str, float]]) -> Any:
        """A placement group that waits for room: Ray's autoscaler sees it, and adds nodes for it.

        None where Ray does not answer.
        """
        group = self.within(_ANSWER_SECONDS, self.ray.util.placement_group, [*bundles])
        if group is not None:
            self._groups.append(group)
        return group

    def is_met(self, *wishes: Any) -> bool:
        """Whether there is room for one of them, which it has taken."""
        table = self.ray.util.placement_group_table

        def is_any() -> bool:
            # one by one: the table of all groups has those that were given back, too
            return any(table(wish)["state"] == "CREATED" for wish in wishes)

        return bool(self.within(_ANSWER_SECONDS, is_any))

    def is_waiting(self, group: Any) -> bool:
        """Whether a group has no room yet; not where Ray does not say."""
        table = self.ray.util.placement_group_table
        state = self.within(_ANSWER_SECONDS, lambda: table(group)["state"])
        return state is not None and state != "CREATED"

    def knock(self, node: Node) -> "Knock":
        """Begin to look whether a node answers."""
        return Knock(*self._doors[node.id])

    def place_again(self, at: Place, *, answers: bool) -> Place | None:
        """Where a host goes that was lost: where it was if that node lives and `answers`, or to one with room.

        Returns:
            None where there is none yet, or Ray does not say. Ray is not asked for a node that does not answer: groups
            that are asked for later, on other nodes, were seen to wait for that one.
        """
        there = self.within(_ANSWER_SECONDS, self.nodes) or ()
        if answers and any(node.id == at.node.id for node in there):
            return at
        kinds = {_KINDS[kind] for kind in _KINDS for name in at.workers if name.startswith(kind)}
        wanted = [set(self._options[kind]) for kind in kinds if self._options[kind]]
        fit = [
            node
            for node in self.within(_ANSWER_SECONDS, self.free_nodes) or ()
            if node.id != at.node.id
            and node.cores >= at.cores
            and node.gpus >= at.gpus - 1e-9
            and all(names & ({node.address, node.id} | node.marks) for names in wanted)
        ]
        return None if not fit else replace(at, node=max(fit, key=lambda node: node.cores))

    def set_aside(self, at: Place) -> Any:
        """A placement group with what the workers of a host need, on its node."""
        bundle = {"CPU": at.cores} | ({"GPU": at.gpus} if at.gpus else {})
        group = self.ray.util.placement_group(
            [bundle], strategy="STRICT_PACK", bundle_label_selector=[{_NODE_ID: at.node.id}]
        )
        self._groups.append(group)
        return group

    def give_back(self, group: Any) -> None:
        """Free what was set aside."""
        if group in self._groups:
            self._groups.remove(group)
            self.within(_GIVE_BACK_SECONDS, self.ray.util.remove_placement_group, group)

    def close(self) -> None:
        """Give everything back; may be called twice."""
        if not self.ray.is_initialized():
            return
        for group in [*self._groups]:
            self.give_back(group)
        if self._is_mine:
            self.within(_GIVE_BACK_SECONDS, self.ray.shutdown)
        if self._session is not None and not self._is_lost:
            shutil.rmtree(self._session, ignore_errors=True)
            latest = self._session.parent / "session_latest"
            if latest.is_symlink() and not latest.exists():
                latest.unlink(missing_ok=True)

    def within(self, seconds: float, call: Callable[..., Any], *words: Any) -> Any:
        """Have Ray do something, and wait so long for it: where its head is gone it never answers.

        From then on nothing is asked of it, also not at the end of this process.

        Returns:
            Its answer; None where there is none.
        """
        if self._is_lost:
            return None
        answer: list[Any] = []

        def run() -> None:
            # what could not be given back ends with its cluster
            with contextlib.suppress(Exception):
                answer.append(call(*words))

        thread = threading.Thread(target=run, name="ray", daemon=True)
        thread.start()
        thread.join(seconds)
        if thread.is_alive():
            self._is_lost = True
            atexit.unregister(self.ray.shutdown)
        return answer[0] if answer else None


class Knock:
    """A look whether a node answers, for which nobody waits.

    Ray itself needs a minute to see that a node is silent.
    """

    def __init__(self, host: str, port: int) -> None:
        """Begin to connect."""
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._socket.setblocking(False)
        self._socket.connect_ex((host, port))
        self._until = time.monotonic() + _KNOCK_SECONDS

    @property
    def is_over(self) -> bool:
        """Whether somebody has answered, or nobody will."""
        return self.is_answered or time.monotonic() > self._until

    @property
    def is_answered(self) -> bool:
        """Whether somebody has answered until now."""
        with contextlib.suppress(OSError):
            self._socket.getpeername()
            return True
        return False

    def close(self) -> None:
        """Look no more."""
        self._socket.close()


class RayStarter:
    """Starts the link of a host through an actor of Ray on its node.

    The actor is a SubprocessStarter: it keeps the link's input open, so when it ends, whatever the
    reason, the link does.
    """

    def __init__(self, cluster: RayCluster, at: Place) -> None:
        self.address = at.node.address
        self._cluster = cluster
        self._at = at
        self._group: Any = None
        self._actor: Any = None
        self._started: Any = None
        self._error = ""
        """Why nothing was started."""
        self._knock: Knock | None = None
        self._is_first = True
        self._is_full_after = 0.0
        """When the node that was asked last counts as full."""
        self._is_full = False

    def start(self, order: bytes) -> None:
        """Have the node start it; returns at once.

        Again, only a node that answers: what was started is gone until there is one.
        """
        self._end()
        if not self._is_first and not self._find():
            return
        self._is_first = False
        self._is_full_after = time.monotonic() + _ROOM_SECONDS
        self.address = self._at.node.address
        self._cluster.within(_ANSWER_SECONDS, self._begin, order)

    def _begin(self, order: bytes) -> None:
        ray, self._error = self._cluster.ray, ""
        try:
            self._group = self._cluster.set_aside(self._at)
            where = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(self._group)
            # it has the GPUs, so that Ray shows them to the workers, and none of the cores
            has = {"num_cpus": 0, "num_gpus": self._at.gpus}
            remote = ray.remote(**has, scheduling_strategy=where)(SubprocessStarter)
            self._actor = remote.remote(self.address)
            self._started = self._actor.start.remote(order)
        except Exception as error:  # noqa: BLE001 - `failure` tells it
            self._error = f"Ray could not start it on {self.address}: {error}"

    def _find(self) -> bool:
        """Choose a node that answers; whether there is one."""
        at = None
        if self._knock is not None:
            may_be_there = self._knock.is_answered and not self._is_full
            at = self._cluster.place_again(self._at, answers=may_be_there)
            self._is_full = False  # the next time there may be room again
            self._knock.close()
        self._knock = None if at is not None else self._cluster.knock(self._at.node)
        self._at = at or self._at
        return at is not None

    def failure(self) -> str | None:
        """Why the link has ended; None while it has not, or its node is not ready."""
        ray = self._cluster.ray
        if self._started is None:
            return self._error or None
        if not ray.wait([self._started], timeout=0)[0]:
            return None
        try:
            ray.get(self._started)
            return ray.get(self._actor.failure.remote(), timeout=_REACH_SECONDS)
        except ray.exceptions.GetTimeoutError:
            return None
        except ray.exceptions.RayError as error:
            return f"Ray could not start it on {self.address}: {error}"

    def is_gone(self) -> bool:
        """Whether its node is, or has no room for it, or none was found yet."""
        if self._knock is not None:
            return self._knock.is_over
        there = self._cluster.within(_ANSWER_SECONDS, self._cluster.nodes)
        if there is None:
            return False
        if self._group is not None and time.monotonic() > self._is_full_after:
            self._is_full = self._cluster.is_waiting(self._group)
        return self._is_full or all(node.id != self._at.node.id for node in there)

    def close(self, grace_seconds: float) -> None:
        """End the link, then its keeper, and give back what it had."""
        ray = self._cluster.ray
        if self._actor is not None and ray.is_initialized():
            self._cluster.within(grace_seconds + 10, self._close, grace_seconds)
        self._end()
        if self._knock is not None:
            self._knock.close()

    def _close(self, grace_seconds: float) -> None:
        ray = self._cluster.ray
        # where it still waits for its node, nothing runs, and an answer would be waited for in vain
        if ray.wait([self._started], timeout=0)[0]:
            ray.get(self._actor.close.remote(grace_seconds), timeout=grace_seconds + 5)

    def _end(self) -> None:
        if self._cluster.ray.is_initialized():
            if self._actor is not None:
                self._cluster.within(_GIVE_BACK_SECONDS, self._cluster.ray.kill, self._actor)
            self._cluster.give_back(self._group)
        self._actor = self._group = self._started = None


@contextlib.contextmanager
def _own_answers_to_signals() -> Iterator[None]:
    """Ray answers SIGTERM by ending the process that connects; here it asks for a checkpoint.

    What it starts here does not hear that signal, and so is not ended by what is sent to all of this process's
    group (`timeout` does, and a batch system) before the last checkpoint. Where it comes while Ray connects, the
    own answer is given, and SystemExit, which is Ray's, goes on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    is_asked = False
    try:
        yield
    except SystemExit:
        is_asked = True
        raise
    finally:
        for number, answer in before.items():
            signal.signal(number, answer)
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        if is_asked:
            signal.raise_signal(signal.SIGTERM)


def _make_token() -> None:
    """Make the token of a cluster that is started here, if there is none: one that Ray makes, everybody can read."""
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    file = Path(named).expanduser() if named else Path.home() / ".ray" / "auth_token"
    with contextlib.suppress(OSError):  # it is there; or Ray says what is wrong
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as writing:
            writing.write(secrets.token_hex(32))


def _is_mark(name: str) -> bool:
    """Whether a node is named by a resource of its own, as new nodes can be."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return len(name) != _NODE_ID_LENGTH
    return False


def _is_there_one(address: str) -> bool:
    """Whether a cluster was named, or this host is part of one."""
    if address != "auto" or os.environ.get("RAY_ADDRESS"):
        return address != "local"
    temporary = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    try:  # a cluster that was killed leaves its address behind
        _reach(Path(temporary, "ray", "ray_current_cluster").read_text().strip())
    except (OSError, ValueError):
        return False
    return True


def _reach(address: str) -> None:
    """Raise OSError where nothing at HOST:PORT greets as the head of a cluster does.

    Ray itself waits for what listens and is silent, and cannot be interrupted meanwhile.
    """
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + _REACH_SECONDS
    with socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS) as connection:
        if os.environ.get("RAY_USE_TLS", "0") != "0":  # another greeting
            return
        connection.sendall(_GREETING)
        heard = b""
        while len(heard) < 4:
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                more = connection.recv(4 - len(heard))
            except TimeoutError as error:
                raise OSError(
                    f"something listens there, and did not greet within {_REACH_SECONDS:.0f} s as Ray's head does"
                ) from error
            if not more:
                break
            heard += more
    if len(heard) < 4 or heard[3] != _SETTINGS_TYPE:
        raise OSError("what listens there is not the head of a Ray cluster")


def check_ray(address: str) -> None:
    """Raise ConfigError where there is no Ray, or nothing listens, for which it would wait a minute."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "launcher ray needs Ray, which is not installed: pip install 'really-scalable-rl[ray]'"
        )
    where = address
    if address == "auto" and "RAY_ADDRESS" in os.environ:
        address = os.environ["RAY_ADDRESS"]
        where = f"{address} (RAY_ADDRESS)"
    if "://" in address:
        raise ConfigError(
            f"--ray.address {where}: a run connects as a part of the cluster, and not as a client of it; give HOST:PORT "
            "of its head, on a host that is one of its nodes"
        )
    if not address.rpartition(":")[2].isdigit():  # auto, local, or a name that Ray may know
        return
    try:
        _reach(address)
    except OSError as error:
        raise ConfigError(_unreachable(where, str(error))) from error


def _unreachable(where: str, why: str) -> str:
    return (
        f"no Ray cluster at --ray.address {where}: {why.strip().splitlines()[0]}; start one with "
        "`ray start --head`, or leave the address away for one on this host"
    )
