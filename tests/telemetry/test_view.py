import io

from rich.console import Console

from srl.telemetry.progress import Progress
from srl.telemetry.view import LiveTable, PlainLines

UPDATE = {"version": 1, "updates": 4, "blocks": 2, "staleness_mean": 0.5, "staleness_max": 1}
UPDATE |= {"train_samples_total": 64, "skipped_batches": 0}


def busy_progress():
    progress = Progress()
    progress.on_report(
        "actor-0", {"env_steps": 1234}, {"env": 3.0, "inference": 1.0}, [(9.5, 3, "main")]
    )
    progress.on_report("trainer-0", {}, {"learn": 1.0, "wait_for_batch": 3.0}, [])
    progress.on_update("main", UPDATE)
    return progress


def test_plain_lines_say_progress_and_bottleneck():
    out = io.StringIO()
    view = PlainLines(Console(file=out, width=200), 5000)
    view.show(busy_progress(), 2.0)
    view.close()
    text = out.getvalue()
    assert "env steps 1,234/5,000" in text
    assert "return 9.5 (1 episodes)" in text
    assert "staleness 0.50 (max 1)" in text
    assert "bottleneck: sampling" in text


def test_live_table_shows_every_policy_of_several():
    progress = Progress(["red"], frozen=["blue"])
    progress.on_report("actor-0", {}, {}, [(9.5, 3, "red"), (-9.5, 3, "blue")])
    progress.on_update("red", UPDATE)
    out = io.StringIO()
    view = LiveTable(Console(file=out, width=160, force_terminal=True), "toy", None)
    view.show(progress, 2.0)
    view.close()
    assert "version 1  return 9.5 (1 episodes)" in out.getvalue()
    assert "frozen  return -9.5 (1 episodes)" in out.getvalue()


def test_live_table_shows_the_time_split_of_each_kind():
    out = io.StringIO()
    console = Console(file=out, width=160, force_terminal=True)
    view = LiveTable(console, "toy", 5000)
    view.show(busy_progress(), 2.0)
    view.close()
    text = out.getvalue()
    assert "env 75%" in text
    assert "wait_for_batch 75%" in text
    assert "bottleneck: sampling" in text
