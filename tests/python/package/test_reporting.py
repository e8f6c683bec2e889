"""The traceback of an exception shows the user's frames, and one note about the pipe, its definition and the item."""

import os
import pickle
import re
import traceback
from dataclasses import dataclass
from pathlib import Path

import pytest

import torchdata
from families import Mapped
from fresh_processes import run_python
from process_checks import METHODS, MULTIPROCESSING, loader, nothing_is_left  # noqa: F401 - a fixture
from random_graphs.users import Passing
from torchdata.dataloader2 import DataLoader2
from torchdata.datapipes._pipe.explaining import explain
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
from torchdata.datapipes.map import SequenceWrapper

OURS = str(Path(torchdata.__file__).parent) + os.sep


class Users(Passing):
    def __iter__(self):
        for item in self.source:  # noqa: UP028 - a frame of its own
            yield item


class FailsToBegin(IterDataPipe):
    def reset(self):
        raise OSError("cannot begin")

    def __iter__(self):
        return iter(())


@dataclass(frozen=True)
class Frozen(Exception):
    text: str


def decode(number):
    if number == 17:
        raise ValueError("bad image")
    return number


def pipeline():
    return Users(IterableWrapper(range(30)).shuffle(buffer_size=1).map(decode).batch(1).unbatch()).batch(2)


def frames_of(error):
    return [(frame.filename, frame.name) for frame in traceback.extract_tb(error.__traceback__)]


def failure_of(iterable, kind):
    with pytest.raises(kind) as caught:
        list(iterable)
    return caught.value


@pytest.mark.parametrize("make", [lambda: pipeline(), lambda: pipeline().prefetch(2), lambda: DataLoader2(pipeline())])
def test_tracebacks_have_all_frames_of_the_user_and_no_frames_of_this_package(make):
    frames = frames_of(failure_of(make(), ValueError))
    assert [name for _, name in frames] == ["failure_of", "__iter__", "decode"]
    assert {file for file, _ in frames} == {__file__}


@pytest.mark.parametrize("method", METHODS)
def test_the_message_of_a_worker_contains_only_frames_of_the_user(method):
    with loader(pipeline(), 1, multiprocessing_context=method) as dl:
        error = failure_of(dl, ValueError)
    assert [name for _, name in frames_of(error)] == ["failure_of"]
    text = str(error)
    assert text.startswith("Caught ValueError in worker process 0.\nOriginal Traceback (most recent call last):\n")
    assert text.endswith("\nValueError: bad image")
    assert "in decode" in text
    assert "in __iter__" in text
    assert OURS not in text


def test_the_frame_that_raised_is_kept_even_if_it_belongs_to_this_package():
    error = failure_of(IterableWrapper([(1,)]).map(str, input_col=3).batch(2), IndexError)
    (_, (file, _)) = frames_of(error)
    assert file.startswith(OURS)


def test_a_wrong_argument_is_shown_at_the_users_call_and_where_it_was_found():
    with pytest.raises(TypeError, match="fn must be a function") as caught:
        IterableWrapper([1]).map(3)
    assert [file.startswith(OURS) for file, _ in frames_of(caught.value)] == [False, True]


def test_an_error_at_the_beginning_has_a_short_traceback_and_a_note():
    error = failure_of(FailsToBegin().map(str).batch(2), OSError)
    assert [name for _, name in frames_of(error)] == ["failure_of", "reset"]
    assert error.__notes__ == ["This exception was raised while FailsToBegin (1st of 3 pipes) began to iterate."]


def test_tracebacks_of_causes_are_shortened_too():
    class Converts(Users):
        def __iter__(self):
            try:
                yield from self.source
            except ValueError as error:
                raise RuntimeError("converted") from error

    error = failure_of(Converts(IterableWrapper(range(20)).map(decode).batch(2)).batch(2), RuntimeError)
    assert [name for _, name in frames_of(error.__cause__)] == ["__iter__", "decode"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_exceptions_that_end_programs_keep_their_frames(kind):
    def end(_):
        raise kind

    error = failure_of(Users(IterableWrapper([1]).map(end).in_memory_cache()).in_memory_cache(), kind)
    assert any(file.startswith(OURS) for file, _ in frames_of(error))


def test_the_environment_turns_all_frames_on():
    program = (
        "import sys; sys.path[:0] = sys.argv[1:3]\n"
        "from test_reporting import pipeline\n"
        "from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService as Service\n"
        "import traceback\n"
        "pipe = pipeline().in_memory_cache()\n"
        "for each in (pipe, DataLoader2(pipe, reading_service=Service(1))):\n"
        "    try:\n"
        "        list(each)\n"
        "    except ValueError:\n"
        "        print(traceback.format_exc(), end='----')\n"
    )
    here = Path(__file__).parent
    for value, fewest, most in (("0", 0, 0), ("1", 2, 100)):
        run = run_python("-c", program, here, here.parent / "support", TORCHDATA_FULL_TRACEBACK=value)
        in_main, in_worker, _ = run.stdout.split("----")
        for printed in (in_main, in_worker):
            assert "ValueError: bad image" in printed
            assert fewest <= printed.count(OURS) <= most


def where_in(error):
    (note,) = [note for note in error.__notes__ if note.startswith("This exception was raised while")]
    return note.removeprefix("This exception was raised while ")


def test_one_note_names_the_pipe_its_function_its_position_and_the_item():
    with loader(pipeline(), 1) as dl:
        for each in (pipeline(), dl):
            error = failure_of(each, ValueError)
            assert where_in(error) == "Mapper(decode) (3rd of 7 pipes, after Shuffler) made its 18th item."
            assert "".join(traceback.format_exception(error)).count("This exception was raised while") == 1


def test_an_error_of_the_dispatching_process_names_its_position_there_and_passes_the_workers_unchanged():
    failing = IterableWrapper(range(20)).map(decode).sharding_round_robin_dispatch(MULTIPROCESSING)
    with loader(failing.batch(3), 2) as dl:
        error = failure_of(dl, ValueError)
    assert where_in(error) == "Mapper(decode) (2nd of 3 pipes, after IterableWrapper) made its 18th item."
    assert str(error).count("Original Traceback") == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_the_note_on_a_data_set_names_the_index_that_it_was_asked_for(workers):
    images = Mapped(decode, 30)
    for build in (
        lambda: DataLoader2.from_dataset(images, 4, shuffle=True, num_workers=workers),
        lambda: DataLoader2.from_dataset(images, 4, sampler=[3, 17, 4], num_workers=workers),
        lambda: DataLoader2.from_dataset(images, 4, num_workers=workers),
    ):
        with build() as dl:
            dl.seed(1)
            assert re.search(r" made its \d+(st|nd|rd|th) item, of index 17\.$", where_in(failure_of(dl, ValueError)))
    pipe = SequenceWrapper(images, deepcopy=False)
    for each in (pipe.shuffle().set_seed(1), pipe.sample_by([3, 17]), pipe.to_iter_datapipe(indices=[1, 17])):
        assert where_in(failure_of(each.batch(2), ValueError)).endswith(" item, of index 17.")


def test_an_error_after_the_workers_is_described_in_the_plural():
    with loader(IterableWrapper(range(9)).sharding_filter(), 1) as dl:
        iterator = iter(dl)
        next(iterator)
        error = ValueError("broken")
        explain(error, None, dl._run.position.output, 5)
        assert where_in(error).endswith("the worker processes made their 6th item.")
        list(iterator)


def test_equal_branches_are_distinguished_by_their_position():
    def fails(_):
        raise ValueError

    def graph(left, right):
        return IterableWrapper([1]).map(left).zip(IterableWrapper([1]).map(right))

    assert where_in(failure_of(graph(fails, str), ValueError)).startswith("Mapper(fails) (2nd of 5 pipes")
    assert where_in(failure_of(graph(str, fails), ValueError)).startswith("Mapper(fails) (4th of 5 pipes")


def test_a_pipe_that_reads_several_names_them():
    error = failure_of(IterableWrapper([1]).zip(Users([2])).map(lambda pair: 1 // 0), ZeroDivisionError)
    assert "Mapper(<lambda>) (4th of 4 pipes, after Zipper) made its 1st item" in where_in(error)

    class Fails(IterDataPipe):
        def __init__(self, *sources):
            self.sources = sources

        def __iter__(self):
            raise LookupError
            yield

    error = failure_of(Fails(IterableWrapper([1]), Users([2])), LookupError)
    assert "(3rd of 3 pipes, after IterableWrapper and Users)" in where_in(error)


def test_a_note_about_a_single_pipe_has_no_position():
    def fails():
        yield 1
        raise LookupError

    assert where_in(failure_of(IterableWrapper(fails(), deepcopy=False), LookupError)) == (
        "IterableWrapper made its 2nd item."
    )


def test_items_are_counted_in_words():
    for ordinal in ("1st", "2nd", "3rd", "4th", "11th", "21st", "112th"):
        numbers = range(int(ordinal[:-2]) - 1, -1, -1)
        error = failure_of(IterableWrapper(numbers).map((1).__floordiv__), ZeroDivisionError)
        assert f"made its {ordinal} item." in where_in(error)


def test_notes_of_other_libraries_stay_next_to_notes_of_the_package():
    def fails(_):
        error = ValueError("noted")
        error.add_note("by the user")
        raise error

    pipe = IterableWrapper([1]).map(fails).batch(2)
    with loader(pipe, 1) as dl:
        errors = [failure_of(each, ValueError) for each in (pipe, dl)]
    for error in errors:
        assert error.__notes__[0] == "by the user"
        assert where_in(error).startswith("Mapper(fails)")
        assert len(error.__notes__) == 2


def test_an_exception_that_accepts_no_notes_passes_unchanged():
    def fails(_):
        raise Frozen("as it is")

    assert failure_of(IterableWrapper([1]).map(fails).batch(2), Frozen).text == "as it is"


def test_an_exception_that_has_passed_pickles_without_this_package():
    error = failure_of(pipeline(), ValueError)
    assert b"torchdata." not in pickle.dumps(error, protocol=0)


@pytest.mark.parametrize("method", METHODS)
def test_a_warning_of_a_worker_shows_the_line_that_began_it_however_it_was_started(method, tmp_path):
    (tmp_path / "images" / "cats").mkdir(parents=True)
    program = tmp_path / "program.py"
    program.write_text(
        "from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService as Service\n"
        "from torchdata.datapipes.iter import FileLister, IterableWrapper\n"
        "if __name__ == '__main__':\n"
        "    rows = IterableWrapper([{'a': 1}]).sharding_filter().drop('b')\n"
        "    for pipe in FileLister('images').sharding_filter(), rows:\n"
        f"        with DataLoader2(pipe, reading_service=Service(1, {method!r})) as loader:\n"
        "            items = list(loader)\n"
    )
    shown = run_python("-W", "always", program, folder=tmp_path).stderr
    locations = re.findall(r"^(.*):(\d+): UserWarning", shown, re.MULTILINE)
    assert len(locations) == 2, shown
    assert set(locations) == {(str(program), "7")}, shown
    assert shown.count("  items = list(loader)\n") == 2, shown
