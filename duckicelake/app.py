"""Wires the house: the lakes of the settings behind one door. Nothing happens at import."""

import secrets
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp

from duckicelake.access.clients import parse_clients
from duckicelake.access.issuers import Issuer, check_issuer
from duckicelake.access.rate_limit import RateLimit
from duckicelake.access.token_endpoint import Accounts
from duckicelake.access.tokens import TokenSigner, make_signer
from duckicelake.catalog.access_rules import read_policy
from duckicelake.catalog.audit_log import AuditLog
from duckicelake.catalog.credentials.ducklake import RoleCache
from duckicelake.catalog.health import ObjectMonitor
from duckicelake.catalog.warehouse import (
    OtherDataPaths,
    StsSettings,
    WarehouseLimits,
    close_warehouse,
    open_warehouse,
    with_roots,
    with_signer,
    with_vendor,
)
from duckicelake.config import IssuerSettings, LakeSettings, Settings, read_secret_file
from duckicelake.lake.connect import Lake
from duckicelake.lake.watch import Watch
from duckicelake.rest.application import Lifespan, build_web
from duckicelake.rest.auth.oidc import TokenIssuers
from duckicelake.rest.cached_response import ResponseCache
from duckicelake.rest.context import OpenLake, PolicyCache, ServerContext
from duckicelake.rest.metrics import Metrics, WorkerFiles
from duckicelake.store.s3 import StoreSettings


def build_app(settings: Settings, metrics: Metrics | None = None) -> ASGIApp:
    """Return the server for the lakes that the settings name; it counts in `metrics`, or in new ones.

    It opens them when it starts and closes them when it stops. Neither needs Postgres or the object store to be
    up: until they are, `/readyz` says what is missing and requests are answered 503.
    """
    accounts = open_accounts(settings)
    issuers = None if accounts is None or not settings.oidc_issuers else TokenIssuers(read_issuers(settings), accounts.tokens)
    context = ServerContext(
        ResponseCache(settings.cache_max),
        metrics or Metrics(),
        accounts,
        body_timeout_s=settings.body_timeout_s,
        issuers=issuers,
        rate_limit=RateLimit(settings.requests_per_s, settings.requests_burst) if settings.requests_per_s else None,
    )
    return build_web(context, build_lifespan(settings, context))


def open_worker_metrics(folder: Path, server_pid: int) -> Metrics:
    """Return the metrics of this process as one of the workers of a server, whose files lie in that folder."""
    return Metrics(WorkerFiles(folder, server_pid))


def open_accounts(settings: Settings) -> Accounts | None:
    """Return the clients that may ask for tokens; None when nobody has to say who they are.

    Raises: BadClients, BadKey, BadIssuer, SettingsError: what is configured cannot be used
    """
    if not settings.require_auth:
        return None
    read_issuers(settings)
    told = [] if settings.oauth_clients is None else [settings.oauth_clients.get_secret_value()]
    if settings.oauth_clients_file is not None:
        told.append(read_secret_file(settings.oauth_clients_file))
    return Accounts(parse_clients("\n".join(told)), open_signer(settings), settings.token_lifetime_s)


def read_issuers(settings: Settings) -> list[Issuer]:
    """Return the issuers whose tokens are believed. Raises: BadIssuer, SettingsError."""
    return [read_issuer(told) for told in settings.oidc_issuers]


def read_issuer(told: IssuerSettings) -> Issuer:
    """Return an issuer as settings name it. Raises: BadIssuer, SettingsError."""
    if told.ca_file is not None:
        read_secret_file(told.ca_file)
    issuer = Issuer(
        name=told.name,
        url=told.issuer,
        audience=told.audience,
        algorithms=frozenset(told.algorithms),
        principal_claim=told.principal_claim,
        roles_claim=told.roles_claim or "",
        roles=told.roles,
        clients=frozenset(told.clients),
        clock_skew_s=told.clock_skew_s,
        ca_file=None if told.ca_file is None else str(told.ca_file),
    )
    check_issuer(issuer)
    return issuer


def open_signer(settings: Settings) -> TokenSigner:
    """Return the keys of tokens. Without any a server makes one: its tokens end with it, and no other server knows them."""
    pems = [read_secret_file(path) for path in settings.token_key_files]
    if settings.token_keys is not None:
        keys = [key.strip() for key in settings.token_keys.get_secret_value().split(",")]
    else:
        keys = [] if pems else [secrets.token_hex(32)]
    return make_signer(keys, pems)


def build_lifespan(settings: Settings, context: ServerContext) -> Lifespan:
    """Return what surrounds the server's life: every lake is open inside it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        async with AsyncExitStack() as opened:
            if context.issuers is not None:
                context.issuers.begin()
                opened.push_async_callback(context.issuers.close)
            for lake in settings.lakes():
                found = await open_lake(lake, read_limits(settings), opened, vends=settings.require_auth)
                found = replace(
                    found, warehouse=replace(found.warehouse, neighbours=OtherDataPaths(partial(list_others, context, lake.name)))
                )
                policies = PolicyCache(found.watch, partial(read_policy, found.warehouse)) if settings.require_auth else None
                context.lakes[lake.name] = replace(found, audit_log=start_trail(settings.audit_days, found, opened), policies=policies)
                if settings.object_check_s:
                    start_rounds(settings.object_check_s, context, lake.name, opened)
            yield
        context.lakes.clear()

    return lifespan


def list_others(context: ServerContext, name: str) -> list[Lake]:
    """Return the lakes that are served beside one."""
    return [lake.warehouse.lake for prefix, lake in list(context.lakes.items()) if prefix != name]


async def open_lake(settings: LakeSettings, limits: WarehouseLimits, opened: AsyncExitStack, *, vends: bool) -> OpenLake:
    """Return a lake with its pool and its watch, both closed when `opened` is; `vends`: who asks is known, and may get keys."""
    dsn, schema = settings.postgres_dsn.get_secret_value(), settings.metadata_schema
    warehouse = open_warehouse(settings.name, dsn, schema, read_store_settings(settings), limits)
    warehouse = with_roots(warehouse, settings.allowed_locations)
    if vends:
        warehouse = with_signer(warehouse, read_store_settings(settings))
    if vends and settings.sts_role_arn is not None:
        warehouse = with_vendor(warehouse, read_store_settings(settings), read_sts_settings(settings, settings.sts_role_arn))
    opened.push_async_callback(run_in_threadpool, close_warehouse, warehouse)
    watch = Watch(dsn, schema)
    opened.push_async_callback(watch.close)
    return OpenLake(settings.name, warehouse, watch, roles=RoleCache(settings.ducklake_postgres))


def start_trail(days: int, lake: OpenLake, opened: AsyncExitStack) -> AuditLog:
    """Keep the record of a lake until `opened` is closed."""
    trail = AuditLog(lake.warehouse.lake, days)
    trail.start()
    opened.push_async_callback(run_in_threadpool, trail.stop)
    return trail


def start_rounds(period_s: float, context: ServerContext, name: str, opened: AsyncExitStack) -> None:
    """Look after what is published of a lake until `opened` is closed."""
    rounds = ObjectMonitor(context.lakes[name].warehouse, period_s, partial(context.cache.forget, name))
    rounds.start()
    opened.push_async_callback(run_in_threadpool, rounds.stop)


def read_limits(settings: Settings) -> WarehouseLimits:
    """Return how much each lake may keep in memory, and how long it may wait."""
    return WarehouseLimits(settings.cache_max, settings.memory_max_bytes, settings.postgres_timeout_s)


def read_store_settings(settings: LakeSettings) -> StoreSettings:
    """Return how to reach the lake's object store."""
    secret = settings.s3_secret_access_key
    return StoreSettings(
        endpoint=settings.s3_endpoint,
        region=settings.s3_region,
        access_key_id=settings.s3_access_key_id,
        secret_access_key=None if secret is None else secret.get_secret_value(),
        signs_payloads=settings.s3_signed_payloads,
        public_endpoint=settings.s3_public_endpoint,
    )


def read_sts_settings(settings: LakeSettings, role_arn: str) -> StsSettings:
    """Return how to get keys for others."""
    return StsSettings(role_arn, settings.sts_endpoint, settings.sts_external_id, settings.vended_lifetime_s)
