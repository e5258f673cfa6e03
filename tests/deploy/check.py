"""Validates what is in deploy/. Called by tests/deploy/run, which says what it needs."""

import pathlib
import shutil
import subprocess
import sys
import tempfile

import kubernetes_validate
import yaml
from cloudcoil.models.istio.networking import v1alpha3 as istio
from cloudcoil.models.prometheus_operator import v1 as prometheus_operator

TOOLS = pathlib.Path(sys.executable).parent
KUBERNETES = pathlib.Path("deploy/kubernetes")

# The oldest Kubernetes that the manifests are for, and the newest that there are schemas of.
KUBERNETES_VERSIONS = ["1.29", "1.37"]
MODELS = {
    "EnvoyFilter": istio.EnvoyFilter,
    "PrometheusRule": prometheus_operator.PrometheusRule,
    "ServiceMonitor": prometheus_operator.ServiceMonitor,
}

# How long a drain takes: Comporta's defaults for the time before it and for the drain itself.
DRAIN_SECONDS = 5 + 25


def main():
    valid = []
    for name, documents in rendered():
        place = f"{name}: "
        for document in documents:
            if document not in valid:
                validate(place, document)
                valid.append(document)
        check_together(place, documents)
    return len(valid)


def rendered():
    """Every set of manifests that people apply, by name."""
    with tempfile.TemporaryDirectory() as folder:
        kubernetes = pathlib.Path(folder, "kubernetes")
        shutil.copytree(KUBERNETES, kubernetes)
        (kubernetes / "redis" / "redis-password").write_text("0123456789abcdef\n")
        for overlay in ["base", "redis"]:
            yield overlay, kustomize(kubernetes / overlay)
            monitored = kubernetes / f"{overlay}-monitored"
            monitored.mkdir()
            (monitored / "kustomization.yaml").write_text(
                f"namespace: comporta\nresources: [../{overlay}]\ncomponents: [../monitoring]\n"
            )
            yield f"{overlay} with monitoring", kustomize(monitored)


def kustomize(folder):
    return documents(run(TOOLS / "kubectl", "kustomize", folder))


def documents(text):
    return [document for document in yaml.safe_load_all(text) if document]


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}")
    return done.stdout


def validate(place, document):
    """By the schema of its kind; keys that no schema knows are wrong."""
    kind = document["kind"]
    place += f"{kind} {document['metadata']['name']}: "
    if model := MODELS.get(kind):
        try:
            known = model.model_validate(document).model_dump(by_alias=True, exclude_unset=True, mode="json")
        except ValueError as error:
            fail(f"{place}{error}")
        if unknown := difference(document, known):
            fail(f"{place}no such key: {unknown}")
        return
    for version in KUBERNETES_VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            fail(f"{place}{'.'.join(map(str, error.path))}: {error.message} (Kubernetes {version})")
        except kubernetes_validate.SchemaNotFoundError as error:
            fail(f"{place}{error.message}")


def difference(written, known, path=""):
    """The first key of `written` that the model dropped."""
    if isinstance(written, dict) and isinstance(known, dict):
        for key, value in written.items():
            if key not in known:
                return f"{path}.{key}"
            if found := difference(value, known[key], f"{path}.{key}"):
                return found
    if isinstance(written, list) and isinstance(known, list):
        for number, (value, other) in enumerate(zip(written, known)):
            if found := difference(value, other, f"{path}[{number}]"):
                return found
    return None


def check_together(place, documents):
    """What no schema says: that the manifests of one set fit together."""

    def of(*kinds):
        return [document for document in documents if document["kind"] in kinds]

    def names(*kinds):
        return {document["metadata"]["name"] for document in of(*kinds)}

    def ensure(is_so, document, what):
        if not is_so:
            fail(f"{place}{document['kind']} {document['metadata']['name']}: {what}")

    workloads = of("Deployment", "StatefulSet")

    def selected(selector):
        labels = selector.get("matchLabels", {}) if "matchLabels" in selector else selector
        pods = [workload["spec"]["template"] for workload in workloads]
        return [pod for pod in pods if labels.items() <= pod["metadata"]["labels"].items()]

    def ports(pod):
        return {port["name"] for container in pod["spec"]["containers"] for port in container["ports"]}

    for workload in workloads:
        ensure(selected(workload["spec"]["selector"]) == [workload["spec"]["template"]], workload, "selects other pods")
        check_pod(workload, names("ConfigMap"), names("Secret"), ensure)
    for service in of("Service"):
        pods = selected(service["spec"]["selector"])
        ensure(len(pods) == 1, service, "has to select one kind of pod")
        for port in service["spec"]["ports"]:
            ensure(port["targetPort"] in ports(pods[0]), service, f"no container has the port {port['targetPort']}")
    for guard in of("PodDisruptionBudget"):
        ensure(len(selected(guard["spec"]["selector"])) == 1, guard, "has to select one kind of pod")
    for policy in of("NetworkPolicy"):
        ensure(len(selected(policy["spec"]["podSelector"])) == 1, policy, "has to select one kind of pod")
    for scaler in of("HorizontalPodAutoscaler"):
        (deployment,) = [one for one in of("Deployment") if one["metadata"]["name"] == scaler["spec"]["scaleTargetRef"]["name"]]
        ensure("replicas" not in deployment["spec"], deployment, "`replicas` would reset what the autoscaler chose")
    for monitor in of("ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        (service,) = [one for one in of("Service") if wanted <= one["metadata"]["labels"].items()]
        for endpoint in monitor["spec"]["endpoints"]:
            known = {port["name"] for port in service["spec"]["ports"]}
            ensure(endpoint["port"] in known, monitor, f"the service has no port {endpoint['port']}")


def check_pod(workload, config_maps, secrets, ensure):
    pod = workload["spec"]["template"]["spec"]

    def must(is_so, what):
        ensure(is_so, workload, what)

    must(pod["automountServiceAccountToken"] is False, "has a token for the Kubernetes API")
    security = pod["securityContext"]
    must(security["runAsNonRoot"] and security["runAsUser"] > 0, "runs as root")
    must(security["seccompProfile"] == {"type": "RuntimeDefault"}, "has no seccomp profile")
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for volume in volumes.values():
        if "configMap" in volume:
            must(volume["configMap"]["name"] in config_maps, f"no ConfigMap for the volume {volume['name']}")
        if "secret" in volume:
            must(volume["secret"]["secretName"] in secrets, f"no Secret for the volume {volume['name']}")
    for container in pod["containers"]:
        security = container["securityContext"]
        must(security["allowPrivilegeEscalation"] is False, "may gain privileges")
        must(security["readOnlyRootFilesystem"] is True, "may write to its image")
        must(security["capabilities"] == {"drop": ["ALL"]}, "keeps capabilities")
        must({"requests", "limits"} <= container["resources"].keys(), "has no resources")
        ports = {port["name"] for port in container["ports"]}
        for probe in ["startupProbe", "readinessProbe", "livenessProbe"]:
            if "httpGet" in container.get(probe, {}):
                must(container[probe]["httpGet"]["port"] in ports, f"{probe} asks at no port of its")
        for mount in container["volumeMounts"]:
            must(mount["name"] in volumes, f"there is no volume {mount['name']}")
            must("subPath" not in mount, "a `subPath` is never updated")
    if workload["kind"] == "Deployment":
        rolling = workload["spec"]["strategy"]["rollingUpdate"]
        must(rolling["maxUnavailable"] == 0, "an update takes instances away first")
        must(pod["terminationGracePeriodSeconds"] > DRAIN_SECONDS, "is killed in the middle of a drain")


def fail(message):
    sys.exit(f"tests/deploy: {message}")


if __name__ == "__main__":
    print(f"tests/deploy: {main()} manifests are valid", file=sys.stderr)
