"""Principals, roles and grants from the command line. They are written to the lake's Postgres, without the REST API.

Anyone who may write to the lake's Postgres may use these commands. Each change and its audit entry are one transaction.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence

from duckicelake.catalog import access_rules
from duckicelake.catalog.access_rules import GrantText, Lake, NewSecret
from duckicelake.catalog.audit_log import AuditContext
from duckicelake.commands.embedded import join_running
from duckicelake.commands.facts import choose_lake
from duckicelake.commands.signals import stopping_on_signals
from duckicelake.config import Settings, SettingsError
from duckicelake.embedded.home import open_home
from duckicelake.lake.connect import close_lake, open_lake

AUDIT_PRINCIPAL = "command line"
"""The principal in the audit log for the command line; no principal can have a name with a space."""

Lines = Sequence[str]


def manage(settings: Settings, warehouse: str | None, operation: str, *texts: str) -> Lines:
    """Run the management operation of that name in the REST API, and return the lines to print.

    Raises: CatalogError: the operation failed and changed nothing
    """
    if operation == "grant" and texts[1].startswith("route:") and texts[1][len("route:") :].partition("/")[0] not in settings.routes:
        raise SettingsError(
            f"The settings have no such route: {texts[1][:100]!r}. They have: {', '.join(sorted(settings.routes)) or 'none'}."
        )
    audit_context = AuditContext(f"cli-{secrets.token_hex(6)}", AUDIT_PRINCIPAL, operation)
    with stopping_on_signals():
        chosen = choose_lake(join_running(settings, open_home(settings.home)), warehouse)
        lake = open_lake(chosen.name, chosen.postgres_dsn.get_secret_value(), chosen.metadata_schema, 1)
        try:
            return OPERATIONS[operation](access_rules.with_asker(lake, audit_context, name_objects(operation, texts)), *texts)
        finally:
            close_lake(lake)


def name_objects(operation: str, texts: Sequence[str]) -> Sequence[str]:
    """Return the objects of an operation for the audit log. Raises: BadRequest."""
    if operation in ("grant", "revoke"):
        return access_rules.list_audit_objects(read_given(*texts))
    names = texts[:1] if operation == "addPrincipal" else texts
    return [f"role:{name}" if number == 0 and operation in OF_ROLES else name for number, name in enumerate(names)]


def read_given(privileges: str, on: str, to: str) -> GrantText:
    """Return a grant that is given as three arguments."""
    return GrantText(privileges.split(","), on, to)


def add_principal(lake: Lake, name: str, without: str = "") -> Lines:
    """Add a principal, with a secret unless `without` is given."""
    return format_secret(access_rules.add_principal(lake, name, has_secret=not without))


def rotate_principal(lake: Lake, name: str) -> Lines:
    """Replace a principal's secret."""
    return format_secret(access_rules.rotate_principal(lake, name))


def remove_principal(lake: Lake, name: str) -> Lines:
    """Remove a principal."""
    access_rules.remove_grantee(lake, name, is_role=False)
    return ()


def add_role(lake: Lake, name: str) -> Lines:
    """Add a role."""
    access_rules.add_role(lake, name)
    return ()


def remove_role(lake: Lake, name: str) -> Lines:
    """Remove a role."""
    access_rules.remove_grantee(lake, name, is_role=True)
    return ()


def add_member(lake: Lake, role: str, principal: str) -> Lines:
    """Add a principal to a role."""
    access_rules.change_member(lake, role, principal, joins=True)
    return ()


def remove_member(lake: Lake, role: str, principal: str) -> Lines:
    """Remove a principal from a role."""
    access_rules.change_member(lake, role, principal, joins=False)
    return ()


def grant(lake: Lake, privileges: str, on: str, to: str) -> Lines:
    """Grant privileges on an object."""
    access_rules.change_grants(lake, read_given(privileges, on, to), gives=True)
    return ()


def revoke(lake: Lake, privileges: str, on: str, to: str) -> Lines:
    """Revoke privileges on an object."""
    access_rules.change_grants(lake, read_given(privileges, on, to), gives=False)
    return ()


def list_principals(lake: Lake) -> Lines:
    """List the principals that are stored in the lake."""
    return [name if has_secret else f"{name} (no secret here)" for name, has_secret in access_rules.read_access_rules(lake).principals]


def list_roles(lake: Lake) -> Lines:
    """List the roles with their members."""
    return [f"{name}: {' '.join(members)}".rstrip() for name, members in access_rules.read_access_rules(lake).roles]


def list_grants(lake: Lake) -> Lines:
    """List the grants."""
    return [f"{','.join(given.privileges)} {given.on} {given.to}" for given in access_rules.read_access_rules(lake).grants]


def format_secret(made: NewSecret) -> Lines:
    """Return the line with a new secret, in the form that clients take as `credential`."""
    return () if made.secret is None else (f"{made.name}:{made.secret}",)


OF_ROLES = frozenset({"addRole", "removeRole", "addMember", "removeMember"})
OPERATIONS: Mapping[str, Callable[..., Lines]] = {
    "addPrincipal": add_principal,
    "rotatePrincipal": rotate_principal,
    "removePrincipal": remove_principal,
    "listPrincipals": list_principals,
    "addRole": add_role,
    "removeRole": remove_role,
    "addMember": add_member,
    "removeMember": remove_member,
    "listRoles": list_roles,
    "grant": grant,
    "revoke": revoke,
    "listGrants": list_grants,
}
