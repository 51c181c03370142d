"""Simulated chaos: seeded schedules hold every rule, and planted bugs break the right one."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from srl.core.streams import Delivery
from srl.streams.inference.shm import ShmInferenceClient
from srl.streams.samples.shm import ShmConsumer
from srl.testing.chaos.broken import ENVS, Lever, Single
from srl.testing.chaos.checker import RULES, Checker
from srl.testing.chaos.real import TOPOLOGIES, run_real
from srl.testing.chaos.simulation import Outcome, simulate
from srl.transport.slots import Ledger, SlotTable
from srl.transport.sockets import Client
from srl.workers.trainer import Trainer

FIRST = int(os.environ.get("SRL_CHAOS_SEED", "0"))
SCHEDULES = int(os.environ.get("SRL_CHAOS_SCHEDULES", "100"))


@pytest.mark.parametrize("part", range(10))
def test_every_rule_holds_in_every_schedule(part: int):
    seen: Counter[str] = Counter()
    for seed in range(FIRST + part * SCHEDULES, FIRST + (part + 1) * SCHEDULES):
        outcome = simulate(seed)
        assert not outcome.violations, _told(outcome)
        assert len(outcome.faults) >= 4
        seen.update(outcome.seen)
    assert seen.keys() == RULES.keys()  # one that was never looked at proves nothing


QUICK = ("replay in two buffers", "two trainers")


@pytest.mark.parametrize(
    "topology",
    [
        pytest.param(n, id=name, marks=[] if name in QUICK else [pytest.mark.slow])
        for n, name in enumerate(sorted(TOPOLOGIES))
    ],
)
def test_every_rule_holds_in_a_real_run(topology: int):
    kinds = topology % 2  # of envs: of those that are not slow, both
    seed = (len(ENVS) * FIRST + kinds) * len(TOPOLOGIES) + topology
    outcome = run_real(seed, seconds=6.0)
    told = [f"seed {seed}: {outcome.faults}", *map(str, outcome.violations)]
    assert not outcome.violations, "\n".join(told)
    assert len(outcome.faults) >= 3
    assert outcome.broken <= sum(fault.startswith("break") for fault in outcome.faults)
    assert outcome.seen.keys() >= {"ends", "silent", "ledger", "stale", "back", "left"}


def test_a_lever_breaks_one_env_once(tmp_path: Path):
    lever, envs = Lever(tmp_path), [Single(str(tmp_path)) for _ in range(3)]
    for env in envs:
        env.reset(seed=1)
    lever.pull("step raise")
    assert lever.is_pulled
    with pytest.raises(RuntimeError, match="broken in step"):
        envs[1].step(0)
    assert not lever.is_pulled
    for env in envs:
        env.step(0)
    lever.pull("step nan")
    assert np.isnan(envs[2].step(0)[0]).any()
    lever.pull("reset raise")
    envs[0].step(0)
    with pytest.raises(RuntimeError, match="broken in reset"):
        envs[0].reset(seed=1)
    assert sorted(p.way for p in lever.pulled()) == ["reset raise", "step nan", "step raise"]
    assert {p.pid for p in lever.pulled()} == {os.getpid()}


def test_a_schedule_is_its_seed():
    assert simulate(7) == simulate(7)
    assert simulate(7).faults != simulate(12).faults


def first_violation(seeds: range) -> Outcome:
    for seed in seeds:
        outcome = simulate(seed)
        if outcome.violations:
            return outcome
    pytest.fail(f"the bug was not found in {len(seeds)} schedules")


def _told(outcome: Outcome) -> str:
    told = [f"seed {outcome.seed} (SRL_CHAOS_SEED={outcome.seed} SRL_CHAOS_SCHEDULES=1)"]
    return "\n".join([*told, *outcome.faults, *map(str, outcome.violations)])


def rules(outcome: Outcome) -> set[str]:
    return {violation.rule for violation in outcome.violations}


def test_lost_credit_is_found(monkeypatch: pytest.MonkeyPatch):
    """A consumer that does not tell a returning producer what it was granted."""
    send = ShmConsumer._send_credit

    def once(self: ShmConsumer, producer: int) -> None:
        if self._credit.get(producer, 0) > getattr(self, "told", {}).get(producer, 0):
            self.__dict__.setdefault("told", {})[producer] = self._credit[producer]
            send(self, producer)

    monkeypatch.setattr(ShmConsumer, "_send_credit", once)
    assert rules(first_violation(range(200))) & {"silent", "ends"}


def test_double_delivery_is_found(monkeypatch: pytest.MonkeyPatch):
    """A consumer that believes every notice, and does not mind that a slot is free already."""
    take = ShmConsumer.take

    def believe(self: ShmConsumer, producer: int, slot: int, generation: int) -> bool:
        self._arrived.append(Delivery(producer, slot, self._blocks.block(producer, slot)))
        return True

    def take_once(self: ShmConsumer, delivery: Delivery, *, dropped: bool) -> None:
        if not self._blocks.table.is_free(delivery.producer, delivery.slot):
            take(self, delivery, dropped=dropped)

    monkeypatch.setattr(ShmConsumer, "_deliver", believe)
    monkeypatch.setattr(ShmConsumer, "take", take_once)
    assert rules(first_violation(range(200))) & {"twice", "ledger"}


def test_a_late_reply_that_is_accepted_is_found(monkeypatch: pytest.MonkeyPatch):
    """An actor that takes any answer of its group for the one it waits for."""

    def accept(self: ShmInferenceClient, worker: int, message) -> bool:
        header = message.header
        pending = self._pending.pop(header.c, None)
        if pending is None:
            return False
        area = self._areas[worker][header.c]
        pending.grant.block.answer(area.row(self._outputs.names, 0), pending.row)
        pending.grant.block["version"][pending.row] = header.a
        return True

    monkeypatch.setattr(ShmInferenceClient, "_copy_answer", accept)
    assert "answer" in rules(first_violation(range(200)))


def test_a_leaked_slot_is_found(monkeypatch: pytest.MonkeyPatch):
    """A consumer that keeps the slot of every block that it drops."""
    take = SlotTable.take

    def leak(self: SlotTable, producer: int, slot: int, *, dropped: bool) -> None:
        if not dropped:
            take(self, producer, slot, dropped=dropped)

    monkeypatch.setattr(SlotTable, "take", leak)
    assert rules(first_violation(range(400))) == {"slot"}


def test_a_gate_that_is_not_rebased_is_found(monkeypatch: pytest.MonkeyPatch):
    """Trainers that go on after their last version, behind the gate of an older one."""

    def follow(self: Trainer, published: int) -> None:
        if published >= self.version:
            self.version = published + 1

    monkeypatch.setattr(Trainer, "follow", follow)
    assert rules(first_violation(range(200))) & {"silent", "stale"}


def test_an_orphan_is_found(monkeypatch: pytest.MonkeyPatch):
    """A socket that nobody closes."""
    monkeypatch.setattr(Client, "close", lambda self: None)
    assert rules(first_violation(range(5))) == {"left"}


def test_checker_notes_versions_that_go_back_and_ledgers_that_do_not_add_up():
    checker = Checker(max_staleness=1)
    for version, now in ((0, 0.0), (1, 1.0), (1, 2.0)):
        checker.published(version, now)
    checker.ledger(Ledger(sent=3, consumed=2, in_flight=1), "now")
    checker.ledger(replace(Ledger(sent=3, consumed=2), duplicated=1), "now")
    checker.learned(1)
    checker.learned(2)
    checker.tick(31.0)
    checker.tick(33.0)
    checker.left("sockets", [])
    checker.left("sockets", ["srl-1"])
    assert [v.rule for v in checker.violations] == ["back", "ledger", "stale", "silent", "left"]
