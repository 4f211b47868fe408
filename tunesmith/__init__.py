"""tunesmith: Kubeflow Pipelines components that launch, sweep, serve, trace and price LLM fine-tuning."""

__version__ = "0.1.0"
