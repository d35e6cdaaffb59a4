"""Keys for encryption are refused, because nothing would be encrypted."""

import pytest

from tests.rest.serving import Server
from tests.rest.writing.client import open_client
from tests.support.lakes import FreshLake

KEY = {"encryption.key-id": "k1"}


@pytest.mark.parametrize("staged", [False, True], ids=["created", "staged"])
def test_a_key_is_refused(standing: Server, standing_lake: FreshLake, staged: bool) -> None:
    """On a create and on a change; a table without one is not affected."""
    client, name = open_client(standing, standing_lake), f"encrypted_{staged}"
    refused = client.create(name, properties=KEY, **{"stage-create": staged})
    assert refused.error == (400, "BadRequestException")
    assert "'encryption.key-id'" in refused.json["error"]["message"]
    assert client.create(name).status == 200
    refused = client.commit([{"action": "set-properties", "updates": KEY}], name=name)
    assert refused.error == (400, "BadRequestException")
    assert "encryption.key-id" not in client.load(name)["properties"]
