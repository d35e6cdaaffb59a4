"""Uploads that nobody finishes are given up when they are old; those that go on are not."""

from datetime import UTC, datetime, timedelta

import pytest

from duckicelake.errors import ServiceUnavailable
from duckicelake.store.objects import StoreSettings
from duckicelake.store.s3 import Uploads
from tests.support.keys import open_s3
from tests.support.lakes import FreshLake
from tests.support.waiting import wait_for

HOUR = timedelta(hours=1)


def open_uploads(lake: FreshLake) -> Uploads:
    """The uploads to a lake's store."""
    store = lake.store
    return Uploads(StoreSettings(store.endpoint, store.region, store.access_key_id, store.secret_access_key))


def begin(lake: FreshLake, name: str) -> str:
    """An upload of one part so far; its URI."""
    s3, key = open_s3(lake.store), {"Bucket": lake.store.bucket, "Key": f"{lake.name}/{name}"}
    upload = s3.create_multipart_upload(**key)["UploadId"]
    s3.upload_part(**key, UploadId=upload, PartNumber=1, Body=b"x" * 1024)
    return f"s3://{key['Bucket']}/{key['Key']}"


def list_begun(lake: FreshLake) -> list[str]:
    """The uploads of a lake's folder."""
    found = open_s3(lake.store).list_multipart_uploads(Bucket=lake.store.bucket, Prefix=f"{lake.name}/").get("Uploads", [])
    return sorted(f"s3://{lake.store.bucket}/{upload['Key']}" for upload in found)


def test_what_is_old_is_given_up(lake: FreshLake) -> None:
    """In that folder alone, and an object of the name stays as it is."""
    mine, other = begin(lake, "data/t/x y.parquet"), begin(lake, "data/tt/x.parquet")
    open_s3(lake.store).put_object(Bucket=lake.store.bucket, Key=f"{lake.name}/data/t/x y.parquet", Body=b"whole")
    folder = f"s3://{lake.store.bucket}/{lake.name}/data/t/"
    assert open_uploads(lake).abort_stale(folder, datetime.now(UTC) - HOUR) == []
    assert list_begun(lake) == [mine, other]
    assert open_uploads(lake).abort_stale(folder, datetime.now(UTC) + HOUR) == [mine]
    assert list_begun(lake) == [other]
    assert open_s3(lake.store).get_object(Bucket=lake.store.bucket, Key=f"{lake.name}/data/t/x y.parquet")["Body"].read() == b"whole"


def test_one_that_goes_on_stays(lake: FreshLake) -> None:
    """However long ago it was begun: its last part is young."""
    s3, key = open_s3(lake.store), {"Bucket": lake.store.bucket, "Key": f"{lake.name}/x"}
    upload = s3.create_multipart_upload(**key)["UploadId"]
    begun = s3.list_multipart_uploads(Bucket=lake.store.bucket, Prefix=key["Key"])["Uploads"][0]["Initiated"]

    def write() -> datetime | None:
        s3.upload_part(**key, UploadId=upload, PartNumber=1, Body=b"x")
        last = max(part["LastModified"] for part in s3.list_parts(**key, UploadId=upload)["Parts"])
        return last if last > begun else None

    last = wait_for(write, "a part that is younger")
    folder = f"s3://{lake.store.bucket}/{lake.name}"
    assert open_uploads(lake).abort_stale(folder, last) == []
    assert list_begun(lake) == [f"{folder}/x"]


def test_a_disk_has_none(local_lake: FreshLake) -> None:
    """Nobody is asked."""
    assert Uploads(StoreSettings(None, "", None, None)).abort_stale(local_lake.data_path, datetime.now(UTC)) == []


def test_a_store_that_refuses_us_is_told(lake: FreshLake) -> None:
    """As far as it is not merely silent about uploads."""
    strange = StoreSettings(lake.store.endpoint, lake.store.region, "nobody", "nothing")
    with pytest.raises(ServiceUnavailable, match="InvalidAccessKeyId"):
        Uploads(strange).abort_stale(lake.data_path, datetime.now(UTC))
