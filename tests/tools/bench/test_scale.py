"""Many light clients: what is made of what was seen, and a small crowd that is real."""

import json

import pytest

from srl import cli
from srl.core.errors import ConfigError
from srl.tools.bench import scale
from srl.tools.bench.scale import is_sound, main, resumed, sizes_of
from srl.tools.bench.scale_run import Usage, delays_of

BLOCKS = {"sent": 9, "received": 9, "consumed": 6, "dropped": 1, "lost": 0, "in_flight": 2}
ROW = {"clients": 5, "registered": 5, "blocks": {**BLOCKS, "duplicated": 0}}


def test_a_version_counts_when_the_last_client_has_it():
    hosts = [
        {
            "seen": {
                "1": [2, 0.5, 10.0],
                "2": [2, 0.1, 12.0],
                "3": [2, 0.2, 14.0],
                "4": [2, 1, 30.0],
            }
        },
        {"seen": {"1": [3, 0.9, 10.4], "2": [2, 0.2, 12.1], "4": [3, 1, 29.0]}},
    ]
    # of version 2 one client saw nothing, 3 was skipped by a host, 4 came after the window
    assert delays_of(hosts, 5, 9.0, 20.0) == [0.9]


@pytest.mark.parametrize(
    "change",
    [{"received": 8}, {"lost": 1, "in_flight": 1}, {"in_flight": 1}, {"duplicated": 1}],
    ids=str,
)
def test_what_is_lost_is_not_sound(change):
    assert is_sound(ROW)
    assert not is_sound({**ROW, "blocks": {**ROW["blocks"], **change}})
    assert not is_sound({**ROW, "registered": 4})


def test_cores_are_those_of_the_time_between():
    before = Usage(10.0, {"controller": 1.0}, {})
    after = Usage(14.0, {"controller": 2.0, "trainer": 2.0}, {})
    assert after.since(before) == {"controller": 0.25, "trainer": 0.5}


def test_a_result_is_gone_on_with_where_the_settings_are_the_same(tmp_path):
    path = tmp_path / "scale.json"
    path.write_text(json.dumps({"settings": {"rows": 32}, "sizes": [{"clients": 5}]}))
    assert resumed(path, {"rows": 32})["sizes"] == [{"clients": 5}]
    assert resumed(path, {"rows": 16})["sizes"] == []


def test_words_that_are_none_are_refused():
    with pytest.raises(ConfigError, match="whole numbers"):
        sizes_of("10,many")
    with pytest.raises(ConfigError, match="at least one"):
        sizes_of("0")
    with pytest.raises(ConfigError, match="knows no 'pong'"):
        main(["pong"])
    for option in (
        "agents",
        "trainers",
        "processes",
        "rows",
        "seconds",
        "block-seconds",
        "megabytes",
    ):
        with pytest.raises(ConfigError, match=f"{option} must be"):
            main([f"--{option}", "-3"])


def test_a_size_of_other_agents_is_another(tmp_path, monkeypatch):
    measured = []

    def measure(clients, agents, _):
        measured.append((clients, agents))
        return {"clients": clients, "agents": agents}

    monkeypatch.setattr(scale, "measure", measure)
    monkeypatch.setattr(scale, "show", lambda _: None)
    monkeypatch.setattr(scale, "plot", lambda *_: None)
    monkeypatch.setattr(scale, "is_sound", lambda _: True)
    words = ["--clients", "10", "--json", str(tmp_path / "s.json")]
    for agents in ("2", "2", "5"):
        main([*words, "--agents", agents])
    assert measured == [(10, 2), (10, 5)]
    rows = json.loads((tmp_path / "s.json").read_text())["sizes"]
    assert all("commit" in row for row in rows)


@pytest.mark.slow
def test_a_small_crowd(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    words = "bench scale --clients 10 --agents 2 --trainers 1 --processes 2 --seconds 3"
    words += " --block-seconds 0.5 --megabytes 0.1 --json s.json"
    assert cli.main(words.split()) == 0
    (row,) = json.loads((tmp_path / "s.json").read_text())["sizes"]
    assert row["registered"] == 10
    assert row["heartbeats_heard_per_second"] > 0
    assert row["versions"] > 0
    assert row["requests_answered"] > 0
    assert row["blocks"]["sent"] == row["blocks"]["received"] > 0
    assert row["blocks"]["lost"] == 0
    assert row["cores"]["controller"] > 0
    assert (tmp_path / "s.svg").exists()
    monkeypatch.setattr(scale, "measure", None)  # it is not measured twice
    assert cli.main(words.split()) == 0
    assert "measured before" in capfd.readouterr().out
