"""If a pipe that reads files fails, the log of `on_error` names the file, the archive member or the key."""

import json
import zipfile
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from archive_bytes import tar_of
from process_checks import identity
from torchdata.dataloader2 import DataLoader2
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.map import ArrowParts
from torchdata.images import decode

pytestmark = pytest.mark.filterwarnings("ignore:on_error has skipped:RuntimeWarning")

IMAGE = b"P6 2 2 255 " + bytes(12)


def lines_of(pipe: Any, log: Any) -> list[dict[str, Any]]:
    list(pipe.on_error("skip", log=log))
    return [json.loads(line) for line in log.read_text().splitlines()]


def saved_tar(path: Any, cut: int | None = None) -> str:
    path.write_bytes(tar_of((name, bytes(2000)) for name in ("one", "two", "three"))[:cut])
    return str(path)


def content(pair: Any) -> bytes:
    return pair[1].read()


def test_an_image_is_named_by_its_path_or_key(tmp_path):
    broken, missing = tmp_path / "broken.jpg", str(tmp_path / "missing.jpg")
    broken.write_bytes(b"\xff\xd8\xff\xe0 and no more")
    pipes = {
        "path": IterableWrapper([str(broken), missing]).decode_image(),
        "stream": IterableWrapper([str(broken)]).open_files("b").decode_image(input_col=1),
        "pair": IterableWrapper([("a", IMAGE), ("b", b"none")]).decode_image(input_col=1),
        "sample": IterableWrapper([{"__key__": "k", "ppm": b"none"}]).decode_image(input_col="ppm"),
        "bytes": IterableWrapper([b"none"]).decode_image(),
        "function": IterableWrapper([str(broken)]).map(lambda path: decode(path)),
    }
    keys = {name: [line["key"] for line in lines_of(pipe, tmp_path / name)] for name, pipe in pipes.items()}
    assert keys == {
        "path": [str(broken), missing],
        "stream": [str(broken)],
        "pair": ["b"],
        "sample": ["k"],
        "bytes": [None],
        "function": [str(broken)],
    }


def test_a_truncated_shard_is_named_and_the_member_at_which_it_ends(tmp_path):
    whole, cut = saved_tar(tmp_path / "whole.tar"), saved_tar(tmp_path / "cut.tar", 3500)
    members = IterableWrapper([whole, cut]).open_files("b").load_from_tar().map(content)
    assert [line["key"] for line in lines_of(members, tmp_path / "log")] == [f"{cut}/two", cut]
    by_reader = IterableWrapper([cut]).open_files("b").load_from_tar().read_from_stream()
    assert lines_of(by_reader, tmp_path / "other")[0]["key"].startswith(cut)


def test_errors_also_name_other_archives(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("member", b"content" * 100)
    bytes_ = bytearray(path.read_bytes())
    bytes_[60] ^= 255
    path.write_bytes(bytes_)
    pipe = IterableWrapper([str(path)]).open_files("b").load_from_zip().map(content)
    assert [line["key"] for line in lines_of(pipe, tmp_path / "zip")] == [f"{path}/member"]
    packed = tmp_path / "a.gz"
    packed.write_bytes(b"no gzip")
    pipe = IterableWrapper([str(packed)]).open_files("b").decompress("gzip").readlines()
    assert [line["key"] for line in lines_of(pipe, tmp_path / "gzip")] == [str(packed)]


def test_the_log_names_a_row_that_does_not_parse_by_file_and_line(tmp_path):
    rows, text, value = tmp_path / "rows.csv", tmp_path / "text", tmp_path / "value.json"
    rows.write_text('a,b\n1,2\n"3,4\n')
    text.write_bytes(b"ok\n\xff\n")
    value.write_text("[1,\n2,\noops")
    pipes = [
        (IterableWrapper([str(rows)]).open_files("r").parse_csv(strict=True), rows, "line 3"),
        (IterableWrapper([str(rows)]).open_files("r").parse_csv_as_dict(strict=True), rows, "line 3"),
        (IterableWrapper([str(text)]).open_files("r", encoding="utf-8").readlines(), text, "after line"),
        (IterableWrapper([str(value)]).open_files("r").parse_json_files(), value, "line 3"),
    ]
    for number, (pipe, path, location) in enumerate(pipes):
        (line,) = lines_of(pipe, tmp_path / f"log{number}")
        assert line["key"] == str(path)
        assert location in line["message"]


def test_tables_and_records_are_named(tmp_path):
    good, bad = tmp_path / "good.parquet", tmp_path / "bad.parquet"
    for path in (good, bad):
        parquet.write_table(pyarrow.table({"a": np.arange(50_000)}), path, compression="none", row_group_size=10_000)
    damaged = bytearray(bad.read_bytes())
    damaged[4:200] = bytes(196)
    bad.write_bytes(damaged)
    frames = IterableWrapper([str(good), str(bad)]).load_parquet_as_df()
    assert [line["key"] for line in lines_of(frames, tmp_path / "frames")] == [str(bad)]
    record = tmp_path / "a.tfrecord"
    record.write_bytes(bytes([5, 0, 0, 0, 0, 0, 0, 0]) + b"abcdefgh")
    records = IterableWrapper([str(record)]).open_files("b").load_from_tfrecord()
    assert [line["key"] for line in lines_of(records, tmp_path / "records")] == [str(record)]


def half(row: dict[str, Any]) -> float:
    return row["n"] / row["of"]


def test_the_log_names_a_row_by_its_public_scalar_columns(tmp_path):
    rows = [{"id": n, "n": n, "of": n % 2, "name": "x" * 200, "password": "s3cret", "image": IMAGE} for n in range(3)]
    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    lines = lines_of(ArrowParts(str(path)).to_iter_datapipe().read_arrow().map(half), tmp_path / "log")
    assert [line["key"].partition(", name=")[0] for line in lines] == ["id=0, n=0, of=0", "id=2, n=2, of=0"]
    assert "s3cret" not in str(lines)
    assert all(len(line["key"]) < 130 for line in lines)


def test_the_log_names_the_worker_and_a_set_of_its_keys_lists_each_broken_sample_once(tmp_path):
    rows = IterableWrapper([{"n": n, "of": n % 4} for n in range(12)]).sharding_filter()
    pipe = rows.map(half).on_error("skip", log=tmp_path / "log")
    with DataLoader2(pipe, num_workers=2) as loader:
        for _ in range(2):
            with pytest.warns(RuntimeWarning, match="has skipped 3 of the items"):
                list(loader)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["worker"] for line in lines] == [0] * 6
    assert [line["epoch"] for line in lines] == [0, 0, 0, 1, 1, 1]
    assert sorted({line["key"] for line in lines}) == ["n=0, of=0", "n=4, of=0", "n=8, of=0"]
    with pytest.warns(RuntimeWarning, match="has skipped 3 of the items"):
        list(pipe)
    last = json.loads((tmp_path / "log").read_text().splitlines()[-1])
    assert last["worker"] is last["epoch"] is None


def fourth(row: dict[str, Any]) -> float:
    return 1 / row["of"][3]


@pytest.mark.parametrize(("workers", "between"), [(0, "nothing"), (2, "a map and a filter")])
def test_the_log_names_a_row_without_scalar_columns_by_file_and_row_number(tmp_path, workers, between):
    for name in "ab":
        table = pyarrow.table({"of": [[1, 2, 3, n % 3] for n in range(8)]})
        parquet.write_table(table, tmp_path / f"{name}.parquet", row_group_size=5)
    rows = ArrowParts(str(tmp_path)).to_iter_datapipe().sharding_filter().read_arrow()
    if between != "nothing":
        rows = rows.map(identity).filter(bool)
    with DataLoader2(rows.map(fourth).on_error("skip", log=tmp_path / "log"), num_workers=workers) as loader:
        assert len(list(loader)) == 10
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert sorted((line["key"], line["worker"]) for line in lines) == sorted(
        (f"row group {group} of {tmp_path / name}, row {row}", group if workers else None)
        for name in ("a.parquet", "b.parquet")
        for group, row in [(0, 0), (0, 3), (1, 1)]
    )


@pytest.mark.parametrize(("workers", "where"), [(0, "filtered"), (1, "filtered"), (1, "dispatched")])
def test_the_log_names_the_epoch_of_the_loader(tmp_path, workers, where):
    source = IterableWrapper([{"n": n, "of": n % 2} for n in range(4)])
    pipe = source.sharding_round_robin_dispatch() if where == "dispatched" else source.sharding_filter()
    pipe = pipe.map(half).on_error("skip", log=tmp_path / "log")
    for _ in range(2):
        with DataLoader2(pipe, num_workers=workers) as loader:
            for _ in range(2):
                with pytest.warns(RuntimeWarning, match="has skipped 2 of the items"):
                    list(loader)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [(line["epoch"], line["key"]) for line in lines] == [
        (epoch, f"n={n}, of=0") for epoch in [0, 1] * 2 for n in (0, 2)
    ]


def test_an_error_names_what_cannot_be_written_without_a_password(tmp_path):
    target = str(tmp_path / "folder" / "a")
    saved = IterableWrapper([(target, 5)]).save_to_disk(mode="wb")
    assert [line["key"] for line in lines_of(saved, tmp_path / "saved")] == [target]
    (line,) = lines_of(
        IterableWrapper(["http://user:secret@127.0.0.1:9/a"]).read_from_http(timeout=2), tmp_path / "web"
    )
    assert "127.0.0.1:9/a" in line["key"]
    assert "secret" not in str(line)
