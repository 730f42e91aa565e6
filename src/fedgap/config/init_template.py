"""What ``fedgap init DIR`` writes: a commented scenario, its fleet as a CSV, and an experiment on it."""

from pathlib import Path

from fedgap.config.error_messages import shown
from fedgap.errors import InputError
from fedgap.files import write_text

SCENARIO = """\
# A scenario: all that planning needs. Try:
#   fedgap plan scenario.yaml
#   fedgap plan scenario.yaml budget.delay_s=35 pruning.max_ratio=0.7
# SI units throughout; the unit is in each key's name. An unknown key is an error.
format: 1
mode: repaired                # as_printed (every formula as in the paper) | repaired; keys written here win over it

rounds: 100                   # how many rounds to train
budget:
  energy_j: 40.0              # all clients and the server, over all rounds
  delay_s: 40.0               # all rounds

learning:
  rate: 0.01                  # learning rate of plain SGD
  batch_size: 32              # samples a client uses each round

model:                        # LeNet-5 here
  gradient_bits: 1421632      # number of parameters x 32
  flops_per_sample: 1.8e6     # operations for one sample's gradient (about three forward passes)

pruning:
  max_ratio: 0.5              # at most this fraction of the model may be removed; below 1

bound:                        # constants of the convergence bound; `fedgap calibrate` measures them for your model
  initial_gap: 3.5            # initial loss minus the least loss
  smoothness: 170.0           # Lipschitz constant of the gradient
  gradient_moment: 1500.0     # second moment of one sample's gradient
  parameter_moment: 470.0     # squared norm of the parameters
  pruning_sensitivity: 10.0   # measured: how much pruning changes the gradient, ||g - g_pruned||^2 / ratio

server:
  power_w: 0.5                # broadcast power
  # bandwidth_hz: 6.0e5       # left out: the whole band, the sum of the clients'
noise_psd_w_hz: 3.98e-21      # thermal noise, -174 dBm/Hz

target_counts: [100, 100, 100, 100, 100, 100, 100, 100, 100, 100]   # label histogram the model should be good on

clients: fleet.csv            # one row a client; or list them here; or draw them by a recipe:
# fleet: {kind: rayleigh, count: 10, mean_gain: 1.0e-5, bandwidth_hz: 1.0e5, max_power_w: 0.5,
#         max_frequency_hz: 5.0e8, flops_per_cycle: 4, capacitance: 1.0e-27}
# labels: {classes: 10, concentration: 5, train_samples: 600, target_samples: 100}
"""

FLEET = """\
# One row a client. An empty cell is a key left out. label_counts: training samples of each class, separated by ;
name,uplink_gain,bandwidth_hz,max_power_w,max_frequency_hz,flops_per_cycle,capacitance,label_counts
kitchen,1.1e-5,1.0e5,0.5,5.0e8,4,8.8e-28,40;52;71;63;38;80;66;59;70;61
hall,3.1e-6,1.0e5,0.5,5.0e8,4,8.4e-28,66;48;59;60;72;51;64;58;55;67
garage,4.0e-7,1.0e5,0.5,2.5e8,4,1.41e-27,120;96;15;22;101;17;88;110;12;19
attic,8.2e-6,1.0e5,0.5,5.0e8,4,1.33e-27,55;64;62;57;60;66;58;61;59;58
office,2.5e-5,1.0e5,0.5,1.0e9,8,9.4e-28,10;12;140;131;9;121;14;13;138;12
garden,1.2e-6,1.0e5,0.5,5.0e8,4,2.6e-28,75;41;66;72;35;70;49;68;52;72
"""

EXPERIMENT = """\
# An experiment: all that training needs. Try:
#   fedgap train experiment.yaml --out run
#   fedgap train experiment.yaml rounds=30 seed=1 --out run-2
format: 1
scenario: scenario.yaml       # a file beside this one, a preset, or the scenario itself

data:
  name: embedded              # 5,000 MNIST digits that work offline; or mnist, fashion-mnist, cifar10, your own .npz

partition:                    # who has what; this replaces the scenario's label_counts when training
  kind: dirichlet             # or dirichlet_by_class, iid, shards, quantity, file
  concentration: 5            # smaller makes clients differ more
  target_size: 100            # samples in each client's target set

model:
  name: lenet5                # or mlp, resnet20 ... resnet110, or package.module:factory

scheme: proposed              # or no_pruning, all_clients, no_generalization, fixed_power, fixed_frequency
solver: exact                 # or alternating: the paper's Algorithm 1
seed: 0
evaluate_every: 10
"""

FILES = {"scenario.yaml": SCENARIO, "fleet.csv": FLEET, "experiment.yaml": EXPERIMENT}
"""The files by name."""


def write_template(directory: str | Path) -> list[Path]:
    """Write the files into ``directory``, which is made if need be; a file that is there already is never replaced."""
    folder = Path(directory)
    paths = [folder / name for name in FILES]
    try:
        for path in paths:
            if path.exists():
                raise InputError(f"{shown(path)}: is there already; choose another folder, or move it away")
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            write_text(path, FILES[path.name])  # half a file would never be replaced
    except (OSError, ValueError) as error:
        raise InputError(f"{shown(folder)}: cannot be written to ({getattr(error, 'strerror', error)})") from None
    return paths
