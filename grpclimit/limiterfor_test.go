package grpclimit_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/grpclimit"
)

// byPlan returns a LimiterFor that chooses by the metadata field plan.
func byPlan(limiters map[string]*penstock.Limiter) func(context.Context, grpclimit.Call) *penstock.Limiter {
	plan := grpclimit.Metadata("plan")
	return func(ctx context.Context, c grpclimit.Call) *penstock.Limiter { return limiters[plan(ctx, c)] }
}

func TestServerLimiterForChoosesByCall(t *testing.T) {
	store := penstock.NewMemory(nil)
	limiters := map[string]*penstock.Limiter{
		"free": limiter(t, store, "api: 2/1h fixed-window"), "pro": limiter(t, store, "api: 4/1h fixed-window"),
	}
	o := &grpclimit.Options{LimiterFor: byPlan(limiters)}
	c := unary(t, nil, o)
	expect(t, "free", ask(t, c, 3, "plan", "free"), codes.OK, codes.OK, codes.ResourceExhausted)
	expect(t, "pro, where the use of free counts", ask(t, c, 3, "plan", "pro"), codes.OK, codes.OK, codes.ResourceExhausted)
	expect(t, "without a limiter", ask(t, c, 5), codes.OK, codes.OK, codes.OK, codes.OK, codes.OK)
	c = unary(t, inMemory(t, "1/1h"), o)
	expect(t, "without a limiter of its own", ask(t, c, 2), codes.OK, codes.ResourceExhausted)
}

// A lockedBuilder is a text that the goroutines of a server write.
type lockedBuilder struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuilder) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func TestServerLogsStoreErrors(t *testing.T) {
	log, old := &lockedBuilder{}, slog.Default()
	t.Cleanup(func() { slog.SetDefault(old) })
	slog.SetDefault(slog.New(slog.NewTextHandler(log, nil)))
	broken := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
		return penstock.Decision{}, errors.New("the store is gone")
	})
	lim := limiter(t, broken, "1/1h")
	expect(t, "handled", ask(t, unary(t, lim, &grpclimit.Options{OnError: func(context.Context, grpclimit.Call, error) {}}), 1), codes.OK)
	expect(t, "logged", ask(t, unary(t, lim, nil), 1), codes.OK)
	log.mu.Lock()
	defer log.mu.Unlock()
	if got := log.text.String(); strings.Count(got, "the store is gone") != 1 {
		t.Errorf("logged %q, want the error once", got)
	}
}
