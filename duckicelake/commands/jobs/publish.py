"""`duckicelake pipeline publish`: Spark executors write the large manifests that the server plans, and the server imports them.

`start` calls it on the main thread. The run prints and writes its report. Executors get the lake's Postgres address and the store's own
keys.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from rich.console import Console

from duckicelake.commands.facts import Facts
from duckicelake.commands.jobs.reports import FAILED, GetLake, Stop, get_exit_status, print_error, print_lines, run_or_report, write_report
from duckicelake.commands.jobs.session import JobCall, opening_spark, read_job_call, showing_progress, to_catalog
from duckicelake.pipeline.common.reports import Progress
from duckicelake.pipeline.common.rest import RestCatalog, open_rest
from duckicelake.pipeline.publish import LakeLocation, PublishJobContext, PublishOptions, PublishReport, publish, read_options


def read_call(given: Mapping[str, Any]) -> JobCall[PublishOptions]:
    """Return the parsed arguments; `given` has the command's parameters by name.

    Raises: BadRequest: arguments contradict each other, or one is malformed
    """
    return read_job_call(read_options(given["tables"]), given)


def report_publish(call: JobCall[PublishOptions], find: GetLake, stop: Stop) -> int:
    """Run the job, print what it wrote, write the report, and return the exit status."""
    done = run_or_report(find, lambda facts, _: run_publish(facts, call, stop), lambda message: PublishReport(message=message))
    is_written = write_report(call.report, done.format_json())
    if done.message:
        return get_exit_status(print_error(done.message, FAILED), stop)
    print_lines(done.describe())
    return get_exit_status(done.status, stop) if is_written else FAILED


def run_publish(facts: Facts, call: JobCall[PublishOptions], stop: Stop) -> PublishReport:
    """Run the job once, with its steps on the terminal."""
    with showing_progress(Console(stderr=True), "looking", stop) as tell:
        return publish(make_desk(facts, call, tell, stop), call.options, dry_run=call.dry_run)


def make_desk(facts: Facts, call: JobCall[PublishOptions], tell: Progress, stop: Stop | None = None) -> PublishJobContext:
    """Return the job's context. Spark is started when it is needed; it writes objects with the store's own keys."""
    catalog = to_catalog(facts)
    keys = (facts.s3_endpoint, facts.s3_region, facts.s3_access_key_id, facts.s3_secret_access_key)
    place = LakeLocation(facts.ducklake_dsn, facts.ducklake_metadata_schema, RestCatalog(facts.catalog_uri, facts.warehouse, *keys))
    return PublishJobContext(lambda: open_rest(catalog), place, partial(opening_spark, call.spark_settings, catalog, tell, stop=stop), tell)
