"""Data sets: readers on tiny files made here, the embedded digits, checksums and downloads from a local server."""

import dataclasses
import gzip
import hashlib
import http.server
import json
import struct
import sys
import tarfile
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgap.errors import InputError
from fedgap.learning.data import (
    Dataset,
    Preprocessing,
    from_arrays,
    from_torch,
    load,
)
from fedgap.learning.data import downloads as sources_module
from fedgap.learning.data.downloads import SOURCES, Source, read
from fedgap.learning.data.formats import cifar, idx

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


@pytest.fixture
def tiny(tmp_path: Path) -> tuple[Path, dict[str, bytes], tuple[np.ndarray, ...]]:
    """Four tiny IDX files' bytes: 6 training and 4 test images of 3 x 2 in three classes."""
    draw = np.random.default_rng(0)
    arrays = (draw.integers(0, 256, (6, 3, 2)), np.array([0, 1, 2, 0, 1, 2]), draw.integers(0, 256, (4, 3, 2)),
              np.array([2, 1, 0, 1]))
    return tmp_path, {name: idx_bytes(a) for name, a in zip(IDX, arrays, strict=True)}, arrays


def source_of(files: dict[str, bytes], **more: object) -> Source:
    return Source("mnist", {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
                  **{"url": "http://127.0.0.1:1/", **more})  # type: ignore[arg-type]


def test_idx_reads_what_was_written_gz_or_plain_and_from_a_torchvision_folder(tiny, monkeypatch):
    folder, files, arrays = tiny
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for i, (name, data) in enumerate(files.items()):
        (raw / (name + ".gz" * (i % 2))).write_bytes(gzip.compress(data) if i % 2 else data)
    monkeypatch.setitem(SOURCES, "mnist", source_of(files, inside=("MNIST/raw",)))
    data = load("mnist", folder)
    assert data.shape == (1, 3, 2)
    assert data.train_y.tolist() == arrays[1].tolist()
    assert data.test_y.tolist() == arrays[3].tolist()
    mean, deviation = arrays[0].mean(), arrays[0].std()
    np.testing.assert_allclose(data.train_x.numpy()[:, 0], (arrays[0] - mean) / deviation, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(data.test_x.numpy()[:, 0], (arrays[2] - mean) / deviation, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("data", "says"), [(b"", "must be an IDX"), (b"\0\0\x08\x01\0\0", "ends inside its header"),
                                            (idx_bytes(np.zeros(5))[:-1], "does not have the length")])
def test_a_damaged_idx_file_is_named(data, says):
    with pytest.raises(InputError, match=says):
        idx(data, Path("x"))


def test_cifar_batches_from_a_folder_and_from_the_archive(tmp_path, monkeypatch):
    draw = np.random.default_rng(1)
    images, labels = draw.integers(0, 256, (6, 2, 3, 32, 32)), draw.integers(0, 10, (6, 2))
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    files = {name: b"".join(bytes([y]) + x.astype(np.uint8).tobytes() for x, y in zip(xs, ys, strict=True))
             for name, xs, ys in zip(names, images, labels, strict=True)}
    source = Source("cifar10", {n: hashlib.sha256(d).hexdigest() for n, d in files.items()}, "http://127.0.0.1:1/",
                    archive="all.tar.gz")
    monkeypatch.setitem(SOURCES, "cifar10", source)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    plain = load("cifar10", tmp_path)
    assert plain.train_x.shape == (10, 3, 32, 32)
    assert plain.train_y.tolist() == labels[:5].ravel().tolist()
    channel = images[:5, :, 1]  # green
    green = (images[5, :, 1] - channel.mean()) / channel.std()
    np.testing.assert_allclose(plain.test_x[:, 1].numpy(), green, rtol=1e-4, atol=1e-5)
    packed = tmp_path / "packed"
    packed.mkdir()
    with tarfile.open(packed / "all.tar.gz", "w:gz") as archive:
        for name in names:
            archive.add(tmp_path / name, f"cifar-10-batches-bin/{name}")
    assert load("cifar10", packed).digest() == plain.digest()
    with pytest.raises(InputError, match="a multiple of 3073"):
        cifar(b"12", Path("x"))


def test_a_wrong_checksum_and_a_missing_file_say_which_and_where(tiny):
    folder, files, _ = tiny
    source = source_of(files)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / IDX[2]).write_bytes(files[IDX[2]][:-1] + b"\0")
    with pytest.raises(InputError, match=rf"^data: {folder}/{IDX[2]} is not the original") as caught:
        read(source, folder, None, False, None)
    assert "\n" not in str(caught.value)
    (folder / IDX[2]).unlink()
    with pytest.raises(InputError, match=rf"needs {IDX[2]}.*not found in {folder}; put it there.*data.download"):
        read(source, folder, None, False, None)
    (folder / f"{IDX[2]}.gz").write_bytes(gzip.compress(files[IDX[2]])[:-9])
    with pytest.raises(InputError, match="cannot be read"):
        read(source, folder, None, False, None)


@pytest.fixture
def server(tmp_path: Path):
    served = tmp_path / "served"
    served.mkdir()
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(served))
    handler.log_message = lambda *a: None  # type: ignore[attr-defined]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        yield served, f"http://127.0.0.1:{web.server_address[1]}/"
        web.shutdown()


def test_download_fetches_what_is_missing_reports_progress_and_caches(tiny, server):
    _, files, _ = tiny
    served, url = server
    for name, data in files.items():
        (served / f"{name}.gz").write_bytes(gzip.compress(data))
    source, cache, seen = source_of(files, url=url), served.parent / "cache", []
    first = read(source, None, cache, True, lambda *step: seen.append(step))
    assert {name: data for name, (data, _) in first.items()} == files
    assert {name for name, _, _ in seen} == {f"{name}.gz" for name in IDX}
    last = {name: (done, total) for name, done, total in seen}
    assert last == {path.name: (path.stat().st_size,) * 2 for path in served.iterdir()}
    for path in served.iterdir():
        path.unlink()  # the second time nothing is fetched
    assert read(source, None, cache, False, None) == first


def test_a_given_folder_that_lacks_a_file_costs_no_download(tiny, server):
    _, files, _ = tiny
    served, url = server
    empty = served.parent / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match=rf"not found in {empty}; put it there, or leave data.folder out"):
        read(source_of(files, url=url), empty, served.parent / "cache", True, lambda *step: pytest.fail("fetched"))
    assert not (served.parent / "cache").exists()


def test_a_wrong_download_is_refused_and_removed(tiny, server):
    _, files, _ = tiny
    served, url = server
    for name in files:
        (served / f"{name}.gz").write_bytes(gzip.compress(b"something else"))
    cache = served.parent / "cache"
    with pytest.raises(InputError, match="is not the original"):
        read(source_of(files, url=url), None, cache, True, None)
    assert list((cache / "mnist").iterdir()) == []
    with pytest.raises(InputError, match="could not be downloaded"):
        read(source_of(files, url=url + "nothing/"), None, cache, True, None)


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDGAP_CACHE", str(tmp_path))
    assert sources_module.cache_folder() == tmp_path
    monkeypatch.delenv("FEDGAP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert sources_module.cache_folder() == Path("/somewhere/fedgap")


def test_embedded_is_5000_real_digits_500_a_class_standardised():
    data = load("embedded")
    train, test = data.label_counts()
    assert train.tolist() == [400] * 10
    assert test.tolist() == [100] * 10
    assert data.shape == (1, 28, 28)
    assert abs(float(data.train_x.double().mean())) < 1e-6
    assert abs(float(data.train_x.double().std()) - 1) < 1e-4
    # real digits, not noise: the nearest training mean tells most test digits
    means = torch.stack([data.train_x[data.train_y == z].mean(0).flatten() for z in range(10)])
    nearest = torch.cdist(data.test_x.flatten(1), means).argmin(1)
    assert float((nearest == data.test_y).float().mean()) > 0.75
    assert load("embedded").digest() == data.digest()


def test_own_arrays_torch_data_sets_npz_files_and_functions_are_one(tmp_path, monkeypatch):
    draw = np.random.default_rng(2)
    x, y, tx, ty = draw.normal(3, 2, (20, 4, 4)), np.arange(20) % 3, draw.normal(3, 2, (6, 4, 4)), np.arange(6) % 3
    arrays = from_arrays(x, y, tx, ty)
    assert (arrays.shape, arrays.classes) == ((1, 4, 4), 3)
    pair = [torch.utils.data.TensorDataset(torch.tensor(a, dtype=torch.float32), torch.tensor(b))
            for a, b in ((x, y), (tx, ty))]
    assert from_torch(*pair).digest() == arrays.digest()
    np.savez(tmp_path / "mine.npz", train_x=x, train_y=y, test_x=tx, test_y=ty)
    assert load(str(tmp_path / "mine.npz")).digest() == arrays.digest()
    assert load("mine.npz", folder=tmp_path).digest() == arrays.digest()
    keys = "('train_x', 'train_y', 'test_x', 'test_y')"
    (tmp_path / "my_data_module.py").write_text(
        "import numpy as np\n\n__fedgap__ = ('make', 'bad', 'worse')\n\n"
        f"def make():\n    return tuple(np.load('mine.npz')[k] for k in {keys})\n\n"
        "def bad():\n    return 3\n\ndef worse():\n    raise KeyError('no such shelf')\n")
    monkeypatch.chdir(tmp_path)
    assert load("my_data_module:make").digest() == arrays.digest()
    with pytest.raises(InputError, match="it returned int"):
        load("my_data_module:bad")
    with pytest.raises(InputError, match=r"my_data_module:worse failed \(KeyError: 'no such shelf'\)"):
        load("my_data_module:worse")
    (tmp_path / "my_broken_module.py").write_text("def f(:\n")
    with pytest.raises(InputError, match="cannot be imported"):
        load("my_broken_module:f")
    assert not torch.equal(from_arrays(x, y, tx, ty, standardise=False).train_x, arrays.train_x)
    arrays.save(tmp_path / "saved.npz")
    assert Dataset.open(tmp_path / "saved.npz").digest() == arrays.digest()


@pytest.mark.parametrize(("change", "says"), [
    ({"train_y": np.zeros(3, int)}, "train_x has 4 samples and train_y 3"),
    ({"train_y": np.zeros(4)}, "integer label"),
    ({"test_x": np.zeros((2, 3))}, "they must be equal"),
    ({"train_x": np.zeros((4, 2, 2, 2, 2))}, "its shape is"),
    ({"train_x": np.full((4, 2), np.nan)}, "not finite"),
    ({"test_y": np.array([0, -1])}, "must be whole numbers from 0, or strings; test_y has -1"),
    ({"test_y": np.array([0, 2]), "classes": 2}, r"must lie in 0\.\.1; test_y has 2"),
    ({"train_y": np.array(list("abab"))}, "both be strings or both be whole numbers"),
    ({"train_y": ["a", 1, "b", 2]}, "train_y mixes strings and other labels"),
    ({"train_y": np.array(["a", None, "b", "a"], dtype=object)}, "train_y mixes strings and other labels"),
    ({"class_names": ["cat", "cat"]}, "class_names must be 2 different names"),
    ({"class_names": ["cat", "dog"], "classes": 3}, "class_names must be 3 different names"),
    ({"class_names": ["cat", "dog"], "train_y": list("abab"), "test_y": list("ab")},
     "must be one of the class names cat, dog; train_y has 'a'"),
    ({"train_y": np.full(4, 7), "test_y": np.full(2, 7)}, "own has 1 class; a classifier needs at least two"),
    ({"classes": 1}, "must lie in 0..0"),
    ({"test_x": np.zeros((0, 2)), "test_y": np.zeros(0, int)}, "test_x is empty"),
])
def test_bad_arrays_get_one_line(change, says):
    good = {"train_x": np.ones((4, 2)), "train_y": np.arange(4) % 2, "test_x": np.ones((2, 2)), "test_y": np.arange(2)}
    assert from_arrays(**good).classes == 2
    with pytest.raises(InputError, match=says):
        from_arrays(**{**good, **change})


SAMPLES = np.random.default_rng(3).normal(3, 2, (15, 1, 4, 4)), np.random.default_rng(4).normal(3, 2, (5, 1, 4, 4))


def every_way_in(train_y, test_y, tmp_path, monkeypatch) -> dict[str, Dataset]:
    """The same data set by each way in which people give their own."""
    train_x, test_x = SAMPLES
    np.savez(tmp_path / "own.npz", train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y)
    (tmp_path / "own_labels.py").write_text(
        "import numpy as np\nfrom fedgap.learning.data import from_arrays\n\n__fedgap__ = ['arrays', 'dataset']\n\n"
        "def arrays():\n    file = np.load('own.npz')\n"
        "    return tuple(file[key] for key in ('train_x', 'train_y', 'test_x', 'test_y'))\n\n"
        "def dataset():\n    return from_arrays(*arrays())\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_labels", raising=False)
    pairs = [[(torch.tensor(x), y) for x, y in zip(xs, ys.tolist(), strict=True)]
             for xs, ys in ((train_x, train_y), (test_x, test_y))]
    return {"arrays": from_arrays(train_x, train_y, test_x, test_y), "npz": load("own.npz"),
            "function of arrays": load("own_labels:arrays"), "function of a data set": load("own_labels:dataset"),
            "torch": from_torch(*pairs)}


@pytest.mark.parametrize(("train_y", "test_y", "classes", "names"), [
    (np.arange(15) % 5 + 1, np.arange(5) + 1, np.arange(15) % 5, ("1", "2", "3", "4", "5")),
    (np.arange(15) % 2 * 9, np.array([0, 9, 9, 9, 9]), np.arange(15) % 2, ("0", "9")),
    (np.array(["owl", "cat", "dog"] * 5), np.array(["cat"] * 5), np.array([2, 0, 1] * 5), ("cat", "dog", "owl")),
])
def test_distinct_labels_are_the_classes_whatever_their_values(train_y, test_y, classes, names, tmp_path, monkeypatch):
    for way, data in every_way_in(train_y, test_y, tmp_path, monkeypatch).items():
        assert (data.classes, data.class_names) == (len(names), names), way
        assert data.train_y.dtype is torch.int64, way
        assert data.train_y.tolist() == classes.tolist(), way
        assert [names[z] for z in data.test_y] == [str(label) for label in test_y], way


def test_class_names_can_be_given_and_then_fix_the_classes(tmp_path):
    """Also a class of which there is no sample."""
    names, (train_x, test_x) = ["dog", "cat", "owl"], SAMPLES
    by_name = from_arrays(train_x, ["cat", "dog", "cat"] * 5, test_x, ["dog"] * 5, class_names=names)
    np.savez(tmp_path / "named.npz", train_x=train_x, train_y=[1, 0, 1] * 5, test_x=test_x, test_y=[0] * 5,
             class_names=names)
    for data in (by_name, load("named.npz", folder=tmp_path)):
        assert data.class_names == ("dog", "cat", "owl")
        assert data.train_y.tolist() == [1, 0, 1] * 5
        assert data.label_counts()[0].tolist() == [5, 10, 0]


def test_an_npz_file_with_python_objects_says_how_to_save_strings(tmp_path):
    labels = np.array(["cat", "dog", "cat"] * 5, dtype=object)
    np.savez(tmp_path / "objects.npz", train_x=SAMPLES[0], train_y=labels, test_x=SAMPLES[1], test_y=labels[:5])
    with pytest.raises(InputError, match=r"objects.npz cannot be read.*save strings with \.astype\(str\)"):
        load("objects.npz", folder=tmp_path)
    assert from_arrays(SAMPLES[0], labels, SAMPLES[1], labels[:5]).class_names == ("cat", "dog")


def test_preprocessing_turns_new_samples_into_the_same_inputs(tmp_path):
    train_x, test_x = SAMPLES
    labels = np.array(["yes", "no", "no"] * 5)
    data = from_arrays(train_x, labels, test_x, labels[:5])
    assert data.preprocessing.mean == pytest.approx([train_x.mean()], rel=1e-6)
    assert data.preprocessing.deviation == pytest.approx([train_x.std()], rel=1e-6)
    kept = Preprocessing(**json.loads(json.dumps(dataclasses.asdict(data.preprocessing))))
    assert torch.equal(kept.apply(test_x), data.test_x)
    assert torch.equal(kept.apply(test_x[:, 0]), data.test_x)  # (n, h, w)
    with pytest.raises(InputError, match="images must have 1 channels or features; it has 3"):
        kept.apply(np.zeros((2, 3, 4, 4)), "images")
    data.save(tmp_path / "saved.npz")
    again = Dataset.open(tmp_path / "saved.npz").thinned(6, 2)
    assert (again.class_names, again.preprocessing) == (("no", "yes"), data.preprocessing)
    plain = from_arrays(train_x, labels, test_x, labels[:5], standardise=False)
    assert torch.equal(plain.preprocessing.apply(test_x), torch.tensor(test_x, dtype=torch.float32))


def test_data_saved_by_version_0_1_can_be_opened(tmp_path):
    np.savez_compressed(tmp_path / "data.npz", name="old", classes=3, train_x=np.ones((4, 2), np.float32),
                        train_y=np.arange(4) % 2, test_x=np.ones((2, 2), np.float32), test_y=np.arange(2))
    data = Dataset.open(tmp_path / "data.npz")
    assert (data.classes, data.class_names, data.preprocessing) == (3, ("0", "1", "2"), None)


@pytest.mark.parametrize(("items", "says"), [
    ([(torch.zeros(2),)], r"item 0 of the train set must be \(sample, label\)"),
    ([(torch.zeros(2), "cat")], "both be strings or both be whole numbers"),
    ([(torch.zeros(2), None)], r"item 0 of the train set must be \(sample, label\)"),
    ([(torch.zeros(2), 0), (torch.zeros(3), 1)], r"item 1 of the train set has shape \(3,\)"),
])
def test_bad_torch_data_sets_get_one_line(items, says):
    with pytest.raises(InputError, match=says):
        from_torch(items, [(torch.zeros(2), 0)])


@pytest.mark.parametrize(("name", "says"), [("mnits", "one of embedded, mnist"), ("no_module:f", "cannot be imported"),
                                            ("absent.npz", "cannot be read")])
def test_an_unknown_name_says_what_is_known(name, says):
    with pytest.raises(InputError, match=says):
        load(name)
