"""Find, verify and download the files of known data sets."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedgap.errors import InputError
from fedgap.learning.data.formats import check, members, unzipped

Progress = Callable[[str, int, int], None]
"""A function that is called during a download with the file's name, the bytes so far and the total (0 if unknown)."""


@dataclass(frozen=True)
class Source:
    """The files of a data set: the SHA-256 of their *unzipped* bytes by name, and where they may be found.

    ``folders`` are additional places to search (the path of Debian's package); ``inside`` are sub-folders that other
    tools create. A file is downloaded from ``url`` + name + ``.gz``; if ``archive`` is given, that one archive holds
    all files."""

    name: str
    sha256: dict[str, str]
    url: str
    archive: str = ""
    folders: tuple[Path, ...] = ()
    inside: tuple[str, ...] = ()
    note: str = field(default="", compare=False)


_IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

SOURCES = {source.name: source for source in (
    Source("mnist", dict(zip(_IDX_FILES, (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"), strict=True)),
        url="https://ossci-datasets.s3.amazonaws.com/mnist/", inside=("MNIST/raw", "mnist")),
    Source("fashion-mnist", dict(zip(_IDX_FILES, (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"), strict=True)),
        url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        folders=(Path("/usr/share/datasets/fashion-mnist"),), inside=("FashionMNIST/raw", "fashion-mnist"),
        note="on Debian, `apt install dataset-fashion-mnist` is enough"),
    Source("cifar10", {
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"},
        url="https://www.cs.toronto.edu/~kriz/", archive="cifar-10-binary.tar.gz",
        inside=("cifar-10-batches-bin", "cifar10")))}
"""The data sets known by name."""


def cache_folder() -> Path:
    """The folder of downloaded files: ``$FEDGAP_CACHE``, or else ``$XDG_CACHE_HOME/fedgap``, or else
    ``~/.cache/fedgap``."""
    own = os.environ.get("FEDGAP_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedgap"


def read(source: Source, folder: Path | None, cache: Path | None, download: bool,
         progress: Progress | None) -> dict[str, tuple[bytes, Path]]:
    """The unzipped, checked bytes of every file, and the path at which it was found.

    If ``folder`` is given, only this folder is searched and nothing is downloaded, so that a mistyped path does not
    start a download."""
    store = (cache or cache_folder()) / source.name
    roots = [folder] if folder is not None else [*source.folders, store]
    places = [place for root in roots for place in (root, *(root / sub for sub in source.inside))]
    found = _look(source, places)
    missing = [name for name in source.sha256 if name not in found]
    if missing and download and folder is None:
        _fetch(source, missing, store, progress)
        found |= _look(source, [store])
        missing = [name for name in source.sha256 if name not in found]
    if missing:
        fetch = ("put it there, or leave data.folder out to download it" if download and folder is not None else
                 f"put it there, set data.folder{'' if download else ', or set data.download=true'}")
        archive = f" (or {source.archive})" if source.archive else " (plain or .gz)"
        note = f"; {source.note}" if source.note else ""
        raise InputError(f"data: {source.name} needs {missing[0]}{archive}, not found in "
                         f"{', '.join(map(str, roots))}; {fetch}{note}")
    return {name: (check(found[name][0], digest, found[name][1]), found[name][1])
            for name, digest in source.sha256.items()}


def _look(source: Source, places: list[Path]) -> dict[str, tuple[bytes, Path]]:
    found: dict[str, tuple[bytes, Path]] = {}
    for place in places:
        for name in source.sha256:
            for path in (place / name, place / f"{name}.gz"):
                if name not in found and path.is_file():
                    found[name] = unzipped(path), path
        archive = place / source.archive
        if source.archive and len(found) < len(source.sha256) and archive.is_file():
            for name, data in members(archive, tuple(source.sha256)).items():
                found.setdefault(name, (data, archive))
    return found


def _fetch(source: Source, names: list[str], store: Path, progress: Progress | None) -> None:
    """Download the files into ``store``. A file whose unzipped bytes are wrong is removed again, and the error names
    it."""
    import pooch  # only a download needs it

    pooch.get_logger().setLevel("WARNING")  # the progress bar is enough
    for file in [source.archive] if source.archive else [f"{name}.gz" for name in names]:
        try:
            pooch.retrieve(source.url + file, known_hash=None, fname=file, path=store,
                           downloader=pooch.HTTPDownloader(progressbar=_Bar(file, progress) if progress else False,
                                                           timeout=60))
        except OSError as error:  # requests' errors are OSErrors
            raise InputError(f"data: {source.url}{file} could not be downloaded ({type(error).__name__}); "
                             f"put {file} into {store} by hand, or set data.folder") from None
        try:
            got = _look(source, [store])
            for name, (data, path) in got.items():
                check(data, source.sha256[name], path)
        except InputError:
            (store / file).unlink(missing_ok=True)
            raise InputError(f"data: {source.url}{file} is not the original file (the SHA-256 of its unzipped bytes "
                             f"differs); put an undamaged {file} into {store}, or set data.folder") from None


class _Bar:
    """Passes pooch's progress, which calls the four methods of a tqdm bar, on to a plain function."""

    def __init__(self, file: str, report: Progress) -> None:
        self.file, self.report, self.done, self.total = file, report, 0, 0

    def update(self, amount: int) -> None:
        self.done += amount
        self.report(self.file, self.done, int(self.total))

    def reset(self) -> None:
        """Start at 0 again; pooch empties the bar at the end and fills it in one step."""
        self.done = 0

    def close(self) -> Any:
        """Do nothing, because there is nothing to close."""
