"""Copied to where nbval runs: a kernel that dies before it has answered is started once more.

Several kernels start at the same time, and each finds its ports free before it opens them.
"""

from nbval import kernel

start_once = kernel.start_new_kernel


def start(*args, **options):
    try:
        return start_once(*args, **options)
    except RuntimeError:
        return start_once(*args, **options)


kernel.start_new_kernel = start
