package redisstore_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
)

// A proxy that rewrites the version stands for an old server.
func startOldServer(t *testing.T, major string) (addr string) {
	t.Helper()
	p := startProxy(t, liveServer.Addr)
	version := regexp.MustCompile(`redis_version:[0-9]`)
	p.Rewrite(func(b []byte) []byte { return version.ReplaceAll(b, []byte("redis_version:"+major)) })
	return p.Addr
}

func TestOpenAcceptsOldestServer(t *testing.T) {
	t.Parallel()
	o := redisstore.Options{}.WithConnTimeout(longConnTimeout)
	s, err := redisstore.Open(context.Background(), "redis://"+startOldServer(t, "6"), &o)
	if err != nil {
		t.Fatalf("a server of version 6: %v", err)
	}
	s.Close()
}

func TestOpenRejectsOldServer(t *testing.T) {
	t.Parallel()
	addr := startOldServer(t, "5")
	err := openError(t, "redis://"+addr)
	for _, part := range []string{addr, "version 5.", "want 6 or later"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("a server of version 5: got %v, want it to say %q", err, part)
		}
	}
}

// openError returns the error of a URL that must not open.
func openError(t *testing.T, url string) error {
	t.Helper()
	o := redisstore.Options{}.WithConnTimeout(longConnTimeout)
	s, err := redisstore.Open(context.Background(), url, &o)
	if err == nil {
		s.Close()
		t.Fatalf("Open(%q) succeeded", url)
	}
	if !errors.Is(err, penstock.ErrUnavailable) {
		t.Errorf("Open(%q): %v, want it to be %v", url, err, penstock.ErrUnavailable)
	}
	return err
}
