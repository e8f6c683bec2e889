"""Compares this project, torch's DataLoader and upstream torchdata 0.9.0 end to end.

Every measurement runs in its own child process. The contenders of a workload are measured in turn. The output contains
medians, ratios and the project's goals. On the first run, torch and upstream are installed into a separate virtual
environment.
Run: `python benches/python/compare.py [--quick] [--only NAME]`, or `make bench`.

With `--before FOLDER`, this project is compared with an earlier version of itself, which is in FOLDER: the folder
`python/` of a checkout after `make build`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from comparison import environment, formats, items, memory
from comparison.report import Report, Runs
from comparison.workloads import BEFORE, OURS, WORKERS, WORKLOADS, Contender, Workload, ours

HERE = Path(__file__).resolve().parent
BENCH = HERE.parent.parent / ".bench"
APART = ("upstream", "torch", "spdl", "torch-indexed")
"""The contenders that run in their own environments."""

GRACE_S = 5
"""The number of seconds that a child may take to exit after it has printed its figures."""

ALARM_S = 120
"""The number of seconds that a child may take to print its figures."""


class Harness:
    def __init__(
        self,
        upstream_python: Path | None,
        stateful_python: Path | None,
        jpegs: Path | None,
        files: Path | None,
        seconds: float,
        before: Path | None = None,
    ) -> None:
        self.before = before
        self.upstream_python = upstream_python
        self.stateful_python = stateful_python
        self.jpegs = jpegs
        self.files = files
        self.seconds = seconds
        self.ours_failed = False

    @contextlib.contextmanager
    def start(self, workload: Workload, contender: Contender, seconds: float) -> Iterator[Any]:
        order = {
            "contender": contender.program,
            "kind": contender.kind or workload.kind,
            "item": contender.item or workload.item,
            "start_method": workload.start_method,
            "workers": WORKERS,
            "seconds": seconds,
            "options": contender.options,
        }
        main = contender.options.get("main", "child")
        environ = dict(os.environ)
        environ.pop("PYTHONDONTWRITEBYTECODE", None)  # if this variable is set, every start compiles the modules
        python = sys.executable
        if contender.name == BEFORE:
            environ["PYTHONPATH"] = str(self.before)
        if (other := self.python_apart(contender)) is not None:
            python = os.path.abspath(str(other))  # links are not resolved, because they lead out of the environment
            environ.pop("PYTHONPATH", None)  # the path may lead to this project's torchdata
        elif "PYTHONPATH" in environ:  # made absolute, because the children run in another folder
            folders = environ["PYTHONPATH"].split(os.pathsep)
            environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(folder) for folder in folders if folder)
        if self.jpegs is not None:
            environ[items.JPEG_FOLDER] = str(self.jpegs)
        if self.files is not None:
            environ[formats.FOLDER] = str(self.files)
        child = subprocess.Popen(
            [python, "-W", "ignore", "-m", f"comparison.{main}", json.dumps(order)],
            cwd=HERE,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield child
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()

    def python_apart(self, contender: Contender) -> Path | None:
        """Returns the interpreter of a separate environment, or None if the contender uses this project's
        environment."""
        if contender.program == "upstream-stateful":
            return self.stateful_python
        return self.upstream_python if contender.program in APART else None

    def can_run(self, workload: Workload, contender: Contender) -> bool:
        apart = contender.program == "upstream-stateful" or contender.program in APART
        if apart and self.python_apart(contender) is None:
            return False
        packer = contender.options.get("packer")
        if packer in ("transformers", "trl") and importlib.util.find_spec(packer) is None:
            return False
        if contender.program == "stateful" and importlib.util.find_spec("torch") is None:
            return False
        if contender.program == "ray" and importlib.util.find_spec("ray") is None:
            print(f"! {workload.name}, {contender.name}: Ray is not installed", file=sys.stderr, flush=True)
            return False
        if workload.kind == "format" or workload.item == "content":
            return self.files is not None
        crops = "crops" in workload.item
        with_torch = crops or workload.item in ("tensor", "small_tensor", "small_tensors", "collated")
        if with_torch and importlib.util.find_spec("torch") is None:
            return False
        reads = crops or workload.item in ("decoded", "collated", "images")
        return not reads or self.jpegs is not None

    def run(self, workload: Workload, contender: Contender) -> dict[str, float] | None:
        """Runs a contender in a child process, and returns its results. If the child fails, prints the reason and
        returns None."""
        with self.start(workload, contender, self.seconds) as child:
            alarm = time.monotonic() + ALARM_S
            line = read_line(child, alarm)
            if not line:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                errors = child.communicate()[1].strip().splitlines() or ["it printed nothing"]
                complain(workload, contender, errors[-1])
                self.ours_failed |= contender.name == OURS
                return None
            try:
                child.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                complain(workload, contender, f"did not end within {GRACE_S} s of its last item; killed")
                self.ours_failed |= contender.name == OURS
            figures: dict[str, float] = json.loads(line)
            return figures

    def compare(self, workload: Workload, repetitions: int) -> Runs:
        """Runs the contenders in turn, and returns their results. A contender that has failed is not run again."""
        runs: Runs = {contender.name: [] for contender in workload.contenders}
        playing = [one for one in workload.contenders if self.can_run(workload, one)]
        for _ in range(repetitions):
            for contender in list(playing):
                figures = self.run(workload, contender)
                if figures is None:
                    playing.remove(contender)
                else:
                    runs[contender.name].append(figures)
        return runs

    def watch_memory(self, seconds: float) -> memory.Course | None:
        workload = next(one for one in WORKLOADS if one.name == "arrays")
        with self.start(workload, ours, seconds + 60) as child:
            try:
                return memory.watch(child.pid, seconds, lambda: child.poll() is None)
            except RuntimeError as error:
                complain(workload, ours, str(error))
                self.ours_failed = True
                return None


def read_line(child: Any, alarm: float) -> str:
    """Returns the child's next line, or an empty text if the child exits without output or `alarm` has passed."""
    import selectors

    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        if not selector.select(max(0.0, alarm - time.monotonic())):
            return ""
        return str(child.stdout.readline())


def complain(workload: Workload, contender: Contender, what: str) -> None:
    print(f"! {workload.name}, {contender.name}: {what}", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    names = [workload.name for workload in WORKLOADS] + ["memory"]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheels", type=Path, help="a folder that may contain a wheel of torch")
    parser.add_argument("--upstream-python", type=Path, help="a Python with torchdata 0.9 and torch")
    parser.add_argument("--stateful-python", type=Path, help="a Python with torchdata 0.11 and torch")
    parser.add_argument("--quick", action="store_true", help="measure once instead of five times, and shorter")
    parser.add_argument("--only", action="append", choices=names, help="measure only this workload; may be repeated")
    parser.add_argument(
        "--before", type=Path, help="the folder python/ of an earlier version of this project; only compare with it"
    )
    parser.add_argument("--repetitions", type=int, help="the number of runs of each contender")
    return parser.parse_args()


def installed(home: Path, packages: tuple[str, ...], wheels: Path | None) -> Path | None:
    """Creates the environment and returns its interpreter, or prints why this fails and returns None."""
    try:
        return environment.upstream_python(home, packages, wheels)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"! torch and {packages[0]} are missing in this run: {error}", file=sys.stderr)
        return None


def main() -> None:
    asked = arguments()
    chosen = [one for one in WORKLOADS if not asked.only or one.name in asked.only]
    if asked.before:
        chosen = [one.compared() for one in chosen]
    python, stateful = asked.upstream_python, asked.stateful_python
    if python is None and any(other.program in APART for one in chosen for other in one.contenders):
        python = installed(BENCH / "upstream", environment.UPSTREAM, asked.wheels)
    if stateful is None and any(other.program == "upstream-stateful" for one in chosen for other in one.contenders):
        stateful = installed(BENCH / "stateful", environment.STATEFUL, asked.wheels)
    jpegs = environment.jpeg_folder(BENCH)
    if jpegs is None:
        print("! no JPEG workload in this run: Pillow is not installed", file=sys.stderr)
    files = environment.format_files(BENCH)
    if files is None:
        print("! no tar and TFRecord workloads in this run: the test extra is not installed", file=sys.stderr)
    before = asked.before and asked.before.resolve(strict=True)
    harness = Harness(python, stateful, jpegs, files, seconds=1.0 if asked.quick else 1.5, before=before)
    repetitions = asked.repetitions or (1 if asked.quick else 5)
    report = Report()
    cores, load = os.cpu_count(), os.getloadavg()[0]
    print(f"{WORKERS} workers, medians of {repetitions}, {cores} cores, load {load:.1f} before the run")
    if load > 0.5:
        print("! other programs use this machine: the ratios of JPEG and start-up rows are unreliable")
    for workload in chosen:
        report.workload(workload, harness.compare(workload, repetitions))
    if not before and (not asked.only or "memory" in asked.only):
        seconds = 8.0 if asked.quick else 40.0
        report.memory(harness.watch_memory(seconds), seconds)
    report.summary()
    if harness.ours_failed:  # a missed goal is not an error, but a loader that fails or hangs is
        sys.exit("torchdata-rs failed in this comparison: see the lines that begin with !")


if __name__ == "__main__":
    main()
