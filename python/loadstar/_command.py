"""Runs the command loadstar."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from typing import Any, Iterable


class LoadstarError(RuntimeError):
    """An error of the command or of an interface, with the original message.

    ``code`` is the exit code of the command, or the HTTP status of an interface.
    """

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def command() -> str:
    """Return the path of the command: $LOADSTAR, this package's command, or the first one in $PATH."""
    own = os.environ.get("LOADSTAR")
    if own:
        return own
    name = "loadstar.exe" if sys.platform == "win32" else "loadstar"
    schemes = [sysconfig.get_default_scheme(), "posix_user" if os.name == "posix" else "nt_user"]
    for scheme in schemes:
        if scheme not in sysconfig.get_scheme_names():
            continue
        path = os.path.join(sysconfig.get_path("scripts", scheme), name)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    found = shutil.which(name)
    if found is None:
        raise LoadstarError("the command loadstar was not found: install the wheel for this platform, or set LOADSTAR to its path", 1)
    return found


def run(*arguments: Any, ok: Iterable[int] = (0,)) -> str:
    """Run ``loadstar ARGUMENTS`` and return its standard output.

    A failure raises :class:`LoadstarError` with the message of the command.
    """
    done = subprocess.run([command(), *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace", check=False)
    if done.returncode not in ok:
        text = done.stderr.strip() or done.stdout.strip() or f"loadstar ended with code {done.returncode}"
        lines = text.splitlines()
        # The message is in the last line that begins with the program's name. A hint may follow.
        for i in reversed(range(len(lines))):
            if lines[i].startswith("loadstar: "):
                text = "\n".join([lines[i][len("loadstar: "):], *lines[i + 1:]])
                break
        raise LoadstarError(text, done.returncode)
    return done.stdout
