"""Downloads files of Google Drive by their links, and confirms the warning page that the server sends before a large
file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urljoin, urlsplit, urlunsplit

from torchdata._redacting import shown
from torchdata.datapipes.iter.web.client import Client, Connections
from torchdata.datapipes.utils.names import file_name

HOSTS = frozenset({"drive.google.com", "docs.google.com"})

#: The maximum number of bytes to read of the web page that may precede a download.
_LARGEST_PAGE = 1 << 17

_FILE_PATH = re.compile(r"(?:/a/[^/]+)?/file/(?:u/\d+/)?d/([^/]+)")


def download_url(url: str) -> str:
    """Returns the download URL of a link such as `…/file/d/ID/view`, `…/open?id=ID` and `…/uc?id=ID`. A URL of another
    form, such as a download URL, is returned unchanged."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    in_path = _FILE_PATH.match(parts.path)
    if in_path is not None:
        wanted = {"export": "download", "id": in_path[1]}
    elif "id" in query and (parts.path == "/open" or (parts.path == "/uc" and "export" not in query)):
        wanted = {"export": "download", "id": query["id"]}
    else:
        return url
    if "resourcekey" in query:
        wanted["resourcekey"] = query["resourcekey"]
    return urlunsplit((parts.scheme, parts.netloc, "/uc", urlencode(wanted), ""))


class DriveClient(Client):
    def title(self, url: Any, response: Any) -> str:
        """Returns the name of the file without folders, because users join the name to a folder."""
        header = response.headers.get("content-disposition", "")
        if (found := re.search(r'filename="([^"]+)"', header)) is not None:
            name = found[1]
        elif (found := re.search(r"filename\*=UTF-8''([^;\s]+)", header, re.I)) is not None:
            name = unquote(found[1])
        else:
            name = ""
        try:
            return file_name(name)
        except ValueError:
            raise RuntimeError(
                f"{self.pipe} found no file name in the response to the Google drive link {shown(url)}: its "
                f"content-disposition is {shown(header)}"
            ) from None

    def answer(self, connections: Connections, url: Any, headers: Mapping[str, str]) -> Any:
        from urllib3.exceptions import HTTPError

        session = connections.session()  # both requests use this session, and share its cookies
        asked = download_url(url if isinstance(url, str) else url.decode())
        for _ in range(2):
            response = self.get(session, asked, url, headers)
            if "content-disposition" in response.headers:
                return response
            try:
                with closing(response):
                    way_on = self._confirmed_url(response, asked, url)
            except HTTPError as error:
                self.explain(error, f"was reading the page of {shown(url)}")
                raise
            if way_on is None:
                break
            asked = way_on
        raise RuntimeError(
            f"{self.pipe} received a page instead of a file for the Google drive link {shown(url)}: the response has "
            "no content-disposition; share the file with everyone who has the link, and use its download link or "
            "one of the form https://drive.google.com/file/d/ID"
        )

    def _confirmed_url(self, response: Any, asked: str, url: Any) -> str | None:
        for name, value in response.cookies.items():
            if name.startswith("download_warning"):
                return f"{asked}&{urlencode({'confirm': value})}"
        from torchdata.datapipes.iter.web.gdrive_page import Page

        text = (response.raw.read(_LARGEST_PAGE, decode_content=True) or b"").decode(errors="replace")
        page = Page(text)
        if page.title == "Quota exceeded":
            raise RuntimeError(
                f"{self.pipe} cannot read the Google drive link {shown(url)} now, because its download quota was "
                "exceeded; try again later, or use a copy of the file"
            )
        if page.action is not None:
            target = urljoin(str(response.url), page.action)
            if _trusted(target, response.url):
                joint = "&" if urlsplit(target).query else "?"
                return target + joint + urlencode(page.inputs)
        return f"{asked}&confirm=t" if page.title == "Virus scan warning" else None


def _trusted(target: str, asked: str) -> bool:
    """Returns whether the user's settings, including credentials, may be sent to `target`, a URL from a form on a web
    page."""
    there, here = urlsplit(target), urlsplit(asked)
    host = there.hostname or ""
    return there.scheme == here.scheme and (
        there.netloc == here.netloc or host.endswith((".google.com", ".googleusercontent.com"))
    )
