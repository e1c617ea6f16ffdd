"""What else a masked language model is used for: scoring, word senses, classification, tagging."""
