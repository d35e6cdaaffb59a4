"""Who asks, and whether they may: the guard before the routes, and one table of what each operation needs."""
