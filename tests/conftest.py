"""One thread a computation: the tests' are small, and threads that spin wait for busy cores."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything imports torch
