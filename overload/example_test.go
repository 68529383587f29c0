package overload_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/overload"
)

func ExampleGate() {
	g := overload.NewGate(&overload.GateOptions{Limit: 1, MaxWait: -1})
	pass, err := g.Enter(context.Background(), overload.Normal)
	fmt.Println(err)
	_, err = g.Enter(context.Background(), overload.Sheddable)
	fmt.Println(errors.Is(err, overload.ErrFull))
	pass.Leave(overload.Success)
	fmt.Println(g.Stats().InFlight)
	// Output:
	// <nil>
	// true
	// 0
}

func ExampleInstead() {
	prices := overload.NewBreaker(nil)
	fetch := func(context.Context) (int, error) { return 0, errors.New("connection refused") }
	cached := func(_ context.Context, err error) (int, error) {
		fmt.Println("cached because:", err)
		return 42, nil
	}
	price, err := overload.Instead(context.Background(), prices.Do, fetch, cached)
	fmt.Println(price, err)
	// Output:
	// cached because: connection refused
	// 42 <nil>
}

func ExampleRetryBudget() {
	budget := overload.NewRetryBudget(&overload.RetryBudgetOptions{Share: 0.5, Burst: 1})
	fmt.Println(budget.Take(), budget.Take())
	budget.Succeeded()
	budget.Succeeded()
	fmt.Println(budget.Take(), budget.Take())
	// Output:
	// true false
	// true false
}
