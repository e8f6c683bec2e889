"""Runs programs of users in a new interpreter."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def run(
    text: str, *arguments: object, file: Path | None = None, options: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    text = textwrap.dedent(text)
    source = ["-c", text]
    if file is not None:
        file.write_text(text, encoding="utf-8")
        source = [str(file)]
    options_of_run: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 250}
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.run([sys.executable, *options, *source, *map(str, arguments)], env=variables, **options_of_run)


def output_of(text: str, *arguments: object, **more: Any) -> str:
    done = run(text, *arguments, **more)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout
