// Package client asks a penstock server over HTTP. A [Client] is a
// [penstock.Store], so a program that limits in memory today asks the server
// tomorrow by changing one line:
//
//	store, err := client.New("http://localhost:8080", nil)
//	lim, err := penstock.New(store, penstock.PerMinute(30))
//
// Where the limits are in the server's rules, [Client.Ask] asks by those.
package client

import (
	"bytes"
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
	// Token lets the client give units back on a server on another machine.
	// Optional.
	Token string

	// HTTP is what asks. Default: a client of its own, which waits for up to
	// ten seconds, and keeps up to 64 connections.
	HTTP *http.Client
}

// A Client is a store that asks a server. It is safe for concurrent use.
//
// What fails on the way is [penstock.ErrUnavailable], and may have been charged:
// a request with an ID can be asked again.
type Client struct {
	take  string // where to ask
	token string
	http  *http.Client
}

const (
	answerTime  = 10 * time.Second
	connections = 64
	maxAnswer   = 1 << 20
	maxRequests = 64 // that the server decides at once
)

// New returns a client of the server at the address, such as
// "http://localhost:8080". Nil options are all defaults.
func New(address string, o *Options) (*Client, error) {
	at, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	if at.Host == "" || at.Scheme != "http" && at.Scheme != "https" {
		return nil, fmt.Errorf("client: %q: want an address such as http://localhost:8080", address)
	}
	if o == nil {
		o = &Options{}
	}
	c := &Client{take: at.JoinPath("/v1/take").String(), token: o.Token, http: o.HTTP}
	if c.http == nil {
		c.http = &http.Client{Timeout: answerTime, Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			MaxConnsPerHost:     connections,
			MaxIdleConnsPerHost: connections,
			IdleConnTimeout:     answerTime,
		}}
	}
	return c, nil
}

// Close closes connections that are idle.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Take decides one request.
func (c *Client) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	if err := r.Validate(); err != nil {
		return penstock.Decision{}, err
	}
	q, err := questionOf(r)
	if err != nil {
		return penstock.Decision{}, err
	}
	answer, _, err := c.ask(ctx, q)
	return answer.decision(), err
}

// Do asks the server, which checks what is asked.
func (c *Client) Do(ctx context.Context, q TakeRequest) (TakeResponse, error) {
	answer, text, err := c.ask(ctx, q)
	if err != nil {
		return TakeResponse{}, err
	}
	told := answer.told()
	told.JSON = text
	return told, nil
}

// TakeEach decides every request by itself, up to 64 in one trip.
func (c *Client) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	// Whom everything is allowed by finds what is malformed, before anything is
	// charged.
	if err := penstock.TakeEach(ctx, penstock.AllowAll, rs, make([]penstock.Decision, len(ds))); err != nil {
		return err
	}
	for len(rs) > 0 {
		n := min(len(rs), maxRequests)
		if err := c.askList(ctx, "each", rs[:n], ds); err != nil {
			return err
		}
		rs, ds = rs[n:], ds[n:]
	}
	return nil
}

// TakeAll decides up to 64 requests as one.
func (c *Client) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	if err := penstock.TakeAll(ctx, penstock.AllowAll, rs, make([]penstock.Decision, len(ds))); err != nil {
		return err
	}
	if len(rs) == 0 {
		return nil
	}
	return c.askList(ctx, "all", rs, ds)
}

func (c *Client) askList(ctx context.Context, mode string, rs []penstock.Request, ds []penstock.Decision) error {
	l := list{Mode: mode, Requests: make([]TakeRequest, len(rs))}
	for i, r := range rs {
		var err error
		if l.Requests[i], err = questionOf(r); err != nil {
			return err
		}
	}
	answer, _, err := c.ask(ctx, l)
	if err != nil {
		return err
	}
	if len(answer.Decisions) != len(rs) {
		return fmt.Errorf("client: %w: asked %d requests, and %d were answered", penstock.ErrUnavailable, len(rs), len(answer.Decisions))
	}
	for i := range answer.Decisions {
		ds[i] = answer.Decisions[i].decision()
	}
	return nil
}

// ask sends a body and reads the answer.
func (c *Client) ask(ctx context.Context, body any) (a answer, text []byte, err error) {
	sent, err := json.Marshal(body)
	if err != nil {
		return a, nil, fmt.Errorf("client: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.take, bytes.NewReader(sent))
	if err != nil {
		return a, nil, fmt.Errorf("client: %w", err)
	}
	r.Header.Set("Content-Type", "application/json")
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	response, err := c.http.Do(r)
	if err != nil {
		return a, nil, fmt.Errorf("client: %w: %w", penstock.ErrUnavailable, err)
	}
	defer func() { _ = response.Body.Close() }()
	return readAnswer(response)
}

func readAnswer(response *http.Response) (a answer, text []byte, err error) {
	text, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return a, nil, fmt.Errorf("client: %w: %w", penstock.ErrUnavailable, err)
	}
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusTooManyRequests {
		return a, nil, errorOf(response, text)
	}
	if err := json.Unmarshal(text, &a); err != nil {
		return answer{}, nil, fmt.Errorf("client: %w: %w", penstock.ErrUnavailable, err)
	}
	return a, text, nil
}
