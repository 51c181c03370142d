"""The controller's side of checkpoints: a folder is committed when every writer has answered."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from srl.launch.saving import Saving
from srl.learning.checkpoint import list_checkpoints, read_checkpoint, write_part
from srl.transport.control import Save, Saved

WRITERS = frozenset({"trainer-a-0", "trainer-b-0"})


def manifest(**policies: int) -> dict[str, Any]:
    """What the controller knows at one moment."""
    known = policies or {"a": 0, "b": 0, "c": 0}
    return {"progress": {"totals": sum(known.values()), "policies": known}}


def answer(order: Save, policy: str, version: int) -> Saved:
    """What a trainer does when it is told to save."""
    name = f"trainer-{policy}-0"
    part = write_part(Path(order.folder), name, {name: {"version": np.array(version)}})
    return Saved(name, order.serial, part, {policy: version}, {policy: {"sent": version}})


def test_checkpoint_is_there_when_all_have_answered(tmp_path):
    saving = Saving(tmp_path, WRITERS, keep=3)
    order = saving.order()
    saving.add(answer(order, "a", 3), manifest(a=3, b=1))
    assert saving.is_busy
    assert list_checkpoints(tmp_path) == []
    saving.add(answer(order, "b", 2), manifest(a=5, b=2))
    assert not saving.is_busy
    (path,) = list_checkpoints(tmp_path)
    found = read_checkpoint(path).manifest
    assert path.name == "00000003"
    assert found["versions"] == {"a": 3, "b": 2}
    assert found["ledgers"] == {"a": {"sent": 3}, "b": {"sent": 2}}
    # what is known of a policy is of the moment of its part: "a" went on meanwhile
    assert found["progress"] == {"totals": 7, "policies": {"a": 3, "b": 2}}
    assert os.listdir(tmp_path) == ["00000003"]


def test_writer_that_dies_leaves_only_a_folder_aside(tmp_path):
    saving = Saving(tmp_path, WRITERS, keep=3)
    saving.add(answer(saving.order(), "a", 3), manifest())
    assert list_checkpoints(tmp_path) == []
    assert os.listdir(tmp_path) == [".00000001.writing"]


def test_parts_of_two_orders_are_not_mixed(tmp_path):
    saving = Saving(tmp_path, WRITERS, keep=3)
    first, second = saving.order(), saving.order()
    saving.add(answer(first, "a", 3), manifest())
    saving.add(answer(second, "a", 4), manifest())
    last = answer(second, "b", 4)
    saving.add(last, manifest())
    saving.add(last, manifest())  # again: it is whole already
    (path,) = list_checkpoints(tmp_path)
    assert read_checkpoint(path).manifest["versions"] == {"a": 4, "b": 4}
    saving.add(answer(first, "b", 3), manifest())
    assert [path.name for path in list_checkpoints(tmp_path)] == ["00000003", "00000004"]


def test_checkpoint_of_strangers_is_not_waited_for(tmp_path):
    saving = Saving(tmp_path, WRITERS, keep=3)
    order = saving.order()
    saving.add(answer(order, "c", 9), manifest())
    assert saving.is_busy
    assert list_checkpoints(tmp_path) == []
