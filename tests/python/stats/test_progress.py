"""`loader.progress()` shows a bar in a terminal and in a notebook, and prints nothing elsewhere."""

import io
import re
import sys
from pathlib import Path

import pytest

import torchdata
from terminal import Screen
from torchdata.dataloader2 import DataLoader2
from torchdata.datapipes.iter import IterableWrapper

pytestmark = pytest.mark.alone

PROGRAM = """
import sys, time
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper

def slow(item):
    time.sleep(0.02)
    return item

pipe = IterableWrapper(range(60)).sharding_filter().map(slow)
if sys.argv[1] == "unknown":
    pipe = pipe.filter(lambda item: True)
with DataLoader2(pipe, reading_service=MultiProcessingReadingService(1, "fork")) as loader:
    bar = loader.progress(description="loading", interval=0.1)
    count = sum(1 for _ in bar)
assert count == 60
print("done", count)
"""


def run_in_terminal(tmp_path: Path, length: str) -> str:
    pytest.importorskip("pyte", reason="pyte emulates a terminal")
    pytest.importorskip("tqdm", reason="tqdm is not installed")
    (tmp_path / "program.py").write_text(PROGRAM)
    screen = Screen("-W", "error", str(tmp_path / "program.py"), length, rows=30, columns=100)
    try:
        assert screen.end() == 0, screen.written.decode()
    finally:
        screen.close()
    return screen.written.decode()


def looks(written: str) -> list[str]:
    import pyte

    seen = pyte.Screen(100, 30)
    stream = pyte.Stream(seen)
    found: list[str] = []
    for part in re.split(r"(?<=[\r\n])", written):
        stream.feed(part)
        found += [line.rstrip() for line in seen.display if "loading" in line or "done" in line]
    return found


def test_a_terminal_shows_rate_fraction_and_waiting(tmp_path: Path) -> None:
    seen = looks(run_in_terminal(tmp_path, "known"))
    text = "\n".join(seen)
    assert seen[-1] == "done 60"
    assert re.search(r"\b[1-5]?\d/60\b", text), "in the middle of the epoch"
    assert re.search(r"60/60", text)
    assert re.search(r"[\d.]+ ?items?/s", text)
    shares = [int(found) for found in re.findall(r"(\d+) % waiting", text)]
    assert shares
    assert max(shares) > 80, "the program only waits for the worker"


def test_an_epoch_of_unknown_length_has_no_fraction(tmp_path: Path) -> None:
    seen = looks(run_in_terminal(tmp_path, "unknown"))
    assert "60item" in "\n".join(seen).replace(" ", "")
    assert not re.search(r"\d+/60|100%\|", "\n".join(seen))


def test_nothing_is_written_where_there_is_no_terminal(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = DataLoader2(IterableWrapper(range(5)))
    with pytest.raises(ValueError, match="interval must be a positive number"):
        loader.progress(interval=0)
    assert list(loader.progress()) == list(range(5))
    file = io.StringIO()
    assert list(loader.progress(file=file)) == list(range(5))
    monkeypatch.setattr(sys, "stderr", None)  # On Windows, `pythonw` has no standard error.
    assert list(loader.progress()) == list(range(5))
    assert (file.getvalue(), *capfd.readouterr()) == ("", "", "")


CELL = """
import time
from torchdata.dataloader2 import DataLoader2
from torchdata.datapipes.iter import IterableWrapper

bar = DataLoader2(IterableWrapper(range(20)).map(lambda item: time.sleep(0.02))).progress(interval=0.1)
print(sum(1 for _ in bar))
"""


@pytest.mark.filterwarnings("default")  # the libraries that run notebooks emit warnings
def test_a_notebook_shows_the_bar_below_its_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient runs the notebooks of the tests")
    nbformat = pytest.importorskip("nbformat", reason="nbformat creates the notebooks of the tests")
    pytest.importorskip("ipykernel", reason="ipykernel runs the cells of notebooks")
    pytest.importorskip("tqdm", reason="tqdm is not installed")
    monkeypatch.setenv("PYTHONPATH", str(Path(torchdata.__file__).resolve().parents[1]))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    nbclient.NotebookClient(notebook, timeout=200, kernel_name="python3").execute()
    outputs = notebook.cells[0].outputs
    written = {name: "".join(one["text"] for one in outputs if one["name"] == name) for name in ("stdout", "stderr")}
    assert written["stdout"] == "20\n"
    assert re.search(r"20/20 .*item/s, \d+ % waiting", written["stderr"].splitlines()[-1])


class TextOfATerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_leaving_the_loop_closes_the_bar_and_the_loader_continues() -> None:
    pytest.importorskip("tqdm", reason="tqdm is not installed")
    loader = DataLoader2(IterableWrapper(range(50)))
    for _ in range(2):
        file = TextOfATerminal()
        iterator = iter(loader.progress(file=file))
        assert [next(iterator), next(iterator)] == [0, 1]
        iterator.close()  # type: ignore[attr-defined]
        assert re.search(r"1/50|2/50", file.getvalue())
    assert len(list(loader)) == 50
    assert len(loader.progress()) == 50
