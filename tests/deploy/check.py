"""Validates what is in deploy/. Called by tests/deploy/run, which says what it needs."""

import json
import pathlib
import re
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
CHART = pathlib.Path("deploy/helm/comporta")
ALERTS = pathlib.Path("deploy/prometheus")
DASHBOARD = pathlib.Path("deploy/grafana/comporta.json")
CHART_VALUES = pathlib.Path("tests/deploy/values")

# The oldest Kubernetes that the manifests are for, and the newest that there are schemas of.
KUBERNETES_VERSIONS = ["1.29", "1.37"]
MODELS = {
    "EnvoyFilter": istio.EnvoyFilter,
    "PrometheusRule": prometheus_operator.PrometheusRule,
    "ServiceMonitor": prometheus_operator.ServiceMonitor,
}

# What the chart refuses, and a part of what it says then.
REFUSED_VALUES = {
    "replica=3": "additional properties 'replica' not allowed",
    "replicas=0": "replicas",
    "store.url=localhost:6379": "store/url",
    "rules.api=x": "invalid propertyName 'api'",
    "failureMode=opne": "failureMode",
    "redis.enabled=true": "store.passwordSecret.name: name a Secret",
    "redis.enabled=true,store.url=redis://other": "store.url: `redis.enabled` runs a Redis",
    "store.url=redis://other": "networkPolicy.egress: say how the store is reached",
    "store.tls.clientCertificate=true": "store.tls.secret: name the Secret",
    "tls.clientCertificate=true": "tls.secret: name the Secret",
    "tls.secret=a,tls.clientNames={b}": "tls.clientCertificate: true is what",
    "rules=null": "rules: there are none",
}


def main(promtool):
    valid = []
    sets = dict(rendered())
    for name, manifests in sets.items():
        place = f"{name}: "
        for document in manifests:
            if document not in valid:
                validate(place, document)
                valid.append(document)
        check_together(place, manifests)
    for folder in ["istio", "contour", "envoy-gateway"]:
        for file in sorted(pathlib.Path("deploy", folder).iterdir()):
            for document in documents(file.read_text()):
                # There is no published schema of Contour's and Envoy Gateway's kinds to be had.
                if document.get("kind") in MODELS:
                    validate(f"{file}: ", document)
                    valid.append(document)
    check_same("base", sets["base"], sets["chart"])
    check_same("redis with monitoring", sets["redis with monitoring"], sets["chart with redis.yaml"])
    check_chart()
    run(promtool, "check", "rules", ALERTS / "alerts.yaml")
    run(promtool, "test", "rules", ALERTS / "alerts.test.yaml")
    check_alerts_are_tested()
    check_dashboard(promtool)
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
    yield "chart", helm_template()
    for values in sorted(CHART_VALUES.iterdir()):
        yield f"chart with {values.name}", helm_template("--values", values)


def kustomize(folder):
    return documents(run(TOOLS / "kubectl", "kustomize", folder))


def helm_template(*arguments):
    return documents(run(TOOLS / "helm", "template", "comporta", CHART, "--namespace", "comporta", *arguments))


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
    """What no schema says: that the manifests of one set fit together.

    With what users of the chart make themselves, by the names that tests/deploy/values/ has for it.
    """
    theirs = {"ConfigMap": {"my-rules"}, "Secret": {"comporta-redis", "shared-redis", "redis-tls", "grpc-tls"}}

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
        is_chart = place.startswith("chart")
        known = {kind: names(kind) | (theirs[kind] if is_chart else set()) for kind in theirs}
        check_pod(workload, known["ConfigMap"], known["Secret"], ensure)
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


def check_same(name, manifests, chart):
    """The chart makes what the manifests say, but for labels, and for hashes in names."""
    mine = {key(document): comparable(document) for document in manifests}
    # Helm's user makes the namespace and the password.
    mine = {key: value for key, value in mine.items() if key[0] not in ("Namespace", "Secret")}
    charts = {key(document): comparable(document) for document in chart}
    if mine.keys() != charts.keys():
        fail(f"{name} and the chart: {sorted(mine.keys() ^ charts.keys())} only in one of them")
    for which, document in mine.items():
        if found := divergence(document, charts[which]):
            fail(f"{name} and the chart differ in {' '.join(which)}{found}")


def divergence(one, other, path=""):
    """Where two documents differ first, and what they say there."""
    if one == other:
        return None
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return next(found for key in one if (found := divergence(one[key], other[key], f"{path}.{key}")))
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other))
        return next(found for at, pair in pairs if (found := divergence(*pair, f"{path}[{at}]")))
    return f"{path}:\n{one}\n{other}"


def key(document):
    return document["kind"], without_hash(document["metadata"]["name"])


def without_hash(text):
    return re.sub(r"^(comporta-redis)-[a-z0-9]{10}$", r"\1", text)


def comparable(node):
    """Without what may differ: metadata, the label of the release, comments, and the order of named things."""
    if isinstance(node, dict):
        dropped = {"metadata", "app.kubernetes.io/instance", "items"}
        pairs = {key: comparable(value) for key, value in node.items() if key not in dropped}
        if node.get("kind") == "ConfigMap":
            pairs["data"] = {name: re.sub(r"(?m)^#.*\n\n?", "", text).strip() for name, text in node["data"].items()}
        return pairs
    if isinstance(node, list):
        items = [comparable(item) for item in node]
        return sorted(items, key=lambda item: item["name"]) if all(is_named(item) for item in items) else items
    return without_hash(node) if isinstance(node, str) else node


def is_named(item):
    return isinstance(item, dict) and "name" in item


def check_chart():
    run(TOOLS / "helm", "lint", "--strict", CHART)
    for values, expected in REFUSED_VALUES.items():
        command = [TOOLS / "helm", "template", "comporta", CHART, "--set", values]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if done.returncode == 0 or expected not in done.stderr:
            fail(f"helm template --set {values}: {done.stderr or 'was accepted'}")
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    check_described("", values, schema)


def check_described(place, values, schema):
    """The schema and values.yaml have the same keys."""
    known = schema.get("properties", {}).keys() - {"global"}
    if known and known != values.keys():
        fail(f"values.yaml and values.schema.json: {place}{sorted(known ^ values.keys())} only in one of them")
    for key in known:
        if isinstance(values[key], dict):
            check_described(f"{key}.", values[key], schema["properties"][key])


def check_alerts_are_tested():
    groups = yaml.safe_load((ALERTS / "alerts.yaml").read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"]}
    tests = yaml.safe_load((ALERTS / "alerts.test.yaml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    for does_fire in [True, False]:
        tested = {case["alertname"] for case in cases if bool(case.get("exp_alerts")) == does_fire}
        if untested := alerts - tested:
            fail(f"alerts.test.yaml: no test in which {sorted(untested)} {'fires' if does_fire else 'does not fire'}")


def check_dashboard(promtool):
    """Every expression is PromQL, asks the data source that was chosen, and stands in a place of its own."""
    dashboard = json.loads(DASHBOARD.read_text())
    places = set()
    expressions = [annotation["expr"] for annotation in dashboard["annotations"]["list"]]
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        if places & cells or place["x"] + place["w"] > 24:
            fail(f"{DASHBOARD}: {panel['title']} overlaps another panel")
        places |= cells
        for target in panel.get("targets", []):
            if target["datasource"]["uid"] != "${datasource}":
                fail(f"{DASHBOARD}: {panel['title']} has a data source of its own")
            expressions.append(target["expr"])
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "1m")}
        for number, expression in enumerate(expressions)
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}, file)
        file.flush()
        run(promtool, "check", "rules", file.name)


def fail(message):
    sys.exit(f"tests/deploy: {message}")


if __name__ == "__main__":
    print(f"tests/deploy: {main(sys.argv[1])} manifests are valid", file=sys.stderr)
