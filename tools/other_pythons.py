"""Runs the loader's tests on other versions of CPython, each in a virtual environment of its own with the built wheel.

Role: shows that one wheel serves all of them (abi3). `make test-pythons` builds the wheel and runs this. A version that
is not installed, here or under pyenv, is left out, and said so; none at all is an error. PyTorch is not needed: tests
that need it are skipped.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: The packages that the loader's tests and their `conftest.py` import, besides those that the wheel requires.
NEEDED = ["hypothesis>=6.100", "pytest>=8", "pytest-timeout>=2.3"]


def interpreter(version: str) -> str | None:
    """The path of an interpreter of this version ("3.12"), or None."""
    under_pyenv = sorted(_pyenv().glob(f"versions/{version}*/bin/python"), reverse=True)
    for candidate in (
        f"python{version}",
        *map(str, under_pyenv),
    ):  # the first may be a shim that leads nowhere
        look = "import sys; print(*sys.version_info[:2], sep='.'); print(sys.executable)"
        try:
            found = subprocess.run([candidate, "-c", look], capture_output=True, text=True, timeout=60)
        except OSError:
            continue
        if found.returncode == 0 and found.stdout.startswith(f"{version}\n"):
            return found.stdout.splitlines()[1]
    return None


def _pyenv() -> Path:
    try:
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True, timeout=60).stdout.strip()
    except OSError:
        root = ""
    return Path(root or Path.home() / ".pyenv")


def run_tests(python: str, wheel: Path, folder: Path, arguments: list[str]) -> int:
    """Runs the tests with the wheel under `python`, in the virtual environment `folder`; returns pytest's status."""
    mine = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    pip = [mine, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, *NEEDED, str(wheel)], check=True)
    # The environment may hold an older build of the same version.
    subprocess.run([*pip, "--force-reinstall", "--no-deps", str(wheel)], check=True)
    if not arguments:
        tests = [*sorted(ROOT.glob("tests/python/engine/test_multiprocessing*.py"))]
        arguments = [str(path) for path in [*tests, ROOT / "tests/python/dataloader2/test_dataloader2.py"]]
    # Not by `-m`, which would put the checkout on the path.
    pytest = [str(folder / "bin" / "pytest"), "-p", "no:cacheprovider", *arguments]
    return subprocess.run(pytest, cwd=ROOT).returncode


def main() -> int:
    """Runs the tests on each version that is installed; 0 where all have passed."""
    parser = argparse.ArgumentParser(description="Runs the loader's tests on other versions of CPython.")
    parser.add_argument("--versions", nargs="+", default=["3.12", "3.13", "3.14"], metavar="X.Y")
    parser.add_argument("--folder", type=Path, default=ROOT / ".pythons", help="of the virtual environments")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, behind `--`; the loader's tests if none")
    options = parser.parse_args()
    statuses = []
    for version in options.versions:
        python = interpreter(version)
        if python is None:
            print(f"CPython {version} is not installed: left out", file=sys.stderr)
            continue
        print(f"CPython {version}: {python}", flush=True)
        statuses.append(run_tests(python, options.wheel.resolve(), options.folder.resolve() / version, options.pytest))
    if not statuses:
        print("error: none of these versions is installed; pyenv install one of them", file=sys.stderr)
        return 1
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main())
