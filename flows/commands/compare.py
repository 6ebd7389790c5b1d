"""`garden compare`: which cache policy wins on a graph, how far it is from the best there is, what more bytes buy."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from flows.commands.ending import exit_codes
from flows.commands.files import Load, takes_graph
from flows.commands.run import run_flow
from flows.commands.values import EndWithJson, VerifyInputs

EXAMPLES = """
[bold]Examples[/bold]

[green]garden compare demo[/green]: all policies at six budgets; ends with a recommendation

[green]garden compare mine.yaml --budget 0.05 --budget 0.1 --seeds 5[/green]: two budgets, five seeds

[green]garden compare mine.yaml --workload time_order[/green]: seeds as they arrive, where a dynamic cache may pay

[green]garden compare --edges e.csv --features x.npy --labels y.npy[/green]: your own files, as `garden run` takes them

[green]garden run .garden/runs/RUN/recommended.yaml[/green]: train with what was recommended
"""


class Workload(enum.StrEnum):
    """Orders of the seeds."""

    SHUFFLED = "shuffled"
    TIME_ORDER = "time_order"
    MOVING_COMMUNITY = "moving_community"


@takes_graph
def compare(
    load: Load,
    budgets: Annotated[
        list[float] | None,
        typer.Option("--budget", metavar="SHARE", help="Budget as a share of the bytes of all rows and lists; repeat."),
    ] = None,
    policies: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="NAME", show_default="all", help="Policy to compare; repeat."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Seeds to average over.")] = 2,
    workload: Annotated[Workload, typer.Option(help="Order of the seeds.")] = Workload.SHUFFLED,
    verify_inputs: VerifyInputs = False,
    as_json: EndWithJson = False,
) -> None:
    """Compare cache policies on a graph, at equal bytes, and recommend a configuration.

    Training accesses are recorded once and replayed against every policy: hit rates are exact, no GPU is needed.
    MLflow holds a run for each policy, a table, and four pictures: hit rate against bytes with the bounds, what another
    gigabyte buys, hit rate against profiling epochs, and the split of the budget. The last line says what to do, and
    recommended.yaml in the run's folder does it.
    """
    with exit_codes("stopped before the end; run the same command again to go on"):
        from conf.load import validate_comparison
        from tasks.compare import check_policies

        loaded = load()
        given = {"seeds": seeds, "workload": workload.value, "policies": tuple(policies or ())}
        asked = validate_comparison(given | ({"budgets": tuple(budgets)} if budgets else {}))
        check_policies(asked.policies)
        run_flow(loaded, "compare_policies", trains=False, as_json=as_json, compare=asked, verify_inputs=verify_inputs)
