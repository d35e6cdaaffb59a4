"""Routes to other Iceberg REST catalogs: the pure rules of what is passed on, and the client that sends it.

`rest/layers/forwarding.py` calls this package on the event loop. `upstream.py` and `authorization.py` use the network; all other modules
are pure. The catalog behind a route is called the upstream.
"""
