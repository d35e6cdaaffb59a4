"""Short-lived keys from the store's token service (STS AssumeRole with a session policy)."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from duckicelake.errors import ServiceUnavailable
from duckicelake.store.keys.policy import find_partition
from duckicelake.store.s3 import StoreSettings

SESSION_NAME = "duckicelake"
MOST_KEPT = 4096


@dataclass(frozen=True, slots=True)
class StsSettings:
    """How to get sessions: the role whose rights bound them, and for how long they live. No endpoint: the store's, or AWS's."""

    role_arn: str
    endpoint: str | None = None
    external_id: str | None = None
    lifetime_s: int = 3600


@dataclass(frozen=True, slots=True)
class SessionKeys:
    """Keys that end by themselves. After `fresh_until_s` nobody new gets them: half of their life is left then."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)
    expires_at_ms: int
    fresh_until_s: float


class Vendor:
    """Gives out keys, the same ones for the same policy while they are fresh. Safe to share between threads."""

    def __init__(self, store: StoreSettings, sts: StsSettings) -> None:
        self.store = store
        self.partition = find_partition(sts.role_arn)
        self._sts = sts
        self._endpoint = sts.endpoint or store.endpoint
        self._kept: OrderedDict[str, SessionKeys] = OrderedDict()
        self._lock = Lock()
        self._client: Any = None

    @property
    def lifetime_s(self) -> int:
        """How long keys live."""
        return self._sts.lifetime_s

    def get_keys(self, policy: str, now_s: float) -> SessionKeys:
        """Return keys that may do what the policy says, and no more.

        Raises: ServiceUnavailable: the token service gives none
        """
        with self._lock:
            kept = self._kept.get(policy)
            if kept is not None and now_s < kept.fresh_until_s:
                self._kept.move_to_end(policy)
                return kept
        keys = self._assume(policy, now_s)
        with self._lock:
            self._kept[policy] = keys
            self._kept.move_to_end(policy)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return keys

    def _assume(self, policy: str, now_s: float) -> SessionKeys:
        asked = {"RoleArn": self._sts.role_arn, "RoleSessionName": SESSION_NAME, "DurationSeconds": self._sts.lifetime_s, "Policy": policy}
        if self._sts.external_id is not None:
            asked["ExternalId"] = self._sts.external_id
        try:
            found = self._open_client().assume_role(**asked)["Credentials"]
        except (BotoCoreError, ClientError) as error:
            raise self._unavailable(error) from None
        expires_at_s = found["Expiration"].timestamp()
        fresh_until_s = now_s + (expires_at_s - now_s) / 2
        return SessionKeys(found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"], int(expires_at_s * 1000), fresh_until_s)

    def _unavailable(self, error: Exception) -> ServiceUnavailable:
        # the service's own words may quote keys and policies; its code does not
        told: Any = getattr(error, "response", {})
        code = str(told.get("Error", {}).get("Code") or type(error).__name__)
        where = self._endpoint or f"sts.{self.store.region}.amazonaws.com"
        return ServiceUnavailable(f"The token service (STS) at {where} gives no keys for this table ({code}); loads without keys go on.")

    def _open_client(self) -> Any:
        with self._lock:
            if self._client is None:
                make_client: Callable[..., Any] = getattr(boto3, "client")  # noqa: B009  boto3 makes its clients at run time, without types
                self._client = make_client(
                    "sts",
                    endpoint_url=self._endpoint,
                    region_name=self.store.region,
                    aws_access_key_id=self.store.access_key_id,
                    aws_secret_access_key=self.store.secret_access_key,
                    config=Config(connect_timeout=1, read_timeout=5, retries={"total_max_attempts": 2}),
                )
            return self._client
