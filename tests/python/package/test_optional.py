"""Optional libraries are imported only when they are needed."""

import re
import sys
import tomllib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

import torchdata
from fresh_processes import run_python
from torchdata import metrics
from torchdata._observe.outside.top import live
from torchdata._optional import how_to_install, optional_import
from torchdata.dataloader2 import DataLoader2, RayReadingService
from torchdata.datapipes import iter as pipes
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.map import ArrowParts
from torchdata.datapipes.utils import to_graph
from torchdata.datapipes.utils.decoder import ImageHandler, basichandlers
from torchdata.images import decode

ROOT = Path(__file__).resolve().parents[3]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

OTHER_EXTRAS = {"all", "demo", "dev", "docs", "test", "test-torch"}

loader = DataLoader2(IterableWrapper([]))


#: Each row contains the name that the error mentions, the library, the extra, and a function that needs the library.
NEEDS: list[tuple[str, str, str, Callable[[], Any]]] = [
    ("HttpReader", "requests", "http", lambda: pipes.HttpReader([])),
    ("GDriveReader", "requests", "http", lambda: pipes.GDriveReader([])),
    ("OnlineReader", "requests", "http", lambda: pipes.OnlineReader([])),
    ("HuggingFaceHubReader", "datasets", "huggingface", lambda: pipes.HuggingFaceHubReader("squad")),
    ("DataFrameMaker", "pandas", "parquet", lambda: IterableWrapper([]).dataframe()),
    ("DataFrameMaker", "polars", "polars", lambda: IterableWrapper([]).dataframe(library="polars")),
    ("ParquetDataFrameLoader", "pyarrow", "parquet", lambda: list(IterableWrapper(["a"]).load_parquet_as_df())),
    (
        "reading zstd",
        "backports" if sys.version_info < (3, 14) else "compression",
        "zstd",
        lambda: list(IterableWrapper([("a.zst", BytesIO(b"x"))], deepcopy=False).decompress()),
    ),
    ("FSSpecFileLister", "fsspec", "fsspec", lambda: pipes.FSSpecFileLister("memory://a")),
    ("FSSpecFileOpener", "fsspec", "fsspec", lambda: pipes.FSSpecFileOpener(["memory://a"])),
    ("FSSpecSaver", "fsspec", "fsspec", lambda: pipes.FSSpecSaver([("memory://a", "x")])),
    ("IoPathFileLister", "iopath", "iopath", lambda: pipes.IoPathFileLister("a")),
    ("IoPathFileOpener", "iopath", "iopath", lambda: pipes.IoPathFileOpener(["a"])),
    ("IoPathSaver", "iopath", "iopath", lambda: pipes.IoPathSaver([("a", "x")])),
    ("S3FileLister", "obstore", "s3", lambda: pipes.S3FileLister(["s3://bucket/a"])),
    ("S3FileLoader", "obstore", "s3", lambda: pipes.S3FileLoader(["s3://bucket/a"])),
    ("AISFileLister", "aistore", "aistore", lambda: pipes.AISFileLister(["ais://a"], "http://127.0.0.1:1")),
    ("AISFileLoader", "aistore", "aistore", lambda: pipes.AISFileLoader(["ais://a"], "http://127.0.0.1:1")),
    ("ArrowParts", "deltalake", "deltalake", lambda: ArrowParts("a", format="delta")),
    ("ArrowParts", "pyiceberg", "iceberg", lambda: ArrowParts("a", format="iceberg")),
    ("LanceReader", "lance", "lance", lambda: pipes.LanceReader([], "a")),
    ("RarArchiveLoader", "rarfile", "rar", lambda: pipes.RarArchiveLoader([])),
    ("routed_decode of images", "PIL", "image", lambda: ImageHandler("rgb")("png", b"")),
    ("torchdata.images", "PIL", "image", lambda: decode(b"x")),
    ("torchdata.images with as_tensor=True", "torch", "torch", lambda: decode(b"P5 1 1 255 7", as_tensor=True)),
    ("routed_decode of '.pt' files", "torch", "torch", lambda: basichandlers("pt", b"")),
    ("RayReadingService", "ray", "ray", lambda: RayReadingService(1)),
    ("the live view", "rich", "top", lambda: live(None, 1.0, False)),
    ("to_graph", "graphviz", "graph", lambda: to_graph(IterableWrapper([]))),
    ("progress", "tqdm", "progress", loader.progress),
    ("metrics.prometheus", "prometheus_client", "prometheus", lambda: metrics.prometheus(loader, 0)),
]

#: Libraries that must be imported only when they are needed. `asyncio` is included, because its import is slow.
LATE = {library for _, library, _, _ in NEEDS} - sys.stdlib_module_names  # `shutil` imports `compression`
LATE |= {"asyncio", "boto3", "cloudpickle", "huggingface_hub", "numpy", "simplejpeg", "sklearn", "urllib3"}


@pytest.mark.parametrize(("needed_by", "library", "extra", "reach"), NEEDS, ids=[f"{row[0]}-{row[1]}" for row in NEEDS])
def test_a_missing_library_raises_an_error_that_names_the_extra(
    needed_by: str, library: str, extra: str, reach: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = [name for name in sys.modules if name.startswith(library + ".")]
    for name in [library, *loaded]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ModuleNotFoundError, match=rf"pip install '.*'` \(the extra torchdata-rs\[{extra}\]\)"
    ) as failure:
        reach()
    assert f"{needed_by} needs {library!r}, which is not installed" in str(failure.value)
    for requirement in EXTRAS[extra]:
        assert f"'{re.split(r'[^A-Za-z0-9-]', requirement)[0]}" in str(failure.value), "works however we were installed"


def test_the_error_names_the_extra_if_the_package_is_only_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchdata._optional.DISTRIBUTION", "installed-nowhere")
    assert how_to_install("s3") == "the extra installed-nowhere[s3]"


def test_every_extra_has_a_row_and_every_row_an_extra() -> None:
    assert {extra for _, _, extra, _ in NEEDS} == set(EXTRAS) - OTHER_EXTRAS


def test_every_optional_library_of_the_sources_has_a_row() -> None:
    sources = Path(torchdata.__file__).parent.rglob("*.py")
    pattern = re.compile(r'optional_import\(\s*"(\w+)[\w.]*",\s*extra="(\w+)"')
    named = {found for source in sources for found in pattern.findall(source.read_text(encoding="utf-8"))}
    assert named
    assert named <= {(library, extra) for _, library, extra, _ in NEEDS}


def test_the_extra_all_holds_every_extra_but_torch() -> None:
    [everything] = EXTRAS["all"]
    assert everything == f"torchdata-rs[{','.join(sorted(set(EXTRAS) - OTHER_EXTRAS - {'torch'}))}]"


def test_the_page_on_installing_lists_every_extra_with_what_it_adds() -> None:
    rows = re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|", (ROOT / "docs" / "install.md").read_text(encoding="utf-8"), re.M)
    adds = {name: text for names, text in rows for name in re.findall(r"`([\w-]+)`", names)}
    assert set(EXTRAS) <= set(adds)
    words = {"pillow": "Pillow", "torch": "PyTorch"}
    for extra in set(EXTRAS) - {"all", "dev", "test", "test-torch"}:
        for requirement in EXTRAS[extra]:
            library = re.split(r"[^\w-]", requirement)[0]
            assert words.get(library, library) in adds[extra], f"{extra} adds {library}"


def test_the_error_also_names_a_missing_dependency_of_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_installed.py").write_text("import nowhere_to_be_found\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match=r"'half_installed'.*nowhere_to_be_found.*\[x\]") as failure:
        optional_import("half_installed", extra="x", needed_by="Pipe")
    assert failure.value.name == "nowhere_to_be_found"


def test_importing_the_package_imports_no_optional_library() -> None:
    modules = [f"torchdata.datapipes.{name}" for name in ("iter", "map", "utils")]
    names = ("graph", "random", "adapter", "linter", "reading_service")
    modules += [f"torchdata.dataloader2.{name}" for name in names]
    code = f"import sys, {', '.join(modules)}; print(*sorted({LATE!r} & set(sys.modules)))"
    run = run_python("-W", "error", "-c", code)
    assert (run.returncode, run.stdout.split(), run.stderr) == (0, [], "")
