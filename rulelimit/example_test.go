package rulelimit_test

import (
	"context"
	"fmt"
	"log"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rulelimit"
)

func Example() {
	ctx := context.Background()
	lim, err := rulelimit.Open(ctx, "testdata/shop.yaml", penstock.NewMemory(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = lim.Close() }()
	for range 3 {
		a, err := lim.Allow(ctx, "shop", rulelimit.Entries("user", "42"), rulelimit.Entries("address", "192.0.2.7"))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(a.Allowed, a.Rule, a.Decision.Remaining)
	}
	// Output:
	// true shop/user 1
	// true shop/user 0
	// false shop/user 0
}
