"""Proofs: what no plan can go below, by a solver."""
