"""Typical mistakes of new users either work, or cause an error or a warning that shows the correct code."""

import subprocess
import tarfile
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fresh_processes import run_program, run_python
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import FileLister, IterableWrapper, IterDataPipe
from torchdata.datapipes.state import load_state, save_state, state


def yields_twice(number: int) -> Any:
    yield number
    yield number


def locked_at_five(number: int) -> Any:
    return {"number": number, "parts": [threading.Lock()]} if number == 5 else number


def run(tmp_path: Path, program: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(program))
    return run_python(path)


def test_a_lister_that_finds_only_folders_explains_how_to_enter_them(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.jpg").touch()
    with pytest.warns(UserWarning, match=r"no file that matches '\*\.jpg'.*cat'; .*recursive=True") as caught:
        assert list(FileLister(str(tmp_path), "*.jpg")) == []
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert len(list(FileLister(str(tmp_path), "*.jpg", recursive=True))) == 2


def test_a_lister_that_has_found_a_file_does_not_mention_folders(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    for name in "ab":
        (tmp_path / name).touch()
    pipe, resumed = FileLister(str(tmp_path)), FileLister(str(tmp_path))
    iterator = iter(pipe)
    next(iterator)
    load_state(resumed, save_state(pipe))
    assert (len([*iterator]), len(list(resumed))) == (1, 1)


def test_a_lister_that_finds_nothing_names_an_existing_file(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=rf"^FileLister found no file in '{tmp_path}'$") as caught:
        assert list(FileLister(str(tmp_path))) == []
    assert caught[0].filename == __file__
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).touch()
    words = r"^FileLister found no file that matches '\*\.JPG', but other files, such as '.*[ab]\.jpg'$"
    for root in (tmp_path, tmp_path / "a.jpg"):
        with pytest.warns(UserWarning, match=words) as caught:
            assert list(FileLister(str(root), "*.JPG")) == []
        assert len(caught) == 1


def test_an_error_for_a_wrong_keyword_of_a_form_lists_the_valid_ones() -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'size'") as caught:
        IterableWrapper(range(3)).batch(size=2)
    assert caught.value.__notes__ == [".batch() takes batch_size, drop_last, wrapper_class."]
    with pytest.raises(TypeError) as caught:
        IterableWrapper(range(3)).batch("2")
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize("form", ["load_from_tar", "load_from_zip", "decompress", "extract"])
def test_the_error_for_an_archive_opened_as_text_explains_how_to_open_it(tmp_path: Path, form: str) -> None:
    with tarfile.open(tmp_path / "one.tar.gz", "w:gz"):
        pass
    pairs = FileLister(str(tmp_path)).open_files()
    with pytest.raises(TypeError, match=r'one\.tar\.gz\' was opened as text.*write open_files\("b"\)'):
        list(getattr(pairs, form)())


def test_a_pattern_as_the_root_of_a_lister_is_answered_by_its_masks(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        list(FileLister(str(tmp_path / "*.tar")))
    assert f"a pattern belongs in masks: FileLister({str(tmp_path)!r}, masks='*.tar')." in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("pipe", "kind", "note"),
    [
        (IterableWrapper([1, 2]).collate(), TypeError, "but got int: write .batch(n) before it."),
        (IterableWrapper([{"a": 1}]).collate(), KeyError, "but got dict: write .batch(n) before it."),
        (IterableWrapper([1, None]).batch(2).collate(to="numpy"), TypeError, "item 1 of the batch is None"),
        (
            IterableWrapper([{"a": (1, 2)}, {"a": (1, None)}]).batch(2).collate(to="numpy"),
            TypeError,
            "member 1 of 'a' in item 1 of the batch is None: filter such items out, or pass collate_fn.",
        ),
        (IterableWrapper([{"a": 1}, {"b": 1}]).batch(2).collate(), KeyError, "item 0 has 'a' and item 1 has 'b'"),
        (IterableWrapper([{"a": 1}, 5]).batch(2).collate(), TypeError, "item 0 has 'a' and item 1 is of type int"),
        (IterableWrapper([{"a": 1, "c": 2}]).map(str, "b"), KeyError, "the item is a dict with the keys 'a', 'c'."),
        (IterableWrapper([(1, 2)]).map(max, [0, 5]), IndexError, "the item is a tuple of length 2."),
        (IterableWrapper([7]).filter(bool, "b"), TypeError, "the item is of type int, which has no columns."),
        (IterableWrapper([3]).flatmap(abs), TypeError, "must return an iterable of items, but returned 3; map() takes"),
    ],
)
def test_an_item_that_does_not_fit_is_described_with_the_remedy(pipe: Any, kind: type, note: str) -> None:
    with pytest.raises(kind) as caught:
        list(pipe)
    assert note in caught.value.__notes__[0]


def test_a_function_that_raises_for_a_column_that_exists_gets_no_note_about_columns() -> None:
    with pytest.raises(KeyError) as caught:
        list(IterableWrapper([{"a": 1}]).map({}.__getitem__, "a"))
    assert len(caught.value.__notes__) == 1
    assert "while Mapper" in caught.value.__notes__[0]


def test_a_filter_without_a_length_names_set_length() -> None:
    with pytest.raises(TypeError, match=r"put \.set_length\(n\) after it.* doesn't have valid length$"):
        len(IterableWrapper("ab").filter(bool))
    assert len(IterableWrapper("ab").filter(bool).set_length(2)) == 2


def test_an_error_for_a_name_from_another_library_gives_the_form_to_use() -> None:
    with pytest.raises(AttributeError, match=r"'IterableWrapper' object has no attribute 'take'; write \.header\(n\)$"):
        IterableWrapper(range(3)).take(2)


def test_python_suggests_the_nearest_form_for_a_misspelled_one(tmp_path: Path) -> None:
    program = "from torchdata.datapipes.iter import IterableWrapper; IterableWrapper([1]).shufle()"
    assert "Did you mean: 'shuffle'?" in run(tmp_path, program).stderr


def test_a_whole_checkpoint_is_refused_with_the_part_to_load() -> None:
    loader: DataLoader2[int] = DataLoader2(IterableWrapper([1]))
    with pytest.raises(ValueError, match=r"load the part of it that is one: load_state_dict\(state\['data'\]\)"):
        loader.load_state_dict({"model": {}, "data": loader.state_dict(), "step": 3})


def test_num_workers_is_the_short_form_of_a_reading_service() -> None:
    pipe = IterableWrapper(range(8)).sharding_filter()
    with DataLoader2(pipe, num_workers=2) as loader:
        assert isinstance(loader.reading_service, MultiProcessingReadingService)
        assert loader.reading_service.num_workers == 2
        assert list(loader) == list(range(8))
    with DataLoader2(pipe, num_workers=0) as loader:
        assert loader.reading_service is None
        assert list(loader) == list(range(8))
    with pytest.raises(ValueError, match="give num_workers or a reading_service, not both"):
        DataLoader2(pipe, reading_service=MultiProcessingReadingService(1), num_workers=1)
    with pytest.raises(ValueError, match="num_workers must be at least 0"):
        DataLoader2(pipe, num_workers=-1)


def test_an_error_names_the_argument_for_a_reading_service_that_is_passed_as_an_adapter() -> None:
    with pytest.raises(TypeError, match=r"write reading_service=MultiProcessingReadingService\(...\), by its name"):
        DataLoader2(IterableWrapper([1]), MultiProcessingReadingService(2))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ({"pin_memory": True}, r"write DataLoader2\(SequenceWrapper\(dataset\).*\.pin_memory\(\), num_workers=...\)"),
        ({"prefetch_factor": 4}, r"MultiProcessingReadingService\(num_workers, worker_prefetch_cnt=4\) instead"),
        ({"timeout": 3}, r"MultiProcessingReadingService\(num_workers, timeout=3\) instead"),
        ({"persistent_workers": True}, "omit it: workers always keep running between epochs"),
        ({"generator": 3}, r"write seed=\.\.\. instead"),
        (
            {"nonsense": 3},
            "'nonsense'; it takes dataset, .*num_workers, .*seed, splits, reading_service, .*stats, .*wait_warning$",
        ),
    ],
)
def test_an_error_for_arguments_of_torch_s_loader_gives_the_replacement(argument: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=r"DataLoader2\.from_dataset got an unexpected .*" + words):
        DataLoader2.from_dataset([1, 2], 2, **argument)


def test_an_error_for_automatic_workers_names_the_loader_that_has_them() -> None:
    pytest.importorskip("torch")
    from torchdata.stateful_dataloader import StatefulDataLoader

    with pytest.raises(
        TypeError, match=r"got 'auto'.*DataLoader2\.from_dataset\(dataset, batch_size, num_workers=.auto"
    ):
        StatefulDataLoader([1], num_workers="auto")  # type: ignore[arg-type]
    with DataLoader2.from_dataset(range(4), num_workers="auto") as loader:
        assert sorted(loader) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("begins", "written"),
    [([], r"state\(list\)"), ({}, r"state\(dict\)"), (set(), r"state\(set\)"), ([1], r"state\(lambda: \[1\]\)")],
)
def test_a_state_that_all_pipes_would_share_is_refused(begins: Any, written: str) -> None:
    with pytest.raises(ValueError, match=f"would share this one.*{written}"):

        class Collecting(IterDataPipe[Any]):
            _seen: Any = state(begins)


def test_an_error_reports_a_generator_instead_of_a_function() -> None:
    with pytest.raises(TypeError, match=r"give the function, yields_twice, and not yields_twice\(\.\.\.\)"):
        IterableWrapper([1]).map(yields_twice(1))


def test_an_item_that_cannot_be_pickled_names_the_pipe_and_the_item() -> None:
    pipe = IterableWrapper(range(8)).sharding_filter().map(locked_at_five)
    with DataLoader2(pipe, num_workers=2) as loader, pytest.raises(TypeError, match="cannot pickle") as caught:
        list(loader)
    first, second = caught.value.__notes__
    assert "while a value of type lock was pickled for another process: yield what can be" in first
    assert second == "The object is in item 3 of Mapper(locked_at_five) in this process."


def test_a_generator_among_the_items_leads_to_flatmap() -> None:
    pipe = IterableWrapper(range(8)).sharding_filter().map(yields_twice)
    with DataLoader2(pipe, num_workers=1) as loader, pytest.raises(TypeError) as caught:
        list(loader)
    assert "pass the function to `.flatmap(fn)` instead of `.map(fn)`" in caught.value.__notes__[0]


def test_an_error_explains_where_to_define_a_function_that_is_below_the_main_guard(tmp_path: Path) -> None:
    program = """
        from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
        from torchdata.datapipes.iter import IterableWrapper

        if __name__ == "__main__":
            def half(number):
                return number / 2

            pipe = IterableWrapper([1, 2]).sharding_filter().map(half)
            service = MultiProcessingReadingService(2, multiprocessing_context="spawn")
            with DataLoader2(pipe, reading_service=service) as loader:
                print(list(loader))
        """
    found = run(tmp_path, program)
    assert found.returncode == 1
    assert "'half' is defined inside `if __name__ == \"__main__\":`" in found.stderr
    assert "define the name above the block, at the top level of the program" in found.stderr


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_program_without_a_main_guard_gets_one_error_that_explains_it(tmp_path: Path, method: str) -> None:
    program = f"""
        from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
        from torchdata.datapipes.iter import IterableWrapper

        pipe = IterableWrapper([1, 2]).sharding_filter()
        service = MultiProcessingReadingService(2, multiprocessing_context={method!r})
        with DataLoader2(pipe, reading_service=service) as loader:
            print(list(loader))
        """
    found = run(tmp_path, program)
    assert found.returncode == 1
    assert found.stderr.count("Traceback") == 1, found.stderr
    assert "bootstrapping" not in found.stderr
    assert 'put the code that creates and reads the loader under `if __name__ == "__main__":`' in found.stderr


def test_a_process_of_the_program_gets_the_same_error_and_exits(tmp_path: Path) -> None:
    program = """
        import multiprocessing

        from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
        from torchdata.datapipes.iter import IterableWrapper

        if __name__ == "__main__":
            process = multiprocessing.get_context("spawn").Process(target=print)
            process.start()
            process.join()
            print("exit code", process.exitcode)
        else:
            service = MultiProcessingReadingService(2, multiprocessing_context="spawn")
            list(DataLoader2(IterableWrapper([1]).sharding_filter(), reading_service=service))
        """
    found = run(tmp_path, program)
    assert found.stdout == "exit code 1\n"
    assert "RuntimeError: the program starts worker processes while it is imported" in found.stderr


def test_collate_to_numpy_makes_arrays_where_torch_is_loaded() -> None:
    torch = pytest.importorskip("torch")
    items = [{"number": n, "tensor": torch.tensor([n]), "array": np.array([n]), "pair": (n, "a")} for n in range(2)]
    (batch,) = IterableWrapper(items, deepcopy=False).batch(2).collate(to="numpy")
    for part in (batch["number"], batch["tensor"], batch["array"], batch["pair"][0]):
        assert type(part) is np.ndarray
    assert batch["tensor"].tolist() == [[0], [1]]
    (batch,) = IterableWrapper(items, deepcopy=False).batch(2).collate(to="torch")
    assert isinstance(batch["array"], torch.Tensor)


def test_collate_to_torch_imports_torch() -> None:
    pytest.importorskip("torch")
    program = (
        "from torchdata.datapipes.iter import IterableWrapper\n"
        "print(*(type(b).__name__ for to in (None, 'torch', 'numpy') for b in "
        "IterableWrapper([1]).batch(1).collate(to=to)))\n"
    )
    assert run_python("-c", program).stdout == "ndarray Tensor ndarray\n"


@pytest.mark.parametrize(
    ("uses", "count"),
    [
        ("collate(), collate()", 0),
        ("import torch; collate(), collate()", 1),
        ("import torch; collate(to='torch'), collate(to='numpy'), collate(list)", 0),
    ],
)
def test_collate_logs_once_that_it_makes_tensors(uses: str, count: int, tmp_path: Path) -> None:
    program = (
        "import logging\n"
        "from torchdata.datapipes.iter import IterableWrapper\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "collate = IterableWrapper(range(4)).batch(2).collate\n"
        f"{uses}\n"
    )
    if "torch" in uses:
        pytest.importorskip("torch")
        (tmp_path / "program.py").write_text(program)
        found = run_program(tmp_path / "program.py")
    else:
        found = run(tmp_path, program)
    assert found.returncode == 0, found.stderr
    assert found.stderr.count("collate() makes tensors, because PyTorch is loaded") == count


def test_collate_refuses_unknown_targets_and_a_target_together_with_a_function() -> None:
    pipe = IterableWrapper([1]).batch(1)
    with pytest.raises(ValueError, match="to must be 'numpy', 'torch' or None, but got 'jax'"):
        pipe.collate(to="jax")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="convert in your own function"):
        pipe.collate(collate_fn=list, to="numpy")
