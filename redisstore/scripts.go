package redisstore

import (
	"slices"
	"sync"

	"github.com/penstock-io/penstock/internal/algorithm"
)

var (
	takeScripts  = map[algorithm.Step]*Script{}
	onceScripts  = map[algorithm.Step]*Script{}
	batchScripts = map[algorithm.Step]*Script{}

	onceBatchScripts = map[algorithm.Step]*Script{}

	// singleScripts are those of one step, and the take-alls of any number of one step.
	singleScripts []*Script
)

// commonScripts returns those that Open loads. The others are calls for several limits with
// different algorithms, or for many; there are too many combinations to load each.
var commonScripts = sync.OnceValue(func() []*Script {
	list := slices.Clone(singleScripts)
	for _, s := range algorithm.Steps {
		if s != algorithm.ConcurrentStep {
			for _, steps := range [][]algorithm.Step{{s, s}, {s, s, s}} {
				list = append(list, groupScript(steps, false), groupScript(steps, true))
			}
		}
	}
	return list
})

func init() {
	for i, s := range algorithm.Steps {
		takeScripts[s] = newScript("take "+s.String(), s.TakeScript())
		batchScripts[s] = newScript("take "+s.String(), s.BatchScript())
		singleScripts = append(singleScripts, takeScripts[s], batchScripts[s], takeAllScript(1<<i))
		if s != algorithm.ConcurrentStep { // its permits are the records of its IDs
			onceScripts[s] = newScript("take "+s.String()+" once", s.OnceScript())
			onceBatchScripts[s] = newScript("take "+s.String()+" once", s.OnceBatchScript())
			singleScripts = append(singleScripts, onceScripts[s], onceBatchScripts[s])
		}
	}
}

// takeAllScripts holds the scripts needed so far, by their set of steps.
var takeAllScripts sync.Map

// takeAllScript returns the script for a set of steps, one bit each in the order of
// algorithm.Steps. It contains no other step, because Redis builds the functions of a
// script anew for each call.
func takeAllScript(set uint) *Script {
	if script, ok := takeAllScripts.Load(set); ok {
		return script.(*Script)
	}
	var steps []algorithm.Step
	for i, s := range algorithm.Steps {
		if set&(1<<i) != 0 {
			steps = append(steps, s)
		}
	}
	script, _ := takeAllScripts.LoadOrStore(set, newScript("take all", algorithm.TakeAllScript(steps)))
	return script.(*Script)
}

// groupScripts holds the scripts of groups needed so far, by unrolledKey: making one takes the
// sources of its steps apart by regular expressions. There are about nine hundred.
var groupScripts sync.Map

// groupScript returns the script of a group with these steps.
func groupScript(steps []algorithm.Step, each bool) *Script {
	key := unrolledKey{string(steps), each}
	if script, ok := groupScripts.Load(key); ok {
		return script.(*Script)
	}
	name, text := "take all", algorithm.TakeAllBatchScript
	if each {
		name, text = "take each", algorithm.TakeEachBatchScript
	}
	script, _ := groupScripts.LoadOrStore(key, newScript(name, text(steps)))
	return script.(*Script)
}
