"""Which of how many processes of a run this one is."""

from __future__ import annotations

import os
from typing import NamedTuple

import torch


class Process(NamedTuple):
    """One process of a run.

    Attributes:
        rank: Its number, from 0.
        world_size: How many there are.
    """

    rank: int
    world_size: int


def this_process() -> Process:
    """Ask torch.distributed; without a process group, what torchrun says in the environment.

    A file that is written before the group is made, or after it is destroyed, so has the same name
    as one that is written in between.
    """
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return Process(distributed.get_rank(), distributed.get_world_size())
    return _from_environment() or Process(0, 1)


def _from_environment() -> Process | None:
    rank, world_size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if not (rank.isdecimal() and world_size.isdecimal() and int(rank) < int(world_size)):
        return None
    return Process(int(rank), int(world_size))
