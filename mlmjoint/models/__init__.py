"""Load a masked language model: by name, from a folder, from the hub, from a wheel."""

from .known import available, catalog, model_card, shipped

__all__ = ["available", "catalog", "model_card", "shipped"]
