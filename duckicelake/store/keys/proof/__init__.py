"""Proof, on the store itself, that keys open what they are for and nothing else."""
