"""Checks constructor arguments of pipes, so that a wrong argument raises an error before a worker starts."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from numbers import Real
from typing import Any, TypeVar

from torchdata._importing import import_whole
from torchdata._redacting import redact_error, shown
from torchdata._reporting import name_item, warn_outside
from torchdata._signatures import signature_of
from torchdata.datapipes._pipe.datasets import is_built_in, is_generator_function, is_indexed, is_iterable_dataset
from torchdata.datapipes.datapipe import IterDataPipe, MapDataPipe

S = TypeVar("S")


def with_type(value: Any) -> str:
    return f"{value!r} of type {type(value).__name__}"


def wrong_type(pipe: str, argument: str, wanted: str, value: Any, remedy: str = "") -> TypeError:
    return TypeError(f"{pipe}: {argument} must be {wanted}, but got {with_type(value)}{remedy}")


def check_callable(pipe: str, argument: str, function: Any, *, optional: bool = False) -> None:
    if callable(function) or (optional and function is None):
        return
    advice = ""
    if inspect.isgenerator(function):
        name = function.gi_code.co_name
        called = name if name.isidentifier() else "what made it"
        advice = (
            f"; that is what a generator function returns when it is called: give the function, {called}, and not "
            f"{called}(...)"
        )
    raise wrong_type(pipe, argument, "a function", function, advice)


def check_iterable(pipe: str, argument: str, value: Any) -> None:
    if not (hasattr(type(value), "__iter__") or hasattr(type(value), "__getitem__")):
        raise wrong_type(pipe, argument, "iterable", value)


def check_generator_function(pipe: str, argument: str, function: Any) -> None:
    if not is_generator_function(function):
        raise TypeError(
            f"{pipe}: {argument} must be iterable, but got the function {function!r}; call it and pass its result, or "
            "pass a generator function, which is called again in each epoch"
        )
    try:
        signature_of(function).bind()
    except TypeError as error:
        raise TypeError(
            f"{pipe}: {argument} is a generator function, which is called without arguments, but {function!r} has a "
            f"{error}; bind it with functools.partial"
        ) from error


@contextmanager
def on_failure(clean_up: Callable[[], object]) -> Iterator[None]:
    """Calls `clean_up` if the `with` block raises an exception, or if the generator that contains the block is
    closed."""
    try:
        yield
    except BaseException:
        clean_up()
        raise


#: For IterDataPipe and MapDataPipe: the module and the name of the class that wraps a plain iterable or sequence. This
#: module cannot import the wrapping classes, because their modules import this module.
_wrappers: dict[type, tuple[str, str]] = {}


def wrap_data_by(kind: type, module: str, name: str) -> None:
    _wrappers[kind] = module, name


def _wrapper(kind: type) -> Callable[..., Any]:
    module, name = _wrappers[kind]
    wrapper: Callable[..., Any] = getattr(import_whole(module), name)
    return wrapper


def check_source(pipe: str, value: S, argument: str = "datapipe") -> S:
    """Checks the source of a pipe, and returns the source. An iterable that is not a pipe is wrapped in an
    IterableWrapper, which saves the position in the iterable."""
    if isinstance(value, MapDataPipe):
        raise TypeError(
            f"{pipe}: {argument} must be an IterDataPipe, but got the MapDataPipe {value!r}; convert it with "
            "`.to_iter_datapipe()` first"
        )
    if isinstance(value, IterDataPipe) or any(cls.__name__ == "IterDataPipe" for cls in type(value).__mro__):
        return value
    if inspect.isroutine(value):
        check_generator_function(pipe, argument, value)
    elif not is_generator_function(value):
        check_iterable(pipe, argument, value)
    return _wrapper(IterDataPipe)(value, deepcopy=False)  # type: ignore[no-any-return]  # a pipe replaces the data


def check_pipe(pipe: str, argument: str, value: Any, kind: type) -> Any:
    """Returns `value` if it is a pipe of the class `kind`, and wraps a dataset in a pipe of this class. Raises
    TypeError for plain data, because passing plain data may be a mistake."""
    found = _as_pipe(value, kind)
    if found is None:
        raise TypeError(
            f"{pipe}: {argument} is {value!r}; wrap data in {_wrappers[kind][1]}. {argument} must be a "
            f"{kind.__name__}, but its type is {type(value)} instead."
        )
    return found


def check_sources(pipe: str, values: Collection[Any], kind: type = IterDataPipe, words: str = "") -> tuple[Any, ...]:
    """Checks several sources. If a source has a wrong type, the error message ends with `words`, a message of torchdata
    0.9 that user code may search for."""
    if not values:
        raise ValueError(f"{pipe}: Expected at least one DataPipe, but got nothing")
    pipes = []
    for position, value in enumerate(values):
        pipes.append(_as_pipe(value, kind))
        if pipes[-1] is None:
            raise TypeError(
                f"{pipe}: input {position} is {value!r} of type {type(value).__name__}; wrap it in "
                f"{_wrappers[kind][1]}. {words or f'Expected all inputs to be `{kind.__name__}`'}"
            )
    return tuple(pipes)


def _as_pipe(value: Any, kind: type) -> Any:
    """Returns a pipe unchanged, and wraps a dataset in a pipe. Returns None if the value is neither a pipe nor a
    dataset. PyTorch's classes are recognized by name, because this module does not import torch."""
    if isinstance(value, kind) or any(cls.__name__ == kind.__name__ for cls in type(value).__mro__):
        return value
    if is_dataset(value) and (kind is IterDataPipe or is_indexed(value)):
        return _wrapper(kind)(value, deepcopy=False)
    return None


def check_map_pipe(pipe: str, value: Any, argument: str = "datapipe") -> None:
    if isinstance(value, IterDataPipe):
        raise TypeError(
            f"{pipe}: {argument} must be a MapDataPipe, but got the IterDataPipe {value!r}; convert it with "
            "`.to_map_datapipe()` first"
        )
    if not hasattr(type(value), "__getitem__"):
        raise wrong_type(pipe, argument, "a MapDataPipe", value, "; wrap it in SequenceWrapper")


def is_dataset(value: Any) -> bool:
    if is_built_in(value) or isinstance(value, (IterDataPipe, MapDataPipe, Mapping, type)):
        return False
    if is_indexed(value) or is_iterable_dataset(value):
        return True
    return hasattr(type(value), "__iter__") and not hasattr(type(value), "__next__")


#: An error message of torchdata 0.9, which begins with the name of an argument.
POSITIVE = "'{}' is required to be a positive integer."

BATCH_SIZE = "Batch size is required to be larger than 0!"


def check_int(
    pipe: str,
    argument: str,
    value: Any,
    *,
    least: int | None = None,
    error: type[Exception] = ValueError,
    words: str = "",
) -> int:
    """Checks an integer. If the value is too small, the error message ends with `words`, a message of torchdata 0.9."""
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise wrong_type(pipe, argument, "an integer", value)
    if least is not None and value < least:
        raise error(f"{pipe}: {argument} must be at least {least}, but got {value}{words and '. '}{words}")
    return int(value)


def check_optional_int(
    pipe: str, argument: str, value: Any, *, least: int | None = None, words: str = ""
) -> int | None:
    return None if value is None else check_int(pipe, argument, value, least=least, words=words)


def check_size(pipe: str, argument: str, value: Any, words: str = "") -> int:
    """Raises AssertionError if a size is not positive, as torchdata 0.9 does."""
    return check_int(pipe, argument, value, least=1, error=AssertionError, words=words)


def check_weights(pipe: str, argument: str, value: Any, *, positive: bool) -> list[float]:
    if not isinstance(value, dict):
        raise wrong_type(pipe, argument, "a dict of weights", value)
    for key, weight in value.items():
        if isinstance(weight, bool) or not isinstance(weight, Real):
            raise TypeError(f"{pipe}: {argument} must hold numbers, but got {with_type(weight)} for {key!r}")
        if weight < 0 or (positive and weight == 0):
            words = (
                "Expecting a positive and non-zero weight" if positive else "Expecting a weight that is not negative"
            )
            raise ValueError(f"{pipe}: {argument} has a wrong weight for {key!r}. {words}, got {weight!r}")
    weights = [float(weight) for weight in value.values()]
    if not 0 < sum(weights) < inf:
        raise ValueError(f"{pipe}: {argument} must have weights with a finite and positive sum, but got {value!r}")
    return weights


def check_hashable(pipe: str, argument: str, columns: Iterable[Any]) -> None:
    for column in columns:
        try:
            hash(column)
        except TypeError as error:
            raise wrong_type(pipe, argument, "an index, a key, or a list of them", column) from error


def check_output_col(pipe: str, function: Any, input_col: Any, output_col: Any) -> Any:
    """Returns the column where the result of a function is stored; None means the first column of `input_col`."""
    if input_col is None and output_col is not None:
        raise ValueError(f"{pipe}: `output_col` must be None when `input_col` is None, but got {output_col!r}")
    if isinstance(output_col, (list, tuple)):
        if len(output_col) != 1:
            raise ValueError(
                f"{pipe}: `output_col` must be a single-element list or tuple, a key or an index, but got "
                f"{output_col!r}"
            )
        output_col = output_col[0]
    if isinstance(input_col, (list, tuple)) and not input_col:
        raise ValueError(f"{pipe}: `input_col` names no column; pass None to give the function the whole item")
    check_input_col(pipe, function, input_col)
    return output_col


def check_input_col(pipe: str, function: Any, input_col: Any) -> None:
    """Checks that a function accepts one argument for each column of `input_col`, if the function has a signature."""
    try:
        parameters = list(signature_of(function).parameters.values())
    except (TypeError, ValueError):
        return
    wanted = len(input_col) if isinstance(input_col, (list, tuple)) else 1
    inner = function.func if isinstance(function, functools.partial) else function
    name = getattr(inner, "__name__", None) or repr(inner)
    keyword_only = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if keyword_only:
        raise ValueError(
            f"{pipe}: the function {name} takes non-default keyword-only parameters ({', '.join(keyword_only)}), "
            f"which the pipe does not pass; give them defaults or bind them with functools.partial"
        )
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = sum(p.default is p.empty for p in positional)
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if wanted < required or (wanted > len(positional) and not takes_any):
        raise ValueError(
            f"{pipe}: {required} parameters of {name} have no default, and input_col={input_col!r} passes {wanted}. "
            f"The function {name} takes {len(positional)} positional parameters, but {wanted} are required."
        )


def length_of(pipe: Any, source: Any) -> int:
    try:
        return len(source)
    except (TypeError, NotImplementedError) as error:
        raise no_length(pipe, f"{type(source).__name__} has no length") from error


def no_length(pipe: Any, because: str) -> TypeError:
    """Returns the error that `len` raises for a pipe without a length. The error message ends with the message of
    torchdata 0.9, because user code may compare messages."""
    return TypeError(f"{because}. So this {type(pipe).__name__} instance doesn't have valid length")


def check_name(pipe: str, argument: str, value: Any) -> str:
    if not isinstance(value, str):
        raise wrong_type(pipe, argument, "a str", value)
    return value


def check_mode(pipe: str, mode: Any, *, writes: bool = False) -> str:
    check_name(pipe, "mode", mode)
    kinds = sum(mode.count(kind) for kind in "rwax")
    if kinds != 1 or set(mode) - set("rwaxbt+") or (writes and "r" in mode):
        examples = "'w' or 'wb'" if writes else "'r' or 'rb'"
        raise ValueError(f"{pipe}: mode must be one of open's, such as {examples}, but got {mode!r}")
    return str(mode)


class explaining:
    """Within this context, an exception gets a note with the pipe and the path. This context manager is a class,
    because pipes use it for every item, and a generator would take five times as long."""

    __slots__ = ("_where",)

    def __init__(self, pipe: object, action: str, path: Any, ending: str = "") -> None:
        self._where = pipe, action, path, ending

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, Exception):
            pipe, action, path, ending = self._where
            redact_error(error)
            error.add_note(f"{pipe if isinstance(pipe, str) else type(pipe).__name__} {action} {shown(path)}{ending}.")
            name_item(error, path)


_own = threading.local()


@contextmanager
def certain_lengths() -> Iterator[None]:
    """Within this context, `warn_of_length` raises a TypeError instead of issuing a warning. Other threads are not
    affected."""
    before, _own.must_be_certain = getattr(_own, "must_be_certain", False), True
    try:
        yield
    finally:
        _own.must_be_certain = before


def warn_of_length(message: str) -> None:
    if getattr(_own, "must_be_certain", False):
        raise TypeError(message)
    warn_outside(message)
