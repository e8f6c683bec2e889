"""The names of torchdata 0.9 and 0.11, even private names in old code, exist and accept the same arguments."""

import enum
import importlib
import inspect
import json
from collections.abc import Iterator
from inspect import Parameter
from pathlib import Path
from typing import Any

import pytest

from torchdata.datapipes.iter import IterDataPipe
from torchdata.datapipes.map import MapDataPipe

API = Path(__file__).resolve().parents[1] / "data/api"
RELEASES = [json.loads((API / f"torchdata-{release}.json").read_text(encoding="utf-8")) for release in ("0.9", "0.11")]
PRIVATE: dict[str, list[str]] = json.loads((API / "old-private-names.json").read_text(encoding="utf-8"))

#: Private methods and attributes that old code calls or overrides, by module and class.
PRIVATE_MEMBERS = {
    "torchdata.datapipes.map:IterToMapConverter": ("_load_map", "_map"),
    "torchdata.datapipes.iter:InBatchShuffler": ("_rng", "_seed"),
    "torchdata.datapipes.iter:IterDataPipe": ("_number_of_samples_yielded", "_snapshot_state"),
}

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def parameters(function: Any, *, bound: bool) -> list[Parameter] | None:
    if isinstance(function, enum.EnumType):  # an enum's signature depends on the Python version
        return None
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    return found[1:] if bound and found and found[0].name in ("self", "cls") else found


def constructor(kind: Any) -> list[Parameter] | None:
    for name in ("__new__", "__init__"):
        definer = next((base for base in kind.__mro__[:-1] if name in vars(base)), None)
        found = None if definer is None else parameters(getattr(kind, name), bound=True)
        if found and {one.name for one in found} - {"args", "kwargs"}:
            return found
    return parameters(kind, bound=True)


def difference(wanted: list[str] | None, found: list[Parameter] | None) -> str:
    if wanted is None or found is None:
        return ""
    kinds = {one.kind for one in found}
    indices = {one.name: index for index, one in enumerate(found)}
    last, names = -1, set()
    for entry in wanted:
        if entry.startswith("*"):
            kind = Parameter.VAR_KEYWORD if entry.startswith("**") else Parameter.VAR_POSITIONAL
            if entry != "*" and kind not in kinds:
                return f"takes no {entry}"
            continue
        name, is_optional, _ = entry.partition("=")
        names.add(name)
        if name not in indices:
            if Parameter.VAR_KEYWORD in kinds:
                continue
            return f"lacks {name!r}"
        one = found[indices[name]]
        if is_optional and one.default is Parameter.empty:
            return f"demands {name!r}, which is optional there"
        if one.kind in _POSITIONAL:
            if indices[name] < last:
                return f"has {name!r} in another place"
            last = indices[name]
    demanded = [one.name for one in found if one.default is Parameter.empty and one.kind not in _VARIADIC]
    return "".join(f"demands {name!r}, which is not there" for name in demanded if name not in names)


def problems(owner: Any, name: str, entry: dict[str, Any]) -> Iterator[str]:
    if not hasattr(owner, name):
        yield f"{name} is missing"
        return
    found = getattr(owner, name)
    checks: list[tuple[str, list[str] | None, list[Parameter] | None]] = []
    if entry["type"] == "function":
        checks.append(("", entry.get("params"), parameters(found, bound=False)))
    elif entry["type"] == "class":
        checks.append(("", entry.get("init"), constructor(found)))
        for method, wanted in entry.get("methods", {}).items():
            if hasattr(found, method):
                checks.append((f".{method}", wanted, parameters(getattr(found, method), bound=True)))
            else:
                yield f"{name}.{method} is missing"
    for suffix, wanted, ours in checks:
        if problem := difference(wanted, ours):
            yield f"{name}{suffix} {problem}"


MODULES = [(module, names) for release in RELEASES for module, names in release["modules"].items() if names]


def imported(module: str) -> Any:
    if module.startswith(("torchdata.stateful_dataloader", "torchdata.nodes")):
        pytest.importorskip("torch", reason=f"{module} needs torch")
    return importlib.import_module(module)


@pytest.mark.parametrize(("module", "names"), MODULES, ids=[module for module, _ in MODULES])
def test_the_names_of_a_public_module_are_there_and_take_the_same_arguments(module: str, names: dict[str, Any]) -> None:
    owner = imported(module)
    assert [problem for name, entry in names.items() for problem in problems(owner, name, entry)] == []


@pytest.mark.parametrize(("kind", "base"), [("iter", IterDataPipe), ("map", MapDataPipe)])
def test_every_functional_form_is_there_and_takes_the_same_arguments(kind: str, base: Any) -> None:
    forms = {name: entry for release in RELEASES for name, entry in release["functional"].get(kind, {}).items()}
    assert len(forms) > 5
    assert sorted(set(forms) - set(base.functions)) == []
    wrong = []
    for name, entry in forms.items():
        form = base.functions[name]
        made = getattr(form, "__wrapped__", form)
        found = constructor(made) if isinstance(made, type) else parameters(made, bound=False)
        if problem := difference(entry.get("params"), found[1:] if found else found):
            wrong.append(f"{name} {problem}")
    assert wrong == []


@pytest.mark.parametrize("module", PRIVATE)
def test_private_names_that_old_code_imports_are_there(module: str) -> None:
    owner = imported(module)
    assert [name for name in PRIVATE[module] if not hasattr(owner, name)] == []


@pytest.mark.parametrize("qualified", PRIVATE_MEMBERS)
def test_private_members_that_old_code_uses_are_there(qualified: str) -> None:
    module, _, name = qualified.partition(":")
    kind = getattr(importlib.import_module(module), name)
    made = kind if name == "IterDataPipe" else kind(IterDataPipe())
    assert [member for member in PRIVATE_MEMBERS[qualified] if not hasattr(made, member)] == []
