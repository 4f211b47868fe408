"""Reports over a run."""
