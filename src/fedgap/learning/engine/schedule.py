"""Decide which clients share a pass (one forward and backward computation) through the model."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Chunk:
    """The jobs of one pass: G pruned models, each applied to the batches of the same number of clients.

    ``groups[g]`` are the jobs of model g: clients of one run with the same mask and batch size. Groups are ordered by
    run."""

    groups: tuple[tuple[int, ...], ...]

    @property
    def jobs(self) -> list[int]:
        """The numbers of all jobs, group after group."""
        return [job for group in self.groups for job in group]


def schedule(run: Sequence[int], keeps: Sequence[int], batch_sizes: Sequence[int], *, fuse: bool, uniform: bool,
             samples: int, models: int) -> list[Chunk]:
    """Divide the jobs of a round into chunks of at most ``samples`` samples and ``models`` models.

    With ``fuse``, jobs with equal run, mask and batch size share one model; otherwise each job has its own. With
    ``uniform`` (for devices on which launching a pass costs more than its arithmetic) no models are shared if the
    groups would differ in size."""
    chunks = []
    for batch in sorted(set(batch_sizes)):
        jobs = sorted((j for j in range(len(run)) if batch_sizes[j] == batch), key=lambda j: run[j])
        most = max(1, samples // batch)
        own = [(job,) for job in jobs]
        groups = _groups(jobs, run, keeps, most) if fuse else own
        if uniform and len({len(group) for group in groups}) > 1:
            groups = own
        by_size = defaultdict(list)
        for group in groups:
            by_size[len(group)].append(group)
        for size, same in sorted(by_size.items()):
            stride = max(1, min(models, most // size))
            chunks += [Chunk(tuple(same[i : i + stride])) for i in range(0, len(same), stride)]
    return chunks


def _groups(jobs: list[int], run: Sequence[int], keeps: Sequence[int], most: int) -> list[tuple[int, ...]]:
    together = defaultdict(list)
    for job in jobs:
        together[run[job], keeps[job]].append(job)
    return [tuple(members[i : i + most]) for members in together.values() for i in range(0, len(members), most)]
