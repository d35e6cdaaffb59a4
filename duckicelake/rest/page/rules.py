"""Bodies of the operations that manage who may do what."""

from duckicelake.access.policy import PRIVILEGES
from duckicelake.rest.page.shapes import FLAG, NAME, an_array, an_object, one_of

NAMED = an_object({"name": NAME})
PRINCIPAL = an_object({"name": NAME}, {"has-secret": FLAG})
GIVEN = an_object({"privileges": an_array(one_of(list(PRIVILEGES))), "on": NAME, "to": NAME})
