"""Writes the licenses of the crates that are compiled into the extension: `make notices`. `--check` only compares.

Cargo lists the crates. The licenses in the crates' sources are copied into a file that the wheel contains.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NOTICES = ROOT / "THIRD-PARTY-NOTICES.txt"

_NAMES = ("license", "licence", "copying", "notice", "unlicense")
#: The systems to consider. Crates that none of these systems uses are omitted.
_TARGETS = (
    "x86_64-unknown-linux-gnu",
    "aarch64-unknown-linux-gnu",
    "x86_64-unknown-linux-musl",
    "aarch64-apple-darwin",
)

_HEAD = """\
The extension module of this package is compiled from its own sources and from those listed below, each by its
authors and under its licence. It also contains parts of Rust's standard library (MIT OR Apache-2.0).
"""


def compiled() -> list[dict[str, Any]]:
    command = ["cargo", "metadata", "--locked", "--all-features", "--format-version", "1"]
    for target in _TARGETS:
        command += ["--filter-platform", target]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    waiting = [package["id"] for package in metadata["packages"] if package["name"] == "torchdata-py"]
    seen: set[str] = set(waiting)
    while waiting:
        for dependency in nodes[waiting.pop()]["deps"]:
            kinds = {kind["kind"] for kind in dependency["dep_kinds"]}
            macro = any("proc-macro" in target["kind"] for target in packages[dependency["pkg"]]["targets"])
            if None in kinds and not macro and dependency["pkg"] not in seen:  # it is compiled into the extension
                seen.add(dependency["pkg"])
                waiting.append(dependency["pkg"])
    others = [packages[one] for one in seen if packages[one]["source"] is not None]
    return sorted(others, key=lambda package: (package["name"], package["version"]))


def notices() -> str:
    parts = [_HEAD]
    for package in compiled():
        folder = Path(package["manifest_path"]).parent
        paths = (*folder.iterdir(), *folder.glob("libjpeg-turbo/*"))
        files = sorted(path for path in paths if path.name.lower().startswith(_NAMES) and path.is_file())
        if "MIT" in package["license"].split():  # MIT is chosen if the crate offers several licenses
            files = [path for path in files if "mit" in path.name.lower()] or files
        parts.append(
            f"{'=' * 80}\n{package['name']} {package['version']}, {package['license']}\n{package['repository']}\n"
        )
        parts += [f"{'-' * 80}\n{path.read_text(encoding='utf-8').strip()}\n" for path in files]
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if the file is out of date")
    content = notices()
    if parser.parse_args().check:
        if not NOTICES.exists() or NOTICES.read_text(encoding="utf-8") != content:
            print(f"{NOTICES.relative_to(ROOT)} is not up to date: run `make notices`", file=sys.stderr)
            return 1
        return 0
    NOTICES.write_text(content, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
