"""Open pages in headless Chromium, where there is one; nothing is fetched and no driver needed."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

_QUIET_AND_OFFLINE = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
)
_DARK = ("--force-dark-mode", "--enable-features=WebUIDarkMode")


@dataclass(frozen=True)
class Opened:
    """A page after its scripts ran.

    Attributes:
        dom: The document as HTML.
        console: What the page wrote to the console: errors, refused loads.
    """

    dom: str
    console: tuple[str, ...]

    def texts(self, start: str, end: str) -> list[str]:
        """What lies between two pieces of markup, in order."""
        return re.findall(re.escape(start) + "(.*?)" + re.escape(end), self.dom, re.DOTALL)


def open_page(file: Path, state: str = "", *, width: int = 1280, dark: bool = False) -> Opened:
    """Open a file as a user would and return what is then in the document.

    Args:
        file: The page.
        state: What stands after `#` in the address.
        width: Width of the window in pixels.
        dark: Whether the system asks for dark colours.
    """
    if CHROMIUM is None:
        raise RuntimeError("no chromium on the PATH")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            CHROMIUM,
            *_QUIET_AND_OFFLINE,
            *(_DARK if dark else ()),
            f"--user-data-dir={profile}",
            f"--window-size={width},1400",
            "--dump-dom",
            f"{file.as_uri()}#{state}",
        ]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return Opened(done.stdout, tuple(console))
