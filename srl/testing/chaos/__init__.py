"""Chaos: seeded faults against the whole dataflow, and one checker of what must hold all the same.

network.py      sockets that drop, repeat and delay, and processes that die at any call
parts.py        an env, a policy and a learner that know what every row must be
ranks.py        several trainers that meet, and lose each other
simulation.py   a run in one thread, under a clock of its own, by a schedule drawn from a seed
broken.py       envs that break when somebody outside wants it
run.py          a real run, as it is seen from outside
real.py         real runs: processes killed, stopped and slowed, envs broken, by a seed
checker.py      what must hold, for simulated and for real runs
"""
