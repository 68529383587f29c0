package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// askHTTP makes a contender of a server that takes by POST.
func askHTTP(p *process) *contender {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers, DisableCompression: true}}
	bodies := make([]string, keyCount)
	for i := range bodies {
		bodies[i] = fmt.Sprintf(`{"key":"user:%012d","limit":"100000/1m"}`, i)
	}
	url := "http://" + p.addr + "/v1/take"
	ask := func(_, n int) error {
		answer, err := client.Post(url, "application/json", strings.NewReader(bodies[n%len(bodies)]))
		if err != nil {
			return err
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err == nil && (answer.StatusCode != http.StatusOK || !strings.Contains(string(text), `"allowed":true`)) {
			err = fmt.Errorf("answer %d %s: want a grant", answer.StatusCode, text)
		}
		return err
	}
	return &contender{server: p, ask: ask}
}

// http measures the HTTP door beside a net/http server that answers a constant.
func (b *bench) http() error {
	b.say("the HTTP door: %d pairs of %s", b.pairs, b.turn)
	constant, err := floor("http")
	if err != nil {
		return err
	}
	defer constant.stop()
	daemon, err := b.serve("http")
	if err != nil {
		return err
	}
	defer daemon.stop()
	c, d := askHTTP(constant), askHTTP(daemon)
	if err := b.takeTurns("HTTP take, keep-alive, 10,000 keys, 64 callers", c, d); err != nil {
		return err
	}
	ratio := d.against(c)
	b.findings.Add(d.title, "≥ 0.75× a net/http server that answers a constant", ratio.Median >= 0.75,
		"%s", measure.TimesWithSpread(ratio))
	return nil
}
