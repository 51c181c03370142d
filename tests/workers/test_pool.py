import numpy as np

from srl.core.algorithm import Records
from srl.core.spec import Field, Spec
from srl.workers.pool import Pool


class Adder:
    """Its action is the observation plus its weight plus its memory, which counts rows."""

    def __init__(self, weight: float, memory: str | None) -> None:
        state = Spec((Field(memory, (), "float32", "chunk"),) if memory else ())
        outputs = Spec((Field("action", (), "float32"), Field("value", (), "float32")))
        self.records = Records(outputs, state)
        self.weight = np.array(weight, np.float32)
        self.memory = memory
        self.batches = []

    def act(self, inputs):
        self.batches.append(sorted(inputs))
        outputs = {"action": inputs["obs"] + self.weight, "value": inputs["obs"]}
        if self.memory:
            outputs[self.memory] = np.where(inputs["first"], 0, inputs[self.memory]) + 1
            outputs["action"] = outputs["action"] + outputs[self.memory]
        return outputs

    def act_greedy(self, inputs):
        return {k: -v if k == "action" else v for k, v in self.act(inputs).items()}

    def weights(self):
        return {"w": self.weight}

    def load_weights(self, weights):
        self.weight = weights["w"].copy()

    def save(self):
        return {"batches": np.array(len(self.batches))}

    def load(self, state):
        self.batches = [None] * int(state["batches"])


def inputs(ids, count):
    return {
        "obs": np.arange(len(ids), dtype=np.float32),
        "first": np.zeros(len(ids), bool),
        "policy_id": np.array(ids),
        "1.h": np.array(count, np.float32),
    }


def test_pool_answers_each_lane_by_its_member():
    members = [Adder(100, None), Adder(200, "h")]
    pool = Pool(members)
    outputs = pool.act(inputs([1, 0, 1, 0], [5, 6, 7, 8]))
    assert outputs["action"].tolist() == [206, 101, 210, 103]
    assert outputs["1.h"].tolist() == [6, 6, 8, 8]  # who did not remember keeps what was there
    assert set(outputs) == {"action", "1.h"}
    assert pool.act_greedy(inputs([0], [0]))["action"].tolist() == [-100]
    # one call a member, shown what is its own; none for a member that nobody plays by
    assert members[0].batches == [["first", "obs"]] * 2
    assert members[1].batches == [["first", "h", "obs"]]


def test_pool_says_what_it_records():
    records = Pool([Adder(1, None), Adder(2, "h")]).records
    assert records.outputs.names == ("action",)
    assert records.state == Spec((Field("1.h", (), "float32", "chunk"),))
    assert records.members == 2


def test_pool_hands_weights_and_state_to_its_members():
    pool, other = Pool([Adder(1, None), Adder(2, None)]), Pool([Adder(3, None), Adder(4, None)])
    assert {k: float(v) for k, v in pool.weights().items()} == {"0.w": 1, "1.w": 2}
    other.load_weights(pool.weights())
    assert {k: float(v) for k, v in other.weights().items()} == {"0.w": 1, "1.w": 2}
    pool.act({k: v for k, v in inputs([1], [0]).items() if k != "1.h"})
    other.load(pool.save())
    assert {k: int(v) for k, v in other.save().items()} == {"0.batches": 0, "1.batches": 1}
