"""The catalog's operations: one function for each REST operation, without HTTP and without SQL.

`rest` and `commands` call them on worker threads. This is the only package that uses `lake` and `store` together.
"""
