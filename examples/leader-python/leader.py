"""Leads while its claim is granted, with the standard library alone. In Pods: leader.yaml.

A claim of hold type Pod needs no heartbeat: the operator takes the lock for it, and keeps it until this Pod has ended
or the claim is deleted. It does not end by time, so the lead outlives an API server that is slow or away. A revoke ends
it, and is learnt from the claim a moment later: what is written meanwhile is refused by its token.

Limit: as with a StatefulSet, a leader whose node is cut off is replaced when its Pod's object is gone, not before: when
the node is deleted, or the Pod by force. A holder by `leasehold run` or the library is replaced after a lease
length.
"""

import http.client
import json
import os
import signal
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount/"


def log(*words):
    print(*words, flush=True)


class Api:
    """The Kubernetes API, as the Pod's service account."""

    def __init__(self):
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        self.server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        self.tls = ssl.create_default_context(cafile=ACCOUNT + "ca.crt")
        # Python 3.13 and newer refuse what some clusters' certificates lack, the AuthorityKeyIdentifier for one.
        self.tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
        with open(ACCOUNT + "namespace") as file:
            namespace = file.read()
        self.claims = f"/apis/leasehold.dev/v1alpha1/namespaces/{namespace}/lockclaims"
        self.config_maps = f"/api/v1/namespaces/{namespace}/configmaps"

    def open(self, method, path, body=None, timeout=5):
        with open(ACCOUNT + "token") as file:  # Kubernetes replaces it now and then
            token = file.read()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.server + path, data, headers, method=method)
        return urllib.request.urlopen(request, timeout=timeout, context=self.tls)

    def call(self, method, path, body=None):
        """The answer; None where there is no such object."""
        try:
            with self.open(method, path, body) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            log(method, path, error.read().decode())
            raise

    def watch(self, path, name):
        """The object as it is, and after each change; ends when it is gone."""
        while True:
            try:
                if (found := self.call("GET", f"{path}/{name}")) is None:
                    return
                yield found
                version = found["metadata"]["resourceVersion"]
                query = f"?watch=true&timeoutSeconds=20&fieldSelector=metadata.name={name}&resourceVersion={version}"
                with self.open("GET", path + query, timeout=30) as events:
                    for event in map(json.loads, events):
                        if event["type"] != "MODIFIED":
                            break  # deleted, or too old a version: look again
                        yield event["object"]
            except (OSError, http.client.HTTPException) as error:
                log("looking again in a second:", error)
                time.sleep(1)


class Work(threading.Thread):
    """What only the leader does: it writes each second, until it is ended or refused."""

    def __init__(self, api, name, pod, token):
        super().__init__(daemon=True)
        self.api, self.name, self.pod, self.token = api, name, pod, token
        self.ending = threading.Event()

    def run(self):
        beat = 1
        while not self.ending.is_set():
            try:
                self.write(beat)
                beat += 1
            except PermissionError as refused:
                log("refused:", refused)
                # The next grant may fare no better, until the lock's minFencingToken is raised.
                self.ending.wait(5)
                return self.give_back()
            except OSError as error:
                log("not written, next second again:", error)
            self.ending.wait(1)

    def give_back(self):
        """Without its claim this Pod leads no more: `stand` sees it go."""
        try:
            self.api.call("DELETE", f"{self.api.claims}/{self.pod}")
        except OSError as error:
            log("not given back:", error)

    def write(self, beat):
        """The object remembers the highest token; with the resourceVersion in the PUT nobody can write in between."""
        path = f"{self.api.config_maps}/{self.name}"
        found = self.api.call("GET", path)
        if found is None:
            raise OSError(f"there is no ConfigMap {self.name}")
        data = found.setdefault("data", {})
        highest = int(data.get("token", 0))
        if highest > self.token:
            raise PermissionError(f"token {highest} was here, this is {self.token}")
        data.update(token=str(self.token), leader=self.pod, beat=str(beat))
        self.api.call("PUT", path, found)

    def end(self):
        self.ending.set()
        self.join()


def stand(api, name, pod, uid):
    """Stands for the lead once: queues, leads while the claim is granted, steps down."""
    claim = f"{api.claims}/{pod}"
    # Of an earlier container of this Pod, whose work has ended with it: a new start gets a new grant.
    api.call("DELETE", claim)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}  # goes with the Pod
    hold = {"type": "Pod", "pod": {"name": pod, "uid": uid}}
    body = {
        "apiVersion": "leasehold.dev/v1alpha1",
        "kind": "LockClaim",
        "metadata": {"name": pod, "ownerReferences": [owner]},
        "spec": {"lockName": name, "hold": hold},
    }
    api.call("POST", api.claims, body)
    work = None
    try:
        for seen in api.watch(api.claims, pod):
            status = seen.get("status", {})
            phase = status.get("phase", "Pending")
            if phase == "Granted" and work is None:
                log("leads with token", status["fencingToken"])
                work = Work(api, name, pod, status["fencingToken"])
                work.start()
            elif phase not in ("Pending", "Granted"):
                log("steps down:", phase)
                return
        log("steps down: the claim is gone")
    finally:
        if work is not None:
            work.end()  # before the lock is given back
        api.call("DELETE", claim)


def stop(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)  # an exception: what is under way is ended in order


def main():
    signal.signal(signal.SIGTERM, stop)
    api = Api()
    while True:
        stand(api, sys.argv[1], os.environ["POD_NAME"], os.environ["POD_UID"])
        time.sleep(1)


if __name__ == "__main__":
    main()
