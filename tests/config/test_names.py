"""Names in files come from the registries; to check one imports nothing."""

import subprocess
import sys

import pytest

from fedgap.config import Experiment
from fedgap.errors import InputError
from fedgap.registry import DATA, FLEETS, MODELS, Registry

CHECK = """
import importlib.metadata, sys
from fedgap.config import Experiment
importlib.metadata.entry_points = None  # pydantic asks for its own plugins while fedgap.config is imported
Experiment.load("mnist", ["model.name=resnet20", "learning.aggregator=mean", "pruning.importance=random",
                          "scheme=measured", "data.name=cifar10", "scenario.fleet.count=2"])
assert not [name for name in sys.modules if name.startswith(("torch", "fedgap.learning", "fedgap.planning"))]
"""


def test_built_in_names_are_checked_without_importing_them_or_asking_installed_packages():
    subprocess.run([sys.executable, "-c", CHECK], check=True)


@pytest.mark.parametrize("registry", [DATA, FLEETS, MODELS], ids=lambda registry: registry.kind)
def test_every_built_in_name_leads_to_something_callable(registry):
    for name in registry.built_in:
        assert callable(registry.load(name))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("pruning.importance=tailor", "pruning.importance: must be one of taylor, magnitude, random,"),
        ("learning.aggregator=meen", "did you mean 'mean'?"),
        ("learning.aggregator=[mean]", "learning.aggregator: must be a name such as mean, "),
        ("model.name=3", "model.name: must be a name such as lenet5,"),
    ],
)
def test_a_wrong_name_is_one_line_with_the_key(override, message):
    with pytest.raises(InputError) as caught:
        Experiment.load("mnist", [override])
    assert message in str(caught.value)


def test_an_aggregator_is_part_of_the_experiment_only_where_it_is_not_the_default():
    assert "learning" not in Experiment.load("mnist").to_dict()
    median = Experiment.load("mnist", ["learning.aggregator=my_rules:median"])
    assert median.to_dict()["learning"] == {"aggregator": "my_rules:median"}
    assert Experiment.from_dict(median.to_dict()) == median
    assert median.hash() != Experiment.load("mnist").hash()


def test_a_file_counts_as_a_name_only_where_the_registry_says_so():
    DATA.check("mine.npz")
    with pytest.raises(InputError, match=r"got 'mine\.npz'"):
        Registry("models", "model", {}).check("mine.npz")
