package regions_test

import (
	"context"
	"fmt"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/regions"
)

// Two regions share a limit of one home. In a program, local and home are stores on Redis, or home is a
// daemon of the home region, and RedisPools holds the pools.
func Example() {
	ctx := context.Background()
	home := penstock.NewMemory(nil)
	region := func() *penstock.Limiter {
		store, err := regions.New(penstock.NewMemory(nil), regions.NewMemoryPools(nil), home, &regions.Options{Regions: 2})
		if err != nil {
			panic(err)
		}
		lim, err := penstock.New(store, penstock.PerHour(1000))
		if err != nil {
			panic(err)
		}
		return lim
	}
	eu, us := region(), region()
	allowed := 0
	for range 1000 {
		for _, lim := range []*penstock.Limiter{eu, us} {
			if d, err := lim.Allow(ctx, "tenant:7"); err == nil && d.Allowed {
				allowed++
			}
		}
	}
	fmt.Println(allowed > 900 && allowed <= 1000)
	// Output: true
}
