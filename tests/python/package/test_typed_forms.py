"""Type checkers, `help` and `inspect` find pipes' methods (`.map`) and loaders. The generated stub is up to date."""

import functools
import importlib.util
import inspect
import pickle
import pydoc
import re
from pathlib import Path
from typing import Any

import pytest

import torchdata
from fresh_processes import run_python
from torchdata.datapipes._pipe.registry import LateForm
from torchdata.datapipes.iter import Header, IterableWrapper, IterDataPipe
from torchdata.datapipes.map import MapDataPipe, SequenceWrapper

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = Path(torchdata.__file__).resolve().parent

TYPES = [
    ("numbers.map(str)", "IterDataPipe[str]"),
    ("numbers.map(lambda n: n / 2)", "IterDataPipe[float]"),
    ("numbers.map(half)", "IterDataPipe[float]"),
    ("numbers.map(fn=str, input_col=None)", "IterDataPipe[str]"),
    ("pairs.map(len, input_col=1)", "IterDataPipe[Any]"),
    ("pairs.map(len, 1, -1)", "IterDataPipe[Any]"),
    ("numbers.threadpool_map(half, max_workers=2)", "IterDataPipe[float]"),
    ("numbers.flatmap(lambda n: [str(n)])", "IterDataPipe[str]"),
    ("pairs.flatmap()", "IterDataPipe[Any]"),
    ("numbers.filter(bool).header(3).cycle(2).repeat(2)", "IterDataPipe[int]"),
    ("pairs.filter(lambda n: n > 1, input_col=0)", "IterDataPipe[tuple[int, str]]"),
    ("numbers.shuffle(buffer_size=3).sharding_filter().prefetch(2)", "IterDataPipe[int]"),
    ("numbers.shuffle().set_seed(1).set_shuffle(False)", "Shuffler[int]"),
    ("numbers.shuffle(unbatch_level=1)", "Shuffler[Any]"),
    ("numbers.map(str).batch(2)", "IterDataPipe[DataChunk[str]]"),
    ("numbers.batch(2, wrapper_class=set)", "IterDataPipe[set[int]]"),
    ("numbers.batch(2, True, tuple)", "IterDataPipe[tuple[int, ...]]"),
    ("numbers.batch(2).unbatch()", "IterDataPipe[Any]"),
    ("numbers.enumerate()", "IterDataPipe[tuple[int, int]]"),
    ("numbers.zip(pairs)", "IterDataPipe[tuple[int, tuple[int, str]]]"),
    ("numbers.zip(pairs, numbers)", "IterDataPipe[tuple[Any, ...]]"),
    ("numbers.zip(*[pairs, numbers])", "IterDataPipe[tuple[Any, ...]]"),
    ("numbers.fork(2)", "list[IterDataPipe[int]]"),
    ("numbers.demux(2, lambda n: n % 2)[0].map(str)", "IterDataPipe[str]"),
    ("numbers.in_memory_cache()", "InMemoryCacheHolder[int]"),
    ("Mapper(numbers, str)", "Mapper[str]"),
    ("Halver(numbers).batch(2)", "IterDataPipe[DataChunk[float]]"),
    ("len(Halver(numbers))", "int"),
    ("words.map(len).batch(2)", "MapDataPipe[DataChunk[int]]"),
    ("words.map()", "MapDataPipe[str]"),
    ("words.zip(words)", "MapDataPipe[tuple[str, str]]"),
    ("words.shuffle().set_seed(1)", "Shuffler[str]"),
    ("words.to_iter_datapipe().enumerate()", "IterDataPipe[tuple[int, str]]"),
    ("list(words)", "list[str]"),
    ("numbers.to_map_datapipe(lambda n: (n, n)).map(str)", "MapDataPipe[str]"),
    ("DataLoader2(numbers.map(str))", "DataLoader2[str]"),
    ("DataLoader2(words)", "DataLoader2[str]"),
    ("DataLoader2(numbers, [Shuffle()], InProcessReadingService())", "DataLoader2[int]"),
    ("DataLoader2(numbers, lambda pipe: pipe.map(str))", "DataLoader2[Any]"),
    ("DataLoader2(anything)", "DataLoader2[Any]"),
    ("DataLoader2(object())", "DataLoader2[Any]"),
    ("DataLoader2(None)", "DataLoader2[Any]"),
    ("DataLoader2.from_state({}, None)", "DataLoader2[Any]"),
    ("later", "DataLoader2[int]"),
    ("OwnLoader(numbers)", "OwnLoader"),
    ("[number for number in OwnLoader(numbers)]", "list[int]"),
    ("Doubler(numbers).map(str)", "IterDataPipe[str]"),
    ("[item for item in DataLoader2(numbers.map(str))]", "list[str]"),
    ("next(iter(loader))", "str"),
    ("pipe.unbatch()", "IterDataPipe[Any]"),
    ("files.open_files('b').load_from_tar()", "IterDataPipe[tuple[str, StreamWrapper]]"),
    ("files.open_files('b').decompress().read_from_stream()", "IterDataPipe[tuple[str, Any]]"),
    ("files.read_from_http()", "IterDataPipe[tuple[str, StreamWrapper]]"),
    ("files.open_files('b').load_from_tfrecord()", "IterDataPipe[dict[str, Any]]"),
    ("files.list_files()", "IterDataPipe[str]"),
    ("DataLoader2(numbers, num_workers=2)", "DataLoader2[int]"),
]

MISTAKES = [
    ("numbers.mpa(str)", 'has no attribute "mpa"'),
    ("words.bacth(2)", 'has no attribute "bacth"'),
    ("numbers.map(str).shufle()", 'has no attribute "shufle"'),
    ("numbers.doubled()", 'has no attribute "doubled"'),
    ("numbers.header(size=2)", 'Unexpected keyword argument "size"'),
    ('numbers.header("2")', 'has incompatible type "str"; expected "int | None"'),
    ("numbers.repeat()", 'Missing positional argument "times"'),
    ("numbers.batch()", 'All overload variants of "batch"'),
    ("numbers.map(3)", 'No overload variant of "map"'),
    ("numbers.map(str.upper)", "incompatible type"),
    ("numbers.filter(str)", "incompatible type"),
    ("numbers.map(str).header(7, 8)", "Too many arguments"),
    ("numbers.groupby(str.upper)", "incompatible type"),
    ("words.batch(2, wrapper_class=3)", 'has incompatible type "int"'),
    ("DataLoader2(numbers, batch_size=2)", 'No overload variant of "DataLoader2"'),
    ("DataLoader2(numbers, reading_service=2)", 'No overload variant of "DataLoader2"'),
]

SAMPLE = """
from collections.abc import Iterator
from typing import Any

from torchdata.dataloader2 import DataLoader2, InProcessReadingService
from torchdata.dataloader2.adapter import Shuffle
from torchdata.datapipes import functional_datapipe
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe, Mapper
from torchdata.datapipes.map import SequenceWrapper

numbers = IterableWrapper([1, 2, 3])
pairs = IterableWrapper([(1, "a")])
words = SequenceWrapper(["a"])
files = IterableWrapper(["a.tar"])
anything: Any = None

def half(number: int) -> float:
    return number / 2

@functional_datapipe("halved")
class Halver(IterDataPipe[float]):
    def __init__(self, source: IterDataPipe[int]) -> None:
        self.source = source

    def __iter__(self) -> Iterator[float]:
        for number in self.source:
            yield number / 2

    def __len__(self) -> int:
        return len(self.source)

class Doubler(Mapper[int]):
    def __init__(self, source: IterDataPipe[int]) -> None:
        super().__init__(source, lambda number: 2 * number)

class OwnLoader(DataLoader2[int]):
    def __init__(self, datapipe: IterDataPipe[int]) -> None:
        super().__init__(datapipe, reading_service=InProcessReadingService())

def without_types(pipe):  # type: ignore[no-untyped-def]
    return pipe.form_of_mine()

loader = DataLoader2(numbers.map(str))
later: DataLoader2[int] = DataLoader2(None)
numbers.halved()  # type: ignore[attr-defined]
pipe: IterDataPipe[Any] = numbers.map(str)
pipe = pipe.batch(2)
pipe = pipe.filter(bool).unbatch()
"""

if importlib.util.find_spec("torch") is not None:
    SAMPLE += """
import torch.utils.data
from torchdata.stateful_dataloader import StatefulDataLoader

class Samples(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __getitem__(self, index: int) -> int:
        return index

batches = StatefulDataLoader(Samples(), batch_size=2)
indexed = StatefulDataLoader(range(3), batch_size=2)
"""
    TYPES += [("batches", "StatefulDataLoader[int]"), ("indexed", "StatefulDataLoader[int]")]


def checked(code: str, folder: Path) -> list[str]:
    pytest.importorskip("mypy", reason="the test runs mypy")
    sample = folder / "sample.py"
    sample.write_text(code, encoding="utf-8")
    # mypy can reuse the cache of `make lint`, because it runs in the same folder with the same options.
    sources = "python" if PACKAGE.parent == ROOT / "python" else str(PACKAGE.parent)
    run = run_python("-m", "mypy", "--strict", "--no-error-summary", sample, folder=ROOT, MYPYPATH=sources)
    assert run.stderr == ""
    return [line for line in run.stdout.splitlines() if line]


def test_the_stub_is_what_make_stubs_would_write() -> None:
    run = run_python(ROOT / "tools/typed_forms.py", "--print")
    assert (run.returncode, run.stderr) == (0, "")
    stub = (PACKAGE / "datapipes/_forms.pyi").read_text(encoding="utf-8")
    assert stub == run.stdout, "the functional forms have changed: run `make stubs`"


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[str]]:
    revealed = [f"reveal_type({code})" for code, _ in TYPES]
    lines = [*SAMPLE.splitlines(), *revealed, *(code for code, _ in MISTAKES)]
    found: dict[int, list[str]] = {number: [] for number in range(1, len(lines) + 1)}
    for message in checked("\n".join(lines), tmp_path_factory.mktemp("sample")):
        found[int(message.split(":")[1])].append(message)
    return found


BEGIN = len(SAMPLE.splitlines()) + 1


def test_pipes_of_users_type_check(messages: dict[int, list[str]]) -> None:
    assert [messages[line] for line in range(1, BEGIN)] == [[]] * (BEGIN - 1)


@pytest.mark.parametrize(
    ("line", "expected"), [(BEGIN + i, expected) for i, (_, expected) in enumerate(TYPES)], ids=[c for c, _ in TYPES]
)
def test_forms_and_loaders_have_types(messages: dict[int, list[str]], line: int, expected: str) -> None:
    (note,) = messages[line]
    assert "Revealed type is" in note
    assert re.sub(r"\b(?:[a-z_0-9]+\.)+(?=[A-Za-z])", "", note.split('"')[1]) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [(BEGIN + len(TYPES) + i, expected) for i, (_, expected) in enumerate(MISTAKES)],
    ids=[code for code, _ in MISTAKES],
)
def test_mistakes_in_typed_pipes_raise_type_errors(messages: dict[int, list[str]], line: int, expected: str) -> None:
    assert "error:" in messages[line][0]
    assert expected in " ".join(messages[line])


def maker_of(form: Any) -> Any:
    form = form.form() if isinstance(form, LateForm) else form
    return getattr(form, "__wrapped__", form)


FORMS = [
    pytest.param(pipe, name, maker_of(form), id=f"{base.__name__}.{name}")
    for base, pipe in ((IterDataPipe, IterableWrapper([1])), (MapDataPipe, SequenceWrapper([1])))
    for name, form in list(base.functions.items())
    if getattr(form, "__module__", "").startswith("torchdata.")  # Other tests have registered further functional forms.
]


@pytest.mark.parametrize(("pipe", "name", "maker"), FORMS)
def test_a_form_has_the_signature_and_help_of_the_constructor_without_self_and_source(
    pipe: Any, name: str, maker: Any
) -> None:
    bound = inspect.signature(getattr(pipe, name))
    constructor = maker
    if isinstance(maker, type):
        constructor = maker.__new__ if maker.__new__ is not object.__new__ else maker.__init__
    parameters = [*inspect.signature(constructor).parameters.values()][isinstance(maker, type) :]
    if parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        del parameters[0]  # The first parameter is the source pipe.
    assert [*bound.parameters.values()] == parameters
    if isinstance(maker, type):
        assert bound.return_annotation == maker.__name__
    form = getattr(pipe, name)
    shown = pydoc.plain(pydoc.render_doc(form))
    assert f"{name}{inspect.signature(form)}" in shown
    assert inspect.getdoc(form) == inspect.getdoc(maker)
    assert inspect.getdoc(maker).splitlines()[0] in shown


def test_a_bound_form_is_pickled() -> None:
    form = pickle.loads(pickle.dumps(IterableWrapper([1, 2, 3]).batch))
    assert list(form(2)) == [[1, 2], [3]]


def test_any_callable_can_be_a_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(IterDataPipe.functions, "first_ones", functools.partial(Header, limit=2))
    form = IterableWrapper([1, 2, 3]).first_ones
    assert list(form()) == [1, 2]
    assert pydoc.render_doc(form)
