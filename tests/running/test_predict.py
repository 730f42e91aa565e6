"""A finished run's model: predictions from raw samples, files, export, and the card."""

import csv
import json
import sys

import numpy as np
import pytest
import torch

import fedgap
from fedgap.config import Experiment
from fedgap.errors import InputError
from fedgap.learning.data import from_arrays
from fedgap.running import export as export_module
from fedgap.running.export import export
from fedgap.running.predict import Predictions, read_samples
from fedgap.running.prepare import divide
from fedgap.running.run import open_data
from fedgap.running.train_and_resume import train
from tests.embedded_digits import mnist_digits
from tests.running.plans import by_hand


def raw_test_digits(wanted=200):
    """The embedded test set as bytes, read without fedgap: the last 100 of each class's 500 digits, thinned."""
    digits, labels = mnist_digits()
    test = np.flatnonzero(np.arange(len(labels)) % 500 >= 400)[np.arange(wanted) * 1000 // wanted]
    return digits[test].reshape(-1, 28, 28).astype(np.uint8), labels[test].astype(np.int64)


def trained(experiment, folder, *segments):
    _, _, scenario = divide(experiment)
    return train(experiment, folder, plan=by_hand(scenario, *segments))


@pytest.fixture(scope="module")
def mlp_run(tmp_path_factory):
    from tests.running.conftest import SMALL

    experiment = Experiment.load("embedded", [*SMALL, "rounds=6"])
    return trained(experiment, tmp_path_factory.mktemp("runs") / "mlp", (1, range(10), 0.0), (5, range(6), 0.3))


NORMALISED = """
from torch import nn

__fedgap__ = ["make"]

def make(classes):
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4, momentum=0.3), nn.ReLU(),
                         nn.Conv2d(4, 8, 3, stride=2), nn.BatchNorm2d(8, momentum=0.3), nn.ReLU(), nn.Flatten(),
                         nn.Linear(288, classes))
"""


@pytest.mark.parametrize(("model", "ratio"), [("lenet5", 0.0), ("lenet5", 0.5), ("normalised:make", 0.3)])
def test_raw_samples_give_the_reported_accuracy_exactly(small, tmp_path, monkeypatch, model, ratio):
    """LeNet-5, and a model with BatchNorm; also pruned, where the pruned model is the one that was evaluated."""
    (tmp_path / "normalised.py").write_text(NORMALISED)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("normalised", None)
    experiment = small("rounds=16", f"model.name={model}", "scenario.learning.rate=0.05", "evaluate_every=16")
    folder = trained(experiment, tmp_path / "run", (1, range(6), 0.0), (15, range(6), ratio)).folder
    x, y = raw_test_digits()
    np.savez(tmp_path / "test.npz", x=x, y=y)

    run = fedgap.Run(folder)
    file = np.load(tmp_path / "test.npz")
    accuracy = run.predict(file["x"]).accuracy(file["y"])

    assert accuracy == run.summary["test_accuracy"]
    assert 0.2 < accuracy < 1.0
    assert (run.summary["kept_weights"] < run.summary["weights"]) == (ratio > 0)
    # The summary's figures are of the same predictions.
    predicted = run.predict(x).classes
    by_class = [row["accuracy"] for row in run.summary["class_accuracy"]]
    assert by_class == [(predicted[y == z] == z).mean() for z in range(10)]
    assert [row["samples"] for row in run.summary["class_accuracy"]] == np.bincount(y).tolist()
    low, high = run.summary["test_accuracy_interval"]
    assert low < accuracy < high


def test_predicting_uses_the_threads_of_the_training_and_gives_the_callers_back(mlp_run, monkeypatch):
    before, used = torch.get_num_threads(), []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    mlp_run.predict(raw_test_digits(10)[0])
    assert used == [1, before]


def test_raw_samples_become_the_inputs_of_the_training_bit_for_bit(small, mlp_run):
    data, _, _ = divide(small("rounds=6"))
    x, _ = raw_test_digits()
    for samples in (x, x.astype(np.float64), x[:, None], torch.from_numpy(x), x.tolist()):
        assert torch.equal(mlp_run.trained.inputs.inputs(samples), data.test_x)


def test_the_summary_holds_the_preprocessing(mlp_run):
    known = mlp_run.summary["preprocessing"]
    digits, labels = mnist_digits()
    # The 800 training digits of the small experiment: every fifth of the 4,000.
    train_digits = digits[np.arange(len(labels)) % 500 < 400][np.arange(800) * 5].astype(np.float64)
    assert set(known) == {"mean", "deviation", "input_shape", "class_names"}
    assert known["input_shape"] == [1, 28, 28]
    assert known["class_names"] == list("0123456789")
    whole = digits[np.arange(len(labels)) % 500 < 400]  # statistics are of all training digits, before thinning
    assert known["mean"] == pytest.approx([whole.mean()], rel=1e-6)
    assert known["deviation"] == pytest.approx([whole.std()], rel=1e-6)
    assert known["mean"] != pytest.approx([train_digits.mean()], rel=1e-6)


def test_a_clients_accuracy_is_that_of_its_mix_of_labels(mlp_run):
    by_class = np.array([row["accuracy"] for row in mlp_run.summary["class_accuracy"]])
    counts = mlp_run.job.label_counts
    wanted = counts @ by_class / counts.sum(axis=1)
    assert [row["client"] for row in mlp_run.summary["client_accuracy"]] == list(mlp_run.job.names)
    assert [row["accuracy"] for row in mlp_run.summary["client_accuracy"]] == pytest.approx(wanted.tolist())


def test_probabilities_are_the_softmax_of_the_models_logits(small, mlp_run):
    data, _, _ = divide(small("rounds=6"))
    x, _ = raw_test_digits()
    predictions = mlp_run.predict(x)
    with torch.no_grad():
        wanted = mlp_run.model(data.test_x).softmax(1).numpy()
    np.testing.assert_allclose(predictions.probabilities, wanted, rtol=1e-4, atol=1e-6)
    assert predictions.probabilities.sum(1) == pytest.approx(np.ones(200), abs=1e-5)
    assert (predictions.probability == predictions.probabilities.max(1)).all()


OWN = """
__fedgap__ = ["make"]
from torch import nn

def make(input_shape, classes, width=8):
    return nn.Sequential(nn.Linear(input_shape[0], width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, classes))
"""


def test_a_users_own_model_data_and_labels(small, tmp_path, monkeypatch):
    (tmp_path / "ownmodel.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("ownmodel", None)
    draw = np.random.default_rng(0)
    x, animals = draw.normal(50.0, 9.0, (300, 4)), np.array(["cat", "dog", "eel"])
    y = animals[(x[:, 0] > 50).astype(int) + (x[:, 1] > 55)]
    data = from_arrays(x[:240], y[:240], x[240:], y[240:])
    experiment = Experiment.load("embedded", ["model.name=ownmodel:make", "model.arguments={width: 6}", "rounds=8",
                                              "engine.threads=1", "engine.device=cpu", "budget.energy_j=1e6",
                                              "budget.delay_s=1e6", "scenario.learning.rate=0.1"])
    _, _, scenario = divide(experiment, data)
    run = train(experiment, tmp_path / "run", plan=by_hand(scenario, (8, range(5), 0.2)), dataset=data)
    again = fedgap.Run(run.folder)
    predictions = again.predict(x[240:])
    assert predictions.accuracy(y[240:]) == again.summary["test_accuracy"]
    assert predictions.class_names == ("cat", "dog", "eel")
    assert predictions.names.tolist() == [predictions.class_names[z] for z in predictions.classes]
    assert "`ownmodel:make` must be importable" in (run.folder / "model_card.md").read_text()
    export(again.trained, tmp_path / "own.pt")
    np.testing.assert_allclose(torch.jit.load(tmp_path / "own.pt")(torch.from_numpy(x[240:])).numpy(),
                               predictions.probabilities, rtol=1e-4, atol=1e-6)


def test_labels_are_names_or_count_from_zero():
    chances = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], dtype=np.float32)
    numbers = Predictions(chances.argmax(1), chances, ("1", "2"))
    assert numbers.accuracy([1, 2, 2]) == pytest.approx(2 / 3)  # all are names
    assert numbers.accuracy([0, 1, 0]) == 1.0  # 0 is not a name, so classes are counted from zero
    assert numbers.accuracy(np.array(["1", "2", "1"])) == 1.0
    words = Predictions(chances.argmax(1), chances, ("cat", "dog"))
    assert words.accuracy(torch.tensor([0, 1, 1])) == pytest.approx(2 / 3)
    with pytest.raises(InputError, match="label 'cow' must be one of the model's classes: cat, dog"):
        words.accuracy(["cat", "cow", "dog"])
    with pytest.raises(InputError, match="label '2' must be one of"):
        words.accuracy([0, 1, 2])
    with pytest.raises(InputError, match=r"must have shape \(3,\), one per prediction; they have shape \(2,\)"):
        words.accuracy([0, 1])


def test_predictions_in_files(tmp_path):
    chances = np.array([[0.75, 0.25], [0.125, 0.875]], dtype=np.float32)
    predictions = Predictions(chances.argmax(1), chances, ("cat, small", "dog"))
    with open(predictions.save(tmp_path / "p.csv"), newline="") as file:
        assert list(csv.reader(file)) == [["sample", "class", "class_name", "probability"],
                                          ["0", "0", "cat, small", "0.75"], ["1", "1", "dog", "0.875"]]
    back = np.load(predictions.save(tmp_path / "p.npz"))
    assert back["class"].tolist() == [0, 1]
    assert back["class_name"].tolist() == ["cat, small", "dog"]
    assert back["probability"].tolist() == [0.75, 0.875]
    assert (back["probabilities"] == chances).all()
    with pytest.raises(InputError, match=r"--out: .*p\.txt must end in \.npz or \.csv"):
        predictions.save(tmp_path / "p.txt")
    with pytest.raises(InputError, match=r"--out: the folder .* must exist"):
        predictions.save(tmp_path / "absent" / "p.csv")


def test_samples_from_a_file(tmp_path):
    x, y = np.zeros((3, 4)), np.arange(3)
    np.savez(tmp_path / "a.npz", x=x, y=y, test_x=x[:1])
    np.savez(tmp_path / "b.npz", test_x=x[:2], y=y, other=1)
    first, labels, name = read_samples(tmp_path / "a.npz")
    assert (first.shape, labels.tolist(), name) == ((3, 4), [0, 1, 2], "x of a.npz")
    second, none, _ = read_samples(tmp_path / "b.npz")
    assert second.shape == (2, 4)
    assert none is None  # y belongs to x, not to test_x
    np.savez(tmp_path / "c.npz", images=x)
    with pytest.raises(InputError, match=r"c\.npz: must have an array x or test_x; it has images"):
        read_samples(tmp_path / "c.npz")
    (tmp_path / "d.npz").write_text("no")
    with pytest.raises(InputError, match=r"d\.npz: cannot be read as \.npz"):
        read_samples(tmp_path / "d.npz")
    np.save(tmp_path / "e.npy", x)
    with pytest.raises(InputError, match=r"e\.npy: must be an .npz file"):
        read_samples(tmp_path / "e.npy")


@pytest.mark.parametrize(("shape", "says"), [
    ((2, 27, 28), r"one sample of samples has shape \(1, 27, 28\); the model was trained with \(1, 28, 28\)"),
    ((2, 28, 28, 1), r"shape \(28, 28, 1\)"), ((784,), r"; its shape is \(784,\)"), ((0, 28, 28), "is empty")])
def test_samples_that_do_not_fit_are_refused(mlp_run, shape, says):
    with pytest.raises(InputError, match=says):
        mlp_run.predict(np.zeros(shape))


def test_a_folder_without_a_finished_run(tmp_path, mlp_run):
    with pytest.raises(InputError, match="holds no run"):
        fedgap.Run(tmp_path).predict(np.zeros((1, 28, 28)))
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "job").symlink_to(mlp_run.folder / "job")
    with pytest.raises(InputError, match="has no trained model yet; finish the run with `fedgap resume"):
        fedgap.Run(tmp_path / "cut").predict(np.zeros((1, 28, 28)))


def test_a_run_of_an_older_version_takes_its_preprocessing_from_the_data(mlp_run, tmp_path):
    (tmp_path / "job").mkdir()
    document = json.loads((mlp_run.folder / "job" / "job.json").read_bytes())
    del document["extra"]["summary"]["preprocessing"]
    (tmp_path / "job" / "job.json").write_text(json.dumps(document))
    for name in ("job/arrays.npz", "model.safetensors"):
        (tmp_path / name).symlink_to(mlp_run.folder / name)
    x, y = raw_test_digits()
    assert fedgap.Run(tmp_path).predict(x).accuracy(y) == mlp_run.summary["test_accuracy"]


@pytest.mark.parametrize("model", ["lenet5", "resnet20"])
def test_torchscript_takes_raw_samples_and_equals_the_model(small, tmp_path, model):
    experiment = small("rounds=1", f"model.name={model}", "scenario.learning.batch_size=4", "data.test_samples=50",
                       "data.train_samples=100")
    run = trained(experiment, tmp_path / "run", (1, [0], 0.3))
    x, _ = raw_test_digits(50)
    samples = torch.from_numpy(x)
    extra = {"class_names.json": ""}
    loaded = torch.jit.load(export(run.trained, tmp_path / "model.pt"), _extra_files=extra)
    data, _, _ = divide(experiment)
    with torch.no_grad():
        wanted = run.model(data.test_x).softmax(1)
    torch.testing.assert_close(loaded(samples[:, None]), wanted, rtol=1e-6, atol=1e-7)
    assert torch.equal(loaded(samples), loaded(samples[:, None].float()))  # bytes without a channel, and floats
    assert loaded(samples[:1]).shape == (1, 10)
    assert (loaded(samples).argmax(1).numpy() == run.predict(x).classes).all()
    assert json.loads(extra["class_names.json"]) == list("0123456789")
    assert all(parameter.requires_grad for parameter in run.model.parameters())  # exporting did not change it


def test_onnx_is_one_file_and_reproduces_the_accuracy(mlp_run, tmp_path):
    """Runs where onnx, onnxscript and onnxruntime are installed; none of them is needed for anything else."""
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    runtime = pytest.importorskip("onnxruntime")
    out = export(mlp_run.trained, tmp_path / "model.onnx", "onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    dataset, session = open_data(mlp_run), runtime.InferenceSession(str(out))
    given = mlp_run.trained.inputs.preprocessing
    samples = (dataset.test_x * given.deviation[0] + given.mean[0]).numpy()
    (probabilities,) = session.run(None, {"samples": samples})
    right = (probabilities.argmax(1) == dataset.test_y.numpy()).mean()
    assert right == pytest.approx(mlp_run.summary["test_accuracy"], abs=1e-9)


def test_onnx_names_the_package_that_is_missing(mlp_run, tmp_path, monkeypatch):
    monkeypatch.setattr(export_module, "find_spec", lambda name: None if name == "onnxscript" else object())
    with pytest.raises(InputError, match="--format: onnx needs the package onnxscript; pip install onnxscript"):
        export(mlp_run.trained, tmp_path / "model.onnx", "onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_a_model_whose_computation_depends_on_the_number_of_samples_is_not_exported(mlp_run, tmp_path):
    class Counting(torch.nn.Module):
        def forward(self, x):
            return mlp_run.model(x) * torch.arange(10.0) * len(x)

    model = type(mlp_run.trained)(mlp_run.job, Counting(), mlp_run.trained.inputs)
    with pytest.raises(InputError, match="cannot be exported as torchscript"):
        export(model, tmp_path / "model.pt")
    assert not (tmp_path / "model.pt").exists()


def test_the_card_tells_what_the_summary_knows(mlp_run):
    card, summary = (mlp_run.folder / "model_card.md").read_text(), mlp_run.summary
    low, high = summary["test_accuracy_interval"]
    for text in (
        "# Model card: mlp trained on embedded", "10 clients hold 800 samples, 80 each", "Test: 200 samples",
        "Inputs: 1 x 28 x 28", "6 of 6 planned rounds were trained: all rounds are done.",
        "- 1 round with 10 of 10 clients, which prune 0% of the weights.",
        "- 5 rounds with 6 of 10 clients, which prune 30% of the weights.",
        f"| energy in J | {summary['energy_j']:.4g} | 1e+06 |", f"**{summary['test_accuracy']:.2%}** of the test",
        f"95 % interval of {low:.2%} to {high:.2%}", "Wilson", f"fedgap predict {mlp_run.folder} INPUT.npz",
        f"- torch: {torch.__version__}", f"| {mlp_run.job.names[7]} | 80 | 1 |",
        f"| {mlp_run.job.names[2]} | 80 | 6 | {summary['client_accuracy'][2]['accuracy']:.2%} |",
    ):
        assert text in card, text
    for row in summary["class_accuracy"]:
        assert f"| {row['class']} | {row['samples']} | {row['accuracy']:.2%} |" in card
    assert card.endswith("\n")
