"""Both ends of a transfer, for jobs that are refused one of them."""

from tests.pipeline.transfer.conftest import ferry

__all__ = ["ferry"]
