"""The job `ingest`: files, or rows of a database, into a table, each once, with every row either in the table or in its quarantine.

Reading order: options (what is asked) · target (the table's shape, as SQL) · evolution (columns of files against columns of the table) ·
sources (which files or rows, and how they are read) · rows (good ones, bad ones) · making (the plan, what is missing) · staging (on
branches) · writing, merging, versions (what each mode writes) · quarantine (where bad rows stand) · rebasing, publishing (all at once) ·
job · report.
"""
