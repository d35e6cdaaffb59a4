"""Handlers of the operations, a module per kind of object. FastAPI calls a method in a thread, an async one on the event loop."""
