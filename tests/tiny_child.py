"""The process of a case with one mode more, which compiles within a second: no code is generated.

Its warm-up, comparison, phases, second process and record are those of any other mode.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmark.compile import child
from benchmark.compile.registry import ModeEntry, register_mode

if __name__ == "__main__":
    register_mode(ModeEntry("ahead", "default", {"backend": "aot_eager"}))
    child.main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)
