"""Contains the version of this package, and warns if upstream's torchdata is installed in the same folder.

`torchdata-rs` and upstream's `torchdata` install their files into the same folder. If a user installs both packages,
pip silently overwrites files, so `import torchdata` issues a warning.
"""

from __future__ import annotations

import os
import sys
import warnings

#: The implemented API version (torchdata 0.9), followed by the version of `torchdata-rs`; programs compare it with
#: versions of torchdata.
VERSION = "0.9.0+rs.0.1.0"


def warn_of_upstream() -> None:
    site = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with os.scandir(site) as entries:  # importlib.metadata would take longer than the remaining import of the package
        found = [e.name for e in entries if e.name.startswith("torchdata-") and e.name.endswith(".dist-info")]
    # `tools/name_wheel.py` builds an empty distribution named `torchdata` (version `+rs.`), which overwrites nothing
    found = [name for name in found if "+rs." not in name]
    if not found:
        return
    version = found[0].removeprefix("torchdata-").removesuffix(".dist-info")
    warnings.warn(
        f"the distributions torchdata {version} and torchdata-rs are installed side by side and share one folder; "
        "run `pip uninstall torchdata torchdata-rs` and install torchdata-rs again from its wheel or clone",
        stacklevel=3,
    )


def warn_if_replaced(package: str) -> None:
    """Warns if files of upstream's torchdata have replaced files of this package."""
    found = getattr(sys.modules["torchdata"], "__version__", "without a version")
    if found == VERSION:
        return
    warnings.warn(
        f"{package} belongs to torchdata-rs {VERSION}, but `import torchdata` found torchdata {found}: upstream's"
        " torchdata was installed over it and has replaced some of its files, so this program runs a mixture "
        "of both; run `pip uninstall torchdata` and then `pip install --force-reinstall --no-deps` with the wheel or "
        "clone of torchdata-rs",
        stacklevel=3,
    )
