import json

from srl.telemetry.sinks import JsonLines, TensorBoard


def row(version):
    return {"version": version, "env_steps": version * 10, "mean_return": None}


def test_json_lines_keep_the_clock_apart(tmp_path):
    sink = JsonLines(tmp_path / "m.jsonl", up_to_version=None)
    sink.write(row(1), {"seconds": 1.5})
    sink.close()
    assert json.loads((tmp_path / "m.jsonl").read_text()) == {**row(1), "time": {"seconds": 1.5}}


def test_json_lines_of_a_resumed_run_forget_what_will_be_learned_again(tmp_path):
    path = tmp_path / "m.jsonl"
    sink = JsonLines(path, up_to_version=None)
    for version in (1, 2, 3):
        sink.write(row(version), {})
    sink.close()
    with path.open("a") as file:
        file.write('{"version": 4, "env_st')  # killed while writing
    resumed = JsonLines(path, up_to_version=2)
    resumed.write(row(3), {})
    resumed.close()
    assert resumed.last["version"] == 2
    assert [json.loads(line)["version"] for line in path.read_text().splitlines()] == [1, 2, 3]


def test_tensorboard_files_hold_the_scalars(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = TensorBoard(tmp_path)
    sink.write({**row(2), "mean_return": 7.5}, {"seconds": 3.0})
    sink.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    (scalar,) = events.Scalars("train/mean_return")
    assert (scalar.step, scalar.value) == (20, 7.5)
