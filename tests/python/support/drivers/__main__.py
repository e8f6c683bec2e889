"""Runs a driver, or all of them in turn: `python -m drivers NAME --seconds 600 --seed 1`, `python -m drivers all`."""

import importlib
import subprocess
import sys

from drivers import DRIVERS
from drivers.frame import Leaves, drive


def main(arguments: list[str]) -> int:
    name, *more = arguments or ["--help"]
    if name == "all":  # Each driver runs in its own process, because its imports must not affect the next driver.
        return max(subprocess.call([sys.executable, "-m", "drivers", one, *more]) for one in DRIVERS)
    if name not in DRIVERS:
        print(
            f"{__doc__}\nThe drivers are {', '.join(DRIVERS)}. `python -m drivers NAME --help` has the options of one."
        )
        return int(name != "--help")
    module, _, attribute = DRIVERS[name].partition(":")
    try:
        return drive(name, getattr(importlib.import_module(module), attribute or "DRIVER"), more)
    except Leaves as leaving:
        program = leaving.program
    program()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
