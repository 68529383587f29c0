package redisstore

import (
	"slices"
	"sync"

	"github.com/penstock-io/penstock/redisstore/internal/script"
)

// A stepScripts are the scripts of one step.
type stepScripts struct {
	take, batch     *Script
	once, onceBatch *Script // nil if grants leave no records
}

// scriptsOf has the scripts of each step.
var scriptsOf = func() (list []stepScripts) {
	for _, s := range script.Steps() {
		own := stepScripts{take: newScript("take "+s.String(), s.Take()), batch: newScript("take "+s.String(), s.Batch())}
		if s.HasRecords() {
			own.once = newScript("take "+s.String()+" once", s.Once())
			own.onceBatch = newScript("take "+s.String()+" once", s.OnceBatch())
		}
		list = append(list, own)
	}
	return list
}()

// commonScripts returns those that Open loads: of one step, and of several with the same
// algorithm. There are too many combinations of algorithms to load each.
var commonScripts = sync.OnceValue(func() (list []*Script) {
	for _, s := range script.Steps() {
		own := scriptsOf[s]
		list = append(list, own.take, own.batch, takeAllScript(1<<s))
		if s.HasRecords() {
			list = append(list, own.once, own.onceBatch)
			for _, steps := range [][]script.Step{{s, s}, {s, s, s}} {
				list = append(list, groupScript(steps, false), groupScript(steps, true))
			}
		}
	}
	return list
})

// takeAllScripts holds the scripts needed so far, by their set of steps.
var takeAllScripts sync.Map

// takeAllScript returns the script for a set of steps, one bit each. It contains no other step,
// because Redis builds the functions of a script anew for each call.
func takeAllScript(set uint) *Script {
	if script, ok := takeAllScripts.Load(set); ok {
		return script.(*Script)
	}
	steps := slices.DeleteFunc(script.Steps(), func(s script.Step) bool { return set&(1<<s) == 0 })
	made, _ := takeAllScripts.LoadOrStore(set, newScript("take all", script.TakeAll(steps)))
	return made.(*Script)
}

// groupScripts holds the scripts of groups needed so far, by groupSteps: making one takes the
// sources of its steps apart by regular expressions. There are about nine hundred.
var groupScripts sync.Map

// groupScript returns the script of a group with these steps.
func groupScript(steps []script.Step, each bool) *Script {
	key := groupStepsOf(steps, each)
	if made, ok := groupScripts.Load(key); ok {
		return made.(*Script)
	}
	name, text := "take all", script.TakeAllBatch
	if each {
		name, text = "take each", script.TakeEachBatch
	}
	made, _ := groupScripts.LoadOrStore(key, newScript(name, text(steps)))
	return made.(*Script)
}
