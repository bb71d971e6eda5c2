"""Plan for the nodes of a hostfile, and say what stands where; starts nothing.

    python examples/hostfile.py hostfile --between-nodes ib-400

A hostfile is DeepSpeed's: a line ``NAME slots=8`` for each node. Printed last is the
command that would start the training.
"""

from __future__ import annotations

import argparse

from deepspeed.launcher.runner import fetch_hostfile
from gpt2_train import build_model, example_inputs

from partitioner import Plan, partition


def plan_for(slots: int, nodes: int, between_nodes: str, replicas: int) -> Plan:
    """Cut GPT-2 for so many devices, with the cheap cuts between the nodes."""
    return partition(
        build_model(),
        slots * nodes // replicas,
        example_inputs=example_inputs,
        device="h100",
        cluster={
            "devices_per_node": slots,
            "between_nodes": between_nodes,
            "replicas": replicas,
        },
    )


def main() -> None:
    """Read the hostfile, plan, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hostfile")
    parser.add_argument("--between-nodes", default="ib-400")
    parser.add_argument("--replicas", type=int, default=1)
    options = parser.parse_args()

    hosts = fetch_hostfile(options.hostfile)
    if not hosts:
        parser.error(f"{options.hostfile}: there is no such file, or no node in it")
    slots = set(hosts.values())
    if len(slots) > 1:
        parser.error(f"nodes of unequal size: {dict(hosts)}")
    (each,) = slots
    devices = each * len(hosts)
    if options.replicas < 1 or devices % options.replicas:
        parser.error(f"{options.replicas} replicas cannot share {devices} devices")
    plan = plan_for(each, len(hosts), options.between_nodes, options.replicas)

    names = list(hosts)
    for stage in plan.stages:
        first = stage.index * options.replicas  # ranks of one stage are neighbours
        ranks = range(first, first + options.replicas)
        places = sorted({names[rank // each] for rank in ranks})
        modules = f"{stage.modules[0]} … {stage.modules[-1]}"
        print(f"stage {stage.index} on {', '.join(places)}: {modules}")
    for boundary in plan.to_dict()["boundaries"]:
        if boundary["between_nodes"]:
            sent = sum(value["bytes"] for value in boundary["values"])
            after = boundary["after_stage"]
            print(f"over the network after stage {after}: {sent / 1024:.0f} KiB")
    print(f"deepspeed --hostfile {options.hostfile} train.py")


if __name__ == "__main__":
    main()
