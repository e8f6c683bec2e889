#!/usr/bin/env bash
# obstore 0.12.1: a reader of `open_reader` continues with the bytes of another version if the object is replaced.
#
# An object of 3 MB is replaced after its first megabyte was read.
# Expected: the bytes of one version, or an error, because stores offer conditional reads by ETag.
# Seen: bytes of both versions in one stream, without an error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet obstore==0.12.1
cat > "$folder/show.py" <<'EOF'
import sys

import obstore
from obstore.store import MemoryStore

MEGABYTE = 1_000_000
store = MemoryStore()
store.put("object", b"1" * (3 * MEGABYTE))
reader = obstore.open_reader(store, "object", buffer_size=MEGABYTE)
read = bytes(reader.read(MEGABYTE))
store.put("object", b"2" * (3 * MEGABYTE))
while part := bytes(reader.read(MEGABYTE)):
    read += part
versions = {version: read.count(version) for version in (b"1", b"2")}
print("obstore", obstore.__version__)
print("expected: 3000000 bytes of version 1, or an error")
print("seen:    ", " and ".join(f"{count} bytes of version {version.decode()}" for version, count in versions.items()))
sys.exit(0 if len(read) == 3 * MEGABYTE and all(versions.values()) else "The behavior has changed.")
EOF
cd "$folder"
venv/bin/python show.py
