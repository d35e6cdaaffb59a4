"""How a REST catalog is asked: who asks, and what a refusal means."""
