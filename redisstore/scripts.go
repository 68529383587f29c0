package redisstore

import (
	"sync"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// steps are all the steps there are. A script that takes several as one is made
// of those it needs, because what it holds has to be built again for each call.
var steps = [...]algorithm.Step{
	algorithm.TokenBucketStep, algorithm.LeakyBucketStep, algorithm.FixedWindowStep,
	algorithm.AlignedWindowStep, algorithm.SlidingWindowStep, algorithm.RollingWindowStep,
	algorithm.SlidingLogStep,
}

var stepNames = map[algorithm.Step]string{
	algorithm.TokenBucketStep:   "token-bucket",
	algorithm.LeakyBucketStep:   "leaky-bucket",
	algorithm.FixedWindowStep:   "fixed-window",
	algorithm.AlignedWindowStep: "aligned fixed-window",
	algorithm.SlidingWindowStep: "sliding-window",
	algorithm.RollingWindowStep: "rolling-window",
	algorithm.SlidingLogStep:    "sliding-log",
}

var (
	takeScripts  = map[algorithm.Step]*Script{}
	onceScripts  = map[algorithm.Step]*Script{}
	batchScripts = map[algorithm.Step]*Script{}
)

func init() {
	for _, s := range steps {
		takeScripts[s] = newScript("take "+stepNames[s], s.Script())
		onceScripts[s] = newScript("take "+stepNames[s]+" once", s.OnceScript())
		batchScripts[s] = newScript("take "+stepNames[s], s.ManyScript())
	}
}

// takeAllScripts holds those that were needed so far, by the set of steps.
var takeAllScripts sync.Map

// takeAllScript returns the script for a set of steps, one bit each in the order
// of steps.
func takeAllScript(set uint) *Script {
	if script, ok := takeAllScripts.Load(set); ok {
		return script.(*Script)
	}
	var some []algorithm.Step
	for i, s := range steps {
		if set&(1<<i) != 0 {
			some = append(some, s)
		}
	}
	script, _ := takeAllScripts.LoadOrStore(set, newScript("take all", algorithm.TakeAllScript(some)))
	return script.(*Script)
}
