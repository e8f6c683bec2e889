"""Whether the items and their order are the same for any number of workers; if not, which pipe is at fault.

Role: looks at a graph before workers run it. Runs in main, where `num_workers="auto"` asks. It cannot see some acts of
the user's own code: a function that asks which worker it runs in, or that draws random numbers in a way that its code
does not show.
"""

from __future__ import annotations

import inspect
import random
import types
from collections.abc import Iterator
from functools import partial
from typing import Any

from torchdata._reporting import name_of
from torchdata.dataloader2.state.dividing import required_division
from torchdata.dataloader2.state.elastic import lasts_itself
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes.iter.ordering.sharding import SHARDING_PRIORITIES, ShardingFilter
from torchdata.datapipes.iter.threads.synchronizing import FullSync

__all__ = ["draws_random_numbers", "why_workers_matter"]

#: How deep functions that functions call are looked at.
_DEEPEST = 4
#: Modules whose functions draw random numbers, and of others the functions that do.
_RANDOM_MODULES = frozenset({"random", "numpy.random", "albumentations"})
_RANDOM_NAMES = frozenset(
    {
        *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli"),
        *("multinomial", "poisson", "uniform_", "normal_", "random_", "bernoulli_", "default_rng", "RandomState"),
        *("dropout", "dropout2d", "shuffle"),
    }
)
_NUMERIC = frozenset({"numpy", "scipy", "torch"})
#: Libraries whose random transforms say so in their name.
_LIBRARIES = ("torchvision.", "torchaudio.", "kornia.", "monai.", "imgaug.", "albumentations.")
_RANDOM_CLASSES = (
    "Random",
    "Jitter",
    "AutoAugment",
    "AugMix",
    "RandAugment",
    "TrivialAugment",
    "Dropout",
    "MixUp",
    "CutMix",
)


def why_workers_matter(main: Graph, branch: Graph, dispatching: Graph | None) -> str | None:
    """Why the order depends on the number of workers, in a sentence; None if it does not.

    Args:
        main: the graph that main reads.
        branch: the graph that each worker runs.
        dispatching: what the dispatching process runs; None if there is none.
    """
    for graph in (main, branch, dispatching) if dispatching is not None else (main, branch):
        for pipe in graph:
            if isinstance(pipe, FullSync) or _is_ranks_share(pipe):
                return "the ranks of a distributed job share out the items, which asks for as many workers on each"
            if lasts_itself(pipe, graph):
                return f"{name_of(pipe)} keeps a state from epoch to epoch"
    try:
        division = required_division(branch)
    except ValueError as error:
        why, _, remedy = str(error).partition(". ")
        return f"{why}. {remedy}" if "ShardingPolicy" in remedy else why
    if getattr(division.pipe, "sharding_group_filter", None) == SHARDING_PRIORITIES.DISTRIBUTED:
        return "the `ShardingFilter` divides the items among ranks alone, so that each worker yields them all"
    for pipe in branch:
        if _is_random(pipe):
            return f"{name_of(pipe)} draws random numbers, of which each worker has its own"
    return None


def _is_ranks_share(pipe: Any) -> bool:
    return isinstance(pipe, ShardingFilter) and any(
        group != SHARDING_PRIORITIES.MULTIPROCESSING and instances > 1 for group, (instances, _) in pipe.groups.items()
    )


def _is_random(pipe: Any) -> bool:
    """Whether code of the user's in a pipe draws random numbers, as far as that can be seen."""
    own = [] if type(pipe).__module__.startswith("torchdata.") else [inspect.unwrap(type(pipe).__iter__)]
    functions = [value for name, value in vars(pipe).items() if callable(value) and name != "_iteration_token"]
    return any(map(draws_random_numbers, [*own, *functions]))


def draws_random_numbers(function: Any) -> bool:
    """Whether a function draws random numbers of its process, as far as its code shows that."""
    return _draws(function, _DEEPEST, set())


def _draws(value: Any, depth: int, seen: set[int]) -> bool:
    if id(value) in seen or depth < 0:
        return False
    seen.add(id(value))
    if isinstance(value, partial):
        return any(_draws(each, depth, seen) for each in (value.func, *value.args, *value.keywords.values()))
    if isinstance(value, types.MethodType):
        return _is_source(value.__self__) or _draws(value.__func__, depth, seen)
    if isinstance(value, types.BuiltinMethodType):
        return _is_source(value.__self__) or value.__name__ in _RANDOM_NAMES
    if isinstance(value, types.FunctionType):
        if (value.__module__ or "").startswith("torchdata."):
            return False  # ours draw what they draw from seeds that do not depend on the worker
        return _is_source_module(value.__module__) or _code_draws(value, depth, seen)
    kind = type(value)
    if kind.__module__.startswith(_LIBRARIES) and any(word in kind.__name__ for word in _RANDOM_CLASSES):
        return True
    if isinstance(value, type) or not callable(value):
        return False
    call = getattr(kind, "forward", None) or vars(kind).get("__call__")
    return any(_draws(each, depth - 1, seen) for each in (call, *_members(value)))


def _code_draws(function: types.FunctionType, depth: int, seen: set[int]) -> bool:
    names = {name for code in _codes(function.__code__) for name in (*code.co_names, *code.co_freevars)}
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    used = [function.__globals__[name] for name in names if name in function.__globals__]
    for value in [*used, *cells, *(function.__defaults__ or ())]:
        if isinstance(value, types.ModuleType):
            known = value.__name__.partition(".")[0] in _NUMERIC
            if _is_source_module(value.__name__) or (known and names & {"random", *_RANDOM_NAMES}):
                return True
        elif _is_source(value) or (callable(value) and _draws(value, depth - 1, seen)):
            return True
    return False


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code, and that of the functions that stand in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _members(value: Any) -> list[Any]:
    """The callables of which a callable object consists, one level of lists deep."""
    members: list[Any] = []
    for each in getattr(value, "__dict__", {}).values():
        members += list(each)[:100] if isinstance(each, (list, tuple)) else [each]
        if isinstance(each, dict):  # a module's own modules
            members += list(each.values())[:100]
    return [member for member in members if callable(member)]


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # empty
        return False


def _is_source(value: Any) -> bool:
    """Whether a value is a generator of random numbers, or a module of such."""
    if isinstance(value, types.ModuleType):
        return _is_source_module(value.__name__)
    return isinstance(value, random.Random) or type(value).__module__.startswith(("numpy.random", "numpy.mtrand"))


def _is_source_module(name: str | None) -> bool:
    return name is not None and (name in _RANDOM_MODULES or name.startswith(("numpy.random.", "albumentations.")))
