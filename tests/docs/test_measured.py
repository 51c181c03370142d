"""Tables and curves of docs/algorithms: they are what the files of results say, and nothing is typed by hand."""

from pathlib import Path
from typing import Any

import pytest

from srl.core.names import load_object

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "tables.py"
RUN = {"env_steps": 60_128, "seconds": 70.0, "host": {"cores": 2}, "curve": [[0, None], [9, 20.0]]}
RESULTS: dict[str, Any] = {
    "algorithms": {
        "cartpole-dqn": {
            "wanted": 475,
            "runs": [
                {"seed": 1, "eval_return": 500.0, "reached_at": 41_500, **RUN},
                {"seed": 2, "eval_return": 312.55, "reached_at": None, **RUN},
            ],
        },
        "half-cheetah-sac": {"runs": [{"seed": 1, "eval_return": 5123.4, **RUN}]},
        "recall-r2d2": {"wanted": 0.9, "runs": []},
    },
    "beside_sb3": {
        "cases": {
            "cartpole-dqn": {
                "env_steps": 100_000,
                "srl": [{}, {}],
                "sb3": [{}, {}],
                "result": {
                    "srl_mean": 499.0,
                    "srl_interval": [498.0, 500.0],
                    "sb3_mean": 450.0,
                    "sb3_interval": [400.25, 499.75],
                    "holds": True,
                },
            },
            "pendulum-sac": {"env_steps": 20_000, "srl": [{}], "sb3": []},
        }
    },
    "staleness": {
        "ppo, staleness 0": {
            "runs": [{"eval_return": 500.0, "mean_return": 450.0, "staleness_mean": 0.0}]
        },
        "ppo, staleness 16": {
            "runs": [{"eval_return": 123.0, "mean_return": 90.0, "staleness_mean": 15.6}]
        },
        "appo, staleness 0": {
            "runs": [{"eval_return": 499.0, "mean_return": 440.0, "staleness_mean": 0.0}]
        },
        "appo, staleness 16": {"runs": []},
    },
}


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the script makes of a page with one block, by the results above."""
    found = load_object(f"{SCRIPT}:filled")
    monkeypatch.setitem(found.__globals__, "read", lambda name: dict(RESULTS.get(name, {})))
    return lambda names: found(f"<!-- measured: {names} -->\nold\n<!-- end -->").splitlines()[1:-1]


def test_pages_say_what_was_measured() -> None:
    for path, text in load_object(f"{SCRIPT}:pages")().items():
        assert path.read_text() == text, (
            f"{path.name} is not what python benchmarks/tables.py writes"
        )


def test_recipes_have_a_row_and_a_curve_each(filled: Any) -> None:
    _, _, row, _, curve = filled("cartpole-dqn recall-r2d2")
    assert row == "| `cartpole-dqn` | 60k | 475 | 500, 312.6 | 42k, never | 70 s |"
    assert curve == "![cartpole-dqn: return over env steps](curves/cartpole-dqn.svg)"
    assert filled("curve cartpole-dqn") == [curve]
    assert filled("recall-r2d2") == ["Not measured yet: `make learn`."]


def test_all_of_them_are_listed_with_their_time(filled: Any) -> None:
    *_, cheetah, _, time = filled("algorithms")
    assert cheetah == "| `half-cheetah-sac` | 60k |  | 5,123 |  | 70 s |"
    assert time == "3 runs, 4 minutes of one core, on hosts with 2 cores."


def test_both_sides_are_told_with_their_intervals(filled: Any) -> None:
    _, _, row = filled("beside_sb3")
    sides = "499 (498 to 500) | 450 (400.2 to 499.8)"
    assert row == f"| `cartpole-dqn` | 100k | 2 | {sides} | yes | 489 ± 16 |"


def test_staleness_has_a_row_an_algorithm(filled: Any) -> None:
    head, _, ppo, appo = filled("staleness")
    assert head == "|  | `--max-staleness 0` | `--max-staleness 16` |"
    old = "123; training 90 (mean age 15.6)"
    assert ppo == f"| `ppo` | 500; training 450 (mean age 0.0) | {old} |"
    assert appo == "| `appo` | 499; training 440 (mean age 0.0) |  |"


def test_curves_are_drawn_from_the_first_return_on(tmp_path: Path) -> None:
    path = tmp_path / "curve.svg"
    runs = [{"seed": 1, "curve": [[0, None], [30_000, -20.0], [60_000, 480.0]]}]
    load_object(f"{SCRIPT}:draw")(path, "cartpole-dqn", runs)
    text = path.read_text()
    assert "seed 1" in text
    assert ">60,000<" in text
    assert ">400<" in text
    assert text.count("<polyline") == 1
