"""Training launchers."""
