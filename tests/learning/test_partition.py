"""Partitions: who has what adds up, follows the drawn proportions, and depends on the seed alone."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgap.errors import InputError
from fedgap.learning.partition import KINDS, Partition, partition
from fedgap.streams import stream

LABELS, TEST = np.arange(600) % 5, np.arange(100) % 5
DRAWN = [kind for kind in KINDS if kind != "file"]


def make(**options) -> Partition:
    return partition(LABELS, TEST, **{"clients": 6, "classes": 5, "seed": 3, **options})


@settings(max_examples=80, deadline=None)
@given(kind=st.sampled_from(DRAWN), sizes=st.sampled_from([None, "equal", "natural"]), seed=st.integers(0, 2**40),
       clients=st.integers(1, 12), concentration=st.sampled_from([0.3, 1.0, 5.0, 100.0]),
       target=st.sampled_from(["global", "own"]))
def test_histograms_are_those_of_the_indices_and_sizes_add_up(kind, sizes, seed, clients, concentration, target):
    if kind == "quantity" and sizes == "equal":
        return
    try:
        got = make(kind=kind, sizes=sizes, seed=seed, clients=clients, concentration=concentration, target=target)
    except InputError as error:  # a client may get no sample, or too few to hold some out, where sizes vary
        if sizes == "equal" or not ("no sample" in str(error) or "can be held out" in str(error)):
            raise
        return
    assert len(got.train) == clients
    for n in range(clients):
        assert np.array_equal(np.bincount(LABELS[got.train[n]], minlength=5), got.label_counts[n])
        labels = TEST if target == "global" else LABELS
        assert np.array_equal(np.bincount(labels[got.target[n]], minlength=5), got.target_counts[n])
    total = got.sizes + (got.target_counts.sum(1) if target == "own" else 0)
    assert total.sum() == len(LABELS)
    own_sizes = kind in ("dirichlet_by_class", "quantity")
    if sizes == "equal" or (sizes is None and not own_sizes):
        # of N x k shards each may be one larger, so a client's k may differ by k
        assert np.ptp(total) <= (2 if kind == "shards" else 1)
    with_replacement = kind.startswith("dirichlet") and (sizes == "equal" or (sizes is None and kind == "dirichlet"))
    if not with_replacement:  # every sample exactly once
        everything = np.concatenate([*got.train, *(got.target if target == "own" else ())])
        assert np.array_equal(np.sort(everything), np.arange(len(LABELS)))
    again = make(kind=kind, sizes=sizes, seed=seed, clients=clients, concentration=concentration, target=target)
    assert all(np.array_equal(a, b) for a, b in zip((*got.train, *got.target), (*again.train, *again.target),
                                                    strict=True))


def test_dirichlet_is_the_papers_draw():
    """p_n ~ Dirichlet(σ) for each client, |D̂|/N samples by multinomial: redone here from the same stream."""
    draw = stream(3, "partition")
    p = draw.dirichlet(np.full(5, 0.7), 6)
    expected = draw.multinomial(100, p[0])
    assert make(concentration=0.7).label_counts[0].tolist() == expected.tolist()


def test_dirichlet_proportions_follow_sigma():
    """Var p_{n,z} = (1/C)(1 - 1/C)/(Cσ + 1); with counts of D̂ samples the multinomial adds its own."""
    labels, classes, clients = np.arange(200_000) % 10, 10, 400
    for sigma in (0.5, 5.0):
        got = partition(labels, TEST, clients, classes, 0, concentration=sigma)
        share = got.label_counts / got.sizes[:, None]
        own = 0.09 / (classes * sigma + 1)
        expected = own + (0.09 - own) / 500
        assert share.var() == pytest.approx(expected, rel=0.1)
        assert share.mean(0) == pytest.approx(np.full(10, 0.1), abs=0.02)


def test_natural_dirichlet_gives_each_class_in_proportion():
    got = partition(np.arange(50_000) % 5, TEST, 4, 5, 1, kind="dirichlet", sizes="natural", concentration=2.0)
    p = stream(1, "partition").dirichlet(np.full(5, 2.0), 4)
    np.testing.assert_allclose(got.label_counts / 10_000, p / p.sum(0), atol=0.02)
    assert np.ptp(got.sizes) > 100


def test_shards_give_few_labels_and_quantity_gives_skewed_sizes_with_even_labels():
    shards = make(kind="shards", shards=2, clients=10)
    assert ((shards.label_counts > 0).sum(1) <= 4).all()
    quantity = partition(np.arange(60_000) % 5, TEST, 6, 5, 0, kind="quantity", concentration=1.0)
    assert quantity.sizes.max() > 3 * quantity.sizes.min()
    share = quantity.label_counts / quantity.sizes[:, None]
    assert np.abs(share - 0.2).max() < 0.05


def test_targets_are_iid_from_the_global_test_set_and_do_not_shift_the_partition():
    got, larger = make(), make(target_size=4000)
    assert got.target_counts.sum(1).tolist() == [17, 17, 17, 17, 16, 16]
    assert all(np.array_equal(a, b) for a, b in zip(got.train, larger.train, strict=True))
    assert np.abs(larger.target_counts / 4000 - 0.2).max() < 0.03
    assert not np.array_equal(larger.target[0], larger.target[1])


def test_file_partitions_are_taken_as_they_are(tmp_path):
    lists = [[0, 1, 2], [5, 5, 7], list(range(100, 160))]
    (tmp_path / "mine.json").write_text(json.dumps(lists))
    np.savez(tmp_path / "mine.npz", **{str(n): np.array(own) for n, own in enumerate(lists)})
    for name in ("mine.json", "mine.npz"):
        got = make(kind="file", file=tmp_path / name, clients=3)
        assert [own.tolist() for own in got.train] == lists
        assert got.label_counts[1].tolist() == [2, 0, 1, 0, 0]


@pytest.mark.parametrize(("text", "says"), [
    ("[[0], [1]]", "has 2 clients, the scenario 3"), ("[[0], [1], [600]]", r"in 0\.\.599"),
    ("[[0], [1], [-1]]", r"in 0\.\.599"), ("[[0], [1], [0.5]]", "whole numbers"), ("{", "cannot be read"),
    ('{"a": 1}', "cannot be read"), ("[[0], [1], []]", "client 2 gets no sample; list at least one"),
    ("[[0], [1], 2]", "cannot be read"),
    ("[[0], [1], [99999999999999999999]]", "cannot be read"), ("[[true], [false], [true]]", "whole numbers"),
])
def test_a_bad_index_file_gets_one_line(tmp_path, text, says):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(InputError, match=says) as caught:
        make(kind="file", file=tmp_path / "bad.json", clients=3)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("options", "says"), [
    ({"kind": "file"}, "partition.file"), ({"kind": "file", "file": "x.txt"}, "must end in"),
    ({"kind": "file", "file": "absent.json"}, "cannot be read"), ({"kind": "dirichet"}, "one of dirichlet"),
    ({"concentration": 0.0}, "concentration"), ({"concentration": float("nan")}, "concentration"),
    ({"clients": 0}, "600 clients, not 0"), ({"clients": 601}, "600 clients, not 601"), ({"shards": 0}, "shards"),
    ({"kind": "shards", "shards": 101}, "at most 100 per client"), ({"kind": "quantity", "sizes": "equal"}, "sizes"),
    ({"target": "client"}, "global or own"), ({"target": "own", "target_size": 100}, "can be held out, not 100"),
    ({"target_size": 0}, "target_size"),
    ({"kind": "dirichlet_by_class", "clients": 300, "concentration": 0.01}, "gets no sample"),
])
def test_bad_options_get_one_line(options, says):
    with pytest.raises(InputError, match=says):
        make(**options)
