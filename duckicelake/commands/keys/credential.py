"""Whose requests a command sends: the id and the secret that it shows, from the environment or a file, never from its arguments."""

from collections.abc import Mapping
from pathlib import Path

from duckicelake.config import Settings, SettingsError, read_secret_file

VARIABLE = "DUCKICELAKE_CREDENTIAL"
TOLD_BY = f"{VARIABLE}, or a file that --credential-file names"


def read_credential(settings: Settings) -> str | None:
    """Return the `id:secret` that the settings hold or name a file of; None when they name nobody.

    Raises: SettingsError: the file cannot be read, or what they hold is no such pair; it is not shown
    """
    if settings.credential_file is not None:
        return _check(read_secret_file(settings.credential_file).strip(), f"the file {settings.credential_file}")
    return None if settings.credential is None else _check(settings.credential.get_secret_value(), "the setting credential")


def read_named_credential(file: Path | None, environment: Mapping[str, str]) -> str | None:
    """Return the `id:secret` that a call itself brings: that of the settings' files is for their own server.

    Raises: SettingsError: as `read_credential`
    """
    if file is not None:
        return _check(read_secret_file(file).strip(), f"the file {file}")
    told = environment.get(VARIABLE)
    return None if told is None else _check(told, VARIABLE)


def get_credential(settings: Settings) -> str | None:
    """Return the credential; None where nobody has to show one. Raises: SettingsError: somebody has to, and there is none."""
    found = read_credential(settings)
    if found is None and settings.require_auth:
        raise SettingsError(f"The server asks for accounts (require_auth): say id:secret of one by {TOLD_BY}.")
    return found


def _check(text: str, where: str) -> str:
    client_id, _, secret = text.partition(":")
    if not client_id or not secret or not text.isprintable():
        raise SettingsError(f"What is in {where} is no id:secret of an account.")
    return text
