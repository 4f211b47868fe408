"""Data preparation and import."""
