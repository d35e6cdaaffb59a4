"""Authentication and authorization: tokens, clients, grants, roles. No HTTP, no SQL; the caller passes the time.

`rest` authenticates requests with it, `catalog/access_rules.py` turns a lake's grants into its values, and `app` and `gateway` the
settings.
"""
