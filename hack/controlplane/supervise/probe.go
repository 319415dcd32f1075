package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// probeEvery is short: on two cores a cluster is ready in three to four seconds, and people wait for it.
const probeEvery = 50 * time.Millisecond

// largestAnswer is more than any object has that is probed for.
const largestAnswer = 1 << 20

// Probe succeeds when a GET of URL answers 200 with Contains in it, or when File contains that.
type Probe struct {
	URL      string `json:"url"`
	File     string `json:"file"`
	Contains string `json:"contains"`
}

func (p Probe) String() string {
	if p.URL != "" {
		return strings.TrimSpace(p.URL + " " + p.Contains)
	}
	return fmt.Sprintf("%q in %s", p.Contains, p.File)
}

// TLSFiles are PEM files: whom to trust, and who is asking.
type TLSFiles struct {
	CA   string `json:"ca"`
	Cert string `json:"cert"`
	Key  string `json:"key"`
}

type prober struct{ client *http.Client }

func newProber(files TLSFiles) (*prober, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS13}
	if files.CA != "" {
		ca, err := os.ReadFile(files.CA)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(ca) {
			return nil, fmt.Errorf("%s holds no certificate", files.CA)
		}
		cert, err := tls.LoadX509KeyPair(files.Cert, files.Key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{cert}
	}
	return &prober{&http.Client{
		Timeout:   2 * time.Second,
		Transport: &http.Transport{TLSClientConfig: config, Proxy: nil},
	}}, nil
}

func (p *prober) ok(probe Probe) bool {
	if probe.URL == "" {
		data, err := os.ReadFile(probe.File)
		return err == nil && bytes.Contains(data, []byte(probe.Contains))
	}
	response, err := p.client.Get(probe.URL)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, largestAnswer))
	return err == nil && response.StatusCode == http.StatusOK && bytes.Contains(body, []byte(probe.Contains))
}

// until sends on the channel once the probe has succeeded.
func (p *prober) until(probe Probe, done <-chan struct{}, succeeded func()) {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for !p.ok(probe) {
		select {
		case <-done:
			return
		case <-tick.C:
		}
	}
	succeeded()
}

// untilAll returns once each probe has succeeded, one after the other, or when it is done.
func (p *prober) untilAll(probes []Probe, done <-chan struct{}) {
	for _, probe := range probes {
		p.until(probe, done, func() {})
	}
}
