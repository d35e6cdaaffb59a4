"""Wiring of the server: opens the lakes of the settings and builds the ASGI application. Importing it does nothing.

`commands.serve` calls `build_app` in each worker process, and `open_accounts` before, to check the settings; `check` calls `build_gateway`.
The start opens pools and other connections to Postgres, and starts the threads of the audit logs, the webhook and the object checks.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import SecretStr
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp

from duckicelake.access.clients import parse_clients
from duckicelake.access.grants import ALL_GRANTS, Grant, Grants, fold_levels
from duckicelake.access.issuers import Issuer, check_issuer
from duckicelake.access.policy import NAMESPACE, parse_route_grants, parse_securable
from duckicelake.access.rate_limit import RateLimit
from duckicelake.access.tokens import Accounts, TokenSigner, make_signer
from duckicelake.catalog.access_rules import read_policy
from duckicelake.catalog.audit_log import AuditLog
from duckicelake.catalog.credentials.ducklake import RoleCache
from duckicelake.catalog.events import Webhook
from duckicelake.catalog.health import ObjectMonitor
from duckicelake.catalog.records.client_reports import ReportQueue
from duckicelake.catalog.records.reads import ReadCounter
from duckicelake.catalog.warehouse import (
    Branch,
    OtherDataPaths,
    Warehouse,
    WarehouseLimits,
    close_warehouse,
    open_branch_warehouse,
    open_warehouse,
    with_roots,
    with_signer,
    with_vendor,
)
from duckicelake.config import IssuerSettings, LakeSettings, RouteSettings, Settings, WebhookSettings, read_secret_file
from duckicelake.gateway.route import Limits, Route, RouteSecrets, TokenService
from duckicelake.gateway.upstream import Gateway
from duckicelake.gateway.webhook import WebhookSender, decode_secret
from duckicelake.lake.connect import Lake
from duckicelake.lake.server_turns import ServerTurns
from duckicelake.lake.watch import Watch
from duckicelake.rest.application import Lifespan, build_web
from duckicelake.rest.auth.oidc import TokenIssuers
from duckicelake.rest.branch_lakes import BranchLakes
from duckicelake.rest.cached_response import ResponseCache
from duckicelake.rest.context import BranchPolicies, OpenLake, PolicyCache, ServerContext
from duckicelake.rest.diff_process import DiffProcess
from duckicelake.rest.metrics import Metrics, WorkerFiles
from duckicelake.rest.turns import TurnLimits, Turns
from duckicelake.store_settings import read_store_settings, read_sts_settings

DIFF_PROCESS = "duckicelake.commands.diff_process"
"""A process of its own, which imports what this one must not."""
DIFF_SETTINGS = {
    *("name", "postgres_dsn", "metadata_schema", "s3_endpoint", "s3_region"),
    *("s3_access_key_id", "s3_secret_access_key"),
}


def build_app(settings: Settings, metrics: Metrics | None = None) -> ASGIApp:
    """Return the application for the lakes of the settings. `metrics` None: use new metrics.

    It opens the lakes at startup and closes them at shutdown. Neither needs Postgres or the object store: while one is unavailable,
    `/readyz` says which, and requests get 503.
    """
    accounts = open_accounts(settings)
    issuers = None if accounts is None or not settings.oidc_issuers else TokenIssuers(read_issuers(settings), accounts.tokens)
    context = ServerContext(
        ResponseCache(settings.cache_max_bytes),
        metrics or Metrics(),
        accounts,
        body_timeout_s=settings.body_timeout_s,
        issuers=issuers,
        rate_limit=RateLimit(settings.requests_per_s, settings.requests_burst) if settings.requests_per_s else None,
        gateway=build_gateway(settings),
        turns=Turns(TurnLimits(settings.commit_queue_max, settings.commit_queue_s)),
        branches=BranchLakes(partial(open_branch, settings)),
        audits_reads=settings.audit_reads > 0,
    )
    return build_web(context, build_lifespan(settings, context))


def open_worker_metrics(folder: Path, server_pid: int) -> Metrics:
    """Return the metrics of this process as a worker of a server, with files in that folder."""
    return Metrics(WorkerFiles(folder, server_pid))


def open_accounts(settings: Settings) -> Accounts | None:
    """Return the clients of the settings and the token keys; None without authentication.

    Raises: BadClients, BadKey, BadIssuer, SettingsError: a setting cannot be used
    """
    if not settings.require_auth:
        return None
    read_issuers(settings)
    clients = [] if settings.oauth_clients is None else [settings.oauth_clients.get_secret_value()]
    if settings.oauth_clients_file is not None:
        clients.append(read_secret_file(settings.oauth_clients_file))
    return Accounts(parse_clients("\n".join(clients)), open_signer(settings), settings.token_lifetime_s)


def read_issuers(settings: Settings) -> list[Issuer]:
    """Return the external issuers whose tokens are accepted. Raises: BadIssuer, SettingsError."""
    return [read_issuer(issuer) for issuer in settings.oidc_issuers]


def read_issuer(configured: IssuerSettings) -> Issuer:
    """Return an issuer from its settings. Raises: BadIssuer, SettingsError."""
    if configured.ca_file is not None:
        read_secret_file(configured.ca_file)
    issuer = Issuer(
        name=configured.name,
        url=configured.issuer,
        audience=configured.audience,
        algorithms=frozenset(configured.algorithms),
        principal_claim=configured.principal_claim,
        roles_claim=configured.roles_claim or "",
        roles=configured.roles,
        clients=frozenset(configured.clients),
        clock_skew_s=configured.clock_skew_s,
        ca_file=None if configured.ca_file is None else str(configured.ca_file),
    )
    check_issuer(issuer)
    return issuer


def open_signer(settings: Settings) -> TokenSigner:
    """Return the keys that sign tokens. If none is configured, generate one; its tokens are valid only at this server until it stops."""
    pems = [read_secret_file(path) for path in settings.token_key_files]
    if settings.token_keys is not None:
        keys = [key.strip() for key in settings.token_keys.get_secret_value().split(",")]
    else:
        keys = [] if pems else [secrets.token_hex(32)]
    return make_signer(keys, pems)


def build_gateway(settings: Settings) -> Gateway | None:
    """Return the routes of the settings, None if there are none. Raises: BadGrant, SettingsError."""
    if not settings.routes:
        return None
    lakes = [lake.name for lake in settings.lakes()] or [settings.warehouse]
    only = lakes[0] if len(lakes) == 1 and settings.require_auth else ""
    routes = [read_route(name, route, only) for name, route in settings.routes.items()]
    return Gateway(routes, settings.catch_all, settings.public_url or f"{settings.host}:{settings.port}")


def read_route(name: str, configured: RouteSettings, only_lake: str) -> Route:
    """Return a route from its settings. `only_lake`: the lake whose accounts may have grants on it if the settings name none.

    Raises: BadGrant, SettingsError
    """
    if configured.ca_file is not None:
        read_secret_file(configured.ca_file)
    secret_key = configured.secret_access_key
    namespaces = configured.namespaces
    return Route(
        name=name,
        uri=configured.uri,
        warehouse=configured.warehouse,
        auth=configured.auth,
        secrets=RouteSecrets(
            read_secret(configured.token, configured.token_file),
            read_secret(configured.credential, configured.credential_file),
            configured.access_key_id,
            None if secret_key is None else secret_key.get_secret_value(),
        ),
        tokens=TokenService(configured.oauth2_uri, configured.scope, configured.oauth2_parameters),
        region=configured.region,
        signing_name=configured.signing_name,
        headers=configured.headers,
        limits=Limits(configured.timeout_s, configured.connect_s, configured.max_connections),
        read_only=configured.read_only,
        namespaces=None if namespaces is None else Grants(tuple(read_namespace(text) for text in namespaces)),
        required=configured.required,
        ca_file=None if configured.ca_file is None else str(configured.ca_file),
        grants=parse_route_grants(configured.grants),
        lake_name=configured.lake or only_lake,
        vended_keys=configured.vended_keys,
    )


def read_namespace(text: str) -> Grant:
    """Return every right in a namespace that a route serves. Raises: BadGrant."""
    return Grant(fold_levels(parse_securable(f"{NAMESPACE}:{text}").levels), ALL_GRANTS.each[0].rights)


def read_secret(secret: SecretStr | None, path: Path | None) -> str | None:
    """Return a secret from the settings or from a file, None if neither is set. Raises: SettingsError."""
    if path is not None:
        return read_secret_file(path).strip()
    return None if secret is None else secret.get_secret_value()


def build_lifespan(settings: Settings, context: ServerContext) -> Lifespan:
    """Return the lifespan of the application, within which all lakes are open."""
    hook = settings.events.webhook
    # A poor secret stops the start here, with its message.
    sender = None if hook is None else build_webhook_sender(hook)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        async with AsyncExitStack() as opened:
            if context.issuers is not None:
                context.issuers.begin()
                opened.push_async_callback(context.issuers.close)
            if context.gateway is not None:
                context.gateway.open()
                opened.push_async_callback(context.gateway.close)
            for lake in settings.lakes():
                found = await open_lake(lake, read_limits(settings), opened, vends=settings.require_auth)
                found = replace(
                    found, warehouse=replace(found.warehouse, neighbours=OtherDataPaths(partial(list_others, context, lake.name)))
                )
                policies = PolicyCache(found.watch, partial(read_policy, found.warehouse)) if settings.require_auth else None
                context.lakes[lake.name] = replace(found, audit_log=start_audit_log(settings, found, opened), policies=policies)
                if hook is not None and sender is not None:
                    context.lakes[lake.name] = start_webhook(sender, hook.batch_max, context.lakes[lake.name], opened)
                if settings.object_check_s:
                    start_object_checks(settings.object_check_s, context, lake.name, opened)
            if isinstance(context.branches, BranchLakes):
                opened.push_async_callback(context.branches.close)
                watching = asyncio.create_task(context.branches.watch())
                opened.callback(watching.cancel)
            yield
        context.lakes.clear()

    return lifespan


def list_others(context: ServerContext, name: str) -> list[Lake]:
    """Return the other lakes of this server."""
    return [lake.warehouse.lake for prefix, lake in list(context.lakes.items()) if prefix != name]


async def open_lake(settings: LakeSettings, limits: WarehouseLimits, opened: AsyncExitStack, *, vends: bool) -> OpenLake:
    """Return a lake with its connection pool and its watch, which `opened` closes. `vends`: requests are authenticated and may get keys."""
    dsn, schema = settings.postgres_dsn.get_secret_value(), settings.metadata_schema
    warehouse = complete_warehouse(open_warehouse(settings.name, dsn, schema, read_store_settings(settings), limits), settings, vends=vends)
    opened.push_async_callback(run_in_threadpool, close_warehouse, warehouse)
    watch = Watch(dsn, schema)
    opened.push_async_callback(watch.close)
    server_turns = ServerTurns(dsn, schema)
    opened.push_async_callback(server_turns.close)
    roles = RoleCache(settings.ducklake_postgres)
    diff_process = DiffProcess(DIFF_PROCESS, reveal(settings.model_dump(include=DIFF_SETTINGS)))
    return OpenLake(settings.name, warehouse, watch, roles=roles, server_turns=server_turns, diff_process=diff_process)


def reveal(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with their secrets as text."""
    return {name: value.get_secret_value() if isinstance(value, SecretStr) else value for name, value in values.items()}


def complete_warehouse(warehouse: Warehouse, settings: LakeSettings, *, vends: bool) -> Warehouse:
    """Return a warehouse with what the settings of its lake allow clients. `vends`: requests are authenticated and may get keys."""
    warehouse = replace(with_roots(warehouse, settings.allowed_locations), purge_grace_hours=settings.purge_grace_hours)
    if vends:
        warehouse = with_signer(warehouse, read_store_settings(settings))
    if vends and settings.sts_role_arn is not None:
        warehouse = with_vendor(warehouse, read_store_settings(settings), read_sts_settings(settings, settings.sts_role_arn))
    return warehouse


async def open_branch(settings: Settings, parent: OpenLake, branch: Branch, opened: AsyncExitStack) -> OpenLake:
    """Return a branch as a lake of its own, with the settings of its lake, which `opened` closes.

    Its connections are those of all branches of its lake, and of the lake: it has none of its own.
    """
    [lake] = [lake for lake in settings.lakes() if lake.name == parent.prefix]
    changed = {"data_path": branch.data_path, "iceberg_path": branch.iceberg_path}
    of_branch = lake.model_copy(update=changed)
    warehouse = open_branch_warehouse(parent.warehouse, branch, read_store_settings(of_branch), read_limits(settings))
    warehouse = complete_warehouse(warehouse, of_branch, vends=settings.require_auth)
    dsn, schema = warehouse.lake.dsn, branch.schema_name
    turns_of_lake = parent.server_turns if isinstance(parent.server_turns, ServerTurns) else None
    watch, server_turns = Watch(dsn, schema, warehouse.lake), ServerTurns(dsn, schema, turns_of_lake)
    opened.push_async_callback(watch.close)
    opened.push_async_callback(server_turns.close)
    roles = RoleCache(lake.ducklake_postgres)
    found = OpenLake(warehouse.name, warehouse, watch, roles=roles, server_turns=server_turns, repository=parent.prefix)
    if branch.is_automatic:
        said = f"Snapshot {branch.name} of the lake is read-only: make a branch of it to work on its tables."
        found = replace(found, read_only=said, is_untagged=True)
    elif branch.is_tag:
        found = replace(found, read_only=f"{branch.name!r} is a tag, which is read-only: make a branch of it to work on its tables.")
    # The lake keeps what was read and denied on a branch: the schema of the branch goes with it.
    audited = replace(found, audit_log=start_audit_log(settings, parent, opened, (branch.name, found)))
    if parent.policies is None:
        return audited
    policies = BranchPolicies(parent.policies, lambda: PolicyCache(found.watch, partial(read_policy, found.warehouse)))
    return replace(audited, policies=policies)


def start_audit_log(settings: Settings, lake: OpenLake, opened: AsyncExitStack, branch: tuple[str, OpenLake] | None = None) -> AuditLog:
    """Start the audit log of a lake, or of a branch of it, by name and as a lake of its own; `opened` stops it."""
    reads, reports = ReadCounter(settings.audit_reads), ReportQueue(settings.client_reports_max)
    audit_log = AuditLog(lake.warehouse.lake, settings.audit_days, reads, settings.audit_reads_days, reports)
    if branch is not None:
        audit_log.branch, audit_log.branch_lake = branch[0], branch[1].warehouse.lake
    audit_log.start()
    opened.push_async_callback(run_in_threadpool, audit_log.stop)
    return audit_log


def build_webhook_sender(settings: WebhookSettings) -> WebhookSender:
    """Return what sends events to the webhook. Raises: SettingsError: the secret's file cannot be read. BadRequest: a poor secret."""
    secret = decode_secret(read_secret(settings.secret, settings.secret_file) or "")
    return WebhookSender(settings.url, secret, settings.timeout_s, settings.ca_file, settings.batch_max > 1)


def start_webhook(sender: WebhookSender, batch_max: int, lake: OpenLake, opened: AsyncExitStack) -> OpenLake:
    """Start to send the events of a lake, and return the lake with what sends them; `opened` stops it."""
    webhook = Webhook(lake.warehouse.lake, sender.send, batch_max)
    webhook.start()
    opened.push_async_callback(run_in_threadpool, webhook.stop)
    return replace(lake, webhook=webhook)


def start_object_checks(period_s: float, context: ServerContext, name: str, opened: AsyncExitStack) -> None:
    """Start the checks of a lake's published objects; `opened` stops them."""
    rounds = ObjectMonitor(context.lakes[name].warehouse, period_s, partial(context.cache.forget, name))
    rounds.start()
    opened.push_async_callback(run_in_threadpool, rounds.stop)


def read_limits(settings: Settings) -> WarehouseLimits:
    """Return the limits of a lake: cached tables, memory, and Postgres' statement timeout."""
    return WarehouseLimits(settings.cache_max, settings.memory_max_bytes, settings.postgres_timeout_s)
