"""The wheel with the name `torchdata` contains only metadata, and every release build creates and tests this wheel."""

import sys
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

import torchdata

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))

import name_wheel  # noqa: E402


def test_it_holds_no_module_and_needs_exactly_this_version(tmp_path: Path) -> None:
    with zipfile.ZipFile(name_wheel.build(tmp_path)) as wheel:
        files = {Path(name).name: wheel.read(name).decode() for name in wheel.namelist()}
        assert all(".dist-info/" in name for name in wheel.namelist())
    told = message_from_string(files["METADATA"])
    own = torchdata.__version__.partition("+rs.")[2]
    assert own
    assert told["Name"] == "torchdata"
    assert told["Requires-Dist"] == f"torchdata-rs=={own}"
    assert told["Version"] == f"{name_wheel.API}+rs.{own}"


@pytest.mark.parametrize(
    ("file", "before"), [(".github/workflows/release.yml", "upload-artifact"), ("Makefile", "clean:")]
)
def test_it_is_built_and_tried_next_to_the_package(file: str, before: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    built = text.rindex("tools/name_wheel.py dist")
    tried = text.index("dist/torchdata-*.whl", built)
    assert "tools/try_package.py" in text[built:tried]
    assert tried < text.index(before, built)
