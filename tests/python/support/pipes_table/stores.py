"""Test cases for pipes over small files in a temporary folder, in fsspec's memory file system and in iopath."""

import os
import shutil

import fsspec

from pipes_table.files import content_of as contents
from pipes_table.folders import folder
from pipes_table.row import Row, UnsizedRow
from torchdata.datapipes.iter import FileLister

_MOST = 20
_FOLDER = folder("stores")

_NAMES = [f"{name}.{kind}" for name in "abc" for kind in ("txt", "png")]


def content_of(number: int) -> str:
    return f"content of {number}"


def names_in(number: int) -> list[str]:
    return sorted(_NAMES[: number % 5])


for _number in range(_MOST + 1):
    _file = f"{_FOLDER}/{_number}.txt"
    fsspec.filesystem("memory").pipe(f"/table/{_number}.txt", content_of(_number).encode())
    if os.path.exists(f"{_FOLDER}/{_number}"):  # the parent process has created the folder, and may be reading it
        continue
    with open(_file, "w") as _opened:
        _opened.write(content_of(_number))
    os.mkdir(f"{_FOLDER}/{_number}")
    for _name in _NAMES[: _number % 5]:
        shutil.copy(_file, f"{_FOLDER}/{_number}/{_name}")


def local_file(number: int) -> str:
    return f"{_FOLDER}/{number}.txt"


def file_in_memory(number: int) -> str:
    return f"memory://table/{number}.txt"


def local_folder(number: int) -> str:
    return f"{_FOLDER}/{number}"


def folder_url(number: int) -> str:
    return f"file://{_FOLDER}/{number}"


def with_content(number: int) -> tuple[int, str]:
    return number, content_of(number)


def saved_url(number: int) -> str:
    return f"memory://table/saved/{number}"


def saved_path(number: int) -> str:
    return f"{_FOLDER}/saved/{number}"


ROWS: list[Row] = [
    UnsizedRow(
        "list_files",
        lambda s: FileLister(s().map(local_folder), masks="*.txt"),
        lambda xs: [f"{local_folder(x)}/{name}" for x in xs for name in names_in(x) if name.endswith(".txt")],
        grows="the test has only a few files",
    ),
    UnsizedRow(
        "open_files",
        lambda s: s().map(local_file).open_files(mode="t").map(contents),
        lambda xs: [(local_file(x), content_of(x)) for x in xs],
        grows="the test has only a few files",
    ),
    Row(
        "list_by_fsspec",
        lambda s: s().map(folder_url).list_files_by_fsspec(masks="*.txt"),
        lambda xs: [f"{folder_url(x)}/{name}" for x in xs for name in names_in(x) if name.endswith(".txt")],
        length="has no len",
        grows="the test has only a few files",
    ),
    Row(
        "list_by_iopath",
        lambda s: s().map(local_folder).list_files_by_iopath(masks=["a*", "*.png"]),
        lambda xs: [
            f"{local_folder(x)}/{name}" for x in xs for name in names_in(x) if name[0] == "a" or name[-1] == "g"
        ],
        length="has no len",
        grows="the test has only a few files",
    ),
    Row(
        "open_by_fsspec",
        lambda s: s().map(file_in_memory).open_files_by_fsspec().map(contents),
        lambda xs: [(file_in_memory(x), content_of(x)) for x in xs],
        grows="the test has only a few files",
    ),
    Row(
        "open_by_iopath",
        lambda s: s().map(local_file).open_files_by_iopath().map(contents),
        lambda xs: [(local_file(x), content_of(x)) for x in xs],
        grows="the test has only a few files",
    ),
    Row(
        "save_by_fsspec",
        lambda s: s().map(with_content).save_by_fsspec(filepath_fn=saved_url),
        lambda xs: [saved_url(x) for x in xs],
        grows="the files are in memory",
    ),
    Row(
        "save_by_iopath",
        lambda s: s().map(with_content).save_by_iopath(filepath_fn=saved_path),
        lambda xs: [saved_path(x) for x in xs],
        grows="it writes a file for each of many items",
    ),
]
