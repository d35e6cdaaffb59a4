"""Routes to other Iceberg REST catalogs: the pure rules of what is passed on, and the client that sends it. Also the webhook of events.

`rest/layers/forwarding.py` calls this package on the event loop. `upstream.py` and `authorization.py` use the network there, `webhook.py`
in the thread of `catalog.events`; all other modules are pure. The catalog behind a route is called the upstream.
"""
