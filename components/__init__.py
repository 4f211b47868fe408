"""Reusable KFP components, one folder each: data, training, evaluation, serving, governance."""
