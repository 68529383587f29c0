package main

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/bench/internal/measure"
	"github.com/penstock-io/penstock/overload"
)

func (b *bench) write(w io.Writer) {
	fmt.Fprintf(w, "# Overload\n\n    cd bench && go run ./overload\n\n%s, %d logical cores, %s %s/%s.\n\n",
		measure.Processor(), runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	fmt.Fprintf(w, "Rivals: %s; Envoy's gradient after its documentation.\n\n", measure.Versions(modules))
	b.findings.Write(w, !b.quick)
	for _, t := range b.tables {
		heading := measure.Table(t.head)
		heading.Begin(w, t.title)
		for _, row := range t.rows {
			heading.Row(w, row...)
		}
	}
}

// A costContender is entry and exit of a call.
type costContender struct {
	name string
	call func()
}

// cost compares entry and exit with their floor: one word and two readings of the clock.
func (b *bench) cost() error {
	all := costContenders()
	rounds, calls := 400, 5000
	if b.quick {
		rounds, calls = 3, 100
	}
	least := map[string]float64{}
	for range rounds { // in turns, so that other load on the machine affects all alike
		for _, c := range all {
			begin := time.Now()
			for range calls {
				c.call()
			}
			ns := float64(time.Since(begin)) / float64(calls)
			if old, ok := least[c.name]; !ok || ns < old {
				least[c.name] = ns
			}
		}
	}
	t := table{title: "Entry and exit: the least of many rounds", head: []string{"limiter", "ns", "to the floor"}}
	for _, c := range all {
		t.rows = append(t.rows, []string{c.name, fmt.Sprintf("%.0f", least[c.name]), measure.Times(least[c.name] / least[floor])})
	}
	b.tables = append(b.tables, t)
	gate, breaker := least[ours+", gate"]/least[floor], least[ours+", breaker"]/least[floor]
	b.findings.Add("entry and exit of the gate", "≤ 1.6× the floor", gate <= 1.6, "%.2f×", gate)
	b.findings.Add("entry and exit of the breaker", "≤ 1.3× the floor", breaker <= 1.3, "%.2f×", breaker)
	return nil
}

const floor = "floor"

func costContenders() []costContender {
	var word atomic.Uint64
	var sum time.Duration
	begin := time.Now()
	b := overload.NewBreaker(nil)
	all := []costContender{
		{floor, func() {
			start := time.Since(begin)
			for {
				w := word.Load()
				if word.CompareAndSwap(w, w+1) {
					break
				}
			}
			word.Add(^uint64(0))
			sum += time.Since(begin) - start
		}},
		{ours + ", breaker", func() {
			if call, err := b.Allow(); err == nil {
				call.Done(overload.Success)
			}
		}},
	}
	for _, c := range slices.DeleteFunc(slices.Clone(contenders), func(c contender) bool { return c.name == noLimiter }) {
		one := costContender{name: c.name}
		if c.name == ours {
			one = costContender{ours + ", gate", gateCall()}
		} else {
			l := c.make()
			one.call = func() {
				if leave, ok := l.enter(false); ok {
					leave()
				}
			}
		}
		all = append(all, one)
	}
	return all
}
