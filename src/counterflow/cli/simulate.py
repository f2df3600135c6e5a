"""`counterflow simulate`: the protocols under many schedules; a failure says how to see it again."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import typer

from counterflow.cli.terminal import notes
from counterflow.cores import usable_cores
from counterflow.errors import OptionError
from counterflow.suggest import did_you_mean

SCHEDULES = 10_000
SEED_MAX = 2**63 - 1
SHOWN = 3  # failures
MOVES_SHOWN = 200


def simulate(
    algorithm: Annotated[str, typer.Option(help="kang, celljoin, handshake, llhj, dpjoin, scalejoin, or all.")] = "all",
    schedules: Annotated[int, typer.Option(min=1, max=10**9, help="How many runs, over all algorithms.")] = SCHEDULES,
    nodes: Annotated[int | None, typer.Option(min=1, max=16, help="Nodes of each case (default: 1 to 16).")] = None,
    seed: Annotated[int, typer.Option(min=0, max=SEED_MAX, help="Decides the cases and their schedules.")] = 0,
    processes: Annotated[int | None, typer.Option(min=1, max=256, help="Default: one for each core.")] = None,
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help="All interleavings of small cases instead.")] = False,
    case: Annotated[
        int | None, typer.Option(min=0, max=SEED_MAX, help="One case, with --schedule and --algorithm.")
    ] = None,
    schedule: Annotated[str | None, typer.Option(help="Its schedule, as in starve:5.", metavar="KIND:SEED")] = None,
    list_checks: Annotated[bool, typer.Option("--list-checks", help="What is checked, and what schedules do.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run the protocols under schedules that chance or malice decides, and check every result."""
    one, many = case is not None or schedule is not None, (SCHEDULES, None, 0, None)
    used = {"--list-checks": list_checks, "--exhaustive": exhaustive, "--case and --schedule": one}
    if sum(used.values()) > 1:
        raise OptionError(f"{' and '.join(name for name, given in used.items() if given)}: one of them at a time")
    if any(used.values()) and (schedules, None if one else nodes, seed, processes) != many:
        chosen = next(name for name, given in used.items() if given)
        raise OptionError(f"{chosen} leaves nothing to --schedules, --nodes, --seed or --processes: leave them out")
    if list_checks and algorithm != "all":
        raise OptionError("--list-checks is the same for each algorithm: leave --algorithm out")
    if list_checks:
        _list_checks(as_json)
    elif case is not None or schedule is not None:
        _run_one(_algorithms(algorithm), nodes, case, schedule, as_json)
    elif exhaustive:
        _explore(algorithm, as_json)
    else:
        _run_many(_algorithms(algorithm), schedules, nodes, seed, processes or len(usable_cores()), as_json)


def _algorithms(name: str) -> tuple[str, ...]:
    from counterflow.protocols.registry import NAMES

    if name != "all" and name not in NAMES:
        raise OptionError(f"--algorithm {name!r}{did_you_mean(name, (*NAMES, 'all'))}")
    return NAMES if name == "all" else (name,)


def _list_checks(as_json: bool) -> None:
    from counterflow.lab.simulator import run_words as s
    from counterflow.lab.simulator import schedules

    if as_json:
        typer.echo(json.dumps({"failures": list(s.MEANINGS.values()), "schedules": schedules.MEANINGS}))
        return
    typer.echo("Failures:\n" + "\n".join(f"  {text}" for text in s.MEANINGS.values()))
    typer.echo("Schedules:\n" + "\n".join(f"  {kind}: {text}" for kind, text in schedules.MEANINGS.items()))


def _run_many(
    algorithms: tuple[str, ...], schedules: int, nodes: int | None, seed: int, processes: int, as_json: bool
) -> None:
    from counterflow.lab.simulator.campaign import run_many

    with notes.status("starting") as status:
        report = run_many(algorithms, schedules, nodes, seed, processes, status.update)
    failures = report["failures"]
    if as_json:
        report["failures"] = [{"detail": f.detail, "command": f.command} for f in failures]
        typer.echo(json.dumps(report))
    else:
        typer.echo(
            f"{report['schedules']:,} schedules of {report['cases']:,} cases, {report['moves']:,} moves in "
            f"{report['seconds']:.1f} s on {processes} processes: "
            + (f"{len(failures)} failures" if failures else "every pair once, nothing too late, nobody stuck")
        )
    for failure in failures[:SHOWN]:
        notes.print(f"\n[bold red]{failure.detail}[/]\n  {failure.case}\n  schedule {failure.schedule}; again with:")
        notes.print(f"  {failure.command}", markup=False, soft_wrap=True)
    if failures:
        raise typer.Exit(1)


def _explore(algorithm: str, as_json: bool) -> None:
    from counterflow.lab.simulator.campaign import explore_all
    from counterflow.lab.simulator.exhaustive import ALGORITHMS

    if algorithm != "all" and algorithm not in ALGORITHMS:
        raise OptionError(f"--exhaustive is for {', '.join(ALGORITHMS)}, not {algorithm!r}")
    with notes.status("starting") as status:
        rows = explore_all(ALGORITHMS if algorithm == "all" else (algorithm,), status.update)
    if as_json:
        typer.echo(json.dumps({"results": rows}))
    for row in rows if not as_json else []:
        typer.echo(
            f"{row['algorithm']}: {row['tuples'][0]} + {row['tuples'][1]} tuples on {row['nodes']} nodes, "
            + ("{} + {} sources, ".format(*row["sources"]) if any(row["sources"]) else "")
            + f"window {row['window']}, "
            f"{row['states']:,} states, {row['ends']:,} ends, {row['moves']:,} moves in {row['seconds']:.1f} s: "
            + (row["failure"] or "every pair once at every end")
        )
    if not all(row["verified"] for row in rows):
        raise typer.Exit(1)


def _run_one(algorithms: tuple[str, ...], nodes: int | None, case: int | None, text: str | None, as_json: bool) -> None:
    from counterflow.lab.simulator.cases import random_case
    from counterflow.lab.simulator.schedules import KINDS
    from counterflow.lab.simulator.shrink import shrink
    from counterflow.lab.simulator.simulation import Schedule, Simulation

    if case is None or text is None or len(algorithms) > 1:
        raise OptionError("one run needs --algorithm, --case and --schedule")
    kind, _, seed = text.rpartition(":")
    if kind not in KINDS or not re.fullmatch("[0-9]{1,18}", seed):
        raise OptionError(f"--schedule {text!r}: write KIND:SEED, as in starve:5; kinds are {', '.join(KINDS)}")
    simulation = Simulation(random_case(case, algorithms, nodes))
    outcome = simulation.run(Schedule(kind, int(seed)))
    report: dict[str, Any] = {
        "case": vars(simulation.case),
        "schedule": text,
        "moves": outcome.choices,
        "pairs": outcome.pairs,
        "failure": outcome.detail,
    }
    if not as_json:
        typer.echo(f"{simulation.case}\nschedule {text}: {outcome.choices:,} moves, {outcome.pairs:,} pairs")
        typer.echo(outcome.detail or "every pair once, nothing too late, nobody stuck")
    if not outcome.ok:
        with notes.status("making it small"):
            small = shrink(simulation.case, outcome)
        report["smaller"] = {"case": vars(small.case), "moves": small.moves}
        if not as_json:
            typer.echo(f"\nThe same with fewer tuples and moves:\n{small.case}")
            typer.echo("\n".join(f"  {line}" for line in small.moves[-MOVES_SHOWN:]))
    if as_json:
        typer.echo(json.dumps(report, default=str))  # a window may be an object
    if not outcome.ok:
        raise typer.Exit(1)
