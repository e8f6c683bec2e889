"""The runs on other versions of Python report the tests that were run and the tests that were not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[3] / "tools"
sys.path.insert(0, str(TOOLS))

import other_pythons  # noqa: E402

REPORT = """<testsuites><testsuite>
<testcase name="one"/><testcase name="two"><failure/></testcase><testcase name="three"><error/></testcase>
<testcase name="four"><skipped message="no such library"/></testcase>
</testsuite></testsuites>"""


def test_this_version_is_found_and_an_unknown_one_is_not(tmp_path: Path) -> None:
    found = other_pythons.find(f"{sys.version_info.major}.{sys.version_info.minor}", tmp_path)
    assert found is not None
    assert found.output(found.python, "-c", "print(1)").stdout == "1\n"
    assert other_pythons.find("9.99", tmp_path) is None


def test_a_version_that_is_not_installed_and_a_library_that_is_missing_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    version = other_pythons.Version("3.12", [], "python3.12", tmp_path, left_out=["ray>=2"])
    monkeypatch.setattr(version, "run", lambda *_, **__: (tmp_path / "report.xml").write_text(REPORT) * 0 + 1)
    assert version.test("-m", "unit") == 1
    other_pythons.report(["3.12", "3.99"], [version])
    said = capsys.readouterr().out
    assert "CPython 3.99: NOT RUN" in said
    assert "CPython 3.12: 1 passed, 2 failed, 1 skipped" in said
    assert "skipped 1: no such library" in said
    assert "not installed: ray>=2" in said


def test_the_tests_that_depend_on_the_interpreter_exist() -> None:
    assert all(list(other_pythons.TESTS.glob(pattern)) for pattern in other_pythons.DEPENDENT)
