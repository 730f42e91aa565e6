import json

from fedgap.config import Experiment, Scenario, schema


def test_schemas_are_json_and_name_every_key():
    both = json.loads(json.dumps(schema()))
    scenario, experiment = both["scenario"], both["experiment"]
    extra = {"format", "mode", "seed", "labels", "fleet"}
    assert set(scenario["properties"]) == set(Scenario.model_fields) | extra
    assert set(experiment["properties"]) == set(Experiment.model_fields)
    assert scenario["additionalProperties"] is False
    assert "clients" not in scenario["required"]


def test_ranges_and_descriptions_are_in_the_schema():
    definitions = schema()["scenario"]["$defs"]
    bandwidth = definitions["Client"]["properties"]["bandwidth_hz"]
    assert bandwidth["exclusiveMinimum"] == 0
    assert "hertz" in bandwidth["description"]
    ratio = definitions["Pruning"]["properties"]["max_ratio"]
    assert (ratio["minimum"], ratio["exclusiveMaximum"]) == (0, 1)
    assert definitions["Bound"]["properties"]["aggregation"]["enum"] == ["sum", "mean", "mixture"]
    for definition in definitions.values():
        for key, field in definition.get("properties", {}).items():
            assert field.get("description"), key


def test_references_resolve():
    for document in schema().values():
        text = json.dumps(document)
        names = {part.split('"')[0] for part in text.split('"#/$defs/')[1:]}
        assert names
        assert names <= set(document["$defs"])
