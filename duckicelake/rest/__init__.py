"""THE DOOR: the Iceberg REST protocol in front of the catalog's verbs.

A request passes the `layers` (its id and log line, the ready answers, the size of its body, its raw path), and only
then FastAPI: `params` decode, `routes` call a verb of `catalog`, `errors` say what went wrong. `web` puts them together.
"""
