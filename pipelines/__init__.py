"""Reference pipelines, one folder each."""
