package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
)

// askHTTP asks POST /v1/take.
func (r *takeRequest) askHTTP(ctx context.Context, u *url.URL) (*takeAnswer, error) {
	body, err := json.Marshal(r.question())
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, u.JoinPath("/v1/take").String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if r.token != "" {
		request.Header.Set("Authorization", "Bearer "+r.token)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	return readHTTP(response.StatusCode, text)
}

// question returns the body of the request.
func (r *takeRequest) question() any {
	if r.domain == "" {
		return struct {
			Key    string `json:"key"`
			Limit  string `json:"limit"`
			Cost   int64  `json:"cost"`
			AtMost bool   `json:"at_most,omitempty"`
			ID     string `json:"id,omitempty"`
		}{r.key, r.limit, r.cost, r.atMost, r.id}
	}
	type entry struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	}
	var entries []entry
	for _, e := range r.entries {
		entries = append(entries, entry(e))
	}
	type descriptor struct {
		Entries []entry `json:"entries"`
	}
	return struct {
		Domain      string       `json:"domain"`
		Cost        int64        `json:"cost"`
		Descriptors []descriptor `json:"descriptors"`
	}{r.domain, r.cost, []descriptor{{entries}}}
}

// A httpAnswer is a decision, or a problem, in JSON.
type httpAnswer struct {
	Allowed    bool
	Rule       string
	Mode       string
	Granted    int64
	Limit      int64
	Remaining  int64
	RetryAfter *json.Number `json:"retry_after"`
	ResetAfter *json.Number `json:"reset_after"`
	Delay      *json.Number
	Source     string
	Decisions  []httpAnswer

	Title, Detail string
}

func readHTTP(status int, text []byte) (*takeAnswer, error) {
	var a httpAnswer
	err := json.Unmarshal(text, &a)
	switch {
	case err != nil:
		return nil, fmt.Errorf("the server answered %d, and no JSON: %.200q", status, text)
	case status != http.StatusOK && status != http.StatusTooManyRequests:
		return nil, fmt.Errorf("the server answered %d: %s", status, strings.Trim(a.Title+": "+a.Detail, ": "))
	}
	return &takeAnswer{allowed: a.Allowed, text: a.String(), raw: text}, nil
}

// String returns the decision for people. Where rules decide there is one
// descriptor, and what is said about that says it all.
func (a httpAnswer) String() string {
	if len(a.Decisions) > 0 {
		a = a.Decisions[0]
	}
	if a.Limit == 0 && a.ResetAfter == nil {
		return strings.TrimSpace("allowed: no rule limits this " + a.Rule)
	}
	d := penstock.Decision{
		Allowed: a.Allowed, Granted: a.Granted, Limit: a.Limit, Remaining: a.Remaining,
		RetryAfter: duration(a.RetryAfter), ResetAfter: duration(a.ResetAfter), Delay: duration(a.Delay),
	}
	text := d.String()
	if a.Source != penstock.SourceStore.String() && a.Source != "" {
		text += " source=" + a.Source
	}
	if a.Rule != "" {
		text += " rule=" + a.Rule
	}
	if a.Mode != "" {
		text += " mode=" + a.Mode
	}
	return text
}

// duration reads a number of seconds; null is never.
func duration(seconds *json.Number) time.Duration {
	if seconds == nil {
		return penstock.Never
	}
	d, err := time.ParseDuration(seconds.String() + "s")
	if err != nil {
		return penstock.Never
	}
	return d
}
