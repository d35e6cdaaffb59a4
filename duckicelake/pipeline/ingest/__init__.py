"""The job `ingest`: files into a table, each once, with every row either in the table or in its quarantine.

Reading order: options (what is asked) · target (the table's shape, as SQL) · evolution (columns of files against columns of the table) ·
source (which files, and how they are read) · rows (good ones, bad ones) · staging (on branches) · writing, merging, versions (what each
mode writes) · rebasing, publishing (all at once) · job · report.
"""
