#!/usr/bin/env bash
# requests 2.34.2 with urllib3 2.8.0: with retries, a read that times out is not reported as a time-out.
#
# A local server does not answer within the 0.2 seconds that the client waits.
# Expected: requests.ReadTimeout after the last attempt, as without retries, so that `except requests.Timeout` works.
# Seen: requests.ConnectionError, which is not derived from requests.Timeout.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet requests==2.34.2 urllib3==2.8.0
cat > "$folder/show.py" <<'EOF'
import http.server
import sys
import threading

import requests
import urllib3
from requests.adapters import HTTPAdapter

over = threading.Event()


class Late(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        over.wait(5)


def error_with(retries):
    session = requests.Session()
    session.trust_env = False
    session.mount("http://", HTTPAdapter(max_retries=retries))
    try:
        session.get(f"http://127.0.0.1:{server.server_port}/", timeout=0.2)
    except requests.RequestException as error:
        return type(error)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Late)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
without, with_retry = error_with(0), error_with(urllib3.Retry(total=1))
over.set()
server.shutdown()
print("requests", requests.__version__, "and urllib3", urllib3.__version__)
print("expected: ReadTimeout without and with a retry")
print("seen:    ", without.__name__, "without,", with_retry.__name__, "with a retry")
is_as_described = (without, with_retry) == (requests.ReadTimeout, requests.ConnectionError)
sys.exit(0 if is_as_described else "The behavior has changed.")
EOF
cd "$folder"
venv/bin/python show.py
