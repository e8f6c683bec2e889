"""Runs tests on other versions of CPython, each in its own virtual environment with the built wheel.

This program verifies that a single wheel works with all tested versions of CPython (abi3). Each version runs the tests
of start methods, errors and pickling by value, and all test files that start no process. Then each version loads the
states that all other versions have saved.

A version is searched for on PATH, under pyenv, and in a chroot. `make chroot` creates a chroot with Debian's
development branch, which contains the newest versions. The checkout and /tmp are mounted into the chroot in a separate
mount namespace, so that no mount remains afterwards. Creating the chroot and running tests in it needs root.

If a library cannot be installed for a version, the tests that need it are skipped. PyTorch is installed only on
request.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from tally import python_tests

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests" / "python"
NEEDED = ["hypothesis>=6.100", "pytest>=9", "pytest-timeout>=2.3", "pytest-xdist>=3.6"]
#: The tests that depend on the interpreter. The tests that start no process run in addition to these tests.
DEPENDENT = [
    "engine/test_interpreter_versions.py",
    "engine/test_multiprocessing*.py",
    "engine/test_failures.py",
    "engine/test_forking_process.py",
    "engine/test_pickled_by_value.py",
    "dataloader2/test_dataloader2.py",
]
ENTER = """
root=$1; shift
mkdir -p "$root$PWD" "$root/etc/ssl/certs"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
mount --bind "$PWD" "$root$PWD" && mount --bind /tmp "$root/tmp" && mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
exec chroot "$root" /usr/bin/env -C "$PWD" HOME=/root "$@"
"""


@dataclass
class Version:
    name: str
    #: The first words of a command that runs in the interpreter's chroot, or an empty list if no chroot is needed.
    enter: list[str]
    python: str
    folder: Path = Path()
    left_out: list[str] = field(default_factory=list)
    passed: int = 0
    failed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    def run(self, *command: str | Path, quiet: bool = False, cwd: Path = ROOT) -> int:
        return subprocess.run(self._command(command, cwd), cwd=ROOT, capture_output=quiet).returncode

    def output(self, *command: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self._command(command, cwd), cwd=ROOT, capture_output=True, text=True, timeout=600)

    def _command(self, command: tuple[str | Path, ...], cwd: Path) -> list[str]:
        # Hides the checkout and the current virtual environment from the command.
        clean = [
            "/usr/bin/env",
            *(f"--unset={name}" for name in ("PYTHONPATH", "VIRTUAL_ENV", "PYO3_PYTHON")),
            "-C",
            str(cwd),
        ]
        return [*self.enter, *clean, *map(str, command)]

    def install(self, *what: str | Path, quiet: bool = False) -> int:
        pip = ["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--prefer-binary"]
        return self.run(self.folder / "bin" / "python", *pip, *what, quiet=quiet)

    def prepare(self, folder: Path, wheel: Path, torch: str | None) -> None:
        self.folder = folder
        if self.run(self.python, "-m", "venv", folder) or self.install(*NEEDED, wheel):
            sys.exit(f"error: no virtual environment for CPython {self.name}")
        # The environment may contain an older build of the same version.
        self.install("--force-reinstall", "--no-deps", wheel)
        wanted = libraries()
        if self.install(*wanted, quiet=True):  # a library may have no wheel for this version
            self.left_out = [one for one in wanted if self.install(one, quiet=True)]
        if torch and self.install(*torch.split(), quiet=True):
            self.left_out.append(torch)

    def test(self, *arguments: str | Path) -> int:
        """Runs pytest. `python -m pytest` is not used, because it would add the checkout to the path."""
        report = self.folder / "report.xml"
        pytest: list[str | Path] = [self.folder / "bin" / "pytest", "-p", "no:cacheprovider", f"--junitxml={report}"]
        status = self.run(*pytest, *arguments)
        ended, skipped = python_tests(report)
        failed = sum(case.find("failure") is not None or case.find("error") is not None for case in _cases(report))
        self.failed += failed
        self.passed += ended - failed
        self.skipped += skipped
        return status


def _cases(report: Path) -> list[ElementTree.Element]:
    return list(ElementTree.parse(report).iter("testcase"))


def find(version: str, chroot: Path) -> Version | None:
    under_pyenv = sorted((Path.home() / ".pyenv").glob(f"versions/{version}.*/bin/python"), reverse=True)
    for candidate in (f"python{version}", *map(str, under_pyenv)):  # the first candidate may be a shim without a target
        look = "import sys; print(*sys.version_info[:2], sep='.'); print(sys.executable)"
        try:
            found = subprocess.run([candidate, "-c", look], capture_output=True, text=True, timeout=60)
        except OSError:
            continue
        if found.returncode == 0 and found.stdout.startswith(f"{version}\n"):
            return Version(version, [], found.stdout.splitlines()[1])
    if (chroot / "usr/bin" / f"python{version}").exists() and os.geteuid() == 0:
        return Version(version, ["unshare", "--mount", "sh", "-ec", ENTER, "sh", str(chroot)], f"python{version}")
    return None


def libraries() -> list[str]:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    return sorted({one for name in ("all", "test") for one in _expanded(extras[name], extras)})


def _expanded(requirements: list[str], extras: dict[str, list[str]]) -> list[str]:
    """Replaces each extra of this package in the requirements with the requirements of that extra."""
    found = []
    for one in requirements:
        if one.startswith("torchdata-rs["):
            names = one.partition("[")[2].rstrip("]").split(",")
            found += [inner for name in names for inner in _expanded(extras[name], extras)]
        else:
            found.append(one)
    return found


def run_tests(version: Version) -> int:
    dependent = [path for pattern in DEPENDENT for path in sorted(TESTS.glob(pattern))]
    assert len(dependent) > len(DEPENDENT)
    return max(version.test(*dependent), version.test("-n", "2", "-m", "unit"))


def exchange_states(versions: list[Version], folder: Path) -> int:
    """Makes each version load the states that all other versions have saved."""
    program = ["-m", "exchanged_states"]
    statuses = []
    for saver in versions:
        print(f"CPython {saver.name} saves states", flush=True)
        file, python = folder / f"states-{saver.name}", saver.folder / "bin" / "python"
        statuses.append(saver.run(python, *program, "save", file, cwd=TESTS / "support"))
    for saver in versions:
        for loader in versions:
            print(f"CPython {loader.name} loads the states of {saver.name}", flush=True)
            file, python = folder / f"states-{saver.name}", loader.folder / "bin" / "python"
            statuses.append(loader.run(python, *program, "load", file, cwd=TESTS / "support"))
    return max(statuses)


def report(wanted: list[str], versions: list[Version]) -> None:
    for name in sorted(set(wanted) - {version.name for version in versions}):
        print(f"CPython {name}: NOT RUN, it is not installed (see `make chroot`)")
    for version in versions:
        counts = f"{version.passed} passed, {version.failed} failed, {version.skipped.total()} skipped"
        print(f"CPython {version.name}: {counts}")
        for reason, count in version.skipped.most_common():
            print(f"  skipped {count}: {reason}")
        if version.left_out:
            print(f"  not installed: {', '.join(version.left_out)}")
    print("other tests that start processes do not run on these versions; `make test` runs them on one version")


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs tests on other versions of CPython.")
    parser.add_argument("--versions", nargs="+", default=["3.12", "3.13", "3.14", "3.15"], metavar="X.Y")
    parser.add_argument("--torch", help="the requirement for PyTorch, with pip's options (default: none)")
    parser.add_argument("--folder", type=Path, default=ROOT / ".pythons", help="the folder of the virtual environments")
    parser.add_argument("--chroot", type=Path, default=ROOT / ".pythons" / "sid", help="a Debian with more versions")
    parser.add_argument("--states-only", action="store_true", help="only exchange states")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after `--` (default: see above)")
    options = parser.parse_args()
    versions = [found for name in options.versions if (found := find(name, options.chroot.resolve()))]
    if not versions:
        print("error: none of these versions is installed; install one with pyenv", file=sys.stderr)
        return 1
    statuses = []
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = Path(shutil.copy(options.wheel, folder))  # a folder that is mounted in the chroot
    for version in versions:
        print(f"CPython {version.name}: {version.python}", flush=True)
        version.prepare(folder / version.name, wheel, options.torch)
        if not options.states_only:
            statuses.append(version.test(*options.pytest) if options.pytest else run_tests(version))
    if not options.pytest:
        statuses.append(exchange_states(versions, folder))
    report(options.versions, versions)
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main())
