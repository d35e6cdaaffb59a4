"""Handlers of the operations, a module per kind of object. Each method handles one operation; FastAPI calls it in a thread."""
