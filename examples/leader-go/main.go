// Command leader-go leads while its claim is granted, with the standard library alone. In Pods: leader.yaml.
//
// A claim of hold type Pod needs no heartbeat: the operator takes the lock for it, and keeps it until this Pod has ended
// or the claim is deleted. It does not end by time, so the lead outlives an API server that is slow or away. A revoke
// ends it, and is learnt from the claim a moment later: what is written meanwhile is refused by its token.
//
// Limit: as with a StatefulSet, a leader whose node is cut off is replaced when its Pod's object is gone, not before:
// when the node is deleted, or the Pod by force. A holder by `leasehold run` or the library is replaced after a
// lease length.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

const account = "/var/run/secrets/kubernetes.io/serviceaccount/"

var errNotFound = errors.New("there is no such object")

// claim is what of a claim is read here.
type claim struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Status struct {
		Phase        string `json:"phase"`
		FencingToken int64  `json:"fencingToken"`
	} `json:"status"`
}

// api is the Kubernetes API, as the Pod's service account.
type api struct {
	client                     *http.Client
	server, claims, configMaps string
}

func newAPI() (*api, error) {
	ca, err := os.ReadFile(account + "ca.crt")
	if err != nil {
		return nil, err
	}
	namespace, err := os.ReadFile(account + "namespace")
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	address := net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	return &api{
		client:     &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}},
		server:     "https://" + address,
		claims:     fmt.Sprintf("/apis/leasehold.dev/v1alpha1/namespaces/%s/lockclaims", namespace),
		configMaps: fmt.Sprintf("/api/v1/namespaces/%s/configmaps", namespace),
	}, nil
}

// open sends a request, and returns the body of an answer that is not an error.
func (a *api) open(ctx context.Context, method, path string, body any) (io.ReadCloser, error) {
	var sent bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&sent).Encode(body); err != nil {
			return nil, err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, a.server+path, &sent)
	if err != nil {
		return nil, err
	}
	token, err := os.ReadFile(account + "token") // Kubernetes replaces it now and then
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+string(token))
	request.Header.Set("Content-Type", "application/json")
	answer, err := a.client.Do(request)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode < 300 {
		return answer.Body, nil
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusNotFound {
		return nil, errNotFound
	}
	words, _ := io.ReadAll(answer.Body)
	return nil, fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, words)
}

// call sends a request and reads the answer into found, within seconds.
func (a *api) call(ctx context.Context, method, path string, body, found any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	answer, err := a.open(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer answer.Close()
	return json.NewDecoder(answer).Decode(found)
}

// look shows the claim as it is and after each change, for a while, until the caller has seen enough.
func (a *api) look(ctx context.Context, name string, enough func(claim) bool) (bool, error) {
	var found claim
	if err := a.call(ctx, "GET", a.claims+"/"+name, nil, &found); err != nil || enough(found) {
		return err == nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	query := "?watch=true&timeoutSeconds=20&fieldSelector=metadata.name=" + name
	query += "&resourceVersion=" + found.Metadata.ResourceVersion
	events, err := a.open(ctx, "GET", a.claims+query, nil)
	if err != nil {
		return false, err
	}
	defer events.Close()
	for decoder := json.NewDecoder(events); ; {
		var event struct {
			Type   string `json:"type"`
			Object claim  `json:"object"`
		}
		if err := decoder.Decode(&event); errors.Is(err, io.EOF) {
			return false, nil
		} else if err != nil {
			return false, err
		}
		if event.Type != "MODIFIED" {
			return false, nil // deleted, or too old a version: look again
		}
		if enough(event.Object) {
			return true, nil
		}
	}
}

// leader is one Pod's.
type leader struct {
	*api
	name, pod, uid string
}

// stand stands for the lead once: queues, leads while the claim is granted, steps down.
func (l *leader) stand(ctx context.Context) error {
	// Of an earlier container of this Pod, whose work has ended with it: a new start gets a new grant.
	if err := l.withdraw(); err != nil {
		return err
	}
	owner := map[string]any{"apiVersion": "v1", "kind": "Pod", "name": l.pod, "uid": l.uid} // goes with the Pod
	hold := map[string]any{"type": "Pod", "pod": map[string]any{"name": l.pod, "uid": l.uid}}
	body := map[string]any{
		"apiVersion": "leasehold.dev/v1alpha1",
		"kind":       "LockClaim",
		"metadata":   map[string]any{"name": l.pod, "ownerReferences": []any{owner}},
		"spec":       map[string]any{"lockName": l.name, "hold": hold},
	}
	if err := l.call(ctx, "POST", l.claims, body, new(any)); err != nil {
		return err
	}
	end := func() {}
	leads := false
	over := func(seen claim) bool {
		switch seen.Status.Phase {
		case "", "Pending":
		case "Granted":
			if !leads {
				leads = true
				log.Print("leads with token ", seen.Status.FencingToken)
				end = l.begin(ctx, seen.Status.FencingToken)
			}
		default:
			log.Print("steps down: ", seen.Status.Phase)
			return true
		}
		return false
	}
	for ctx.Err() == nil {
		done, err := l.look(ctx, l.pod, over)
		if errors.Is(err, errNotFound) {
			log.Print("steps down: the claim is gone")
			break
		}
		if done {
			break
		}
		if err != nil && ctx.Err() == nil {
			log.Print("looking again in a second: ", err)
			pause(ctx)
		}
	}
	end() // before the lock is given back
	return l.withdraw()
}

func (l *leader) withdraw() error {
	// Also when this process was told to stop.
	err := l.call(context.Background(), "DELETE", l.claims+"/"+l.pod, nil, new(any))
	if errors.Is(err, errNotFound) {
		return nil
	}
	return err
}

// begin does what only the leader does, until what it returns is called: it writes each second.
func (l *leader) begin(ctx context.Context, token int64) func() {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for beat := 1; ctx.Err() == nil; {
			highest, err := l.write(ctx, token, beat)
			switch {
			case highest > token:
				log.Printf("refused: token %d was here, this is %d", highest, token)
				// The next grant may fare no better, until the lock's minFencingToken is raised.
				for n := 0; n < 5; n++ {
					pause(ctx)
				}
				// Without its claim this Pod leads no more: stand sees it go.
				if err := l.withdraw(); err != nil {
					log.Print("not given back: ", err)
				}
				return
			case err == nil:
				beat++
			case ctx.Err() == nil:
				log.Print("not written, next second again: ", err)
			}
			pause(ctx)
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// write writes if no higher token was here before, and returns the highest. The object remembers it, and a PUT with the
// resourceVersion that was read lets nobody write between.
func (l *leader) write(ctx context.Context, token int64, beat int) (int64, error) {
	path := l.configMaps + "/" + l.name
	var found map[string]any
	if err := l.call(ctx, "GET", path, nil, &found); err != nil {
		return 0, err
	}
	data, _ := found["data"].(map[string]any)
	if data == nil {
		data = map[string]any{}
		found["data"] = data
	}
	if text, ok := data["token"].(string); ok {
		highest, err := strconv.ParseInt(text, 10, 64)
		if err != nil || highest > token {
			return highest, err
		}
	}
	data["token"], data["leader"], data["beat"] = fmt.Sprint(token), l.pod, fmt.Sprint(beat)
	return token, l.call(ctx, "PUT", path, found, &found)
}

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	api, err := newAPI()
	if err != nil {
		log.Fatal(err)
	}
	l := &leader{api: api, name: os.Args[1], pod: os.Getenv("POD_NAME"), uid: os.Getenv("POD_UID")}
	for ctx.Err() == nil {
		if err := l.stand(ctx); err != nil && ctx.Err() == nil {
			log.Fatal(err)
		}
		pause(ctx)
	}
}
