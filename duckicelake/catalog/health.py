"""Is a warehouse ready to work?"""

from duckicelake.catalog.warehouse import Warehouse
from duckicelake.lake.connect import reading
from duckicelake.lake.read import read_iceberg_path
from duckicelake.translate.locations import to_uri


def check_ready(warehouse: Warehouse) -> None:
    """Raise ServiceUnavailable, naming which, when Postgres or the object store does not answer."""
    with reading(warehouse.lake) as conn:
        iceberg_path = read_iceberg_path(conn)
    warehouse.objects.check(to_uri(iceberg_path))
