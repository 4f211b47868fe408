"""Deployment and its checks."""
