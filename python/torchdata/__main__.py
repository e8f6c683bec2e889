"""`python -m torchdata`: inspects running loaders from another process."""

from __future__ import annotations

import argparse
import json
import sys

from torchdata._observe.outside.attaching import NoLoaderError, attach
from torchdata._observe.outside.top import live, print_once
from torchdata._observe.stats.diagnosis import diagnose


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m torchdata", description="Shows running loaders of this user, without changing them."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    top = commands.add_parser("top", help="show processes, pipes, rates, waits and a diagnosis, continuously updated")
    stats = commands.add_parser("stats", help="print the statistics once, as a table or as JSON")
    for command in (top, stats):
        command.add_argument("pid", nargs="?", type=int, help="the process id (default: all loaders of this user)")
    top.add_argument("--interval", type=float, default=1.0, help="seconds between two updates (default: 1)")
    top.add_argument(
        "--once",
        action="store_true",
        help="print one table and exit, which is the default if the output is not a terminal",
    )
    for command in (top, stats):
        command.add_argument("--stacks", action="store_true", help="also print the stack of each process")
    stats.add_argument("--json", action="store_true", help="print one JSON document, a list of loaders")
    return parser


def _as_json(pid: int | None, stacks: bool) -> str:
    loaders = []
    for attached in attach(pid):
        stats = attached.stats()
        loader = {"pid": attached.pid, "command": attached.command, **stats.as_dict(), "verdict": str(diagnose(stats))}
        if stacks:
            loader["stacks"] = [{"process": head, "stack": stack} for head, stack in attached.stacks()]
        loaders.append(loader)
    return json.dumps(loaders, indent=2)


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        if options.command == "stats" and options.json:
            print(_as_json(options.pid, options.stacks))
        elif options.command == "stats" or options.once or not sys.stdout.isatty():
            print_once(options.pid, options.stacks)
        else:
            live(options.pid, options.interval, options.stacks)
    except (NoLoaderError, PermissionError, ProcessLookupError) as error:
        print(f"torchdata: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        print(f"torchdata: {error}", file=sys.stderr)
        print_once(options.pid, options.stacks)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
