"""Bodies of the operations that manage who may do what."""

from duckicelake.access.policy import PRIVILEGES
from duckicelake.rest.openapi.shapes import FLAG, NAME, array_of, object_of, one_of

ROLE = object_of({"name": NAME})
PRINCIPAL = object_of({"name": NAME}, {"has-secret": FLAG})
GRANT = object_of({"privileges": array_of(one_of(list(PRIVILEGES))), "on": NAME, "to": NAME})
