"""A table's large manifests made as executors make them, in this process, and offered to a server."""

import json
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

from duckicelake.catalog.manifest_import.imported import SubmittedManifest
from duckicelake.catalog.manifest_import.operations import BulkPlan, encode_plan, import_manifests, plan_manifests, verify_manifests
from duckicelake.catalog.tables import Ident
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.pipeline.common.rest import RestCatalog
from duckicelake.pipeline.publish import LakeLocation, Task
from tests.support.lakes import FreshLake

T = Ident(("main",), "t")


@dataclass(frozen=True, slots=True)
class Batch:
    """What was planned, and what was made of it."""

    plan: BulkPlan
    made: list[dict[str, Any]]

    @property
    def manifests(self) -> dict[str, SubmittedManifest]:
        """What is offered."""
        return {item["digest"]: SubmittedManifest(item["name"], item["told"]) for item in self.made}

    def submit(self, warehouse: Warehouse, by: str | None = None) -> int:
        """Have a server take it over."""
        return import_manifests(warehouse, T, self.plan.position, by or version("duckicelake"), self.manifests)

    def show(self, warehouse: Warehouse, by: str | None = None) -> int:
        """Have a server look at it; the rest comes later."""
        return verify_manifests(warehouse, T, self.plan.position, by or version("duckicelake"), self.manifests)

    def part(self, *numbers: int) -> "Batch":
        """Some of it."""
        return replace(self, made=[self.made[number] for number in numbers])

    def tell(self, **changes: Any) -> "Batch":
        """The same with other things told of the first manifest."""
        first, *others = self.made
        return replace(self, made=[{**first, "told": {**first["told"], **changes}}, *others])


def open_place(lake: FreshLake) -> LakeLocation:
    """Where executors find the lake."""
    keys = lake.store
    store = RestCatalog("", "", keys.endpoint, keys.region, keys.access_key_id, keys.secret_access_key)
    return LakeLocation(lake.dsn, lake.metadata_schema, store)


def make(lake: FreshLake, warehouse: Warehouse) -> Batch:
    """Make what a server plans; plans and recipes go as JSON."""
    plan = plan_manifests(warehouse, T)
    told = json.loads(json.dumps(encode_plan(plan)))
    task = Task(open_place(lake), json.dumps(told["recipe"]))
    return Batch(plan, [json.loads(text) for text in task.make_all(map(json.dumps, told["manifests"]))])
