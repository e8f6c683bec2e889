"""Removes secrets from messages, pictures and saved states. Removes control characters from other processes' texts.

This module decides by name (`api_key=…`), by position (the user in a URL) or by randomness whether a value is a secret.
A value that is possibly a secret is hidden.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

#: The text that replaces a secret: `HIDDEN` in a text, and `_IN_URL` in a URL, which does not allow `…`.
HIDDEN, _IN_URL = "…", "***"

#: Words in a name that always announce a secret.
_HARD = frozenset(
    ["apikey", "auth", "authentication", "authorization", "bearer", "cookie", "cookies", "cred", "credential"]
    + ["credentials", "creds", "dsn", "jwt", "login", "oauth", "passcode", "passphrase", "passwd", "password", "pwd"]
    + ["sas", "secret", "secrets", "sig", "signature"]
)
#: Words that announce a secret only if they are the whole name, because longer names with these words are often
#: harmless.
_WHOLE = frozenset({"pass", "pat", "pin", "pw"})
#: Words that announce a secret, but may also be followed by harmless numbers.
_SOFT = frozenset(
    ["config", "header", "headers", "kwargs", "options", "params", "private", "profile", "session", "token", "tokens"]
    + ["url", "user"]
)
#: Parts of names that announce a secret even within a longer word.
_INSIDE = re.compile(r"passw|secret|credential|api_?key|access_?key|authoriz|authtoken|signature|connection_?str")
#: Words that announce a secret if `key` follows; `key` alone may be harmless.
_KEYS = frozenset(
    ["access", "account", "api", "auth", "aws", "azure", "client", "deploy", "encryption", "gcp", "hmac", "license"]
    + ["master", "private", "s3", "secret", "service", "shared", "signing", "ssh", "storage", "subscription"]
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

#: Values in a URL's query with more characters than this are hidden, because long values may be secrets.
_LONGEST = 20

_USER = re.compile(r"(?<=://)[^/\s?#]*@")
_QUERY = re.compile(r"([?&;#])([^=\s&;#?/]+)=([^\s&#'\")\]>]*)")
_NAMED = re.compile(r"\b([A-Za-z][\w-]{0,64})(['\"]?\s*[=:]\s*[rbfu]?['\"]?(?:Bearer |Basic )?)([^\s'\",;&)}\]?]+)")
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{8,}")
_KNOWN = re.compile(
    r"\b(?:(?:AKIA|ASIA)[0-9A-Z]{16}|gh[opsur]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}|hf_[A-Za-z0-9]{20,}"
    r"|sk-[\w-]{20,}|xox[abprs]-[\w-]{10,}|AIza[\w-]{30,}|eyJ[\w-]{10,}(?:\.[\w-]+)*|SG\.[\w-]{16,}\.[\w-]{16,})"
)
_RUN = re.compile(r"[A-Za-z0-9+/=_-]{20,}")
_KINDS = re.compile(r"[a-z]+|[A-Z]+|[0-9]+")

#: The control characters that are escaped, because they can end a line or change the direction of text.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")

#: Errors of these libraries are redacted, because their messages contain URLs. Errors that the user's code raises are
#: not redacted.
_LIBRARIES = frozenset(
    ["adlfs", "aiobotocore", "aiohttp", "aistore", "boto3", "botocore", "datasets", "fsspec", "gcsfs", "google"]
    + ["httpx", "huggingface_hub", "iopath", "obstore", "requests", "s3fs", "urllib", "urllib3"]
)


def is_private(name: str, value: Any = "") -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    is_number = isinstance(value, (bool, int, float)) or value is None
    return (
        name.lower() in _WHOLE
        or not _HARD.isdisjoint(words)
        or (not is_number and not _SOFT.isdisjoint(words))
        or _INSIDE.search(name.lower()) is not None
        or any(word in _KEYS and after == "key" for word, after in itertools.pairwise(words))
    )


def is_secret(text: str) -> bool:
    """Returns whether a text looks like a token: long, without spaces, and random."""
    return _KNOWN.search(text) is not None or any(map(_is_random, _RUN.findall(text)))


def _is_random(run: str) -> bool:
    """Returns whether letters and digits alternate randomly, unlike in names and numbers."""
    kinds = _KINDS.findall(run)
    digits = sum(map(str.isdigit, run))
    return digits >= 2 and len(kinds) - 1 >= 0.3 * sum(map(len, kinds)) and len(set(run)) >= 8


def redacted(text: str) -> str:
    """Removes secrets in URLs, and after names that announce a secret."""
    text = _USER.sub(f"{_IN_URL}@", text)
    text = _QUERY.sub(_of_query, text)
    text = _NAMED.sub(_of_name, text)
    text = _BEARER.sub(rf"\1 {HIDDEN}", text)
    return _KNOWN.sub(HIDDEN, text)


def _of_query(found: re.Match[str]) -> str:
    mark, name, value = found.groups()
    hides = len(value) > _LONGEST or is_private(name) or name.lower() in ("key", "code", "state") or is_secret(value)
    return f"{mark}{name}={_IN_URL if hides and value else value}"


def _of_name(found: re.Match[str]) -> str:
    name, between, value = found.groups()
    hides = is_private(name, 0) or (is_private(name) and is_secret(value))
    return f"{name}{between}{HIDDEN}" if hides and not value.startswith((_IN_URL, HIDDEN)) else found[0]


def shown(value: Any) -> str:
    return redacted(repr(value))


def shown_with_type(value: Any) -> str:
    return f"{shown(value)} of type {type(value).__name__}"


def digest(name: str, words: str) -> str:
    """Returns a few digits that identify a secret without revealing it.

    A secret has the same digits in every process, on every rank and in every state, so that states can be compared.
    From all states together, an attacker learns only 16 bits of a secret, so about one of every 65,536 guesses remains
    possible.

    If the same secret occurs under two names, it has different digits for each name.
    """
    key = f"torchdata fingerprint of {name}".encode()
    import hashlib  # importing these two modules takes as long as importing ten modules of this package
    import hmac

    return hmac.new(key, words.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()[:4]


def redact_error(error: BaseException) -> None:
    """Redacts an error and its chain of causes and contexts (`__cause__`, `__context__`)."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _LIBRARIES:
            _redact(error)
        following = error.__cause__ or error.__context__
        if following is None:
            return
        error = following


def _redact(error: BaseException) -> None:
    if any(_has_secret(part) for part in error.args):
        error.args = tuple(redacted(part) if isinstance(part, str) else part for part in error.args)
        for number, part in enumerate(error.args):
            if isinstance(part, BaseException):
                redact_error(part)
                if _has_secret(str(part)):
                    error.args = (*error.args[:number], redacted(str(part)), *error.args[number + 1 :])
    for name, value in list(getattr(error, "__dict__", {}).items()):
        if isinstance(value, str) and _has_secret(value):
            setattr(error, name, redacted(value))
    filename = getattr(error, "filename", None)
    if isinstance(filename, str) and _has_secret(filename):
        error.filename = redacted(filename)  # type: ignore[attr-defined]
    about = getattr(error, "request_info", None)  # aiohttp's errors build their message from this attribute
    if about is not None and _has_secret(str(error)):
        error.request_info = about._replace(  # type: ignore[attr-defined]
            real_url=type(about.real_url)(redacted(str(about.real_url)))
        )
    if notes := getattr(error, "__notes__", None):
        error.__notes__ = [redacted(note) for note in notes]


def _has_secret(part: Any) -> bool:
    text = part if isinstance(part, str) else str(part) if isinstance(part, BaseException) else ""
    return redacted(text) != text


def printable(text: str, *, lines: bool = False) -> str:
    """Escapes control characters in a text of another process, so that a terminal can show it."""
    return _CONTROL.sub(lambda found: found[0] if lines and found[0] in "\n\t" else _written(found[0]), text)


def _written(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
