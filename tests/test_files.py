"""Files are whole or absent, and a torn last line of JSON Lines is dropped."""

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgap import files
from fedgap.errors import InputError
from fedgap.files import read_json_lines, remove_torn, whole_lines, write_bytes, write_json, write_text

VALUES = [{"round": i, "energy_j": 0.1 * i, "name": "zürich"} for i in range(5)]
LINES = b"".join(json.dumps(value, ensure_ascii=False).encode() + b"\n" for value in VALUES)


def test_a_crash_while_writing_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    write_json(path, {"a": 1})

    def torn(handle):
        raise OSError("pulled the plug")

    monkeypatch.setattr(files.os, "fsync", torn)
    with pytest.raises(OSError, match="plug"):
        write_bytes(path, b"half")
    assert json.loads(path.read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["summary.json"]


def test_a_full_disk_is_reported_with_the_file_that_was_to_be_written(tmp_path):
    with pytest.raises(OSError) as caught:
        write_text(tmp_path / "absent" / "file.txt", "text")
    assert caught.value.filename == str(tmp_path / "absent" / "file.txt")


def test_what_a_killed_writer_left_is_removed(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / ".model.safetensors.123.part").write_bytes(b"half")
    (tmp_path / "deep" / "model.safetensors").write_bytes(b"whole")
    remove_torn(tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["deep", "model.safetensors"]


def test_a_device_is_written_to_and_not_replaced():
    write_text(files.Path(os.devnull), "text")
    assert not files.Path(os.devnull).is_file()


@settings(max_examples=60)
@given(st.integers(0, len(LINES)))
def test_a_file_cut_anywhere_gives_the_whole_lines_before_the_cut(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("log") / "rounds.jsonl"
    path.write_bytes(LINES[:cut])
    assert read_json_lines(path) == VALUES[:LINES[:cut].count(b"\n")]
    assert LINES[:cut].startswith(whole_lines(LINES[:cut]))


def test_zeros_in_the_last_line_are_dropped_and_damage_in_the_middle_is_not(tmp_path):
    path = tmp_path / "rounds.jsonl"
    path.write_bytes(b'{"round": 0}\n\0\0\0\n')
    assert read_json_lines(path) == [{"round": 0}]
    path.write_text('{"round": 0}\n{"rou\n{"round": 2}\n')
    with pytest.raises(InputError, match="line 2"):
        read_json_lines(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_json_lines(tmp_path / "absent")
