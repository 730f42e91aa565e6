import pytest

from fedgap.config import Experiment, Scenario, write_template
from fedgap.errors import InputError


def test_the_template_loads(tmp_path):
    paths = write_template(tmp_path / "new" / "folder")
    assert [path.name for path in paths] == ["scenario.yaml", "fleet.csv", "experiment.yaml"]
    scenario = Scenario.load(paths[0])
    assert scenario.size == 6
    assert scenario.names[0] == "kitchen"
    assert scenario.bound.aggregation == "mixture"
    assert scenario.phi().min() > 0
    experiment = Experiment.load(paths[2])
    assert experiment.planning_scenario() == scenario


def test_the_commented_recipe_works_too(tmp_path):
    path = write_template(tmp_path)[0]
    text = path.read_text()
    head, recipe = text[: text.index("clients: fleet.csv")], text[text.index("# fleet:") :]
    head = head.replace("target_counts:", "# target_counts:")
    path.write_text(head + recipe.replace("# ", ""))
    assert Scenario.load(path).size == 10


def test_nothing_is_replaced(tmp_path):
    (tmp_path / "fleet.csv").write_text("mine")
    with pytest.raises(InputError, match=r"fleet.csv: exists already; choose another folder, or move the file"):
        write_template(tmp_path)
    assert (tmp_path / "fleet.csv").read_text() == "mine"
    assert not (tmp_path / "scenario.yaml").exists()
    with pytest.raises(InputError, match=r"cannot be written to|exists already"):
        write_template(tmp_path / "fleet.csv")
