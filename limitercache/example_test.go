package limitercache_test

import (
	"context"
	"fmt"
	"log"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/limitercache"
)

// The limit of each customer is in a database, and can change at any time.
func Example() {
	plans := map[string]penstock.Limit{"ada": penstock.PerMinute(60), "bert": penstock.PerMinute(600)}
	load := func(_ context.Context, customer string) (penstock.Limit, error) {
		return plans[customer].WithName("api"), nil
	}
	limiters, err := limitercache.New(penstock.NewMemory(nil), load, nil)
	if err != nil {
		log.Fatal(err)
	}
	d, err := limiters.For(context.Background(), "bert").Allow(context.Background(), "bert")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(d.Allowed, d.Limit)
	// Output: true 600
}
