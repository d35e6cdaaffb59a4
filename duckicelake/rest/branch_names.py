"""Names of branches in the places where lakeFS has them: in front of the namespaces. No I/O.

`rest.layers.addresses` rewrites requests by these functions, on the event loop, or on a worker thread if the body is large: to the ordinary
path of the lake or branch, with the ordinary names, and back in the answer. Everything behind that layer knows branches by their warehouse
(`lake@dev`) alone.

Shape: `/v1/lakefs/namespaces/dev%1Fns/tables/t` is `/v1/lake%40dev/namespaces/ns/tables/t`. The first level may be the lake, if a client
       sends `lake.dev.ns`, as lakeFS's own documentation does; of several lakes it has to be.
Source: lakeFS «Iceberg REST catalog»; lakeFS design «Iceberg REST Catalog Router»
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qsl, quote, urlencode

from duckicelake.catalog.repositories import MAIN
from duckicelake.errors import AlreadyExists, BadRequest, CatalogError, NoSuchFunction, NoSuchNamespace, NoSuchTable, NoSuchView
from duckicelake.iceberg.json_reader import as_list, as_object
from duckicelake.iceberg.requests.bodies import check_name
from duckicelake.rest.operations import DUCKLAKE, Operation
from duckicelake.rest.params import ADVERTISED_SEPARATOR, decode_segment, split_levels

Levels = tuple[str, ...]
PREFIX, SCHEME = "lakefs", "lakefs://"
NAMESPACE_PART, OBJECT_PART, PREFIX_PART = 4, 6, 2
WHAT = "request body"


@dataclass(frozen=True, slots=True)
class BaseRef:
    """The lake, or branch of a lake, that an address names before the first level of a namespace. Empty: none."""

    lake: str = ""
    ref: str = ""


@dataclass(frozen=True, slots=True)
class BranchNamespace:
    """A namespace of such an address: `levels` on a branch of a lake. `branch_levels` are the levels before, which name the branch.

    `ref` empty: they name no branch. `lake` empty: they do not name a lake either.
    """

    lake: str
    ref: str
    levels: Levels
    branch_levels: Levels

    @property
    def warehouse(self) -> str:
        """The lake or branch as the ordinary prefix names it."""
        return self.lake if self.ref == MAIN else f"{self.lake}@{self.ref}"


def find_base(lakes: Collection[str], text: str) -> BaseRef | None:
    """Return what `lake`, `lake.branch` or `lake/branch` names; a name may have dots, so the longest lake counts. None: no lake here."""
    for lake in sorted(lakes, key=len, reverse=True):
        if text == lake:
            return BaseRef(lake)
        if text.startswith((f"{lake}.", f"{lake}/")) and len(text) > len(lake) + 1:
            return BaseRef(lake, text[len(lake) + 1 :])
    return None


def locate(lakes: Collection[str], base: BaseRef, levels: Levels) -> BranchNamespace:
    """Return what a namespace means. Raises: NoSuchNamespace: several lakes are served, and it names none of them."""
    lake, ref, rest = base.lake, base.ref, levels
    if not lake and rest and rest[0] in lakes:
        lake, rest = rest[0], rest[1:]
    elif not lake and len(lakes) == 1:
        [lake] = lakes
    elif not lake and rest:
        raise NoSuchNamespace(
            f"Namespace does not exist: {'.'.join(levels)!r}. Its first level has to be a lake: {', '.join(sorted(lakes))}."
        )
    if lake and not ref and rest:
        ref, rest = rest[0], rest[1:]
    return BranchNamespace(lake, ref, rest, levels[: len(levels) - len(rest)])


Answer = Callable[[Any], Any]
"""Returns the JSON to answer with, from the JSON of an ordinary answer that is no error; None: no body, 204."""


@dataclass(frozen=True, slots=True)
class OrdinaryRequest:
    """An ordinary request instead of a client's. None: as the client sent it. `answer` None: its answer is passed on as it is."""

    path: str
    method: str | None = None
    query: bytes | None = None
    body: Any = None
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class AddressedRequest:
    """A request below the prefix `lakefs`. `read_body` decodes its body."""

    operation: Operation
    parts: Sequence[str]
    query: bytes
    read_body: Callable[[], object]


class Rewriter:
    """Rewrites the requests of one address."""

    def __init__(self, lakes: Collection[str], base: BaseRef) -> None:
        self._lakes = lakes
        self._base = base

    def rewrite(self, request: AddressedRequest) -> OrdinaryRequest:
        """Return the ordinary request. Raises: BadRequest, NoSuchNamespace, NoSuchTable, NoSuchView, NoSuchFunction."""
        name = request.operation.name
        if name == "listNamespaces":
            return self._list_namespaces(request)
        if name == "createNamespace":
            return self._create_namespace(request)
        if name in ("renameTable", "renameView", "commitTransaction"):
            return self._rewrite_identifiers(request)
        if name == DUCKLAKE.name:
            namespace = self._locate(())
            return OrdinaryRequest(replace_parts(request.parts, namespace.lake if not namespace.ref else namespace.warehouse))
        namespace = self._locate(split_levels(decode_segment(request.parts[NAMESPACE_PART], "namespace")))
        if not namespace.levels:
            return self._answer_branch(request, namespace)
        path, body = replace_parts(request.parts, namespace.warehouse, namespace.levels), None
        if namespace.branch_levels and name in BODIES_WITH_NAMES:
            body = self._strip_body(request.read_body(), namespace)
        named = ANSWERS_WITH_NAMES.get(name) if namespace.branch_levels else None
        return OrdinaryRequest(path, body=body, answer=None if named is None else prefix_answer(named, namespace.branch_levels))

    def _locate(self, levels: Levels) -> BranchNamespace:
        return locate(self._lakes, self._base, levels)

    def _list_namespaces(self, request: AddressedRequest) -> OrdinaryRequest:
        pairs = parse_qsl(request.query.decode("latin-1"), keep_blank_values=True)
        parent = next((text for key, text in pairs if key == "parent"), "")
        namespace = self._locate(split_levels(parent) if parent else ())
        if namespace.ref:
            others = [(key, text) for key, text in pairs if key != "parent"]
            inner = [("parent", "\x1f".join(namespace.levels))] if namespace.levels else []
            answer = prefix_answer(prefix_namespaces, namespace.branch_levels) if namespace.branch_levels else None
            return OrdinaryRequest(
                replace_parts(request.parts, namespace.warehouse), query=urlencode([*others, *inner]).encode(), answer=answer
            )
        return OrdinaryRequest(*format_members(namespace), query=b"", answer=list_members(namespace))

    def _create_namespace(self, request: AddressedRequest) -> OrdinaryRequest:
        body = as_object(request.read_body(), WHAT)
        levels = read_levels(body.get("namespace"))
        if not levels:
            raise BadRequest("Cannot create a namespace without levels; name the branch and the namespace.")
        namespace = self._locate(levels)
        if not namespace.levels:
            return OrdinaryRequest(*format_probe(namespace), query=b"", answer=refuse_member)
        path = replace_parts(request.parts, namespace.warehouse)
        answer = prefix_answer(prefix_namespace, namespace.branch_levels) if namespace.branch_levels else None
        return OrdinaryRequest(path, body={**body, "namespace": list(namespace.levels)}, answer=answer)

    def _rewrite_identifiers(self, request: AddressedRequest) -> OrdinaryRequest:
        """Rewrite a request whose body alone names tables. All of them are on one branch."""
        body, warehouses = as_object(request.read_body(), WHAT), dict[str, None]()

        def strip(identifier: object) -> dict[str, object]:
            node = as_object(identifier, WHAT)
            namespace = self._locate(read_levels(node.get("namespace")))
            if not namespace.levels:
                raise BadRequest(
                    f"The namespace {'.'.join(namespace.branch_levels)!r} is a branch, which has no tables itself: name a namespace of it."
                )
            warehouses[namespace.warehouse] = None
            return {**node, "namespace": list(namespace.levels)}

        if request.operation.name == "commitTransaction":
            changes = [as_object(change, WHAT) for change in as_list(body.get("table-changes"), WHAT)]
            node = {**body, "table-changes": [{**change, "identifier": strip(change.get("identifier"))} for change in changes]}
        else:
            node = {**body, "source": strip(body.get("source")), "destination": strip(body.get("destination"))}
        if len(warehouses) > 1:
            raise BadRequest("The request names tables on several branches; one request changes one branch. Merge branches instead.")
        return OrdinaryRequest(replace_parts(request.parts, next(iter(warehouses), self._locate(()).lake)), body=node)

    def _strip_body(self, body: object, namespace: BranchNamespace) -> Any:
        """Return a body without the branch in its names: the identifier of a commit, and the default namespace of a view's versions."""
        node = dict(as_object(body, WHAT))
        if node.get("identifier") is not None:
            identifier = as_object(node["identifier"], WHAT)
            node["identifier"] = {**identifier, "namespace": self._strip_levels(identifier.get("namespace"), namespace)}
        if node.get("view-version") is not None:
            node["view-version"] = self._strip_version(node["view-version"], namespace)
        if isinstance(node.get("updates"), list):
            updates = [as_object(update, WHAT) for update in as_list(node["updates"], WHAT)]
            node["updates"] = [
                {**update, "view-version": self._strip_version(update["view-version"], namespace)} if "view-version" in update else update
                for update in updates
            ]
        return node

    def _strip_version(self, version: object, namespace: BranchNamespace) -> Mapping[str, object]:
        node = as_object(version, WHAT)
        levels = node.get("default-namespace")
        return {**node, "default-namespace": self._strip_levels(levels, namespace)} if levels else node

    def _strip_levels(self, node: object, namespace: BranchNamespace) -> list[str]:
        found = self._locate(read_levels(node))
        if found.warehouse != namespace.warehouse:
            raise BadRequest(
                f"The body names a namespace on {found.warehouse!r}, and the path one on {namespace.warehouse!r}; name one branch."
            )
        return list(found.levels)

    def _answer_branch(self, request: AddressedRequest, namespace: BranchNamespace) -> OrdinaryRequest:
        """Rewrite a request for a namespace that is a branch or a lake: it is there, and has no tables, views or functions itself."""
        name, shown = request.operation.name, ".".join(namespace.branch_levels)
        if name in ("loadNamespaceMetadata", "namespaceExists"):
            found = None if name == "namespaceExists" else {"namespace": list(namespace.branch_levels), "properties": dict[str, str]()}
            return OrdinaryRequest(*format_probe(namespace), query=b"", answer=lambda _: found)
        if name in ("listTables", "listViews", "listFunctions"):
            return OrdinaryRequest(*format_probe(namespace), query=b"", answer=lambda _: {"identifiers": list[object]()})
        if len(request.parts) > OBJECT_PART:
            missing = MISSING.get(request.parts[OBJECT_PART - 1], NoSuchTable)
            raise missing(f"The namespace {shown!r} is a branch, which has no tables or views itself: name a namespace of it.")
        raise BadRequest(f"The namespace {shown!r} is a branch: name a namespace of it. `duckicelake branch` makes and deletes branches.")


MISSING: Mapping[str, type[CatalogError]] = {"tables": NoSuchTable, "views": NoSuchView, "functions": NoSuchFunction}
BODIES_WITH_NAMES = frozenset({"updateTable", "createView", "replaceView"})


def read_levels(node: object) -> Levels:
    """Return the levels of a namespace in a body. Raises BadRequest for anything else than an array of valid names."""
    levels = as_list(node, "namespace")
    if not all(isinstance(level, str) for level in levels):
        raise BadRequest("Cannot read namespace: a level is no string; send an array of strings")
    return tuple(check_name(level, "namespace") for level in cast("list[str]", levels))


def replace_parts(parts: Sequence[str], warehouse: str, levels: Levels = ()) -> str:
    """Return a path with another prefix, and with other levels if there are any."""
    changed = list(parts)
    changed[PREFIX_PART] = quote(warehouse, safe="")
    if levels:
        changed[NAMESPACE_PART] = ADVERTISED_SEPARATOR.join(quote(level, safe="") for level in levels)
    return "/".join(changed)


def format_probe(namespace: BranchNamespace) -> tuple[str, str]:
    """Return path and method of the request that shows if a branch or a lake is there, and that the caller may see it."""
    return (f"/v1/{quote(namespace.warehouse, safe='')}/namespaces", "GET") if namespace.ref else format_members(namespace)


def format_members(namespace: BranchNamespace) -> tuple[str, str]:
    """Return path and method of the request that lists the branches of a lake, or the lakes."""
    if not namespace.lake:
        return "/management/v1/warehouses", "GET"
    return f"/management/v1/repositories/{quote(namespace.lake, safe='')}/branches", "GET"


def list_members(namespace: BranchNamespace) -> Answer:
    """Return what makes a list of namespaces out of a list of branches, or of lakes."""

    def answer(node: Any) -> Any:
        if namespace.lake:
            names = [MAIN, *(each["name"] for each in node["branches"])]
        else:
            names = [each["name"] for each in node["warehouses"] if each["kind"] == "lake"]
        return {"namespaces": [[*namespace.branch_levels, name] for name in names], "next-page-token": None}

    return answer


def refuse_member(_: Any) -> Any:
    """Refuse to create a namespace that is a branch. Raises: AlreadyExists."""
    raise AlreadyExists("Namespace already exists: it is a branch, or the lake. Name a namespace of it.")


Change = Callable[[dict[str, Any], Levels], None]


def prefix_answer(change: Change, branch_levels: Levels) -> Answer:
    """Return what puts the branch in front of the names of an answer."""

    def answer(node: Any) -> Any:
        change(node, branch_levels)
        return node

    return answer


def prefix_namespaces(node: dict[str, Any], branch_levels: Levels) -> None:
    """Put the branch in front of listed namespaces."""
    node["namespaces"] = [[*branch_levels, *levels] for levels in node["namespaces"]]


def prefix_namespace(node: dict[str, Any], branch_levels: Levels) -> None:
    """Put the branch in front of a namespace."""
    node["namespace"] = [*branch_levels, *node["namespace"]]


def prefix_identifiers(node: dict[str, Any], branch_levels: Levels) -> None:
    """Put the branch in front of the namespaces of listed tables or views."""
    for identifier in node["identifiers"]:
        identifier["namespace"] = [*branch_levels, *identifier["namespace"]]


def prefix_functions(node: dict[str, Any], branch_levels: Levels) -> None:
    """Put the branch in front of listed functions."""
    node["identifiers"] = [[*branch_levels, *levels] for levels in node["identifiers"]]


def prefix_view(node: dict[str, Any], branch_levels: Levels) -> None:
    """Put the branch in front of the default namespaces of a view's versions."""
    for version in node["metadata"]["versions"]:
        if version.get("default-namespace"):
            version["default-namespace"] = [*branch_levels, *version["default-namespace"]]


ANSWERS_WITH_NAMES: Mapping[str, Change] = {
    "loadNamespaceMetadata": prefix_namespace,
    "listTables": prefix_identifiers,
    "listViews": prefix_identifiers,
    "listFunctions": prefix_functions,
    **dict.fromkeys(("loadView", "createView", "replaceView", "registerView"), prefix_view),
}
