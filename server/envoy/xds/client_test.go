package xds_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/durable"
	"github.com/penstock-io/penstock/server/envoy/xds"
	"github.com/penstock-io/penstock/server/envoy/xds/xdstest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

func TestClientAsksAsItsNodeAndAccepts(t *testing.T) {
	t.Parallel()
	headers := make(chan metadata.MD, 10)
	s := startServer(t, "127.0.0.1:0", grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		md, _ := metadata.FromIncomingContext(stream.Context())
		headers <- md
		return next(srv, stream)
	}))
	s.Set("7", domain("b", 3), domain("a", 2))
	c := config(s)
	c.Headers = map[string]string{"Authorization": "Bearer secret"}
	r := run(t, newClient(t, c, nil))
	set := r.next(t)
	if count(t, set, "a") != 2 || count(t, set, "b") != 3 || len(set.Rules()) != 2 {
		t.Errorf("got rules %v", set.Rules())
	}
	first := awaitRequest(t, s, func(*discovery.DiscoveryRequest) bool { return true })
	if first.GetNode().GetId() != "envoy-ratelimit" || first.GetNode().GetMetadata().AsMap()["zone"] != "eu" ||
		first.GetTypeUrl() != xds.TypeURL || first.GetVersionInfo() != "" || len(first.GetResourceNames()) != 0 {
		t.Errorf("first request: %v", first)
	}
	if ack := awaitRequest(t, s, isAck("7")); ack.GetResponseNonce() != "1" {
		t.Errorf("got %v, want an acknowledgment of the first response", ack)
	}
	if got := (<-headers).Get("authorization"); len(got) != 1 || got[0] != "Bearer secret" {
		t.Errorf("header: got %q", got)
	}
	s.Set("8")
	if set := r.next(t); len(set.Rules()) != 0 || len(set.Domains()) != 0 {
		t.Errorf("empty response: got %v, want no rules", set.Rules())
	}
	awaitRequest(t, s, isAck("8"))
}

// A response is accepted or rejected whole, and what was rejected is sent again at once, and
// used again when the server returns to it.
func TestClientRejectsWithReasonAndKeepsRules(t *testing.T) {
	t.Parallel()
	s := startServer(t, "127.0.0.1:0")
	s.Set("1", domain("a", 1))
	r := run(t, newClient(t, config(s), nil))
	r.next(t)
	bad := xdstest.Config{Name: "ns/bad", Domain: "bad", Descriptors: []xdstest.Descriptor{
		{Key: "route", Value: "x", Descriptors: []xdstest.Descriptor{
			{Key: "fine", Limit: &xdstest.Limit{Unlimited: true}},
			{Key: "user", Limit: &xdstest.Limit{Requests: 5}},
		}},
	}}
	s.Set("2", domain("a", 2), bad.Encode())
	const reason = "ns/bad:4: descriptor route=x/user: invalid rate limit unit 'UNKNOWN'"
	if err := r.nextError(t); !strings.Contains(err.Error(), reason) {
		t.Errorf("got %v, want %s", err, reason)
	}
	for range 3 { // the server repeats it
		nack := awaitRequest(t, s, isNack)
		if !strings.Contains(nack.GetErrorDetail().GetMessage(), reason) || nack.GetErrorDetail().GetCode() != 3 || nack.GetVersionInfo() != "1" {
			t.Fatalf("got %v, want a rejection by version 1 with %s", nack, reason)
		}
	}
	if len(r.errs) > 0 || len(r.used) > 0 {
		t.Error("rules that were rejected before were loaded again")
	}
	s.Set("3", domain("a", 1)) // those in use
	if n := count(t, r.next(t), "a"); n != 1 {
		t.Errorf("after the rejection: got %d, want 1", n)
	}
	awaitRequest(t, s, isAck("3"))
}

func TestClientRejectsWhatCannotBeUsed(t *testing.T) {
	t.Parallel()
	s := startServer(t, "127.0.0.1:0")
	s.Set("1", domain("a", 1))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := newClient(t, config(s), nil).Next(ctx, func(*rules.Set, error) error {
		return rules.Errors{{File: "a", Reason: strings.Repeat("long é", 10_000)}}
	})
	if err != nil {
		t.Fatal(err)
	}
	text := awaitRequest(t, s, isNack).GetErrorDetail().GetMessage()
	if !strings.HasPrefix(text, "a: long") || len(text) > 10_000 {
		t.Errorf("got a reason of %d bytes, want a part of it", len(text))
	}
}

// A server that restarts may give its first version to other rules.
func TestClientReconnectsAndLoadsSameVersionOfRestartedServer(t *testing.T) {
	t.Parallel()
	s := startServer(t, net.JoinHostPort("127.0.0.1", strconv.Itoa(redistest.FreePort(t)))) // no other program listens there meanwhile
	s.Set("1", domain("a", 1))
	client := newClient(t, config(s), nil)
	r := run(t, client)
	r.next(t)
	if !client.Connected() {
		t.Error("not connected while a stream is open")
	}
	s.Stop()
	s = startServer(t, s.Addr())
	s.Set("1", domain("a", 2))
	if n := count(t, r.next(t), "a"); n != 2 {
		t.Errorf("got %d, want 2", n)
	}
	s.Stop()
	s = startServer(t, s.Addr())
	s.Set("1", domain("a", 2))
	awaitRequest(t, s, isAck("1"))
	if len(r.used) > 0 {
		t.Error("the same rules were loaded again after a reconnect")
	}
}

func TestClientRestoresRulesOfItsServerAndNode(t *testing.T) {
	t.Parallel()
	dir, err := durable.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	s := startServer(t, "127.0.0.1:0")
	s.Set("1", domain("a", 1))
	o := &xds.Options{Data: dir}
	c := config(s)
	r := &receiver{used: make(chan *rules.Set, 10), errs: make(chan error, 10)}
	if newClient(t, c, o).Restore(r.use) {
		t.Error("restored rules of an empty directory")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := newClient(t, c, o).Next(ctx, r.use); err != nil {
		t.Fatal(err)
	}
	r.next(t)
	s.Stop()
	if !newClient(t, c, o).Restore(r.use) || count(t, r.next(t), "a") != 1 {
		t.Error("rules were not restored")
	}
	other := *c
	other.Node = "other"
	if newClient(t, &other, o).Restore(r.use) {
		t.Error("restored the rules of another node")
	}
	damageSaved(t, dir)
	if newClient(t, c, o).Restore(r.use) || len(r.used) > 0 || len(r.errs) > 0 {
		t.Error("restored damaged rules")
	}
}

// A server repeats at once what was rejected, so a client that rejected it again at once would
// keep both of them busy.
func TestClientDelaysRepeatedRejections(t *testing.T) {
	t.Parallel()
	const shortest = 2500 * time.Millisecond // half of the longest delay
	s := startServer(t, "127.0.0.1:0")
	s.Set("1", []byte("\xff"))
	client, err := xds.New(config(s), &xds.Options{MinBackoff: time.Hour, MaxBackoff: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	run(t, client)
	awaitRequest(t, s, isNack)

	other := startServer(t, "127.0.0.1:0")
	r := run(t, newClient(t, config(other), nil))
	for i := range 50 { // in the meantime
		other.Set(strconv.Itoa(i), domain("a", uint64(i)))
		r.next(t)
	}
	rejections := 0
	for len(s.Requests) > 0 {
		if isNack(<-s.Requests) {
			rejections++
		}
	}
	if most := 1 + int(time.Since(begun)/shortest); rejections > most {
		t.Errorf("%d more rejections, want at most %d", rejections, most)
	}
}

// A foreignStream sends responses of another type than was asked for.
type foreignStream struct{ grpc.ServerStream }

func (s foreignStream) SendMsg(m any) error {
	m.(*discovery.DiscoveryResponse).TypeUrl = "other"
	return s.ServerStream.SendMsg(m)
}

// A server that answers, but not what was asked for, is a failure as any other: it is logged once, and
// the client backs off.
func TestClientBacksOffFromServerOfOtherTypes(t *testing.T) {
	t.Parallel()
	streams := make(chan struct{}, 1000)
	s := startServer(t, "127.0.0.1:0", grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		streams <- struct{}{}
		return handle(srv, foreignStream{stream})
	}))
	s.Set("1", domain("a", 1))
	var log bytes.Buffer
	client := newClient(t, config(s), &xds.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for range 5 {
			<-streams
		}
		cancel()
	}()
	client.Run(ctx, func(*rules.Set, error) error {
		t.Error("rules of another type are used")
		return nil
	})
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "which was not asked for") {
		t.Errorf("logged %d lines, want one:\n%s", n, &log)
	}
}

func TestClientRefusesWrongCertificates(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]*xds.Config{
		"no such file":      {TLS: true, CA: empty + "x"},
		"no certificate in": {TLS: true, CA: empty},
		"failed to find":    {TLS: true, Cert: empty, Key: empty},
	} {
		if _, err := xds.New(c, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestClientStopsWhileItWaits(t *testing.T) {
	t.Parallel()
	s := startServer(t, "127.0.0.1:0") // has nothing to send
	client := newClient(t, config(s), nil)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- client.Next(ctx, func(*rules.Set, error) error { return nil }) }()
	awaitRequest(t, s, func(*discovery.DiscoveryRequest) bool { return true })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	if client.Connected() {
		t.Error("still connected")
	}
}
