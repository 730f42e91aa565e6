import pytest

from fedgap.config import Scenario
from fedgap.errors import InputError

NO_CLIENTS = ("fleet.csv: has no clients; the first line must name the columns, and each line after it must describe "
              "one client")
HEADER = "name,phi,uplink_gain,bandwidth_hz,max_power_w,max_frequency_hz,flops_per_cycle,capacitance,label_counts"
ROW = "10,8e-6,1e5,0.5,5e8,4,8.8e-28,"


@pytest.fixture
def load(document, tmp_path):
    def load(text, overrides=()):
        (tmp_path / "fleet.csv").write_text(text)
        return Scenario.from_dict(document | {"clients": "fleet.csv"}, overrides, folder=tmp_path)

    return load


def test_one_row_per_client(load):
    scenario = load(f"{HEADER}\na,{ROW}\n\n# a comment\nb , {ROW}3;0; 4\n")
    assert scenario.names == ["a", "b"]
    assert scenario.clients[0].label_counts is None
    assert scenario.clients[1].label_counts == (3, 0, 4)
    assert scenario.clients[0].bandwidth_hz == 1e5
    assert scenario.clients[0].downlink_gain == 8e-6


def test_a_csv_equals_the_list_it_stands_for(load, document):
    keys = list(document["clients"][0])
    lines = [",".join(str(client[key]) for key in keys) for client in document["clients"]]
    assert load("\r\n".join([",".join(keys), *lines])) == Scenario.from_dict(document)


def test_a_client_of_a_csv_can_be_overridden(load):
    assert load(f"{HEADER}\na,{ROW}\n", ["clients[0].phi=3"]).phi()[0] == 3.0


def test_the_file_lies_beside_the_scenario(tmp_path, document, monkeypatch):
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inner" / "fleet.csv").write_text(f"{HEADER}\na,{ROW}\n")
    scenario = Scenario.from_dict(document)
    text = scenario.save(tmp_path / "inner" / "s.yaml").read_text()
    (tmp_path / "inner" / "s.yaml").write_text(text[: text.index("clients:")] + "clients: fleet.csv\n")
    loaded = Scenario.load("inner/s.yaml")
    assert loaded.size == 1
    assert Scenario.load(loaded.save(tmp_path / "elsewhere.yaml")) == loaded
    assert Scenario.from_dict(loaded.document()) == loaded


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{HEADER}\na,{ROW}\nb,{ROW},9\n",
         "fleet.csv: line 3: must have 9 cells, one per column of the header; got 10"),
        (f"{HEADER}\n", NO_CLIENTS),
        ("", NO_CLIENTS),
        (f"{HEADER},phi\na,{ROW},9\n", "fleet.csv: the column 'phi' occurs twice; remove one of them"),
        (f"{HEADER},\na,{ROW},9\n", "fleet.csv: column 10 has no name; the first line must name each column"),
        (f"{HEADER},gain\na,{ROW},9\n", "clients[0].gain: unknown key; did you mean 'uplink_gain'? ({} line 2)"),
        (
            f"{HEADER}\na,{ROW}\n\nb,{ROW.replace('1e5', '0')}\n",
            "clients[1].bandwidth_hz: must be above 0 Hz (a client without bandwidth never finishes its upload);"
            " got '0' ({} line 4)",
        ),
        (
            f"{HEADER}\na,{ROW.replace('1e5', '100 kHz')}\n",
            "clients[0].bandwidth_hz: must be a number (in Hz, without the unit); got '100 kHz' ({} line 2)",
        ),
        (
            f"{HEADER}\na,{ROW.replace('5e8', '500')}\n",
            "clients[0].max_frequency_hz: must be at least 1e+06 Hz (if MHz was meant, write 500e6; if GHz, 500e9);"
            " got '500' ({} line 2)",
        ),
        (
            f"{HEADER}\na,{ROW}3;x;1\n",
            "clients[0].label_counts: must be whole numbers of at least 0; got 'x' for class 1 ({} line 2)",
        ),
        (
            f"{HEADER}\na,{ROW}3 0 1\n",
            "clients[0].label_counts: must be a list of sample counts, one per class (in a CSV as 12;0;7);"
            " got '3 0 1' ({} line 2)",
        ),
        (
            HEADER + "\na," + ROW.replace("8e-6", '"8,5e-6"') + "\n",
            "clients[0].uplink_gain: must be a number (write a decimal point: 1.5, not 1,5);"
            " got '8,5e-6' ({} line 2)",
        ),
        (
            f"{HEADER}\na,{ROW.replace('8e-6', '8')}\n".replace(",", ";"),
            "fleet.csv: the header has no comma; separate cells by commas, not by ';'"
            " (and write decimals with a point)",
        ),
        (
            f"{HEADER}\na,{ROW}\n".replace(",", "\t"),
            "fleet.csv: the header has no comma; separate cells by commas, not by '\\t'"
            " (and write decimals with a point)",
        ),
    ],
)
def test_bad_tables(load, tmp_path, text, message):
    with pytest.raises(InputError) as caught:
        load(text)
    assert str(caught.value).endswith(message.replace("{}", str(tmp_path / "fleet.csv")))


def test_a_missing_table(document, tmp_path):
    with pytest.raises(InputError) as caught:
        Scenario.from_dict(document | {"clients": "fleet.csv"}, folder=tmp_path)
    assert str(caught.value) == "clients: 'fleet.csv' does not exist; name a CSV file with one row per client"
