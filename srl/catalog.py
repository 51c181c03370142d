"""Names and what they stand for: strings only, imported when used.

Adding an env family, an algorithm or an experiment is one file and one line here.
"""

ENVS = {
    "atari": "srl.envs.atari:AtariFamily",
    "envpool": "srl.envs.envpool:EnvPoolFamily",
    "gym": "srl.envs.gym:GymFamily",
    "pettingzoo": "srl.envs.pettingzoo:PettingZooFamily",
    "toy": "srl.envs.toy:ToyFamily",
}
"""Env family to its factory: `gym/CartPole-v1` is `CartPole-v1` of `gym`."""

EXPERIMENTS = {
    "cartpole": "srl.experiments.cartpole:cartpole",
    "cartpole-dqn": "srl.experiments.cartpole_dqn:cartpole_dqn",
    "cartpole-a2c": "srl.experiments.cartpole_on_policy:cartpole_a2c",
    "cartpole-appo": "srl.experiments.cartpole_on_policy:cartpole_appo",
    "cartpole-impala": "srl.experiments.cartpole_on_policy:cartpole_impala",
    "cartpole-ppg": "srl.experiments.cartpole_on_policy:cartpole_ppg",
    "cartpole-rainbow": "srl.experiments.cartpole_dqn:cartpole_rainbow",
    "cartpole-r2d2": "srl.experiments.cartpole_dqn:cartpole_r2d2",
    "acrobot": "srl.experiments.acrobot:acrobot",
    "acrobot-dqn": "srl.experiments.acrobot_dqn:acrobot_dqn",
    "recall-gtrxl": "srl.experiments.recall:recall_gtrxl",
    "recall-r2d2": "srl.experiments.recall:recall_r2d2",
    "half-cheetah": "srl.experiments.half_cheetah:half_cheetah",
    "half-cheetah-sac": "srl.experiments.half_cheetah:half_cheetah_sac",
    "half-cheetah-td3": "srl.experiments.half_cheetah:half_cheetah_td3",
    "pendulum-sac": "srl.experiments.pendulum:pendulum_sac",
    "pendulum-td3": "srl.experiments.pendulum:pendulum_td3",
    "pendulum-ddpg": "srl.experiments.pendulum:pendulum_ddpg",
    "pong": "srl.experiments.pong:pong",
    "pong-appo": "srl.experiments.pong:pong_appo",
    "pong-rainbow": "srl.experiments.pong_dqn:pong_rainbow",
    "pong-apex": "srl.experiments.pong_dqn:pong_apex",
}
"""Experiment to the function that returns it."""

FALLBACK_EXPERIMENT = "srl.experiments.by_spaces:by_spaces"
"""Makes an experiment of any env `FAMILY/NAME`, by its spaces."""
