"""Reports in one line which tests `make test` or `make check` ran, and which tests were skipped and why.

    python tools/tally.py test target/ran

The folder (here `target/ran`) contains logs of `cargo test` (`*.log`), reports of pytest (`*.xml`), and the file
`began` with the start time in seconds.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

RESULT = re.compile(r"^test result: ok\. (\d+) passed; 0 failed; (\d+) ignored", re.MULTILINE)


def cargo_tests(log: str) -> tuple[int, int]:
    found = RESULT.findall(log)
    return sum(int(passed) for passed, _ in found), sum(int(ignored) for _, ignored in found)


def python_tests(report: Path) -> tuple[int, Counter[str]]:
    passed, reasons = 0, Counter[str]()
    for case in ElementTree.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        if skipped is None:
            passed += 1
        else:
            reasons[skipped.get("message", "no reason").removeprefix("could not import ")] += 1
    return passed, reasons


def tally(target: str, folder: Path, now: float) -> str:
    """Returns the line. Raises ValueError if the folder does not contain a report."""
    parts, reasons = [], Counter[str]()
    for log in sorted(folder.glob("*.log")):
        passed, ignored = cargo_tests(log.read_text(encoding="utf-8", errors="replace"))
        parts.append(f"{passed} tests of {'Rust' if log.stem == 'rust' else log.stem}")
        if ignored:
            reasons[f"ignored in {log.stem}"] += ignored
    reports = sorted(folder.glob("*.xml"))
    if reports:
        found = [python_tests(report) for report in reports]
        parts.append(f"{sum(passed for passed, _ in found)} tests of Python")
        for _, skipped in found:
            reasons.update(skipped)
    if not parts:
        raise ValueError(f"{folder} has no report of tests")
    minutes = (now - float((folder / "began").read_text(encoding="utf-8"))) / 60
    skips = "; ".join(f"{count} for: {reason}" for reason, count in reasons.most_common())
    text = f"skipped {reasons.total()} ({skips})" if reasons else "nothing was skipped"
    return f"make {target} passed in {minutes:.0f} minutes: lint, {', '.join(parts)}; {text}"


if __name__ == "__main__":
    print(tally(sys.argv[1], Path(sys.argv[2]), time.time()))
