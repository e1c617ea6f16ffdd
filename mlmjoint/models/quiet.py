"""Silence transformers' log lines and progress bars while a model is read or written."""

from __future__ import annotations

import contextlib
import warnings


@contextlib.contextmanager
def quiet():
    """Within this block only errors are heard; the caller's verbosity comes back afterwards."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
