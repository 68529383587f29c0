// Package client is a client of the daemon's HTTP API. A [Client] is a
// [penstock.Store], so a program moves from a store in memory to the daemon by changing
// one line:
//
//	store, err := client.New("http://localhost:8080", nil)
//	lim, err := penstock.New(store, penstock.PerMinute(30))
//
// Where the limits are in the daemon's rules, use [Client.Do] with a domain and
// descriptors.
package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/penstock-io/penstock"
)

// Options configure a Client.
type Options struct {
	// Token is the bearer token of the server. If the server has one, resets and
	// refunds without an ID need it. Optional.
	Token string

	// HTTP sends the requests. Default: a client with a timeout of 10 s and up to
	// 64 connections.
	HTTP *http.Client
}

// A Client sends requests to a server. It is safe for concurrent use.
//
// An error on the way to the server is [penstock.ErrUnavailable]. The request may have
// been charged; one with an ID can be retried without being charged twice.
type Client struct {
	takeURL   string
	settleURL string
	token     string
	http      *http.Client
}

var (
	_ penstock.BatchStore  = (*Client)(nil)
	_ penstock.AtomicStore = (*Client)(nil)
)

const (
	defaultTimeout  = 10 * time.Second
	maxConnections  = 64
	maxResponseSize = 1 << 20
	maxRequests     = 64 // in one list

	// maxBody is what the server reads of a list, without the text around its requests.
	maxBody = 64<<10 - 64
)

// New returns a client of the server at an address such as "http://localhost:8080".
// Nil options mean all defaults.
func New(address string, o *Options) (*Client, error) {
	base, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	if base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, fmt.Errorf("client: %q: want an address such as http://localhost:8080", address)
	}
	o = cmp.Or(o, &Options{})
	c := &Client{
		takeURL: base.JoinPath("/v1/take").String(), settleURL: base.JoinPath("/v1/settle").String(),
		token: o.Token, http: o.HTTP,
	}
	if c.http == nil {
		c.http = &http.Client{Timeout: defaultTimeout, Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			MaxConnsPerHost:     maxConnections,
			MaxIdleConnsPerHost: maxConnections,
			IdleConnTimeout:     defaultTimeout,
		}}
	}
	return c, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Take implements [penstock.Store].
func (c *Client) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	if err := r.Validate(); err != nil {
		return penstock.Decision{}, err
	}
	t, err := newTakeRequest(r)
	if err != nil {
		return penstock.Decision{}, err
	}
	body, _, err := c.post(ctx, c.urlFor(r.Settle), t)
	return body.decision(), err
}

// urlFor returns where a request is sent.
func (c *Client) urlFor(settle bool) string {
	if settle {
		return c.settleURL
	}
	return c.takeURL
}

// Do sends a request as it is. The server validates it.
func (c *Client) Do(ctx context.Context, t TakeRequest) (TakeResponse, error) {
	return c.do(ctx, c.takeURL, t)
}

// Settle makes what was charged under the ID of the request equal to its Cost, once that
// is known. An ID that the server does not remember is [penstock.ErrUnknownID].
func (c *Client) Settle(ctx context.Context, t TakeRequest) (TakeResponse, error) {
	return c.do(ctx, c.settleURL, t)
}

func (c *Client) do(ctx context.Context, to string, t TakeRequest) (TakeResponse, error) {
	body, text, err := c.post(ctx, to, t)
	if err != nil {
		return TakeResponse{}, err
	}
	response := body.response()
	response.JSON = text
	return response, nil
}

// TakeEach implements [penstock.BatchStore], with one HTTP request for up to 64
// requests, or as many as fit into the body of one.
func (c *Client) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	return c.takeList(ctx, rs, ds, false)
}

// TakeAll implements [penstock.AtomicStore], for up to 64 requests.
func (c *Client) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	return c.takeList(ctx, rs, ds, true)
}

func (c *Client) takeList(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, all bool) error {
	clear(ds[:min(len(rs), len(ds))]) // decisions beside an error must deny
	if err := penstock.ValidateBatch(rs, ds, all); err != nil {
		return err
	}
	bodies, err := encodeAll(rs)
	if err != nil {
		return err // before any request is charged
	}
	for len(rs) > 0 {
		n, mode := len(rs), "all"
		if !all {
			n, mode = firstList(rs, bodies), "each"
		}
		if err := c.postList(ctx, mode, rs[:n], bodies[:n], ds); err != nil {
			return err
		}
		rs, bodies, ds = rs[n:], bodies[n:], ds[n:]
	}
	return nil
}

// firstList returns how many requests, from the first, are sent in one list: to the same URL,
// and no more than the server reads. It is at least one.
func firstList(rs []penstock.Request, bodies []json.RawMessage) int {
	n, size := 1, len(bodies[0])
	for n < min(len(rs), maxRequests) && rs[n].Settle == rs[0].Settle {
		if size += len(",") + len(bodies[n]); size > maxBody {
			break
		}
		n++
	}
	return n
}

// encodeAll returns the JSON of each request.
func encodeAll(rs []penstock.Request) ([]json.RawMessage, error) {
	bodies := make([]json.RawMessage, len(rs))
	for i, r := range rs {
		t, err := newTakeRequest(r)
		if err == nil {
			bodies[i], err = json.Marshal(t)
		}
		if err != nil {
			return nil, &penstock.RequestError{Index: i, Err: err}
		}
	}
	return bodies, nil
}

// postList sends a list of requests, and stores their decisions in ds.
func (c *Client) postList(ctx context.Context, mode string, rs []penstock.Request, bodies []json.RawMessage, ds []penstock.Decision) error {
	body, _, err := c.post(ctx, c.urlFor(rs[0].Settle), takeList{mode, bodies})
	if err != nil {
		return err
	}
	if len(body.Decisions) != len(rs) {
		return fmt.Errorf("client: %w: got %d decisions for %d requests", penstock.ErrUnavailable, len(body.Decisions), len(rs))
	}
	for i := range body.Decisions {
		ds[i] = body.Decisions[i].decision()
	}
	return nil
}

// post sends a request or a list. It returns the response also as text.
func (c *Client) post(ctx context.Context, to string, request any) (body responseBody, text []byte, err error) {
	encoded, err := json.Marshal(request)
	if err != nil {
		return body, nil, fmt.Errorf("client: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(encoded))
	if err != nil {
		return body, nil, fmt.Errorf("client: %w", err)
	}
	r.Header.Set("Content-Type", "application/json")
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	response, err := c.http.Do(r)
	if err != nil {
		return body, nil, fmt.Errorf("client: %w: %w", penstock.ErrUnavailable, err)
	}
	defer func() { _ = response.Body.Close() }()
	return readResponse(response)
}

func readResponse(response *http.Response) (body responseBody, text []byte, err error) {
	text, err = io.ReadAll(io.LimitReader(response.Body, maxResponseSize))
	if err != nil {
		return body, nil, fmt.Errorf("client: %w: %w", penstock.ErrUnavailable, err)
	}
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusTooManyRequests {
		return body, nil, newError(response, text)
	}
	if err := json.Unmarshal(text, &body); err != nil {
		return responseBody{}, nil, fmt.Errorf("client: %w: %w", penstock.ErrUnavailable, err)
	}
	if body.Allowed == nil { // a proxy has limits of its own
		return responseBody{}, nil, fmt.Errorf("client: %w: a response with status %d is not a decision", penstock.ErrUnavailable, response.StatusCode)
	}
	return body, text, nil
}
