package redisstore

import (
	"sync"

	"github.com/penstock-io/penstock/redisstore/internal/script"
)

// A stepScripts are the scripts of one step.
type stepScripts struct {
	take, batch     *Script
	once, onceBatch *Script // nil if grants leave no records
}

// scriptsOf returns the scripts of each step. They are made when the first is needed: a process that
// only could use Redis starts without them.
var scriptsOf = sync.OnceValue(func() (list []stepScripts) {
	for i := range stepRows {
		r := &stepRows[i]
		own := stepScripts{take: newScript("take "+r.lua.Name, r.lua.Take()), batch: newScript("take "+r.lua.Name, r.lua.Batch())}
		if r.hasRecords {
			own.once = newScript("take "+r.lua.Name+" once", r.lua.Once())
			own.onceBatch = newScript("take "+r.lua.Name+" once", r.lua.OnceBatch())
		}
		list = append(list, own)
	}
	return list
})

// commonScripts returns those that Open loads: of one step, and of several with the same
// algorithm. There are too many combinations of algorithms to load each.
var commonScripts = sync.OnceValue(func() (list []*Script) {
	list = append(list, markScript, unmarkScript)
	for i, own := range scriptsOf() {
		list = append(list, own.take, own.batch, takeAllScript(1<<i))
		if r := &stepRows[i]; r.hasRecords {
			list = append(list, own.once, own.onceBatch)
			for _, steps := range [][]script.Step{{r.lua, r.lua}, {r.lua, r.lua, r.lua}} {
				list = append(list, groupScript(steps, false), groupScript(steps, true))
			}
		}
	}
	return list
})

// madeScripts holds the scripts needed so far of several steps, by a uint or groupSteps. There are
// about a thousand, and making one takes the sources of its steps apart.
var madeScripts sync.Map

func madeScript(key any, name string, text func() string) *Script {
	made, ok := madeScripts.Load(key)
	if !ok {
		made, _ = madeScripts.LoadOrStore(key, newScript(name, text()))
	}
	return made.(*Script)
}

// takeAllScript returns the script for a set of steps, one bit each. It contains no other step,
// because Redis builds the functions of a script anew for each call.
func takeAllScript(set uint) *Script {
	return madeScript(set, "take all", func() string {
		var steps []script.Step
		for i := range stepRows {
			if set&(1<<i) != 0 {
				steps = append(steps, stepRows[i].lua)
			}
		}
		return script.TakeAll(steps)
	})
}

// groupScript returns the script of a group with these steps.
func groupScript(steps []script.Step, each bool) *Script {
	if each {
		return madeScript(groupStepsOf(steps, each), "take each", func() string { return script.TakeEachBatch(steps) })
	}
	return madeScript(groupStepsOf(steps, each), "take all", func() string { return script.TakeAllBatch(steps) })
}
