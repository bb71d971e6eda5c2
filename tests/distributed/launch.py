"""Run a function in several processes of one gloo group.

The processes are forked from a server that has imported torch and DeepSpeed
once, so a launch costs a fraction of a second after the first.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

__all__ = ["LaunchError", "launch"]

_PRELOAD = ["torch", "deepspeed", "tests.distributed.preload"]


class LaunchError(AssertionError):
    """A rank raised, died or did not come back in time."""


def launch(
    world_size: int,
    function: Callable[..., Any],
    *arguments: Any,
    timeout_s: float = 120.0,
) -> list[Any]:
    """Call ``function(*arguments)`` on every rank; return the results by rank.

    Inside, the environment is what a launcher would set (RANK, LOCAL_RANK,
    WORLD_SIZE, MASTER_ADDR, MASTER_PORT) and the gloo group is up.

    Args:
        world_size: Number of processes.
        function: Importable by name; runs the cases one after the other.
        arguments: What pickle can hold.
        timeout_s: After this all processes are killed.

    Raises:
        LaunchError: With the traceback of the first rank that failed.
    """
    os.environ.update(
        DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1", TORCHINDUCTOR_COMPILE_THREADS="1"
    )
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    port = _free_port()
    processes, readers = [], {}
    for rank in range(world_size):
        reader, writer = context.Pipe(duplex=False)
        process = context.Process(
            target=_run_rank,
            args=(rank, world_size, port, writer, function, arguments),
            daemon=True,
        )
        process.start()
        writer.close()
        processes.append(process)
        readers[reader] = rank
    try:
        return _collect(readers, world_size, time.monotonic() + timeout_s)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def _collect(
    readers: dict[Connection, int], world_size: int, deadline: float
) -> list[Any]:
    results: dict[int, Any] = {}
    while readers:
        ready = wait(list(readers), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            missing = sorted(readers.values())
            raise LaunchError(f"ranks {missing} of {world_size} did not come back")
        for reader in ready:
            assert isinstance(reader, Connection)
            rank = readers.pop(reader)
            try:
                failed, payload = pickle.loads(reader.recv_bytes())
            except EOFError:
                raise LaunchError(f"rank {rank} died without a word") from None
            if failed:
                raise LaunchError(f"rank {rank} failed:\n{payload}")
            results[rank] = payload
    return [results[rank] for rank in range(world_size)]


def _run_rank(  # noqa: PLR0917 - Process passes them by position
    rank: int,
    world_size: int,
    port: int,
    writer: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    # A test may die: its ranks must not outlive it.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.stdout = io.StringIO()
    try:
        result = (False, _in_group(function, arguments))
        message = pickle.dumps(result)
    except BaseException:
        message = pickle.dumps((True, traceback.format_exc()))
    writer.send_bytes(message)
    writer.close()


def _in_group(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    import torch.distributed as dist

    from partitioner.runtime.agreement import ensure_process_group

    ensure_process_group()
    result = function(*arguments)
    if dist.is_initialized():  # a whole script has left its group already
        dist.barrier()
        dist.destroy_process_group()
    return result


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
