"""What DuckDB users without a right on the lake read it by: views of what each of them may read, and a Postgres role for each."""
