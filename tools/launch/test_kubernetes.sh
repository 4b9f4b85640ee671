#!/usr/bin/env bash
# Checks the manifests: kubectl's client-side dry run, against a server that only says which kinds exist; and the schemas of
# the newest Kubernetes, where $PYTHON has kubernetes-validate (pip install kubernetes-validate).
#
# Usage: tools/launch/test_kubernetes.sh    needs kubectl (Debian: kubernetes-client)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

manifest=tools/launch/kubernetes/ringside.yaml
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
python3 - "$port" <<'PY' &
import http.server, json, sys

def resources(version, **kinds):
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": [
        {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["create", "get"]}
        for name, kind in kinds.items()]}

def group(name):
    version = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {"name": name, "versions": [version], "preferredVersion": version}

PAGES = {"/api": {"kind": "APIVersions", "versions": ["v1"]},
         "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group("apps"), group("batch")]},
         "/api/v1": resources("v1", services="Service"), "/apis/apps/v1": resources("apps/v1", deployments="Deployment"),
         "/apis/batch/v1": resources("batch/v1", jobs="Job")}

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        page = PAGES.get(self.path.partition("?")[0])
        self.send_response(200 if page else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(page or {}).encode())

    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
PY
server=$!
cache=$(mktemp -d)
trap 'kill "$server"; rm -rf "$cache"' EXIT
sleep 1
kubectl --server "http://127.0.0.1:$port" --cache-dir "$cache" create --dry-run=client --validate=false -f "$manifest"

PYTHON=${PYTHON:-python3}
if "$PYTHON" -c 'import kubernetes_validate, yaml' 2>/dev/null; then
  "$PYTHON" - "$manifest" <<'PY'
import kubernetes_validate, sys, yaml
version = kubernetes_validate.latest_version()
for document in yaml.safe_load_all(open(sys.argv[1])):
    kubernetes_validate.validate(document, version, strict=True)
    print(f"{document['kind']}: valid for Kubernetes {version}")
PY
else
  echo "schemas: not checked, $PYTHON has no kubernetes-validate"
fi
