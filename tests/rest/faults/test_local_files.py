"""A lake in a local folder: an answer names a metadata file that is there, or says which one is not."""

from pathlib import Path

from tests.rest.serving import make_settings, serve
from tests.support.readers import Served


def test_a_deleted_metadata_file_is_missed(served_locally: Served) -> None:
    """By the answer that is kept ready too; when the file is back, so is the table, and a new server writes it again."""
    lake, server = served_locally.lake, served_locally.server
    lake.duckdb().execute("CREATE TABLE t AS SELECT 1 AS i")
    path = "namespaces/main/tables/t"
    loaded = server.get(path)
    location = loaded.json["metadata-location"]
    file = Path(location.removeprefix("file://"))
    content = file.read_bytes()
    file.unlink()
    for headers in ({}, {"if-none-match": loaded.headers["etag"]}):
        refused = server.get(path, headers)
        assert refused.error == (404, "NotFoundException")
        assert refused.json["error"]["message"].startswith(f"Failed to open input stream for file: {location}")
    file.write_bytes(content)
    assert server.get(path).body == loaded.body
    file.unlink()
    settings = make_settings(lake, s3_endpoint=None, s3_access_key_id=None, s3_secret_access_key=None)
    with serve(settings) as other:
        assert other.get(path).body == loaded.body
    assert file.read_bytes() == content
