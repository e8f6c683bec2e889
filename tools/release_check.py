"""Checks the files of a release without publishing them: `make release-check VERSION=1.2.3`.

This program builds the wheel twice and the sdist once, checks names and versions, contents, licenses and size, and runs
programs with both files in empty environments of all installed versions of Python. The output has one line for each
check, and lists what could not be checked. Without VERSION, the version in Cargo.toml is checked, and CHANGELOG.md need
not have a heading for it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

from other_pythons import Version, find
from third_party import NOTICES
from try_package import PROGRAM

ROOT = Path(__file__).resolve().parents[1]
#: The maximum size of a binary in bytes, and the maximum time of `import torchdata` in seconds.
BINARY, IMPORT = 5_000_000, 0.06
#: Matches the files that a wheel may contain besides the package `torchdata`.
INFO = re.compile(
    r"torchdata_rs-[^/]+\.dist-info/"
    r"(METADATA|WHEEL|RECORD|licenses/(LICENSE|THIRD-PARTY-NOTICES\.txt)|sboms/[\w.-]+\.json)"
)
TIMED = "import time; began = time.perf_counter(); import torchdata; print(time.perf_counter() - began)"


class Failed(Exception):
    """Raised if a check fails. The message describes the problem."""


def require(condition: object, message: str) -> None:
    if not condition:
        raise Failed(message)


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def check_versions(version: str, is_release: bool) -> str:
    found = {
        "Cargo.toml": tomllib.loads(text_of("Cargo.toml"))["workspace"]["package"]["version"],
        "CITATION.cff": re.findall(r"^version: (.+)$", text_of("CITATION.cff"), re.M)[0],
        "conda/recipe.yaml": re.findall(r'^  version: "(.+)"$', text_of("conda/recipe.yaml"), re.M)[0],
        "_version.py": re.findall(r'^VERSION = ".+\+rs\.(.+)"$', text_of("python/torchdata/_version.py"), re.M)[0],
    }
    require("version" in tomllib.loads(text_of("pyproject.toml"))["project"]["dynamic"], "pyproject.toml has a version")
    wrong = {file: other for file, other in found.items() if other != version}
    require(not wrong, f"the version is not {version} in {wrong}")
    headings = re.findall(r"^## \[(.+?)\]", text_of("CHANGELOG.md"), re.M)
    require(not is_release or version in headings, f"CHANGELOG.md has no heading [{version}], only {headings[:2]}")
    return f"{version} in {', '.join(found)}; CHANGELOG.md begins with [{headings[0]}]"


def build(target: Path, out: Path) -> Path:
    """Builds a wheel in a fixed build folder, because the binary contains the path of this folder."""
    shutil.rmtree(target, ignore_errors=True)
    command = [sys.executable, "-m", "maturin", "build", "--release", "--locked", "--out", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "CARGO_TARGET_DIR": str(target)})
    [wheel] = out.glob("torchdata_rs-*.whl")
    return wheel


def check_reproducible(wheel: Path, again: Path) -> str:
    digests = [hashlib.sha256(one.read_bytes()).hexdigest() for one in (wheel, again)]
    if digests[0] != digests[1]:
        first, second = zipfile.ZipFile(wheel), zipfile.ZipFile(again)
        differ = [name for name in first.namelist() if first.read(name) != second.read(name)]
        raise Failed(f"two builds differ in {differ or 'the archive around the same files'}")
    return f"two builds have the sha256 {digests[0][:16]}…"


def check_wheel(wheel: Path) -> str:
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    others = [one for one in names if not one.startswith("torchdata/") and not INFO.fullmatch(one)]
    require(not others, f"the wheel contains {others}")
    wrong = [one for one in names if re.search(r"(^|[/_])(tests?|conftest|demo|examples?)([/_.]|$)", one)]
    require(not wrong, f"the wheel contains tests or a demo: {wrong}")
    require("torchdata/py.typed" in names, "the wheel has no py.typed")
    binaries = {one: archive.getinfo(one).file_size for one in names if one.endswith(".so")}
    require(len(binaries) == 1, f"the wheel has the binaries {list(binaries)}")
    large = {one: size for one, size in binaries.items() if size > BINARY}
    require(not large, f"binaries of more than {BINARY:,} bytes: {large}")
    metadata = archive.read(next(one for one in names if one.endswith("METADATA"))).decode()
    require("\nLicense-Expression: BSD-3-Clause\n" in metadata, "METADATA has no License-Expression (PEP 639)")
    sizes: dict[str, int] = {}
    for one in archive.infolist():
        kind = one.filename.rpartition(".")[2] if one.filename.startswith("torchdata/") else "metadata"
        sizes[kind] = sizes.get(kind, 0) + one.compress_size
    parts = ", ".join(f"{kind} {size:,}" for kind, size in sorted(sizes.items(), key=lambda one: -one[1]))
    return f"{len(names)} files, {wheel.stat().st_size:,} bytes ({parts}); {binaries}"


def check_sdist(sdist: Path) -> str:
    with tarfile.open(sdist) as archive:
        names = {one.partition("/")[2] for one in archive.getnames()}
    needed = {"Cargo.toml", "Cargo.lock", "pyproject.toml", "LICENSE", NOTICES.name, "rust/py/src/lib.rs", "PKG-INFO"}
    require(needed <= names, f"the sdist has no {sorted(needed - names)}")
    wrong = [one for one in names if one.endswith((".so", ".pyc")) or one.startswith((".ci/", "findings/", "target/"))]
    require(not wrong, f"the sdist contains {wrong[:5]}")
    return f"{len(names)} files, {sdist.stat().st_size:,} bytes"


def check_licenses(wheel: Path) -> str:
    """Checks that the notices contain the license of each crate that is compiled into the wheel."""
    subprocess.run([sys.executable, "tools/third_party.py", "--check"], cwd=ROOT, check=True)
    archive = zipfile.ZipFile(wheel)
    notices = archive.read(next(one for one in archive.namelist() if one.endswith(NOTICES.name))).decode()
    require(notices == NOTICES.read_text(encoding="utf-8"), f"{NOTICES.name} in the wheel differs")
    own = {"torchdata-core", "torchdata-py"}
    [bill] = [json.loads(archive.read(one)) for one in archive.namelist() if "/sboms/" in one]
    crates = {one["name"] for one in bill["components"]} - own
    compiled = set(re.findall(r"^={80}\n([\w-]+) \S+, .+$", notices, re.M))
    # The wheel may list crates that run only during the build, such as procedural macros and build scripts.
    unknown = compiled - crates
    require(compiled and not unknown, f"licenses of crates that the wheel does not list: {unknown}")
    return f"{len(compiled)} crates compiled in, all with their licenses"


def check_twine(files: list[Path]) -> str:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True)
    require(done.returncode == 0, done.stdout + done.stderr)
    return f"{len(files)} files pass `twine check --strict`"


def readme_programs(with_torch: bool) -> dict[str, tuple[str, str]]:
    """Returns the README's Python blocks and the output shown for them, by file name."""
    found = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", text_of("README.md"), re.M | re.S)
    require(found, "README has no examples")
    needs_torch = re.compile(r"torchdata\.(stateful_dataloader|nodes)|^ *import torch\b", re.M)
    return {
        f"readme_{number}.py": (code, output)
        for number, (code, output) in enumerate(found)
        if with_torch or not needs_torch.search(code)
    }


def check_installed(version: Version, package: Path, torch: str | None, folder: Path) -> str:
    shutil.rmtree(folder, ignore_errors=True)
    version.folder = folder / "venv"
    shown = package.name.partition("-")[0] + ("" if package.suffix == ".whl" else " (sdist)")
    require(version.run(version.python, "-m", "venv", version.folder) == 0, "no virtual environment")
    python = version.folder / "bin" / "python"
    package = Path(shutil.copy(package, folder))
    require(version.install(package) == 0, f"{shown} cannot be installed")
    if torch is not None:
        require(version.install(*torch.split()) == 0, f"{torch} cannot be installed")
    programs = {"program.py": (PROGRAM, None), **readme_programs(torch is not None)}
    for name, (code, expected) in programs.items():
        (folder / name).write_text(code, encoding="utf-8")
        done = version.output(python, "-W", "error", name, cwd=folder)
        require(done.returncode == 0, f"{name} fails:\n{done.stderr}")
        require(expected in (None, done.stdout), f"{name} prints\n{done.stdout}\ninstead of\n{expected}")
    seconds = min(float(version.output(python, "-c", TIMED, cwd=folder).stdout) for _ in range(7))
    require(seconds <= IMPORT, f"import torchdata takes {seconds:.3f} s, more than {IMPORT} s")
    return f"{len(programs)} programs; import torchdata takes {1000 * seconds:.0f} ms"


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks the files of a release.")
    parser.add_argument("--version", help="the version to be released")
    parser.add_argument("--pythons", nargs="+", default=["3.11", "3.12", "3.13", "3.14", "3.15"], metavar="X.Y")
    parser.add_argument("--chroot", type=Path, default=ROOT / ".pythons" / "sid", help="a Debian with more versions")
    parser.add_argument("--wheels", type=Path, help="a folder with a wheel of torch")
    options = parser.parse_args()
    work = ROOT / ".pythons" / "release"
    shutil.rmtree(work, ignore_errors=True)
    failed, not_checked = [], []

    def check(what: str, function: Callable[..., str], *arguments: object) -> None:
        try:
            print(f"{what}: {function(*arguments)}", flush=True)
        except (Failed, subprocess.CalledProcessError, StopIteration, IndexError) as error:
            failed.append(what)
            print(f"{what}: FAILED: {error}", flush=True)

    version = options.version or tomllib.loads(text_of("Cargo.toml"))["workspace"]["package"]["version"]
    check("versions", check_versions, version, options.version is not None)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release-check"
    wheel, again = build(target, work / "dist"), build(target, work / "again")
    subprocess.run([sys.executable, "-m", "maturin", "sdist", "--out", str(work / "dist")], cwd=ROOT, check=True)
    [sdist] = (work / "dist").glob("*.tar.gz")
    check("reproducible", check_reproducible, wheel, again)
    check("wheel", check_wheel, wheel)
    check("sdist", check_sdist, sdist)
    check("licenses", check_licenses, wheel)
    check("metadata", check_twine, [wheel, sdist])
    oldest = None
    for name in options.pythons:
        found = find(name, options.chroot.resolve())
        if found is None:
            not_checked.append(f"CPython {name}: it is not installed (see `make chroot`)")
            continue
        oldest = oldest or found
        check(f"CPython {name} without torch", check_installed, found, wheel, None, work / name)
        tag = f"cp{name.replace('.', '')}"
        torches = sorted(options.wheels.glob(f"torch-*-{tag}-{tag}-*.whl")) if options.wheels else []
        if torches:
            torch = f"--find-links {options.wheels.resolve()} torch=={torches[-1].name.split('-')[1]}"
            check(f"CPython {name} with torch", check_installed, found, wheel, torch, work / f"{name}-torch")
        else:
            not_checked.append(f"CPython {name} with torch: {options.wheels or 'WHEELS'} has no wheel of torch for it")
    if oldest is not None:
        os.environ["CARGO_TARGET_DIR"] = str(target / "again")  # reuses compiled crates
        check(f"CPython {oldest.name} with the sdist", check_installed, oldest, sdist, None, work / "sdist")
    for one in not_checked:
        print(f"NOT CHECKED: {one}")
    print(f"release-check of {version}: {'FAILED: ' + ', '.join(failed) if failed else 'all checks passed'}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
