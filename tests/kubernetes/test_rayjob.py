"""The example of a RayJob: a manifest that can be, of a run that can be and fits on its pods.

Pods, the claim and the script are checked against the schemas that Kubernetes publishes. What KubeRay
adds to them is in `rayjob.schema.json`, which is ours, and small. To check against a CRD of KubeRay's itself, name its file:

    SRL_RAYJOB_CRD=ray.io_rayjobs.yaml pytest tests/kubernetes
"""

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator

from srl.api import find_experiment
from srl.launch.graph.placing import Node, place
from srl.launch.graph.plan import make_plan

ROOT = Path(__file__).parents[2]
CLAIM, START, JOB = yaml.safe_load_all((ROOT / "examples/cluster/rayjob.yaml").read_text())
CLUSTER = JOB["spec"]["rayClusterSpec"]
GROUPS = [CLUSTER["headGroupSpec"], *CLUSTER["workerGroupSpecs"]]
PODS = [group["template"]["spec"] for group in GROUPS]
TEMPLATES = [
    {"apiVersion": "v1", "kind": "PodTemplate", "template": group["template"]} for group in GROUPS
]
KUBERNETES = "1.34"
SHELL, SCRIPT, RUN, NAME, *OPTIONS = shlex.split(JOB["spec"]["entrypoint"])


def strict(schema: Any) -> Any:
    """A schema that refuses fields it does not name, as Kubernetes does."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(part) for key, part in schema.items()}
    names = schema.get("properties")
    is_open = schema.get("x-kubernetes-preserve-unknown-fields")
    if schema.get("type") == "object" and isinstance(names, dict) and not is_open:
        made.setdefault("additionalProperties", False)
    return made


def crd_schema(path: Path) -> Any:
    """What a CRD says of version v1, but not of metadata, which Kubernetes itself knows."""
    versions = yaml.safe_load(path.read_text())["spec"]["versions"]
    return next(one["schema"]["openAPIV3Schema"] for one in versions if one["name"] == "v1")


def schemas() -> list[Any]:
    ours = json.loads(Path(__file__).with_name("rayjob.schema.json").read_text())
    crd = os.environ.get("SRL_RAYJOB_CRD")
    return [ours, *([crd_schema(Path(crd))] if crd else [])]


def problems(job: Any, schema: Any) -> list[str]:
    found = Draft202012Validator(strict(schema)).iter_errors(job)
    return [f"{'.'.join(map(str, one.absolute_path))}: {one.message}" for one in found]


@pytest.mark.parametrize("schema", schemas())
def test_manifest_is_a_rayjob(schema: Any) -> None:
    assert problems(JOB, schema) == []


@pytest.mark.parametrize("schema", schemas())
@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("spec", "entryPoint"), "srl list", "'entryPoint' was unexpected"),
        (("spec", "backoffLimit"), "3", "'3' is not of type 'integer'"),
        (("spec", "rayClusterSpec", "authOptions", "mode"), "tokens", "is not one of"),
        (("spec", "rayClusterSpec", "workerGroupSpec"), [], "'workerGroupSpec' was unexpected"),
        (("spec", "rayClusterSpec", "headGroupSpec", "rayStartParams", "x"), 1, "of type 'string'"),
    ],
)
def test_what_is_no_rayjob_is_refused(
    schema: Any, path: tuple[Any, ...], value: Any, message: str
) -> None:
    found = problems(changed(JOB, path, value), schema)
    assert len(found) == 1
    assert message in found[0]


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value at this path."""
    made = json.loads(json.dumps(document))  # parts that YAML shares are apart here
    *way, last = path
    part = made
    for name in way:
        part = part[name]
    part[last] = value
    return made


@pytest.mark.parametrize("part", [CLAIM, START, *TEMPLATES], ids=lambda part: part["kind"])
def test_what_kubernetes_itself_knows_is_right(part: Any) -> None:
    assert kubernetes_validate.validate(part, KUBERNETES, strict=True) == KUBERNETES


@pytest.mark.parametrize(
    ("part", "path", "value", "message"),
    [
        (CLAIM, ("spec", "accessMode"), ["ReadWriteMany"], "'accessMode' was unexpected"),
        (START, ("data", "start.sh"), 1, "is not of type 'string'"),
        (TEMPLATES[0], ("template", "spec", "volume"), [], "'volume' was unexpected"),
        (TEMPLATES[0], ("template", "spec", "containers", 0, "resource"), {}, "was unexpected"),
        (TEMPLATES[1], ("template", "spec", "volumes", 0, "name"), None, "is not of type 'string'"),
    ],
)
def test_what_kubernetes_does_not_know_is_refused(
    part: Any, path: tuple[Any, ...], value: Any, message: str
) -> None:
    with pytest.raises(kubernetes_validate.ValidationError, match=message):
        kubernetes_validate.validate(changed(part, path, value), KUBERNETES, strict=True)


def test_pods_see_what_they_mount() -> None:
    for pod in PODS:
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {
            mount["mountPath"]: mount["name"] for mount in pod["containers"][0]["volumeMounts"]
        }
        assert {*mounts.values()} == {*volumes}
        claim = volumes[mounts["/runs"]]["persistentVolumeClaim"]["claimName"]
        assert claim == CLAIM["metadata"]["name"]
        assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
    head = {volume["name"]: volume for volume in PODS[0]["volumes"]}
    assert head["start"]["configMap"]["name"] == START["metadata"]["name"]
    assert str(Path(RUN).parent) == "/runs"
    assert Path(SCRIPT).parent == Path("/etc/srl")
    assert Path(SCRIPT).name in START["data"]
    assert {pod["containers"][0]["image"] for pod in PODS} == {"srl:0.1.0"}


def test_run_fits_on_the_pods() -> None:
    """The entrypoint's options are SRL's, and there is a core for every worker."""
    experiment = find_experiment(NAME, [*OPTIONS, "--launcher", "ray", "--out", RUN])
    counts = [1, *(group["replicas"] for group in CLUSTER["workerGroupSpecs"])]
    nodes = [
        Node(f"{group}-{one}", f"10.0.{group}.{one}", cores=cores_of(pod), is_here=group == 0)
        for group, (pod, count) in enumerate(zip(PODS, counts, strict=True))
        for one in range(count)
    ]
    places = place(make_plan(experiment), nodes, {})
    assert len(places) == sum(counts)


def cores_of(pod: Any) -> float:
    return float(pod["containers"][0]["resources"]["requests"]["cpu"])


@pytest.mark.parametrize("life", ["first", "too short", "second"])
def test_run_that_has_a_checkpoint_goes_on(life: str, tmp_path: Path) -> None:
    run, script, srl = tmp_path / "run", tmp_path / "start.sh", tmp_path / "bin" / "srl"
    srl.parent.mkdir()
    srl.write_text('#!/bin/sh\necho "$@"\n')
    srl.chmod(0o755)
    script.write_text(START["data"]["start.sh"])
    if life != "first":
        (run / "checkpoints" / (".writing" if life == "too short" else "12")).mkdir(parents=True)
    done = subprocess.run(
        [SHELL, str(script), str(run), NAME, *OPTIONS],
        env={"PATH": f"{srl.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    anew = f"train {NAME} {shlex.join(OPTIONS)} --launcher ray --out {run}"
    assert done.stdout.strip() == (f"resume {run}" if life == "second" else anew)
    assert run.exists() == (life == "second")
    assert len([*tmp_path.glob("run.before-*")]) == (life == "too short")
