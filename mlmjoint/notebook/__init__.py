"""What a chapter imports: recording its numbers, running it, checking them."""
