"""The Iceberg REST API: routes, parameters, bodies, error mapping, ETags and the cache of complete responses.

`application.build_web` puts it together. A request passes the ASGI layers (`layers`, `auth.authentication`), which run on the event
loop: request id and log line, token, body, branch, routes to other catalogs, cached table loads. Then FastAPI decodes the path (`params`)
and the body (`request_bodies`) and calls a method of a module in `routes`: in Starlette's thread pool, or on the event loop if the method
waits for turns. That method calls one operation of `catalog` on a thread, and `errors` maps what the operation raises to a status. This
package runs no SQL and opens no object; `auth/oidc` asks issuers for their keys, and other catalogs are asked by `gateway`.
"""
