"""The manifest of the page on clusters is one, and its commands train on hosts with what its pods have."""

import re
import subprocess

import pytest
import yaml

from harness.etcd import missing as etcd_missing
from harness.hosts import hosts, missing
from harness.paths import ROOT
from harness.pods import begin, on_node
from harness.started import TRAIN

MODEL = "layers = 1\nhidden = 32\nheads = 2\nsequence = 16\nmicro_batch_size = 2\n"
WHY_NOT = missing() or etcd_missing()


@pytest.fixture(scope="module")
def manifest():
    """What the document would have Kubernetes make, by kind and name."""
    (text,) = re.findall(
        r"^```yaml\n(.*?)^```", (ROOT / "docs" / "reference" / "cluster.md").read_text(), re.DOTALL | re.MULTILINE
    )
    return {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text)}


def test_kubernetes_takes_it(manifest):
    schemas = pytest.importorskip("kubernetes_validate")
    for resource in manifest.values():
        schemas.validate(resource, "1.31", strict=True)


def test_what_refers_to_something_else_means_what_is_there(manifest):
    job, members = manifest["Job", "recycle"]["spec"], manifest["StatefulSet", "etcd"]["spec"]
    pod, (server,) = job["template"]["spec"], job["template"]["spec"]["containers"]
    variables = {each["name"]: each["value"] for each in server["env"]}
    assert int(variables["WORLD_SIZE"]) == job["completions"] == job["parallelism"] == job["maxFailedIndexes"] + 1
    # A pod of an indexed job is called after the job and its number, and found below its service.
    assert variables["MASTER_ADDR"] == f"recycle-0.{pod['subdomain']}"
    assert manifest["Service", pod["subdomain"]]["spec"]["selector"] == {"job-name": "recycle"}
    assert manifest["Service", members["serviceName"]]["spec"]["selector"] == members["selector"]["matchLabels"]
    names = [f"etcd-{number}.{members['serviceName']}" for number in range(members["replicas"])]
    assert f"etcd://{','.join(names)}\n" in server["command"][-1]
    (member,) = members["template"]["spec"]["containers"]
    claims = [each["metadata"] for each in members["volumeClaimTemplates"]]
    for container, volumes in ((server, pod["volumes"]), (member, claims)):
        assert [each["name"] for each in container["volumeMounts"]] == [each["name"] for each in volumes]


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_its_commands_train_when_the_first_pod_starts_last_and_its_node_is_lost(manifest, start, tmp_path):
    (server,) = manifest["Job", "recycle"]["spec"]["template"]["spec"]["containers"]
    (member,) = manifest["StatefulSet", "etcd"]["spec"]["template"]["spec"]["containers"]
    (tmp_path / "model.toml").write_text(MODEL)
    size = "--pipelines 3 --stages 1 --micro-batches 2 --iterations 60"
    files = f"--model {tmp_path / 'model.toml'} -o {tmp_path / 'run'}"
    train = {"recycle train job.toml -o /shared/run": f"{' '.join(TRAIN)} train {size} {files}"}
    with hosts(3) as nodes:

        def name(pods):
            known = "".join(f"{nodes[number].address} {pod}\n" for number, pod in pods.items())
            for node in nodes:
                subprocess.run(node.command("sh", "-c", "cat >> /etc/hosts"), input=known, text=True, check=True)

        name({number: f"etcd-{number}.etcd" for number in range(3)})
        for number, node in enumerate(nodes):
            folder = {"/var/lib/etcd": str(tmp_path / f"etcd-{number}")}
            start(*on_node(node, begin(member, f"etcd-{number}", {}, folder)))
        pods = {}
        for number in (2, 1, 0):
            variables = {"JOB_COMPLETION_INDEX": str(number), "WORLD_SIZE": "3"}
            pods[number] = start(*on_node(nodes[number], begin(server, f"recycle-{number}", variables, train)))
        assert all(pod.process.poll() is None for pod in pods.values())
        name({0: "recycle-0.recycle"})
        pods[0].wait_for("iteration 3/")
        nodes[0].crash()
        for number in (1, 2):
            assert pods[number].ended() == 0, pods[number].output
        assert "iteration 60/60" in pods[1].output + pods[2].output
