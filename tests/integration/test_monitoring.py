"""The files of deploy/monitoring against real answers of /metrics: whatever they name is there.
Where promtool is installed (Debian: prometheus), it checks them, and has the alerts judge made-up
histories."""
import json
import os
import re
import shutil
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests", "lib"))
from processes import Processes, fetch, wait_for

FOLDER = os.path.join(TOP, "deploy", "monitoring")
# What Prometheus adds, and what the user of the dashboard chooses.
NOT_OURS = {"job", "instance", "worker"}


def samples_of(text):
    """[(name, {label: value})] of an answer."""
    found = []
    for line in text.splitlines():
        match = re.match(r"([a-z_]+)(?:\{(.*)\})? \S+$", line)
        if match:
            found.append((match[1], dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))))
    return found


def selectors_of(text):
    """[(name, [(label, operator, value)])] of PromQL in whatever is around it."""
    found = []
    for name, matchers in re.findall(r"\b(clusterkv_[a-z_]+)(?:\{([^}]*)\})?", text):
        found.append((name, re.findall(r'(\w+)(=~|=)"([^"]*)"', matchers)))
    return found


def matches(sample, selector):
    name, labels = sample
    if name != selector[0]:
        return False
    for label, operator, value in selector[1]:
        if label in NOT_OURS:
            continue
        # Of words to choose from, each must exist: see below.
        if labels.get(label) != value or operator != "=":
            return False
    return True


def single(selector):
    """The selector once for each word of its =~ matchers."""
    for i, (label, operator, value) in enumerate(selector[1]):
        if operator == "=~" and label not in NOT_OURS:
            return [one for word in value.split("|") for one in
                    single((selector[0], [*selector[1][:i], (label, "=", word),
                                          *selector[1][i + 1:]]))]
    return [selector]


def check_names(where, text, samples):
    selectors = [one for selector in selectors_of(text) for one in single(selector)]
    missing = [selector for selector in selectors
               if not any(matches(sample, selector) for sample in samples)]
    for selector in missing:
        print(f"{where}: no sample of /metrics matches {selector}", file=sys.stderr)
    print(f"{where}: {len(selectors)} selectors, {len(missing)} of nothing")
    return bool(selectors) and not missing


def check_with_promtool():
    promtool = shutil.which("promtool")
    if not promtool:
        print("promtool is not installed: syntax and behaviour of the rules are not checked")
        return True
    good = True
    for command in (["check", "config", os.path.join(FOLDER, "prometheus.yml")],
                    ["test", "rules", os.path.join(TOP, "tests", "deploy", "alerts_test.yml")]):
        answer = subprocess.run([promtool, *command], capture_output=True, text=True, check=False)
        print(answer.stdout + answer.stderr)
        good = good and answer.returncode == 0
    return good


def dashboard_text():
    with open(os.path.join(FOLDER, "grafana.json"), encoding="utf-8") as file:
        dashboard = json.load(file)
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [one["query"]["query"] for one in dashboard["templating"]["list"]
                if one["type"] == "query"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    return "\n".join(queries)


def rules_text():
    """Without the names of alerts and recorded figures."""
    with open(os.path.join(FOLDER, "alerts.yml"), encoding="utf-8") as file:
        return "".join(line for line in file if "- record:" not in line and "name:" not in line)


def main():
    with Processes(sys.argv[1]) as processes:
        store = processes.start_store("--memory", "64MiB")
        worker = processes.start_worker("worker-0", sys.argv[2], "--threads", "1", "--store",
                                        "unix:" + processes.path("kv.sock"))
        wait_for("the worker's counters", lambda: "worker_attended_tokens{" in
                 fetch(store + "/metrics")[1])
        samples = samples_of(fetch(store + "/metrics")[1])
        # Only for the worker's own job: the store's figures of it have its name.
        samples += samples_of(fetch(worker + "/metrics")[1])
        results = [check_names("alerts.yml", rules_text(), samples),
                   check_names("grafana.json", dashboard_text(), samples),
                   check_with_promtool()]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
