"""Long campaigns of faults against the real command, from a printed seed: `python -m tests.campaigns <name>`."""

from __future__ import annotations

import argparse
import random
import sys

from tests.campaigns.kills import kills
from tests.campaigns.soak import soak
from tests.campaigns.started import say
from tests.campaigns.storms import storms


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaigns", description=(__doc__ or "").split(":")[0]
    )
    parser.add_argument("campaign", choices=["kills", "kills-lockstep", "storms", "soak"])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="of storms and kills: to have one of them again")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--opt-steps", type=int, default=3000)
    parser.add_argument("--minutes", type=int, default=30)
    args = parser.parse_args()
    say(f"{args.campaign}, seed {args.seed}")
    match args.campaign:
        case "soak":
            failed = soak(args.minutes)
        case "storms":
            failed = storms(args.runs, args.seed, args.first)
        case kind:
            failed = kills(args.runs, args.seed, kind == "kills-lockstep", args.opt_steps, args.first)
    say(f"{args.campaign}: {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
