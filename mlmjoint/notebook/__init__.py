"""What a chapter imports: it records numbers, shows figures and tables."""

from .chapter import Chapter, print_sheet, show_sheet

__all__ = ["Chapter", "print_sheet", "show_sheet"]
