"""Files of a host that does not see the run folder: its side, the controller's, and both together."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from srl.core.telemetry import EvaluatedVersion
from srl.launch import far_folder
from srl.launch.far_folder import FarFolder
from srl.launch.host_files import HostFiles
from srl.transport.control import (
    Accounts,
    Backup,
    Begin,
    Evaluated,
    Failure,
    FileData,
    FileTaken,
    FileWanted,
    Framing,
    Part,
    Restart,
    Save,
    Saved,
    SaveFailed,
    StartNode,
    Stop,
    Stopped,
)

SAVED = Saved("trainer-0", 1, Part("state-trainer-0.safetensors", "", 5, ()), {}, {})
PART = "checkpoints/.00000001.writing/state-trainer-0.safetensors"


class Planned:
    """A plan whose workers are all on host 1."""

    def host_of(self, _worker: str) -> int:
        return 1


class FakeLine:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for name in ("logs", "errors", "versions", "checkpoints/.00000001.writing"):
        (tmp_path / "run" / name).mkdir(parents=True)
    return tmp_path / "run"


@pytest.fixture
def files(run: Path) -> HostFiles:
    made = HostFiles(Planned(), run, {1: FakeLine()})  # type: ignore[arg-type]
    made.far.add(1)
    return made


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FarFolder:
    monkeypatch.setattr(far_folder, "make_socket_folder", lambda: tmp_path / "far")
    (tmp_path / "far").mkdir()
    return FarFolder("/runs/1", 1)


def there(run: Path) -> list[str]:
    return sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "name",
    [
        "../x.log",
        "/tmp/x.log",
        "logs/../../x.log",
        "logs/x.txt",
        "logs/.x.log",
        "logs/x.log\n",
        "logs//x.log",
        "errors/../config.json",
        "errors/a/b",
        "config.json",
        "checkpoints/00000001/manifest.json",
        "checkpoints/.00000001.writing/../../x",
        "pinned/main/0/weights.safetensors",
        "",
    ],
)
def test_no_name_writes_elsewhere(files: HostFiles, run: Path, name: str) -> None:
    assert files.hear([FileData(1, name, b"bad", is_last=True)]) == []
    files.close()
    assert there(run.parent) == []


@pytest.mark.parametrize(
    "name", ["../secret", "config.json", "checkpoints/../secret", "logs/a.log"]
)
def test_no_name_reads_elsewhere(files: HostFiles, run: Path, name: str) -> None:
    for path in (run.parent / "secret", run / "config.json", run / "logs" / "a.log"):
        path.write_text("not for others")
    files.hear([FileWanted(1, name, 0)])
    assert files._lines[1].sent == [FileData(1, name, b"", is_last=True)]  # type: ignore[attr-defined]


def test_file_is_there_when_it_is_whole_and_logs_grow(files: HostFiles, run: Path) -> None:
    name = "errors/nan-trainer-0-00000001.safetensors"
    files.hear([FileData(1, name, b"on"), FileData(1, "logs/actor-0.log", b"a")])
    assert not (run / name).exists()
    files.hear([FileData(1, name, b"e", is_last=True), FileData(1, "logs/actor-0.log", b"b")])
    assert (run / name).read_bytes() == b"one"
    assert (run / "logs" / "actor-0.log").read_bytes() == b"ab"
    assert files._lines[1].sent == [FileTaken(2), FileTaken(1), FileTaken(1), FileTaken(1)]  # type: ignore[attr-defined]
    files.hear([FileData(1, "errors/half", b"x")])
    files.forget(1)  # the host is lost
    assert there(run) == [name, "logs/actor-0.log"]


def test_part_that_did_not_arrive_is_no_part(files: HostFiles, run: Path) -> None:
    (failed,) = files.hear([FileData(1, PART, b"1234", is_last=True), SAVED])
    assert failed == SaveFailed("trainer-0", 1, "state-trainer-0.safetensors did not arrive")
    assert files.hear([FileData(1, PART, b"12345", is_last=True), SAVED]) == [SAVED]
    given_up = msgspec.structs.replace(SAVED, serial=2)
    name = PART.replace("01.w", "02.w")
    (failed,) = files.hear([FileData(1, name, b"12345", is_last=True), given_up])
    assert isinstance(failed, SaveFailed)
    assert "No such file" in failed.message
    assert there(run) == [PART]


def test_version_whose_file_did_not_arrive_has_none(files: HostFiles, run: Path) -> None:
    result = EvaluatedVersion("main", 3, 1.0, 0.0, 1, 0.0, "", "main-00000003.safetensors")
    message = Evaluated("evaluator-0", result)
    (heard,) = files.hear([message])
    assert heard == Evaluated("evaluator-0", result._replace(file=""))
    (run / "versions" / result.file).touch()
    assert files.hear([message]) == [message]


def passed(bytes_: bytes) -> list[Any]:
    framing = Framing()
    framing.feed(bytes_)
    return framing.parse()


def framed(*messages: Any) -> bytes:
    return b"".join(Framing().bytes_of(message) for message in messages)


def start(**more: Any) -> StartNode:
    plan = {
        "folder": "/runs/1",
        "workers": [{"name": "trainer-0", "kind": "trainer"}, {"name": "actor-0", "kind": "actor"}],
        "routes": [{"policy": "main"}, {"policy": "old", "opponents": [{}]}],
    }
    return StartNode(
        plan=json.dumps(plan).encode(),
        arenas={},
        workers=["trainer-0"],
        listeners={},
        log_folder="/runs/1/logs",
        socket_folder="/s",
        python_path=[],
        **more,
    )


def test_message_comes_after_its_file_and_others_go_between(far: FarFolder) -> None:
    far.inward(framed(Save(1, "/runs/1/checkpoints/.00000001.writing")))
    part = far.path / PART
    part.write_bytes(bytes(3 * far_folder._WINDOW))
    first = passed(far.outward(framed(SAVED)))
    assert {message.name for message in first} == {PART}
    assert sum(len(message.data) for message in first) == far_folder._WINDOW
    accounts = Accounts({})
    assert passed(far.outward(framed(accounts))) == [accounts]  # the window is full
    rest, taken = [], len(first)
    while not rest or rest[-1] != SAVED:
        assert taken, f"it stands still after {len(rest)} pieces"
        orders, answer = far.inward(framed(FileTaken(taken * far_folder._PIECE)))
        assert (orders, answer) == (b"", b"")
        more = passed(far.outward(b""))
        taken = sum(isinstance(message, FileData) for message in more)
        rest += more
    assert [message.is_last for message in rest[:-1]] == [False] * (len(rest) - 2) + [True]
    assert sum(len(message.data) for message in rest[:-1]) == 2 * far_folder._WINDOW
    assert not part.exists()
    assert not far.is_empty
    far.inward(framed(FileTaken(taken * far_folder._PIECE)))
    assert far.is_empty


def test_logs_are_sent_as_they_grow_and_before_the_last_word(far: FarFolder) -> None:
    log = far.path / "logs" / "actor-0.log"
    log.write_text(f"see {far.path}/errors")
    assert passed(far.outward(b"")) == [
        FileData(1, "logs/actor-0.log", b"see /runs/1/errors", is_last=True)
    ]
    log.write_text(f"see {far.path}/errors, bye")
    (far.path / "errors" / "nan-1").write_text("x")
    (far.path / "errors" / ".nan-2.writing").write_text("x")
    assert passed(far.outward(framed(Stopped({})))) == [
        FileData(1, "logs/actor-0.log", b", bye", is_last=True),
        FileData(1, "errors/nan-1", b"x", is_last=True),
        Stopped({}),
    ]
    failure = Failure("trainer-0", f"kept in {far.path}/errors/nan-1", "")
    (told,) = passed(far.outward(framed(failure)))
    assert told.message == "kept in /runs/1/errors/nan-1"
    far.close()
    assert not far.path.exists()


def test_orders_wait_for_what_they_speak_of_and_name_it_here(
    far: FarFolder, files: HostFiles, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("srl.launch.host_files._PIECE", 3)
    kept = {
        "pinned/old/0/opponent.json": b"{}",
        "pinned/old/0/weights.safetensors": b"weights",
        "checkpoints/00000007/manifest.json": b'{"parts": [{"file": "state-trainer-0.safetensors"}]}',
        "checkpoints/00000007/state-trainer-0.safetensors": b"state",
    }
    for name, data in kept.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(data)

    def seen(*orders: Any) -> list[Any]:
        """What the agent sees of orders, when all was fetched; before that, nothing."""
        data, found = framed(*orders), []
        for _ in range(100):
            here, asked = far.inward(data)
            found += passed(here)
            if not asked:
                return found
            assert not found
            files.hear(passed(asked))
            data = framed(*files._lines[1].sent)  # type: ignore[attr-defined]
            files._lines[1].sent.clear()  # type: ignore[attr-defined]
        raise AssertionError("it asks for ever")

    begin = Begin({})
    started, begun = seen(start(state="/runs/1/checkpoints/00000007"), begin)
    assert begun == begin
    assert started.log_folder == str(far.path / "logs")
    assert json.loads(started.plan)["folder"] == str(far.path)
    state = Path(started.state)
    assert {path.name: path.read_bytes() for path in state.iterdir()} == {
        Path(name).name: data for name, data in kept.items() if name.startswith("check")
    }
    for name in ("opponent.json", "weights.safetensors"):
        assert (far.path / "pinned/old/0" / name).read_bytes() == kept[f"pinned/old/0/{name}"]
    actor, backup = Restart(["actor-0"], 2, "/runs/1/checkpoints/00000007"), Backup("", 1, b"")
    assert [one.workers for one in seen(actor, backup)] == [["actor-0"]]
    (again,) = seen(Restart(["trainer-0"], 2, "/runs/1/checkpoints/00000007"))
    assert Path(again.state) != state  # it may have changed
    assert (Path(again.state) / "state-trainer-0.safetensors").read_bytes() == b"state"
    (stop,) = seen(Stop(Save(3, "/runs/1/checkpoints/.00000003.writing")))
    assert stop.save.folder == str(far.path / "checkpoints" / ".00000003.writing")
    assert Path(stop.save.folder).is_dir()
