"""Benchmark scripts over what gnnprof exports, and the data sets and flags that they share."""

import os

# Kineto, under torch's profiler, otherwise writes two lines to stderr per session.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
