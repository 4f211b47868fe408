"""Kinds of work, one pure module each: build a manifest, find its problems, read a snapshot."""
