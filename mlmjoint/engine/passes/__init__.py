"""Streaming passes over two V x V tables of conditionals."""
