"""Writes the sources of the API reference, and chooses a page for each object.

If several modules export an object, the page of one module documents it, and the pages of all other modules link to
this page.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipe_groups import GROUPS

from torchdata.datapipes import iter as iter_pipes
from torchdata.datapipes import map as map_pipes

#: The modules in the reference, with their titles. The reference contains all names in `__all__` of these modules.
MODULES = {
    "torchdata": "The package",
    "torchdata.dataloader2": "DataLoader2",
    "torchdata.dataloader2.reading_service": "Reading services",
    "torchdata.dataloader2.adapter": "Adapters",
    "torchdata.dataloader2.error": "Errors",
    "torchdata.dataloader2.linter": "Linter",
    "torchdata.dataloader2.random": "Seeds",
    "torchdata.dataloader2.graph": "Graphs",
    "torchdata.dataloader2.shuffle_spec": "Shuffle specifications",
    "torchdata.dataloader2.utils": "What workers do at their start",
    "torchdata.images": "Images",
    "torchdata.metrics": "Metrics",
    "torchdata.datapipes": "Pipes of your own",
    "torchdata.datapipes.state": "State of pipelines",
    "torchdata.datapipes.utils": "Utilities",
    "torchdata.datapipes.utils.decoder": "Decoders",
}
if importlib.util.find_spec("torch"):  # importing this module requires torch
    MODULES["torchdata.nodes"] = "Nodes"
    MODULES["torchdata.stateful_dataloader"] = "StatefulDataLoader"
    MODULES["torchdata.stateful_dataloader.sampler"] = "Samplers"

#: Descriptions of type aliases, which cannot have docstrings.
_ALIASES = {
    "DataPipe": "A pipe of either kind: ``IterDataPipe`` or ``MapDataPipe``.",
    "DataPipeGraph": "What ``traverse_dps`` gives: by the id of each pipe, the pipe and the graph of what it reads.",
}

#: Names on the first page of pipes, because they belong to none of the groups of pipes.
_BASES = {iter_pipes: ["IterDataPipe", "SHARDING_PRIORITIES"], map_pipes: ["MapDataPipe"]}


def _page(title: str, intro: str, entries: list[str]) -> str:
    return "\n\n".join([f"{title}\n{'=' * len(title)}", intro, *entries]) + "\n"


def _entry(module: str, name: str, value: Any) -> str:
    full = f"{module}.{name}"
    if name in _ALIASES:
        return f".. py:data:: {name}\n\n   {_ALIASES[name]}"
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
        return f".. {kind}:: {full}\n   :members:\n   :show-inheritance:"
    if callable(value):
        return f".. autofunction:: {full}"
    return f".. autodata:: {full}\n   :no-value:"


def functional_forms() -> dict[type, str]:
    return {
        function.__wrapped__: name  # type: ignore[attr-defined]
        for base in (iter_pipes.IterDataPipe, map_pipes.MapDataPipe)
        for name, function in base.functions.items()
        if inspect.isclass(getattr(function, "__wrapped__", None))
    }


class _Entries:
    def __init__(self) -> None:
        self._homes: dict[int, str] = {}

    def of(self, module: str, names: Iterable[str]) -> list[str]:
        """Returns the entries of the objects that no page documents yet, and a line with links to all other objects."""
        found, elsewhere = [], []
        for name in names:
            value = getattr(importlib.import_module(module), name)
            if inspect.ismodule(value):
                continue
            home = self._homes.setdefault(id(value), f"{module}.{name}")
            if home == f"{module}.{name}":
                found.append(_entry(module, name, value))
            else:
                elsewhere.append(f":py:obj:`~{home}`")
        return [*found, f"Also here: {', '.join(elsewhere)}."] if elsewhere else found


def _page_of(module: str) -> str:
    return module.removeprefix("torchdata.").replace(".", "-")


def pages() -> dict[str, str]:
    entries = _Entries()
    bases = [entry for module, names in _BASES.items() for entry in entries.of(module.__name__, names)]
    made = {"pipes-base": _page("Base classes", "What all pipes derive from.", bases)}
    for group in GROUPS:
        module = group.module.__name__
        header = f".. currentmodule:: {module}\n\nModule ``{module}``."
        names = [sample.name for sample in group.samples]
        intro = f"{header} With pictures: :ref:`pipes-{group.key}`."
        made[f"pipes-{group.key}"] = _page(group.title, intro, entries.of(module, names))

    # Submodules precede the modules that contain them, so that each object is documented in the module that defines it.
    for module in sorted(MODULES, key=lambda name: -name.count(".")):
        header = f".. currentmodule:: {module}\n\nModule ``{module}``."
        about = f".. automodule:: {module}\n   :no-index:"
        names = importlib.import_module(module).__all__
        made[_page_of(module)] = _page(MODULES[module], f"{header}\n\n{about}", entries.of(module, names))

    of_pipes = [name for name in MODULES if name.startswith("torchdata.datapipes")]
    made["index"] = _page(
        "Reference",
        "Every public class and function, with its parameters and errors. The tests run the examples.",
        [
            _toctree("Loading", [_page_of(name) for name in MODULES if name not in of_pipes]),
            _toctree("Pipes", ["pipes-base", *(f"pipes-{group.key}" for group in GROUPS), *map(_page_of, of_pipes)]),
        ],
    )
    return made


def _toctree(caption: str, names: list[str]) -> str:
    listed = "\n".join(f"   {name}" for name in names)
    return f"{caption}\n{'-' * len(caption)}\n\n.. toctree::\n   :maxdepth: 1\n\n{listed}"


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / f"{name}.rst").write_text(text, encoding="utf-8")
