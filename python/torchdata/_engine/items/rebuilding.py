"""Describes an exception so that another process can rebuild it, even if its class has an unusual constructor.

A child sends several forms of an exception, best form first (`forms_of`), and the main process uses the first form that
it can rebuild (`rebuilt`). Pickle alone calls the exception's class with the stored arguments, which fails if the
constructor has other parameters. The child rebuilds the exception from each form, and omits forms that produce a
different exception. The forms are

- "pickle": the exception's own pickle;
- "parts": the exception's class, arguments and attributes, rebuilt without the constructor. Large attributes and
  attributes that cannot be pickled are omitted, and a note names them;
- "group": an exception group, with a list of forms for each member exception;
- "text": the exception's text and class. If the main process cannot use this class, the form names a base class;
"""

from __future__ import annotations

import contextlib
import pickle
import re
from collections.abc import Callable, Iterator
from types import MemberDescriptorType
from typing import Any

from torchdata._bounded_pickles import LimitedFile
from torchdata._handlers import FailuresSuppressed
from torchdata._reporting import add_note, attributes_of

Form = tuple[str, Any]

#: The maximum size in bytes of a pickled exception, and of all its pickled attributes together.
_LARGEST = 1 << 20
_DEEPEST = 8
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
#: Values of these types are compared with `==`, whereas the `==` of other types may return anything.
_PLAIN = (str, bytes, int, float, bool, type(None))


def text_of(error: BaseException) -> str | None:
    with FailuresSuppressed():
        return str(error)
    return None


def forms_of(error: BaseException, depth: int = 0) -> list[Form]:
    forms: list[Form] = []
    with FailuresSuppressed():  # user code in the exception's class may raise any error
        for form, is_exact in _forms(error, depth):
            if is_exact and forms:
                continue
            again = _put_together(form)
            if _is_like(again, error, form):
                forms.append(form)
            _discard(again)
    return forms


def rebuilt(forms: list[Form]) -> BaseException | None:
    return next((error for error in map(_put_together, forms) if error is not None), None)


def _forms(error: BaseException, depth: int) -> Iterator[tuple[Form, bool]]:
    classes = [cls for cls in type(error).__mro__ if issubclass(cls, BaseException)]
    if isinstance(error, BaseExceptionGroup):
        if depth < _DEEPEST:
            members = [(forms_of(one, depth + 1), _in_words(one)) for one in error.exceptions]
            attributes, left_out = _pickled_attributes(error)
            for cls in classes[: 1 + classes.index(BaseExceptionGroup)]:
                yield ("group", (_pickled_class(cls), error.message, members, attributes, left_out)), cls is classes[0]
        return
    pickled = _pickled(error)
    if pickled is not None:
        yield ("pickle", pickled), True
    attributes, left_out = _pickled_attributes(error)
    arguments = [_pickled(argument) for argument in error.args]
    text = text_of(error)
    if None in arguments:
        arguments = [_pickled(text)]
    yield ("parts", (_pickled_class(classes[0]), arguments, attributes, left_out)), True
    for cls in classes[: classes.index(BaseException)]:
        if cls is not Exception:  # the main process raises RuntimeError instead of a plain Exception
            yield ("text", (_pickled_class(cls), text)), False


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {text_of(error)}"


def _pickled(value: object, room: int = _LARGEST) -> bytes | None:
    file = LimitedFile(room)
    with FailuresSuppressed():
        pickle.Pickler(file, protocol=5).dump(value)
        _discard(pickle.loads(file.content))
        return bytes(file.content)
    return None


def _discard(tried: object) -> None:
    """Closes a rebuilt exception's resources that would cause warnings when they are deleted, such as the file of an
    HTTPError.
    """
    if isinstance(tried, BaseException):
        members = tried.exceptions if isinstance(tried, BaseExceptionGroup) else ()
        for one in (*members, *attributes_of(tried).values()):
            _discard(one)
        return
    close = getattr(type(tried), "close", None)
    if close is not None and hasattr(type(tried), "__del__"):
        with FailuresSuppressed():
            close(tried)


def _pickled_class(cls: type[BaseException]) -> bytes | None:
    pickled = _pickled(cls)
    if pickled is None:
        with FailuresSuppressed():
            from torchdata._by_value import dumps

            pickled = dumps(cls)
    return pickled


def _pickled_attributes(error: BaseException) -> tuple[dict[str, bytes], list[str]]:
    pickled, left_out, room = {}, [], _LARGEST
    for name, value in _attributes(error).items():
        content = _pickled(value, room)
        if content is None:
            left_out.append(name)
        else:
            pickled[name] = content
            room -= len(content)
    for name, value in _members(error, of_builtins=True).items():
        # attributes that are None are skipped, because an OSError would display None as its second file name
        if value is not None and isinstance(value, _PLAIN):
            pickled[name] = pickle.dumps(value)
    return pickled, left_out


def _attributes(error: BaseException) -> dict[str, Any]:
    return {**attributes_of(error), **_members(error, of_builtins=False)}


def _members(error: BaseException, of_builtins: bool) -> dict[str, Any]:
    """Returns the values of an exception's slots. If `of_builtins` is True, only slots of built-in classes (such as
    `OSError.filename`) are used, and otherwise only slots of all other classes.
    """
    found: dict[str, Any] = {}
    for cls in type(error).__mro__:
        if cls not in (BaseException, object) and (cls.__module__ == "builtins") is of_builtins:
            for name, member in vars(cls).items():
                if isinstance(member, MemberDescriptorType):
                    with contextlib.suppress(AttributeError):  # reading an empty slot raises AttributeError
                        found.setdefault(name, member.__get__(error))
    return found


def _put_together(form: Form) -> BaseException | None:
    with FailuresSuppressed():
        error = _MAKERS[form[0]](form[1])
        return error if isinstance(error, BaseException) else None
    return None


def _new(cls: type[BaseException], arguments: tuple[Any, ...]) -> BaseException:
    """Creates an exception without running its constructor, because the constructor's parameters are unknown."""
    builtin: Any = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    error: BaseException = builtin.__new__(cls, *arguments)
    BaseException.args.__set__(error, arguments)  # type: ignore[attr-defined]
    return error


def _from_parts(content: Any) -> BaseException:
    cls, arguments, attributes, left_out = content
    return _with(_new(pickle.loads(cls), tuple(map(pickle.loads, arguments))), attributes, left_out)


def _from_group(content: Any) -> BaseException:
    cls, message, members, attributes, left_out = content
    exceptions = [rebuilt(forms) or RuntimeError(words) for forms, words in members]
    return _with(_new(pickle.loads(cls), (message, exceptions)), attributes, left_out)


def _from_text(content: Any) -> BaseException:
    cls, text = content
    return _new(pickle.loads(cls), (text,))


_MAKERS: dict[str, Callable[[Any], Any]] = {
    "pickle": pickle.loads,
    "parts": _from_parts,
    "group": _from_group,
    "text": _from_text,
}


def _with(error: BaseException, attributes: dict[str, bytes], left_out: list[str]) -> BaseException:
    for name, pickled in attributes.items():
        value = pickle.loads(pickled)
        member = next((vars(cls)[name] for cls in type(error).__mro__ if name in vars(cls)), None)
        if isinstance(member, MemberDescriptorType):
            # the attribute may be read-only, such as the message of an exception group
            with contextlib.suppress(AttributeError):
                member.__set__(error, value)
        else:
            attributes_of(error)[name] = value
    if left_out:
        what = "attribute" if len(left_out) == 1 else "attributes"
        add_note(
            error,
            f"Its {what} {', '.join(left_out)} could not be sent: too large (more than {_LARGEST >> 20} MiB), or "
            "impossible to pickle.",
        )
    return error


def _is_like(again: BaseException | None, error: BaseException, form: Form) -> bool:
    """Returns whether a rebuilt exception equals the original one, apart from the data that `form` omits."""
    kind, content = form
    if again is None or text_of(again) not in _texts(error, kind):
        return False
    if kind in ("text", "group"):
        return True
    left_out = set(content[-1]) if kind == "parts" else set()
    if type(again) is not type(error) or (not left_out and _shown(again) != _shown(error)):
        return False
    ours, theirs = _attributes(error), _attributes(again)
    kept = ours.keys() - left_out - {"__notes__"}
    return kept == theirs.keys() - {"__notes__"} and all(_is_same(ours[name], theirs[name]) for name in kept)


def _texts(error: BaseException, kind: str) -> tuple[str | None, ...]:
    text = text_of(error)
    if kind == "text":  # `str` of a KeyError is the `repr` of its text, and an empty text does not count as a message
        return () if text is None else (text, repr(text))
    return (text,)


def _shown(error: BaseException) -> str | None:
    with FailuresSuppressed():
        return _ADDRESS.sub("0x", repr(error))
    return None


def _is_same(one: object, other: object) -> bool:
    if isinstance(one, float) and one != one:
        return isinstance(other, float)
    return type(one) is type(other) and (not isinstance(one, _PLAIN) or one == other)
