"""Drivers of experiments that are not studies of pairs; each writes results/full/runs/NAME.json."""
