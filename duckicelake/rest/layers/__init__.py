"""ASGI layers in front of FastAPI, each of which wraps the next. They run on the event loop."""
