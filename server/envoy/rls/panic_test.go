package rls_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/envoy/rls"
	"github.com/penstock-io/penstock/server/internal/requestlog"
)

func TestPanicOfTheStoreFailsOnlyItsCall(t *testing.T) {
	memory := newMemory()
	store := penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		if r.Key == "user=bad" {
			panic("a defect of the store")
		}
		return memory.Take(ctx, r)
	})
	var lines bytes.Buffer
	requests, err := requestlog.New(requestlog.Options{API: "grpc", Log: slog.New(slog.NewTextHandler(&lines, nil))})
	if err != nil {
		t.Fatal(err)
	}
	client := newClient(t, newEngine(t, store, userRules, nil), &rls.Options{ServiceOptions: rls.ServiceOptions{Requests: requests}})
	for range 2 {
		_, err := client.ShouldRateLimit(t.Context(), takeRequest("bad"))
		if got := status.Convert(err); got.Code() != codes.Internal || got.Message() != "internal error" {
			t.Errorf("got %v, want Internal", err)
		}
		if _, err := client.ShouldRateLimit(t.Context(), takeRequest("good")); err != nil {
			t.Errorf("another call: %v", err)
		}
	}
	if got := lines.String(); !strings.Contains(got, "level=ERROR msg=panic") || !strings.Contains(got, "a defect of the store") || !strings.Contains(got, "panic_test.go") {
		t.Errorf("logged %s, want the panic with its stack", got)
	}
}
