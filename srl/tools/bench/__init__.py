"""`srl bench`: what a step costs, how fast a run is, and what each mechanism buys.

workloads.py   the workloads by name        command.py   options that all commands share
report.py      host, JSON, tables           plot.py      bars as SVG
"""
