"""Plays CartPole by a policy that `srl export RUN --format onnx` wrote: no SRL, no torch."""

import sys

import gymnasium
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1])
env = gymnasium.make("CartPole-v1")
observation, _ = env.reset(seed=0)
total, is_over = 0.0, False
while not is_over:
    (actions,) = session.run(["action"], {"obs": observation[None]})  # one lane: [1, 4]
    observation, reward, terminated, truncated, _ = env.step(actions[0])
    total, is_over = total + float(reward), terminated or truncated
print(f"return {total:g}")
