#!/usr/bin/env bash
# torchdata 0.9.0 (with protobuf 7.36.2, torch 2.13.0): load_from_tfrecord() cannot read any file.
#
# The file has one record, an Example with one feature of one integer, and correct checksums.
# Expected: the feature. torchdata names no version of protobuf.
# Seen: TypeError, because the classes that torchdata contains were generated for protobuf before 4. With the slow
# implementation in Python, which the message proposes, it is an AttributeError.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 torchdata==0.9.0 protobuf==7.36.2 google-crc32c==1.8.0
cat > "$folder/show.py" <<'EOF'
import os
import struct
import subprocess
import sys
import warnings
from importlib.metadata import version

warnings.filterwarnings("ignore")
import google_crc32c


def field(number, data):
    return bytes([number << 3 | 2, len(data)]) + data


def checksum(data):
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


# Example { features { feature { key: "x" value { int64_list { value: 7 } } } } }
entry = field(1, b"x") + field(2, field(3, field(1, bytes([7]))))
example = field(1, field(1, entry))
length = struct.pack("<Q", len(example))
with open("one.tfrecord", "wb") as file:
    file.write(length + checksum(length) + example + checksum(example))

READ = """
import warnings
warnings.filterwarnings("ignore")
from torchdata.datapipes.iter import FileOpener, IterableWrapper
print(list(FileOpener(IterableWrapper(["one.tfrecord"]), mode="b").load_from_tfrecord()))
"""
print("torchdata", version("torchdata"), "and protobuf", version("protobuf"))
print("expected: [{'x': tensor([7])}]")
seen = []
for way in ("upb", "python"):
    environ = os.environ | {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": way}
    run = subprocess.run([sys.executable, "-c", READ], env=environ, capture_output=True, text=True)
    errors = [line for line in run.stderr.splitlines() if "Error: " in line]
    seen.append(errors[0] if errors else run.stdout.strip())
    print(f"seen ({way}):", seen[-1])
kinds = [one.split(":")[0] for one in seen]
sys.exit(0 if kinds == ["TypeError", "AttributeError"] else "The behavior has changed.")
EOF
cd "$folder"
venv/bin/python show.py
