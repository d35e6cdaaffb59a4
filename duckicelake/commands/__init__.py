"""THE PORCH: what each command of `duckicelake` does; `cli.py` only reads the arguments.

Reading order: embedded (settings + home) · prepare (a lake ready to serve) · facts and snippets (how to connect) ·
logs · http · serve · backends · check · smoke · shell.
"""
