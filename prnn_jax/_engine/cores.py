"""How many cores this process may use."""

import os


def cores() -> int:
    """Those of its affinity mask, where the system has such."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
