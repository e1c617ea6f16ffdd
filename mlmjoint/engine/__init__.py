"""Speed and nothing else: the forward pass through a transformer and passes over V x V tables."""
