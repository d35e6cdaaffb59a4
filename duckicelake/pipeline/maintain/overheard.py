"""What Iceberg keeps to its log when it rewrites piece by piece: why one could not be written, or not be committed."""

from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext

WRITING = "org.apache.iceberg.spark.actions.RewriteDataFilesSparkAction"
COMMITTING = "org.apache.iceberg.actions.BaseCommitService"
"""The names of loggers, each of which tells of one piece at a time."""
_END = "\x1e"


@contextmanager
def capturing_logs() -> Generator[Callable[[str], list[str]]]:
    """Inside, the call gives the traces that a logger has told of by now; none when nothing can be heard of it."""
    context: Any = SparkContext
    log4j = context._jvm.org.apache.logging.log4j
    found, told = log4j.LogManager.getContext(False), dict[str, Any]()
    heard = list[tuple[Any, Any]]()
    try:
        for name in (WRITING, COMMITTING):
            layout = log4j.core.layout.PatternLayout.newBuilder().withPattern(f"%ex{_END}").withAlwaysWriteExceptions(False).build()
            told[name] = context._jvm.java.io.StringWriter()
            appender = log4j.core.appender.WriterAppender.createAppender(layout, None, told[name], name, False, True)
            appender.start()
            heard.append((found.getLogger(name), appender))
            heard[-1][0].addAppender(appender)
        yield lambda name: [trace for trace in str(told[name].toString()).split(_END) if trace.strip()]
    finally:
        # When Java is gone there is nothing to take back.
        with suppress(Py4JError, OSError):
            for logger, appender in heard:
                logger.removeAppender(appender)
