package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// newHTTPContender returns a contender that takes by POST.
func newHTTPContender(p *process) *contender {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers, DisableCompression: true}}
	bodies := make([]string, keyCount)
	for i := range bodies {
		bodies[i] = fmt.Sprintf(`{"key":"user:%012d","limit":"100000/1m"}`, i)
	}
	url := "http://" + p.addr + "/v1/take"
	send := func(n int) error {
		response, err := client.Post(url, "application/json", strings.NewReader(bodies[n%len(bodies)]))
		if err != nil {
			return err
		}
		text, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err == nil && (response.StatusCode != http.StatusOK || !strings.Contains(string(text), `"allowed":true`)) {
			err = fmt.Errorf("response %d %s: want a grant", response.StatusCode, text)
		}
		return err
	}
	return &contender{server: p, load: loadByCallers(send)}
}

// http compares the HTTP API with a net/http server with a constant response.
func (b *bench) http() error {
	b.logf("the HTTP API: %d pairs of %s", b.pairs, b.turn)
	constant, err := b.floor("http")
	if err != nil {
		return err
	}
	defer constant.stop()
	daemon, err := b.serve("http")
	if err != nil {
		return err
	}
	defer daemon.stop()
	c, d := newHTTPContender(constant), newHTTPContender(daemon)
	if err := b.takeTurns("HTTP take, keep-alive, 10,000 keys, 64 callers", c, d); err != nil {
		return err
	}
	ratio := d.ratioTo(c)
	b.findings.Add(d.title, "≥ 0.75× a net/http server with a constant response", ratio.Median >= 0.75,
		"%s", measure.TimesWithSpread(ratio))
	return nil
}
