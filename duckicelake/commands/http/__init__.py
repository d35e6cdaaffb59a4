"""The server's own end of HTTP: its process and workers, and what a connection may take of them."""
