"""Search spaces and early-stopping presets for Katib. None yet: sweeps are not in this version."""
