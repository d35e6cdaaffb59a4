"""Laws are checked on a machine that does other work too: an example may take its time."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
