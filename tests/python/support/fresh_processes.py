"""Runs functions in children of a server that has imported torch, so that calls take milliseconds and do not affect
each other.

A child's random generators are seeded from the operating system, so that children do not draw equal numbers.

Tests of imports and of the interpreter use `run_python`, which starts a new interpreter."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import importlib.util
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any

SUPPORT = Path(__file__).resolve().parent
LEAN = str(SUPPORT / "lean")
EXAMPLES = str(SUPPORT.parents[2] / "examples")


def python_path() -> str:
    package = importlib.util.find_spec("torchdata")
    assert package is not None
    assert package.origin is not None
    return os.pathsep.join([LEAN, str(Path(package.origin).resolve().parents[1])])


def run_python(*arguments: object, folder: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": python_path(), **environment}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=folder, env=environment)


class FreshProcesses:
    def __init__(self, *modules: str, python: str = sys.executable, limit: float = 60.0) -> None:
        self.python, self.limit = python, limit
        self._number = 0
        self._server = subprocess.Popen(
            [python, "-m", "fresh_processes", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=SUPPORT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), EXAMPLES]),
            },
            text=True,
        )

    def __enter__(self) -> FreshProcesses:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.wait()

    def imports(self, *modules: str) -> FreshProcesses:
        self._ask(modules=modules)
        return self

    def call(self, function: str, **arguments: Any) -> Any:
        return self._ask(function=function, limit=self.limit, arguments=arguments)

    def _ask(self, **order: Any) -> Any:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._number += 1
        order["number"] = self._number
        with contextlib.suppress(BrokenPipeError):
            self._server.stdin.write(json.dumps(order, default=str) + "\n")
            self._server.stdin.flush()
        answer: dict[str, Any] = {}
        while answer.get("number") != self._number:
            line = self._server.stdout.readline()
            if not line:
                raise RuntimeError(f"the server of {self.python} exited with code {self._server.wait()}")
            answer = json.loads(line)
        if "error" in answer:
            error = RuntimeError(answer["error"])
            error.add_note(answer.get("trace", ""))
            raise error
        return answer["result"]


@functools.cache
def with_torch() -> FreshProcesses:
    server = FreshProcesses("torch", "numpy", "torchdata.dataloader2", "torchdata.nodes", limit=250.0)
    atexit.register(server.__exit__, None, None, None)
    return server


@functools.cache
def without_torch() -> FreshProcesses:
    server = FreshProcesses("numpy", "torchdata.dataloader2", "torchdata.datapipes.iter", limit=250.0)
    atexit.register(server.__exit__, None, None, None)
    return server


def run_program(
    path: Path, *arguments: str, ignored: str | None = None, server: FreshProcesses | None = None
) -> subprocess.CompletedProcess[str]:
    done = (server or with_torch()).call(
        "fresh_processes:program", path=str(path), arguments=arguments, ignored=ignored
    )
    return subprocess.CompletedProcess([str(path), *arguments], **done)


def program(path: str, arguments: list[str], ignored: str | None) -> dict[str, Any]:
    os.chdir(os.path.dirname(path))
    main = types.ModuleType("__main__")
    main.__file__ = path
    sys.modules["__main__"], sys.argv = main, [path, *arguments]
    sys.path.insert(0, os.path.dirname(path))
    filters = ["error", *([f"ignore::{ignored}"] if ignored else [])]
    sys.warnoptions[:] = filters  # processes that the program starts inherit the filters
    warnings.resetwarnings()
    warnings.simplefilter("error")
    if ignored:
        warnings.simplefilter("ignore", getattr(importlib.import_module("builtins"), ignored))
    code = 0
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        try:
            exec(compile(Path(path).read_text(encoding="utf-8"), path, "exec"), vars(main))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        texts = [os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode() for file in (out, err)]
    return {"returncode": code, "stdout": texts[0], "stderr": texts[1]}


def answer_to(order: dict[str, Any]) -> dict[str, Any]:
    try:
        if "modules" in order:
            for name in order["modules"]:
                importlib.import_module(name)
            gc.freeze()
            return {"result": None}
        seed_from_the_system()
        module, _, name = order["function"].partition(":")
        return {"result": getattr(importlib.import_module(module), name)(**order["arguments"])}
    except BaseException as error:
        text = f"{type(error).__name__}: {str(error).strip()[-600:]}"
        return {"error": text, "trace": traceback.format_exc()[-4000:]}


def seed_from_the_system() -> None:
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].seed()


def in_child(order: dict[str, Any]) -> dict[str, Any]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(reader)
        with os.fdopen(writer, "w") as file:
            json.dump(answer_to(order), file)
        os._exit(0)
    os.close(writer)
    parts, deadline = [], time.monotonic() + order["limit"]
    while select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(reader, 1 << 20)
        if not part:
            break
        parts.append(part)
    late = time.monotonic() >= deadline
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)
    try:
        answer: dict[str, Any] = json.loads(b"".join(parts))
    except ValueError:
        return {"error": f"TimeoutError: no answer within {order['limit']:.0f} s" if late else "the process exited"}
    return answer


def serve(modules: list[str]) -> None:
    warnings.filterwarnings("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr  # Some modules print during their import.
    for module in modules:
        importlib.import_module(module)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    # Garbage collections do not write to frozen objects, so forked children share their memory with this process.
    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        answer = answer_to(order) if "modules" in order else in_child(order)
        print(json.dumps({**answer, "number": order["number"]}), file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1:])
