"""The controllers of a LocalCluster: one module a kind, processes of their own, pods as processes."""
