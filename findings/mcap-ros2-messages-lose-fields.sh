#!/usr/bin/env bash
# mcap-ros2-support 0.6.0 (with mcap 1.6.0 and cloudpickle 3.1.3): copies of decoded messages have no fields.
#
# The class of a message is derived from types.SimpleNamespace and keeps the fields in __slots__. SimpleNamespace
# describes itself to copy and pickle by its __dict__, in which the fields are not.
# Expected: copy.copy, copy.deepcopy and cloudpickle return an equal message, or raise an error.
# Seen: they return a message of the same class that has no field. (Plain pickle raises an error.)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet mcap==1.6.0 mcap-ros2-support==0.6.0 cloudpickle==3.1.3
cat > "$folder/show.py" <<'EOF'
import copy
import pickle
import struct
import sys
from importlib.metadata import version

import cloudpickle
from mcap.records import Schema
from mcap_ros2.decoder import DecoderFactory

schema = Schema(id=1, name="demo/Point", encoding="ros2msg", data=b"float64 x\nfloat64 y\n")
decode = DecoderFactory().decoder_for("cdr", schema)
message = decode(bytes([0, 1, 0, 0]) + struct.pack("<dd", 1.5, 2.5))

copies = {
    "copy.copy": copy.copy(message),
    "copy.deepcopy": copy.deepcopy(message),
    "cloudpickle": pickle.loads(cloudpickle.dumps(message)),
}
fields = {way: [name for name in ("x", "y") if hasattr(copied, name)] for way, copied in copies.items()}
print("mcap-ros2-support", version("mcap-ros2-support"), "decodes", message)
print("expected: each copy has the fields ['x', 'y']")
print("seen:    ", ", ".join(f"{way}: {names}" for way, names in fields.items()))
sys.exit("The behavior has changed." if any(fields.values()) else 0)
EOF
cd "$folder"
venv/bin/python show.py
