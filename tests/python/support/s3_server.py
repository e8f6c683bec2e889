"""Runs moto's S3 server for tests."""

from contextlib import AbstractContextManager
from typing import Any

from server_process import server_process

#: The number of keys per page of a listing, which is 1,000 at Amazon. With 20 keys, tests need fewer objects.
KEYS_PER_PAGE = 20

_SERVER = f"""
import logging, os, sys
os.environ["MOTO_S3_DEFAULT_MAX_KEYS"] = "{KEYS_PER_PAGE}"
logging.getLogger("werkzeug").disabled = True
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    "AWS_CONFIG_FILE": "/nonexistent",
}


def s3_server() -> AbstractContextManager[str]:
    return server_process("-W", "ignore", "-c", _SERVER)


def fill(endpoint: str, buckets: dict[str, dict[str, bytes]]) -> Any:
    import boto3

    client = boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id="test", aws_secret_access_key="test", region_name="us-east-1"
    )
    for bucket, objects in buckets.items():
        client.create_bucket(Bucket=bucket)
        for key, content in objects.items():
            client.put_object(Bucket=bucket, Key=key, Body=content)
    return client
