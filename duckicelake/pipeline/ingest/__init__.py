"""The job `ingest`: files, or rows of a database, into a table. Each file is taken once; each row goes to the table or to its quarantine.

Reading order: options · source (what all sources share) · file_source, file_checks, database_source, database_checks (files and databases)
· schema_evolution (columns of the source against those of the table) · row_checks (good and bad rows, the quarantine) · plan (which columns
come, what is created) · writing, merging (what each mode writes to a branch, and one commit for all tables) · job (one run, or one after
another).
"""
