"""What stands before FastAPI, each layer an ASGI application around the next."""
