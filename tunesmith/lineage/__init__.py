"""Lineage: digests of what a step read and wrote, the record of a step, and the check of a whole run."""
