"""`srl bench`: what a step costs, how fast a run is, and what each mechanism buys.

cost.py      srl bench cost: what parts cost alone (alone.py measures), and the ideal
train.py     srl bench train: a window of the real run (window.py), and its efficiency
ablate.py    srl bench ablate: one factor at a time
peers.py     srl bench peers: other systems, in turn (peer_*.py)
scale.py     srl bench scale: thousands of light clients (scale_run.py, crowd.py, replay.py)
workloads.py, command.py, clock.py, report.py, plot.py: what they share
"""
