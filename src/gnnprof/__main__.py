"""The command line: `python -m gnnprof script.py ...`, `gnnprof run ...`, `gnnprof report ...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gnnprof import _runner
from gnnprof._version import __version__

HELP = """\
usage: gnnprof [run] SCRIPT [ARGUMENT ...]
       gnnprof [run] -m MODULE [ARGUMENT ...]
       gnnprof report DIR [OPTION ...]

Run a Python script or module as python does, with torch_geometric.profile answered by gnnprof.
`python -m gnnprof` is the same as `gnnprof`.

  SCRIPT         a file, a folder or zip archive with a __main__.py, or - for standard input
  -m MODULE      a module, as in python -m
  report DIR     merge the profiles that the processes of a run wrote into DIR; see
                 gnnprof report --help. A script of that name is ./report
  -h, --help     show this text and exit
  -V, --version  show the version and exit

To run several processes: torchrun ... -m gnnprof SCRIPT [ARGUMENT ...]
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: What follows the program's name; by default `sys.argv[1:]`.

    Returns:
        The exit status: 0, or 2 for a wrong command line, or what python returns for a script
        that cannot be started. A script's own exit is the exception that it raised.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["report"]:
        from gnnprof import _report  # here: running a script needs none of it

        return _report.main(words[1:])
    if words[:1] == ["run"]:
        del words[0]
    if words[:1] in (["-h"], ["--help"]):
        sys.stdout.write(HELP)
        return 0
    if words[:1] in (["-V"], ["--version"]):
        sys.stdout.write(f"gnnprof {__version__}\n")
        return 0
    complaint = _complaint(words)
    if complaint is not None:
        sys.stderr.write(f"gnnprof: {complaint}; see gnnprof --help\n")
        return 2
    return _run(words)


def _complaint(words: Sequence[str]) -> str | None:
    """Say what is wrong with a command line that is to run something."""
    if not words:
        return "no script given"
    if words == ["-m"]:
        return "-m needs the name of a module"
    if words[0].startswith("-") and words[0] not in ("-", "-m"):
        return f"unknown option {words[0]!r}; arguments of the script go after it"
    return None


def _run(words: Sequence[str]) -> int:
    _runner.answer_imports()
    try:
        if words[0] == "-m":
            _runner.run_module(words[1], words[2:])
        else:
            _runner.run_script(words[0], words[1:])
    except _runner.CannotRun as error:
        sys.stderr.write(f"gnnprof: {error}\n")
        return error.status
    return 0


if __name__ == "__main__":
    sys.exit(main())
