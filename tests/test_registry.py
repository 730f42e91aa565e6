"""Files name code only where its module offers it, a package has an entry point for it, or the user allowed it."""

import subprocess
import sys

import pytest

from fedgap.errors import InputError
from fedgap.registry import ALLOW_VARIABLE, MODELS, allow, allowed

MODULE = "fedgap_test_module"
SOURCE = """\
from pathlib import Path
from subprocess import Popen
Path("imported").touch()
def offered(): return 1
def hidden(): return 2
__fedgap__ = ["offered"]
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / f"{MODULE}.py").write_text(SOURCE)
    package = tmp_path / "fedgap_test_package"
    package.mkdir()
    (package / "__init__.py").write_text("from pathlib import Path\nPath('imported').touch()\n")
    (package / "inner.py").write_text("def f(): return 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("FEDGAP_ALLOW", raising=False)
    for name in (MODULE, "fedgap_test_package", "fedgap_test_package.inner"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_what_a_module_offers_is_used(module):
    assert MODELS.load(f"{MODULE}:offered")() == 1


@pytest.mark.parametrize("reference", [
    f"{MODULE}:hidden", f"{MODULE}:Popen", f"{MODULE}:Path", "fedgap_test_package.inner:f", "subprocess:Popen",
    "os:system", "os.path:join", "builtins:eval", "shutil:rmtree", "sys:exit", "torch.hub:load", "pickle:loads",
    "fedgap.files:write_bytes", "fedgap.learning.models.lenet:nn"])
def test_what_it_does_not_offer_is_refused_before_anything_of_it_runs(module, reference):
    with pytest.raises(InputError, match=rf"^model\.name: {reference} is not offered to fedgap .*--allow {reference}$"):
        MODELS.load(reference, "model.name")
    assert not (module / "imported").exists()


@pytest.mark.parametrize("reference", ["six.moves.builtins:eval", "no.such:thing", "fedgap_test_module.inner:f"])
def test_a_module_that_cannot_be_found_is_not_imported_to_see(module, reference):
    with pytest.raises(InputError, match="cannot be imported"):
        MODELS.load(reference, "model.name")
    assert not (module / "imported").exists()


def test_what_the_user_allowed_is_used_here_and_in_processes_that_are_started(module, monkeypatch):
    monkeypatch.setenv(ALLOW_VARIABLE, "")  # and be as it was after this test
    allow(f"{MODULE}:hidden", "fedgap_test_package.inner:f")
    assert MODELS.load(f"{MODULE}:hidden")() == 2
    assert MODELS.load("fedgap_test_package.inner:f")() == 3
    assert allowed() == [f"{MODULE}:hidden", "fedgap_test_package.inner:f"]
    with pytest.raises(InputError, match="not offered"):
        MODELS.load(f"{MODULE}:Popen")
    code = f"from fedgap.registry import MODELS; print(MODELS.load('{MODULE}:hidden')())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "2\n"
    with pytest.raises(InputError, match=r"^--allow: must have the form package\.module:NAME; got 'all'$"):
        allow("all")


def test_a_module_of_an_interactive_session_has_no_source(monkeypatch):
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "tiny", lambda: 7, raising=False)
    with pytest.raises(InputError, match="not offered"):
        MODELS.load("__main__:tiny")
    monkeypatch.setattr(main, "__fedgap__", ["tiny"], raising=False)
    assert MODELS.load("__main__:tiny")() == 7
