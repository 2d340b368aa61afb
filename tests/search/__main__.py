"""python -m tests.search --minutes 10: looks for calls with wrong values."""

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--cases", type=int, default=10**9, help="at most so many")
    parser.add_argument("--seed", type=int, default=None, help="by default the clock's")
    parser.add_argument("--devices", type=int, default=1, help="of the CPU")
    parser.add_argument(
        "--kinds",
        nargs="*",
        default=[],
        choices=["calls", "stacks", "layers", "exports", "meshes"],
        help="by default all but meshes; with more devices, meshes alone",
    )
    parser.add_argument(
        "--skip",
        action="append",
        default=[],
        metavar="EXPRESSION",
        help="of a `case`: those that it is true of are left out",
    )
    args = parser.parse_args()
    if args.devices > 1:
        flag = f"--xla_force_host_platform_device_count={args.devices}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"
        args.kinds = args.kinds or ["meshes"]
    from . import draw
    from .search import search

    seed = int(time.time()) if args.seed is None else args.seed
    found = search(
        seconds=60 * args.minutes,
        cases=args.cases,
        seed=seed,
        skip=args.skip,
        kinds=[getattr(draw, kind) for kind in args.kinds],
    )
    sys.exit(bool(found))


main()
