"""Runs tests on other versions of CPython, each in a virtual environment of its own with the built wheel.

Role: shows that one wheel serves all of them (abi3). `make test-pythons` builds the wheel and runs this: the loader's
tests, and those of files that start no process. A version that is not installed, here or under pyenv, is left out, and
said so; none at all is an error. A library that cannot be installed for a version is left out, and so is PyTorch unless
it is asked for; tests that need them are skipped.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: The packages without which no test runs, besides those that the wheel requires.
NEEDED = ["hypothesis>=6.100", "pytest>=8", "pytest-timeout>=2.3", "pytest-xdist>=3.6"]


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


def libraries() -> list[str]:
    """The requirements of the libraries that tests use."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    return sorted({one for name in ("all", "test") for one in _expanded(extras[name], extras)})


def _expanded(requirements: list[str], extras: dict[str, list[str]]) -> list[str]:
    """Requirements in which each extra of this package is what it stands for."""
    found = []
    for one in requirements:
        if one.startswith("torchdata-rs["):
            names = one.partition("[")[2].rstrip("]").split(",")
            found += [inner for name in names for inner in _expanded(extras[name], extras)]
        else:
            found.append(one)
    return found


def install(pip: list[str], torch: str | None) -> None:
    """Installs the libraries: all at once, or if that fails for one of them, each by itself."""
    pip = [*pip, "--prefer-binary"]
    wanted = libraries()
    if subprocess.run([*pip, *wanted], capture_output=True).returncode:
        for one in wanted:
            if subprocess.run([*pip, one], capture_output=True).returncode:
                print(f"  left out: {one}", flush=True)
    if torch and subprocess.run([*pip, *torch.split()], capture_output=True).returncode:
        print(f"  left out: {torch}", flush=True)


def run_tests(python: str, wheel: Path, folder: Path, torch: str | None, arguments: list[str]) -> int:
    """Runs the tests with the wheel under `python`, in the virtual environment `folder`; returns pytest's status."""
    mine = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    pip = [mine, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, *NEEDED, str(wheel)], check=True)
    # The environment may hold an older build of the same version.
    subprocess.run([*pip, "--force-reinstall", "--no-deps", str(wheel)], check=True)
    install(pip, torch)
    # Not by `-m`, which would put the checkout on the path.
    pytest = [str(folder / "bin" / "pytest"), "-p", "no:cacheprovider"]
    if arguments:
        return subprocess.run([*pytest, *arguments], cwd=ROOT).returncode
    loaders = [*sorted(ROOT.glob("tests/python/engine/test_multiprocessing*.py"))]
    loaders.append(ROOT / "tests/python/dataloader2/test_dataloader2.py")
    runs = [[*pytest, *map(str, loaders)], [*pytest, "-n", "2", "-m", "unit"]]
    return max(subprocess.run(run, cwd=ROOT).returncode for run in runs)


def main() -> int:
    """Runs the tests on each version that is installed; 0 where all have passed."""
    parser = argparse.ArgumentParser(description="Runs tests on other versions of CPython.")
    parser.add_argument("--versions", nargs="+", default=["3.12", "3.13", "3.14"], metavar="X.Y")
    parser.add_argument("--torch", help="the requirement of PyTorch, with options of pip; it is not installed without")
    parser.add_argument("--folder", type=Path, default=ROOT / ".pythons", help="of the virtual environments")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, behind `--`; if none, see above")
    options = parser.parse_args()
    statuses = []
    for version in options.versions:
        python = interpreter(version)
        if python is None:
            print(f"CPython {version} is not installed: left out", file=sys.stderr)
            continue
        print(f"CPython {version}: {python}", flush=True)
        folder = options.folder.resolve() / version
        statuses.append(run_tests(python, options.wheel.resolve(), folder, options.torch, options.pytest))
    if not statuses:
        print("error: none of these versions is installed; pyenv install one of them", file=sys.stderr)
        return 1
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main())
