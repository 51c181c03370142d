"""From an experiment to the graph that is launched, and from its plan to a worker that is connected."""
