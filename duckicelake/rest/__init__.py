"""THE DOOR: the Iceberg REST protocol in front of the catalog's verbs.

A request passes `front` (its id, its log line, its metrics) and `hot` (ready-made answers), and only then
`paths` and FastAPI: `params` decode, `routes` call a verb of `catalog`, `errors` say what went wrong.
"""
