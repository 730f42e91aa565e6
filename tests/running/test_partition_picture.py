"""The picture of who has what can be drawn for any number of clients and classes."""

import re

import numpy as np
import pytest

from fedgap.running.partition_picture import PicturedPartition, draw_partitions


@pytest.mark.parametrize(("clients", "classes", "ending"), [(10, 10, "png"), (1, 2, "svg"),
                                                            pytest.param(40, 30, "pdf", marks=pytest.mark.full)])
def test_a_picture_is_drawn(tmp_path, clients, classes, ending):
    counts = np.random.default_rng(0).integers(0, 50, (clients, classes))
    path = tmp_path / "pictures" / f"who.{ending}"
    names = [f"pump-{n}" for n in range(clients)]
    draw_partitions([PicturedPartition("σ = 1", counts, np.linspace(1, 30, clients), names),
                     PicturedPartition("σ = 5", counts)], path)
    assert path.stat().st_size > 1000


def test_four_partitions_are_two_rows_and_of_five_the_last_fills_its_row(tmp_path):
    counts = np.full((4, 3), 10)
    shapes = []
    for panels in (2, 4, 5):
        path = tmp_path / f"{panels}.svg"
        draw_partitions([PicturedPartition(f"σ = {i}", counts, np.ones(4)) for i in range(panels)], path)
        width, height = re.search(r'width="([\d.]+)pt" height="([\d.]+)pt"', path.read_text(encoding="utf-8")).groups()
        shapes.append((float(width), float(height)))
    assert shapes[0][0] == shapes[1][0] == shapes[2][0]
    assert shapes[0][1] < shapes[1][1] < shapes[2][1]
