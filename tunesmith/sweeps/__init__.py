"""Early-stopping rules and reporting of sweeps."""
