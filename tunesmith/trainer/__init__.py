"""What runs inside the training pods: data and model in, a fine-tuned model, its curve and its evaluation out."""
