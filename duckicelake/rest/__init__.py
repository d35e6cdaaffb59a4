"""The Iceberg REST API: routes, parameters, bodies, error mapping, ETags and the cache of complete responses.

`application.build_web` puts it together. A request passes the ASGI layers (`layers`, `auth.authentication`), which run on the event
loop: request id and log line, token, cached table loads, size of the body. Then FastAPI decodes the path (`params`) and the body
(`request_bodies`) and calls a method of a module in `routes`, in Starlette's thread pool. That method calls one operation of `catalog`,
and `errors` maps what the operation raises to a status. This package runs no SQL and opens no object.
"""
