"""The package supports newer interpreters and newer versions of cloudpickle."""

from __future__ import annotations

import linecache
import os
import pickle
import subprocess
import sys
import textwrap
import traceback
import types
import warnings
from pathlib import Path
from typing import Any

import pytest

from fresh_processes import python_path
from programs import output_of
from torchdata import _by_value
from torchdata._engine.items.failures import describe
from torchdata._engine.processes.fork import fork_process

pytestmark = pytest.mark.alone

METHODS = ["fork", "spawn", "forkserver"]
needs_lazy_annotations = pytest.mark.skipif(
    sys.version_info < (3, 14), reason="Python evaluates annotations lazily only from 3.14 on"
)
needs_lazy_imports = pytest.mark.skipif(sys.version_info < (3, 15), reason="`lazy import` exists from Python 3.15 on")

HEAD = """
import os, sys, threading
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes import functional_datapipe
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe

def read(pipe, method):
    service = MultiProcessingReadingService(1, multiprocessing_context=method)
    with DataLoader2(pipe, reading_service=service) as loader:
        return list(loader)
"""


def run(program: str, *options: str, as_file: Path | None = None, head: str = HEAD) -> str:
    text = head + textwrap.dedent(program)
    if as_file is not None:
        return output_of(text, file=as_file / "program.py", options=options)
    environment = {**os.environ, "PYTHONPATH": python_path()}
    done = subprocess.run(
        [sys.executable, "-"], input=text, env=environment, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


FOR_TYPE_CHECKERS = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from nowhere import Item

def same(item: Item) -> Item:
    return item

def several(item: Item) -> list[Item]:
    return [item, item]

def is_even(item: Item) -> bool:
    return item % 2 == 0

def numbers() -> Item:
    yield from range(3)

@functional_datapipe("passed_on")
class PassedOn(IterDataPipe):
    def __init__(self, source_datapipe: IterDataPipe[Item], times: Item = 1) -> None:
        self.source_datapipe, self.times = source_datapipe, times

    def __iter__(self) -> Item:
        yield from self.source_datapipe
"""


@needs_lazy_annotations
def test_functions_and_pipes_may_have_annotations_that_only_a_type_checker_can_evaluate(tmp_path: Path) -> None:
    program = """
    if __name__ == "__main__":
        source = IterableWrapper(range(3))
        assert list(source.map(same)) == list(source.threadpool_map(same)) == [0, 1, 2]
        assert list(source.filter(is_even)) == [0, 2]
        assert list(source.flatmap(several)) == [0, 0, 1, 1, 2, 2]
        assert list(source.batch(3).collate(same)) == [[0, 1, 2]]
        assert list(IterableWrapper([(1, 2)]).map(same, input_col=0)) == [(1, 2)]
        assert list(IterableWrapper(numbers)) == [0, 1, 2]
        pipe = IterableWrapper(numbers).passed_on(times=2)
        assert "PassedOn(times=2)" in str(pipe)
        loader = DataLoader2(pipe)
        items = iter(loader)
        assert next(items) == 0
        again = DataLoader2.from_state(loader.state_dict(), None)
        assert list(again) == [1, 2]
    """
    run(program, as_file=tmp_path, head=HEAD + FOR_TYPE_CHECKERS)


@needs_lazy_annotations
@pytest.mark.parametrize("method", METHODS)
def test_local_functions_and_classes_with_unevaluable_annotations_are_sent(method: str, tmp_path: Path) -> None:
    program = f"""
    def local(item: Item, *rest: Item, more: Item = 1) -> Item:
        return item + more
    def outer():
        from functools import partial
        from dataclasses import dataclass
        @dataclass
        class Boxed:
            content: Item
            def opened(self, by: Item = None) -> Item:
                return self.content
        def box(item: Item) -> Boxed:
            return Boxed(item)
        def local(item: Item, *, more: Item) -> Item:
            def inner(item: Item) -> Item:
                return item + more
            return inner(item)
        return box, Boxed.opened, partial(local, more=2)
    if __name__ == "__main__":
        pipe = IterableWrapper(range(3))
        for function in outer():
            pipe = pipe.map(function)
        assert read(pipe, {method!r}) == [2, 3, 4]
    """
    run(program, as_file=tmp_path, head=HEAD + FOR_TYPE_CHECKERS)


@needs_lazy_annotations
def test_annotations_that_cannot_be_evaluated_arrive_as_strings_and_others_as_they_are() -> None:
    names: dict[str, Any] = {}
    text = "def odd(item: Missing.Kind) -> list[Missing]: ...\ndef plain(item: int) -> str: ..."
    exec(compile(text, "<text>", "exec", dont_inherit=True), names)
    assert pickle.loads(_by_value.dumps(names["odd"])).__annotations__ == {
        "item": "Missing.Kind",
        "return": "list[Missing]",
    }
    assert pickle.loads(_by_value.dumps(names["plain"])).__annotations__ == {"item": int, "return": str}


def test_no_other_module_evaluates_annotations() -> None:
    package = Path(_by_value.__file__).parent
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.name != "_signatures.py":
            assert "inspect.signature" not in text, path
            assert "get_type_hints" not in text, path


def test_a_function_that_is_sent_keeps_the_name_of_its_file_and_so_do_functions_in_it() -> None:
    def failing(divisor: int) -> float:
        return sum(1 / one for one in (lambda: [divisor])())

    received = pickle.loads(_by_value.dumps(failing))
    codes = [received.__code__]
    for code in codes:
        codes += [one for one in code.co_consts if isinstance(one, types.CodeType)]
    assert len(codes) > 1
    assert {code.co_filename for code in codes} == {__file__}
    with pytest.raises(ZeroDivisionError) as caught:
        received(0)
    assert "return sum(1 / one for one" in "".join(traceback.format_exception(caught.value))


@needs_lazy_imports
@pytest.mark.parametrize("method", METHODS)
def test_a_lambda_may_use_modules_and_names_that_are_imported_lazily(method: str, tmp_path: Path) -> None:
    program = f"""
    lazy import json
    lazy import concurrent.futures
    lazy from math import sqrt
    lazy import missing_module
    if __name__ == "__main__":
        pipe = IterableWrapper([4]).map(lambda item: (json.dumps(sqrt(item)), concurrent.futures.Future.__name__))
        assert read(pipe, {method!r}) == [("2.0", "Future")]
        try:
            read(IterableWrapper([4]).map(lambda item: missing_module.name), {method!r})
        except (ImportError, TypeError) as error:
            assert "missing_module" in str(error), error
        else:
            raise AssertionError
    """
    run(program, as_file=tmp_path)


class Lazy:
    def __init__(self, content: Any) -> None:
        self.content = content

    def resolve(self) -> Any:
        if self.content is None:
            raise ImportError("no such module")
        return self.content

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle 'lazy_import' object")


def test_a_lazily_imported_module_is_imported_when_a_function_that_uses_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_by_value, "_LAZY_IMPORT", Lazy)
    names: dict[str, Any] = {"json": Lazy(__import__("json")), "unused": Lazy(None), "attribute": Lazy(None)}
    exec("def write(item):\n    return (lambda: json.dumps(item))()\ndef read(item): return item.attribute", names)
    assert pickle.loads(_by_value.dumps(names["write"]))([1]) == "[1]"
    assert names["json"] is sys.modules["json"]
    assert pickle.loads(_by_value.dumps(names["read"]))(types.SimpleNamespace(attribute=3)) == 3
    assert type(names["unused"]) is Lazy
    assert pickle.loads(_by_value.dumps((lambda: 1, Lazy("value"))))[1] == "value"


@pytest.mark.parametrize("method", METHODS)
def test_a_program_that_is_read_from_standard_input_starts_workers(method: str) -> None:
    program = f"""
    class Item(tuple): ...
    class Source(IterDataPipe):
        def __iter__(self):
            yield from map(made, range(3))
    def made(number):
        if number > 1:
            raise KeyError(number)
        return Item([number])
    found = read(IterableWrapper(range(2)).map(made), {method!r})
    assert found == [(0,), (1,)]
    assert type(found[0]) is Item
    try:
        read(Source(), {method!r})
    except KeyError as error:
        print(error)
    """
    assert 'File "<stdin>"' in run(program)


@pytest.mark.parametrize("method", METHODS)
def test_no_process_ends_by_a_warning_and_an_error_of_a_lambda_shows_file_and_line(method: str, tmp_path: Path) -> None:
    program = f"""
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    if __name__ == "__main__":
        assert read(IterableWrapper([1]), {method!r}) == [1]
        try:
            read(IterableWrapper([0]).map(lambda item: 1 / item), {method!r})
        except ZeroDivisionError as error:
            print(error)
    """
    output = run(program, "-W", "error", as_file=tmp_path)
    assert f'File "{tmp_path / "program.py"}", line' in output
    assert "lambda item: 1 / item" in output


def test_a_fork_that_warns_of_threads_still_registers_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    fork = os.fork

    def warning_fork() -> int:
        pid = fork()
        if pid:
            warnings.warn(
                f"This process (pid={pid}) is multi-threaded, use of fork() …", DeprecationWarning, stacklevel=2
            )
        return pid

    monkeypatch.setattr(os, "fork", warning_fork)
    warnings.simplefilter("error")
    filters = list(warnings.filters)
    reader, writer = os.pipe()
    child = fork_process("torchdata test", lambda: os.write(writer, bytes([len(warnings.filters)])), ())
    assert child.wait(60) == 0
    assert list(warnings.filters) == filters
    assert os.read(reader, 1)[0] == len(filters)
    os.close(reader)
    os.close(writer)


def test_an_exception_is_described_even_if_formatting_it_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    def lazycache(*_: Any) -> bool:
        warnings.warn("Module globals is missing a __spec__.loader", DeprecationWarning, stacklevel=2)
        return False

    monkeypatch.setattr(linecache, "lazycache", lazycache)
    try:
        raise ValueError("of the user")
    except ValueError as error:
        text = describe(error, "a worker")[3]
    assert "of the user" in text
    assert __file__ in text
