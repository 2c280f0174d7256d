"""How `--help` reads where records are appended to a file."""

from __future__ import annotations

import argparse

RECORD_HELP = "append a line of JSON per finished case to this file (default: none)"


class CaseHelp(argparse.HelpFormatter):
    """Tells the default of every flag that does not tell it itself, and what `--json` does here."""

    def add_argument(self, action: argparse.Action) -> None:
        """List one flag."""
        if action.dest == "json":
            action.help = RECORD_HELP
        if action.help and "(default" not in action.help and action.option_strings:
            told = "none" if action.default is None else _shown(action.default)
            if action.default != argparse.SUPPRESS:
                action.help = f"{action.help} (default: {told})"
        super().add_argument(action)


def _shown(default: object) -> str:
    if isinstance(default, (tuple, list)):
        return " ".join(map(str, default))
    return str(default)
