"""What results are written as."""

import json
import xml.etree.ElementTree as ET

import pytest

from srl.tools.bench import report
from srl.tools.bench.plot import write_bars
from srl.tools.bench.report import host, print_table, write_json

SVG = "{http://www.w3.org/2000/svg}"


def test_the_host_is_described(tmp_path):
    facts = host()
    assert facts["cores"] >= 1
    assert facts["cpu"]
    assert "torch" in facts["packages"]
    write_json(tmp_path / "deep" / "host.json", facts)
    assert json.loads((tmp_path / "deep" / "host.json").read_text()) == facts
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["host.json"]


@pytest.mark.parametrize(("quota", "cores"), [(None, 8), (2.5, 2), (0.5, 1), (16.0, 8)])
def test_cores_are_those_that_may_be_used(monkeypatch, quota, cores):
    monkeypatch.setattr(report, "usable_cores", lambda: 8)
    monkeypatch.setattr(report, "cpu_quota", lambda: quota)
    assert report.num_cores() == cores


def test_a_table_shows_every_cell(capsys):
    print_table("costs", ["what", "µs"], [["env", "1.25"], ["update", "10.5"]])
    out = capsys.readouterr().out
    for text in ("costs", "what", "µs", "env", "1.25", "update", "10.5"):
        assert text in out


def test_bars_are_as_long_as_their_numbers(tmp_path):
    path = tmp_path / "bars.svg"
    bars = {"one & two": {"env": 1.0, "learn": 3.0}, "other": {"env": 2.0}}
    write_bars(path, "a <title>", bars, unit="µs", intervals={"other": (1.5, 2.5)}, marks={"m": 5})
    root = ET.fromstring(path.read_text())
    widths = [float(rect.attrib["width"]) for rect in root.iter(f"{SVG}rect")][1:4]
    assert widths[1] / widths[0] == 3
    assert widths[2] / widths[0] == 2
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert "one & two" in texts
    assert "a <title>" in texts
