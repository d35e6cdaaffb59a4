"""How much each benchmark does: enough for figures, or only enough to see that it works."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Scale:
    """Numbers of requests and items. Curves need three points or more to tell whether they are linear."""

    requests: int
    turns: int
    large_body_snapshots: int
    snapshots: tuple[int, ...]
    files: tuple[int, ...]
    published_files: tuple[int, ...]
    later_snapshots: tuple[int, ...]
    later_inserts: int
    inlined_inserts: int
    commits: int
    pyiceberg_appends: int
    commit_files: tuple[int, ...]
    deleted: tuple[int, ...]
    deleted_from: tuple[int, int]
    job_rows: int
    job_turns: int
    small_files: int
    contention_s: float
    wide_tables: int
    branch_tables: int
    branch_files: tuple[int, ...]
    branch_depth: int
    guarded_files: int
    branches: tuple[int, ...]
    merged_files: tuple[int, ...]
    young_transactions: int


SMALL = Scale(
    400,
    1,
    120,
    (1, 10, 40),
    (10, 100, 400),
    (300, 600),
    (5, 40),
    3,
    20,
    commits=5,
    pyiceberg_appends=3,
    commit_files=(100,),
    deleted=(10, 20),
    deleted_from=(40, 80),
    job_rows=5000,
    job_turns=1,
    small_files=40,
    contention_s=0.2,
    wide_tables=20,
    branch_tables=20,
    branch_files=(10, 100),
    branch_depth=2,
    guarded_files=20,
    branches=(0, 1),
    merged_files=(10,),
    young_transactions=12,
)
USUAL = Scale(
    6000,
    5,
    850,
    (1, 10, 100, 1000),
    (1000, 10_000, 100_000),
    (50_000, 200_000),
    (10, 100, 1000),
    10,
    1000,
    commits=100,
    pyiceberg_appends=50,
    commit_files=(1000, 10_000),
    deleted=(100, 1000),
    deleted_from=(10_000, 100_000),
    job_rows=10_000_000,
    job_turns=3,
    small_files=1000,
    contention_s=6.0,
    wide_tables=2000,
    branch_tables=1000,
    branch_files=(10, 1000, 100_000),
    branch_depth=6,
    guarded_files=1000,
    branches=(0, 1, 3, 10, 50),
    merged_files=(100, 1000, 10_000),
    young_transactions=200,
)
FULL = replace(
    USUAL,
    requests=20_000,
    snapshots=(*USUAL.snapshots, 10_000),
    files=(*USUAL.files, 1_000_000),
    published_files=(200_000, 600_000, 1_000_000),
    later_snapshots=(*USUAL.later_snapshots, 10_000),
    later_inserts=20,
    small_files=10_000,
    contention_s=10.0,
    wide_tables=10_000,
    branch_files=(10, 1000, 100_000, 1_000_000),
)
