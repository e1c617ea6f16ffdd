"""Load a masked language model: by name, from a folder, from the hub, from a wheel."""
