"""The files in which Amazon's tools keep credentials and region, for obstore, which reads the environment alone.

Role: reads `~/.aws/credentials` and `~/.aws/config` (or where `AWS_SHARED_CREDENTIALS_FILE` and `AWS_CONFIG_FILE` say)
in the process that makes a store. Profiles that name another source of credentials (roles, single sign-on) are not
followed. See https://docs.aws.amazon.com/sdkref/latest/guide/file-format.html.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

__all__ = ["profile_settings"]

#: If one of these is set, the credentials come from elsewhere.
_OTHER_SOURCES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SKIP_SIGNATURE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_CREDENTIALS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}


def profile_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of obstore's `S3Store` from the user's profile, as far as neither `given` nor the environment has them.

    The profile is `AWS_PROFILE`, else `default`. Files that are missing or damaged say nothing.
    """
    name = os.environ.get("AWS_PROFILE") or "default"
    stored = _section("AWS_SHARED_CREDENTIALS_FILE", "credentials", name)
    common = _section("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}")
    settings = {}
    elsewhere = any(map(os.environ.get, _OTHER_SOURCES)) or {"access_key_id", "skip_signature"} & {
        key.removeprefix("aws_") for key in given
    }
    if not elsewhere:
        for source in (common, stored):
            if "aws_access_key_id" in source:
                settings.update({ours: source[theirs] for theirs, ours in _CREDENTIALS.items() if theirs in source})
    if not (os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")):
        region = common.get("region") or stored.get("region")
        if region:
            settings["region"] = region
    return settings


def _section(variable: str, default: str, name: str) -> dict[str, str]:
    path = os.path.expanduser(os.environ.get(variable) or f"~/.aws/{default}")
    if not os.path.isfile(path):
        return {}
    import configparser

    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, OSError, UnicodeDecodeError):
        return {}
    return dict(parser.items(name)) if parser.has_section(name) else {}
