"""Manifests of pages are ones, and the commands of Megatron's train on hosts with its pods' names and variables."""

import re
import signal
import subprocess

import pytest
import yaml

from harness.etcd import missing as etcd_missing
from harness.hosts import hosts, missing
from harness.paths import ROOT
from harness.pods import begin, on_node
from harness.processes import family, send_signal, title
from harness.started import TRAIN, losses

PAGE = ROOT / "docs" / "howto" / "kubernetes.md"
OF_TRAIN = ROOT / "docs" / "reference" / "cluster.md"
"""The page that has the manifest of ``recycle train``."""

MODEL = "layers = 1\nhidden = 32\nheads = 2\nsequence = 16\nmicro_batch_size = 2\n"
WHY_NOT = missing() or etcd_missing()
SECRET = "of all pods of this job"
MEGATRON = re.compile(r"python -m recycle\.megatron .*?\$MODEL_AND_DATA", re.DOTALL)


def manifest_of(page):
    """What a page would have Kubernetes make, by kind and name."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    resources = [each for text in blocks for each in yaml.safe_load_all(text)]
    return {(each["kind"], each["metadata"]["name"]): each for each in resources}


@pytest.fixture(scope="module")
def manifest():
    return manifest_of(PAGE)


@pytest.mark.parametrize("page", [PAGE, OF_TRAIN], ids=lambda page: page.stem)
def test_kubernetes_takes_it(page):
    schemas = pytest.importorskip("kubernetes_validate")
    for resource in manifest_of(page).values():
        schemas.validate(resource, "1.31", strict=True)


@pytest.mark.parametrize(("page", "name"), [(PAGE, "llama70b"), (OF_TRAIN, "recycle")])
def test_what_refers_to_something_else_means_what_is_there(page, name):
    manifest = manifest_of(page)
    job, members = manifest["Job", name]["spec"], manifest["StatefulSet", "etcd"]["spec"]
    pod, (server,) = job["template"]["spec"], job["template"]["spec"]["containers"]
    variables = {each["name"]: each["value"] for each in server["env"] if "value" in each}
    assert job["completions"] == job["parallelism"] == job["maxFailedIndexes"] + 1
    assert int(variables["WORLD_SIZE"]) == job["completions"] * int(variables.get("RANKS", 1))
    assert variables.get("RANKS") == server.get("resources", {}).get("limits", {}).get("nvidia.com/gpu")
    # A pod of an indexed job is called after the job and its number, and found below its service.
    assert variables["MASTER_ADDR"] == f"{name}-0.{pod['subdomain']}"
    assert manifest["Service", pod["subdomain"]]["spec"]["selector"] == {"job-name": name}
    assert manifest["Service", members["serviceName"]]["spec"]["selector"] == members["selector"]["matchLabels"]
    names = [f"etcd-{number}.{members['serviceName']}" for number in range(members["replicas"])]
    store = variables["RECYCLE_STORE"] if page == PAGE else server["command"][-1].split()[-1]
    assert store == f"etcd://{','.join(names)}" + ("/llama70b" if page == PAGE else "")
    claims = {each["persistentVolumeClaim"]["claimName"] for each in pod["volumes"] if "persistentVolumeClaim" in each}
    assert page == OF_TRAIN or {("PersistentVolumeClaim", each) for each in claims} <= manifest.keys()
    (member,) = members["template"]["spec"]["containers"]
    kept = [each["metadata"] for each in members["volumeClaimTemplates"]]
    for container, volumes in ((server, pod["volumes"]), (member, kept)):
        assert [each["name"] for each in container["volumeMounts"]] == [each["name"] for each in volumes]


@pytest.fixture
def pods(manifest, start, tmp_path):
    """The pods of the job on three hosts, with one rank each, the first of them begun last; and the hosts."""
    (server,) = manifest["Job", "llama70b"]["spec"]["template"]["spec"]["containers"]
    (member,) = manifest["StatefulSet", "etcd"]["spec"]["template"]["spec"]["containers"]
    (tmp_path / "model.toml").write_text(MODEL)
    size = "--pipelines 3 --stages 1 --micro-batches 2 --iterations 300"
    files = f"--model {tmp_path / 'model.toml'} -o {tmp_path / 'run'}"
    megatron = MEGATRON.search(server["command"][-1])
    changes = {megatron[0]: f"{' '.join(TRAIN)} train {size} {files}"}
    with hosts(3) as nodes:
        names = {each: f"etcd-{number}.etcd" for number, each in enumerate(nodes)}
        known = "".join(f"{each.address} {name}\n" for each, name in names.items())
        known += f"{nodes[0].address} llama70b-0.llama70b\n"
        for node in nodes:
            subprocess.run(node.command("sh", "-c", "cat >> /etc/hosts"), input=known, text=True, check=True)
        for number, node in enumerate(nodes):
            folder = {"/var/lib/etcd": str(tmp_path / f"etcd-{number}")}
            start(*on_node(node, begin(member, f"etcd-{number}", {}, folder)))
        made = {}
        for number in (2, 1, 0):
            variables = {"JOB_COMPLETION_INDEX": str(number), "WORLD_SIZE": "3", "RANKS": "1", "RECYCLE_TOKEN": SECRET}
            made[number] = start(*on_node(nodes[number], begin(server, f"llama70b-{number}", variables, changes)))
        made[0].wait_for("iteration 3/")
        yield made, nodes


@pytest.mark.long
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_the_job_outlives_the_node_of_its_first_pod(pods, tmp_path):
    made, nodes = pods
    nodes[0].crash()
    for number in (1, 2):
        assert made[number].ended() == 0, made[number].output
    assert len(losses(tmp_path / "run")) == 300


@pytest.mark.long
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_pods_that_are_told_to_end_make_a_checkpoint_and_one_that_is_drained_leaves_alone(pods):
    made, _ = pods

    def tell(number):
        # Kubernetes signals the first process of a container: here, the shell below the one that enters the host.
        (shell,) = [each for each in family(made[number].process.pid) if title(each).startswith("sh -c")]
        send_signal(shell, signal.SIGTERM)

    tell(2)
    assert made[2].ended() == 128 + signal.SIGTERM, made[2].output
    made[0].wait_for("2 of 3 servers")
    for number in (0, 1):
        tell(number)
    for number in (0, 1):
        assert made[number].ended() == 128 + signal.SIGTERM, made[number].output
    assert "with a checkpoint" in made[0].output
