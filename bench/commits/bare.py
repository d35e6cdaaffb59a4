"""A server that does nothing with a commit but answer it from a thread: FastAPI and uvicorn alone, set up as ours are."""

import json
from typing import Any

from fastapi import FastAPI, Response

ANSWER = json.dumps({"metadata": {"properties": {f"key-{number}": "value" * 10 for number in range(30)}}}).encode()
"""As large as the answer about a small table: about 2 KB."""

app = FastAPI(openapi_url=None)


@app.post("/v1/{prefix}/namespaces/{namespace}/tables/{table}")
def update_table(prefix: str, namespace: str, table: str, body: dict[str, Any]) -> Response:
    """Answer."""
    assert prefix, (namespace, table, body)
    return Response(ANSWER, media_type="application/json")
