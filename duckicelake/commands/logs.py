"""Log lines on stderr: plain for people, JSON for machines."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal

QUIET_LOGGERS = ("botocore", "boto3", "urllib3", "psycopg.pool", "asyncio")
"""Libraries that tell more than an operator wants; their warnings still come through."""

SHOWN_NAMES = {"uvicorn.error": "uvicorn"}


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message; the fields of the record, and the traceback, when there are any."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields: dict[str, Any] | None = getattr(record, "fields", None)
        if fields is not None:
            line.update(fields)
        audit: dict[str, Any] | None = getattr(record, "audit", None)
        if audit is not None:
            line["audit"] = audit
        if record.exc_info is not None:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class PlainNames(logging.Filter):
    """Gives loggers the names that operators expect: uvicorn logs everything, errors or not, as `uvicorn.error`."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Rename the record's logger, and let the record through."""
        record.name = SHOWN_NAMES.get(record.name, record.name)
        return True


def configure_logging(log_format: Literal["plain", "json"], log_level: str) -> None:
    """Send every log line of this process to stderr in that form, from that level up."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if log_format == "json" else plain)
    handler.addFilter(PlainNames())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(log_level.upper())
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
