"""`tools/tally.py` prints the last line of `make test` and of `make check`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[3] / "tools"))

from tally import tally


def write(folder: Path) -> None:
    (folder / "began").write_text("60\n")
    (folder / "rust.log").write_text(
        "running 2 tests\ntest result: ok. 2 passed; 0 failed; 0 ignored; 0 measured\n"
        "test result: ok. 40 passed; 0 failed; 1 ignored; 0 measured\n"
    )
    (folder / "loom.log").write_text("test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured\n")
    for name, skips in (("alone", ["no unrar"]), ("beside", ["no unrar", "could not import 'cupy': none"])):
        cases = "".join(f'<testcase name="s"><skipped message="{why}"/></testcase>' for why in skips)
        (folder / f"{name}.xml").write_text(
            f'<testsuites><testsuite><testcase name="a"/>{cases}</testsuite></testsuites>'
        )


def test_the_line_counts_passed_tests_and_names_what_skipped_tests_lack(tmp_path: Path) -> None:
    write(tmp_path)
    assert tally("test", tmp_path, 60.0 + 15 * 60) == (
        "make test passed in 15 minutes: lint, 5 tests of loom, 42 tests of Rust, 2 tests of Python; "
        "skipped 4 (2 for: no unrar; 1 for: ignored in rust; 1 for: 'cupy': none)"
    )


def test_a_run_without_reports_is_not_a_success(tmp_path: Path) -> None:
    (tmp_path / "began").write_text("0")
    with pytest.raises(ValueError, match="no report"):
        tally("test", tmp_path, 0.0)


def test_the_minutes_that_readme_promises_are_those_that_make_says() -> None:
    root = Path(__file__).resolve().parents[3]
    said = dict(re.findall(r"^(TEST|CHECK)_MINUTES := (\d+)$", (root / "Makefile").read_text(), re.M))
    readme = (root / "README.md").read_text()
    found = re.search(r"^make test +# every check: (\d+) minutes on two idle cores \(make check: (\d+)\)", readme, re.M)
    assert found is not None
    assert found.groups() == (said["TEST"], said["CHECK"])
