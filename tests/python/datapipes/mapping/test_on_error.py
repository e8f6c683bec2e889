"""If a pipe raises an exception for an item, `on_error("skip")` skips, counts and records this item."""

import io
import json

import pytest

from archive_bytes import tar_of
from random_graphs.users import InMain, Passing
from refusals import refuses
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper
from torchdata.datapipes.state import load_state, save_state
from torchdata.datapipes.utils import TooManySkipped

pytestmark = pytest.mark.filterwarnings("ignore:on_error has skipped:RuntimeWarning")


def numbers(*texts):
    return IterableWrapper(list(texts))


def archive(*names, cut=None):
    return tar_of((name, b"x" * 600) for name in names)[:cut]


def test_the_rest_of_a_broken_shard_is_left_out_and_the_next_one_is_read():
    shards = [("a.tar", archive("1", "2")), ("b.tar", archive("3", "4", cut=1800)), ("c.tar", archive("5"))]

    def streams():
        pipe = IterableWrapper(shards).map(lambda pair: (pair[0], io.BytesIO(pair[1])))
        return pipe.load_from_tar().map(lambda pair: pair[0]).on_error("skip")

    with pytest.warns(RuntimeWarning, match=r"1 x ReadError in TarArchiveLoader"):
        whole = list(streams())
    assert whole[:3] == ["a.tar/1", "a.tar/2", "b.tar/3"]
    assert whole[-1] == "c.tar/5"
    for cut in range(len(whole) + 1):
        pipe, other = streams(), streams()
        iterator = iter(pipe)
        before = [next(iterator) for _ in range(cut)]
        load_state(other, save_state(pipe))
        assert before + list(other) == whole, cut


def test_files_that_cannot_be_opened_or_parsed_are_left_out(tmp_path):
    for name, text in (("a", "[1]"), ("b", "[oops"), ("d", "[4]")):
        (tmp_path / f"{name}.json").write_text(text)
    paths = [str(tmp_path / f"{name}.json") for name in "abcd"]
    log = tmp_path / "log.jsonl"
    pipe = IterableWrapper(paths).open_files("r").parse_json_files().on_error("skip", log=log)
    assert [value for _, value in pipe] == [[1], [4]]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["pipe"], line["error"]) for line in lines] == [
        ("JsonParser", "JSONDecodeError"),
        ("FileOpener", "FileNotFoundError"),
    ]
    assert "b.json" in str(lines[0])
    assert "c.json" in str(lines[1])


def test_the_log_numbers_items_as_the_note_of_each_does(tmp_path):
    pipe = numbers("0", "1", "a", "3", "b", "5", "c").map(int).on_error("skip", log=tmp_path / "log")
    assert list(pipe) == [0, 1, 3, 5]
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["item"] for line in lines] == [2, 4, 6]
    assert [line["notes"][-1].rpartition("made ")[2] for line in lines] == [
        "its 3rd item.",
        "its 5th item.",
        "its 7th item.",
    ]


def test_one_more_than_the_limit_is_an_error_with_a_table():
    pipe = numbers("1", "a", "2", "b", "3", "c").map(int).on_error("skip", limit=2)
    received = []
    with pytest.raises(
        TooManySkipped, match=r"(?s)3 items, more than limit=2.*3 x ValueError in Mapper\(int\)"
    ) as caught:
        for item in pipe:
            received.append(item)
    assert received == [1, 2, 3]
    assert isinstance(caught.value.__cause__, ValueError)


def test_shares_are_compared_once_there_are_enough_items_and_at_the_end():
    def thirds(n):
        return 1 // (n % 3)

    assert len(list(IterableWrapper(range(300)).map(thirds).on_error("skip", limit=0.4))) == 200
    received = []
    with pytest.raises(TooManySkipped, match="30 % of a pipe's items"):
        for item in IterableWrapper(range(300)).map(thirds).on_error("skip", limit=0.3):
            received.append(item)
    assert len(received) == 66
    with pytest.raises(TooManySkipped):
        list(IterableWrapper(range(9)).map(thirds).on_error("skip", limit=0.3))


def test_a_resumed_run_counts_on_up_to_the_limit():
    def made():
        return numbers("1", "a", "2", "b", "3", "c", "4").map(int).on_error("skip", limit=2)

    pipe, other = made(), made()
    iterator = iter(pipe)
    assert [next(iterator), next(iterator), next(iterator)] == [1, 2, 3]
    load_state(other, save_state(pipe))
    with pytest.raises(TooManySkipped, match="3 items"):
        list(other)
    mapped = numbers("1", "a").map(int)
    assert list(mapped.on_error("skip", limit=1)) == [1], "each epoch has its own count"
    with pytest.raises(ValueError, match="invalid literal"):
        list(mapped)


class Own(Passing):
    def __iter__(self):
        for item in self.source:
            yield int(item)


def fails():
    yield 1
    raise ValueError("the source is broken")


@pytest.mark.parametrize("pipe", [Own(numbers("1", "a", "2")), IterableWrapper(fails(), deepcopy=False).map(abs)])
def test_a_note_explains_that_a_generator_ends_when_it_raises(pipe):
    iterator = iter(pipe.on_error("skip"))
    assert next(iterator) == 1
    with pytest.raises(ValueError, match="broken|invalid literal") as caught:
        next(iterator)
    assert any("the exception has ended the iterator of" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, MemoryError])
def test_some_exceptions_are_never_skipped(kind):
    def raises(_):
        raise kind

    with pytest.raises(kind):
        list(IterableWrapper([1]).map(raises).on_error("skip"))


def test_a_second_reader_ends_the_first_and_does_not_count_as_a_skipped_item():
    source = numbers("1", "2", "3")
    iterator = iter(source.map(int).on_error("skip"))
    assert next(iterator) == 1
    iter(source)
    with pytest.raises(RuntimeError, match="invalidated"):
        next(iterator)


def test_a_loader_reports_the_items_that_its_workers_have_skipped():
    pipe = IterableWrapper(["1", "2", "a", "b"] * 20).sharding_filter().map(int).on_error("skip")
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, "fork")) as loader:
        assert sorted(loader) == [1] * 20 + [2] * 20
        stats = loader.stats()
        assert sum(one.skipped for one in stats.pipes) == 40
        assert "ValueError in Mapper(int), worker process 1" in str(stats)
        assert {"ValueError": 40} in [pipe.skipped_kinds for pipe in stats.merged_pipes()]
        assert "40 items were skipped after errors: 40 ValueError in Mapper(int)" in str(loader.diagnose())


def strict_int(text):
    return int(text)


@pytest.mark.filterwarnings("default:on_error has skipped:RuntimeWarning")
@pytest.mark.parametrize(("method", "dispatches"), [("fork", False), ("spawn", True)])
def test_the_loader_reports_the_skipped_items_of_all_workers_once_per_epoch(method, dispatches, capfd):
    pipe = IterableWrapper(["1", "1", "x", "x"] * 10)
    if dispatches:
        pipe = pipe.map(strict_int).on_error("skip").sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
    else:
        pipe = pipe.sharding_filter().map(strict_int).on_error("skip")
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, method)) as loader:
        for _ in range(2):
            with pytest.warns(RuntimeWarning) as shown:
                assert list(loader) == [1] * 20
            assert [str(one.message) for one in shown] == [
                "on_error has skipped 20 of the items of this epoch:\n  20 x ValueError in Mapper(strict_int)"
            ]
        state, iterator = None, iter(loader)
        for _ in range(10):
            next(iterator)
            state = loader.state_dict()
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, method)) as loader:
        loader.load_state_dict(state)
        with pytest.warns(RuntimeWarning, match="items of the rest of this epoch") as shown:
            assert list(loader) == [1] * 10
        assert len(shown) == 1
    assert "skipped" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("where", ["dispatching process", "workers"])
def test_a_later_pipe_skips_exceptions_of_another_process(where, tmp_path):
    def pipe(**options):
        source = IterableWrapper(["1", "x", "3", "4"] * 10)
        if where == "workers":
            return InMain(source.sharding_filter().map(int)).on_error("skip", **options)
        source = source.map(int).sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
        return source.on_error("skip", **options)

    def loader(workers=2, **options):
        return DataLoader2(pipe(**options), reading_service=MultiProcessingReadingService(workers, "fork"))

    with loader(log=tmp_path / "log") as run:
        iterator = iter(run)
        head = [next(iterator) for _ in range(7)]
        state, rest = run.state_dict(), list(iterator)
    assert sorted(head + rest) == [1] * 10 + [3] * 10 + [4] * 10
    assert len((tmp_path / "log").read_text().splitlines()) == 10
    for workers in (2, 3):
        with loader(workers) as run:
            run.load_state_dict(state)
            assert list(run) == rest
    with loader(limit=3) as run, pytest.raises(TooManySkipped, match="more than limit=3 permits"):
        list(run)


def raises_by(item):
    raise (KeyError, ValueError, OSError, TypeError, IndexError, ArithmeticError, Ä)[item % 7](item)


class Ä(Exception):
    pass


Ä.__name__ = "Ä" * 40


def test_a_pipe_with_many_kinds_counts_some_of_them_together():
    pipe = IterableWrapper(range(70)).sharding_filter().map(raises_by).on_error("skip")
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, "fork")) as loader:
        assert list(loader) == []
        kinds = [one.skipped_kinds for one in loader.stats().merged_pipes() if one.skipped]
        assert sum(kinds[0].values()) == 70
        assert kinds[0]["KeyError"] == 10
        assert kinds[0]["others"] > 0
        assert list(loader) == []
        assert sum(sum(one.skipped_kinds.values()) for one in loader.stats().pipes) == 140


test_arguments_that_make_no_sense_are_refused = refuses(
    (lambda: numbers("1").on_error(how="stop"), ValueError, "how must be 'skip'"),
    (lambda: numbers("1").on_error(limit=-1), ValueError, "limit must be"),
    (lambda: numbers("1").on_error(limit=1.5), ValueError, "from 0 to 1"),
    (lambda: numbers("1").on_error(limit="5"), TypeError, "limit must be a number"),
)
