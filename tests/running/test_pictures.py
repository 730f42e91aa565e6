"""The picture of who has what can be drawn for any number of clients and classes."""

import numpy as np
import pytest

from fedgap.running.pictures import draw_partitions


@pytest.mark.parametrize(("clients", "classes", "ending"), [(10, 10, "png"), (1, 2, "svg"), (40, 30, "pdf")])
def test_a_picture_is_drawn(tmp_path, clients, classes, ending):
    counts = np.random.default_rng(0).integers(0, 50, (clients, classes))
    path = tmp_path / "pictures" / f"who.{ending}"
    draw_partitions([("σ = 1", counts, np.linspace(1, 3, clients)), ("σ = 5", counts, None)], path)
    assert path.stat().st_size > 1000
