package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/server/client"
)

// sendHTTP sends POST /v1/take or /v1/settle.
func (r *takeRequest) sendHTTP(ctx context.Context, at *connection) (*takeResult, error) {
	c, err := client.New(at.url.String(), &client.Options{Token: at.token, HTTP: at.client})
	if err != nil {
		return nil, err
	}
	do := c.Do
	if r.settle {
		do = c.Settle
	}
	a, err := do(ctx, r.httpRequest())
	var refused *client.Error
	switch {
	case errors.As(err, &refused):
		why := strings.Trim(refused.Title+": "+refused.Detail, ": ")
		return nil, errors.New(strings.TrimSuffix(fmt.Sprintf("the server returned %d: %s", refused.Status, why), ": "))
	case err != nil:
		return nil, err
	}
	return &takeResult{allowed: a.Allowed, text: resultText(a), raw: a.JSON}, nil
}

func (r *takeRequest) httpRequest() client.TakeRequest {
	if r.domain == "" {
		return client.TakeRequest{Key: r.key, Limit: r.limit, Cost: r.cost, AtMost: r.atMost, ID: r.id}
	}
	var d client.Descriptor
	for _, e := range r.entries {
		d.Entries = append(d.Entries, client.Entry(e))
	}
	return client.TakeRequest{Domain: r.domain, Cost: r.cost, AtMost: r.atMost, ID: r.id, Descriptors: []client.Descriptor{d}}
}

// unlimitedText returns the line of a response without numbers: no rule matched, which the
// server allows or denies (--unmatched), or the rule or an override sets no limit.
func unlimitedText(a client.TakeResponse) string {
	if a.Rule != "" {
		return outcome(a.Allowed) + ": no limit rule=" + a.Rule
	}
	return outcome(a.Allowed) + ": no rule applies"
}

func outcome(allowed bool) string {
	if allowed {
		return "allowed"
	}
	return "denied"
}

// resultText returns a response as a line to print. With rules, the response has a part
// for each descriptor, and here there is one.
func resultText(a client.TakeResponse) string {
	if len(a.Descriptors) > 0 {
		a = a.Descriptors[0]
	}
	if !a.Limited {
		return unlimitedText(a)
	}
	text := a.Decision.String()
	if a.Rule != "" {
		text += " rule=" + a.Rule
	}
	if a.Mode != "" {
		text += " mode=" + a.Mode
	}
	return text
}
