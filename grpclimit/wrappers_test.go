package grpclimit_test

import (
	"context"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/grpclimit"
	"github.com/penstock-io/penstock/internal/wraptest"
	"google.golang.org/grpc"
)

func TestServerDecidesAlikeWhateverWrapsStore(t *testing.T) {
	wraptest.Check(t, wraptest.Way{Name: "grpclimit", Open: func(t testing.TB, limiters []*penstock.Limiter) func(context.Context, []string) bool {
		key := func(i int) func(context.Context, grpclimit.Call) string {
			return func(_ context.Context, c grpclimit.Call) string { return c.Message.([]string)[i] }
		}
		o := &grpclimit.Options{Key: key(0), OnError: func(_ context.Context, _ grpclimit.Call, err error) { t.Error(err) }}
		for i := 1; i < len(limiters); i++ {
			o.Additional = append(o.Additional, grpclimit.Charge{Limiter: limiters[i], Key: key(i)})
		}
		intercept := grpclimit.UnaryServer(limiters[0], o)
		return func(ctx context.Context, keys []string) bool {
			_, err := intercept(ctx, keys, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) { return nil, nil })
			return err == nil
		}
	}})
}
