"""A history of a lake and its branches, played: each member has a session of DuckDB, a warehouse, and the moments that it shows."""

from contextlib import ExitStack
from dataclasses import dataclass

from duckicelake.lake.branches.create import BranchRequest, create_branch
from duckicelake.lake.branches.delete import delete_branch
from tests.differential.checks.rows import Answer, check_head, check_rows
from tests.differential.clients.draws.pyiceberg import PYICEBERG
from tests.differential.clients.writer import PyIcebergWriter
from tests.differential.generator.maintenance import CleanUp, ExpireSnapshots
from tests.differential.generator.model import Lake, Moment
from tests.differential.generator.steps import Step
from tests.differential.members.histories import MAIN, Deletion, Fork, RepositoryHistory
from tests.differential.prove import prove_end
from tests.differential.replay import play_step, read_head, set_variables
from tests.differential.sessions import Sessions
from tests.lake.branches.repository import as_lake
from tests.rest.serving import Server
from tests.support.lakes import FreshLake
from tests.support.readers import DuckLakeReader, PyIcebergReader, Served

TIME_ZONE = "UTC"


@dataclass(frozen=True, slots=True)
class Member:
    """The lake or a branch while a history is played."""

    served: Served
    writer: DuckLakeReader
    reader: PyIcebergReader
    moments: list[Moment]
    closing: ExitStack

    def play(self, step: Step) -> None:
        """Play a step; the tables that it touched must read right afterwards."""
        last = self.moments[-1]
        made = play_step(self.writer.conn, step, last, {PYICEBERG: PyIcebergWriter(self.reader.catalog)})
        self.moments.extend(made)
        for table in made[-1].lake.tables.values():
            if table != last.lake.tables.get(table.table_id) or step.is_maintenance:
                check_head(table, self.reader)


@dataclass(frozen=True, slots=True)
class Repository:
    """A served lake with its branches."""

    lake: FreshLake
    server: Server
    sessions: Sessions
    members: dict[str, Member]

    def open(self, name: str, served: Served, before: list[Moment]) -> None:
        """Let a member take part, which shows these moments already."""
        closing = ExitStack()
        writer, reader = closing.enter_context(self.sessions.on_lake(served.lake)), served.pyiceberg()
        set_variables(writer.conn, TIME_ZONE, f"s3://{self.lake.store.bucket}/{self.lake.name}/outside-{name}/")
        last = before[-1].lake if before else Lake()
        moments = [*before, Moment(read_head(writer.conn), last)]
        self.members[name] = Member(served, writer, reader, moments, closing)

    def fork(self, name: str, parent: str) -> None:
        """Make a branch."""
        made = create_branch(self.lake.psycopg(), self.lake.metadata_schema, BranchRequest(name, parent))
        self.open(name, Served(as_lake(self.lake, made), self.server, f"lake@{name}"), self.members[parent].moments)

    def delete(self, name: str) -> None:
        """Delete a branch, whose session has ended."""
        self.members.pop(name).closing.close()
        assert delete_branch(self.lake.psycopg(), self.lake.metadata_schema, name)

    def prove(self, history: RepositoryHistory) -> None:
        """Fail unless each member shows its own rows in every state that it has, in sessions of their own."""
        for name, member in self.members.items():
            try:
                prove_end(member.served, history.vector_tables, member.moments, self.sessions)
            except AssertionError as error:
                error.add_note(f"member: {name}")
                raise


def prove_repository(lake: FreshLake, server: Server, history: RepositoryHistory, sessions: Sessions) -> None:
    """Play a history and prove all members; then delete all branches, remove what no snapshot needs, and prove the lake again."""
    repository = Repository(lake, server, sessions, {})
    repository.open(MAIN, Served(lake, server), [])
    for event in history.events:
        match event:
            case Fork(name, parent):
                repository.fork(name, parent)
            case Deletion(name):
                repository.delete(name)
            case _:
                repository.members[event.member].play(event.step)
    repository.prove(history)
    for name in [name for name in repository.members if name != MAIN]:
        repository.delete(name)
    main = repository.members[MAIN]
    main.closing.close()
    with sessions.on_lake(lake) as session:
        # No merge: DuckDB cannot put together the files of some of these tables.
        for statement in (ExpireSnapshots().sql(Lake()), CleanUp().sql(Lake())):
            session.conn.execute(statement)
    with sessions.on_lake(lake) as session:
        for table in main.moments[-1].lake.tables.values():
            check_head(table, main.reader)
            answer = Answer(session, f"{table.ident} without branches", session.read(table.ident), table.may_be_wide)
            check_rows(table.plain_rows(), table.columns, answer)
