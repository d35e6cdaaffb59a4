"""The catalog's operations: one function for each REST operation, without HTTP and without SQL.

`rest` calls them on worker threads, commands in their own process. `app` starts threads for the audit log, the webhook and the object
monitor. This is the only package that uses `lake` and `store` together.
"""
