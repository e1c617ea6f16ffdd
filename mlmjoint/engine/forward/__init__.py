"""Through the transformer: many sentences that differ in one token."""
