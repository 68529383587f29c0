package faults

import "github.com/penstock-io/penstock"

// unheard is how many calls that Redis did not answer in time a daemon may have
// decided without saying so: those that were under way each time it was given up.
const unheard = 2 * members

// faults are all that are made, in the order of their numbers.
var faults = []fault{
	{
		name: "F1", on: standalone, what: "Redis is killed and comes back empty", quick: true, make: dieEmpty,
		promise: promise{layers: alone, lives: 2},
	},
	{
		name: "F1", on: standalone, what: "Redis is killed and comes back empty", quick: true, make: dieEmpty,
		promise: promise{layers: guarded, lives: 2, nodes: 2, calm: true},
	},
	{
		name: "F1", on: standalone, what: "Redis is killed and comes back empty", quick: true, make: dieEmpty,
		promise: promise{layers: leased, lives: 2, nodes: 2, calm: true, limits: leasedLimits, wasted: 200},
	},
	{
		name: "F1", on: standalone, what: "all keys are flushed", quick: true, make: forgetKeys,
		promise: promise{layers: alone, lives: 2, calm: true},
	},
	{
		name: "F1", on: behindDoors, what: "Redis is killed and comes back empty", quick: true, make: redisDies, still: true,
		promise: promise{layers: daemonic, lives: 3, calm: true, limits: doorLimits, wasted: unheard},
	},
	{
		name: "F1", on: behindDoors, what: "there is no Redis at the start", make: redisIsLate, still: true,
		promise: promise{layers: daemonic, lives: 2, calm: true, limits: doorLimits, wasted: unheard},
	},
	{
		name: "F2", on: standalone, what: "Redis is killed and comes back with its AOF", quick: true, make: dieRemembering,
		promise: promise{layers: alone},
	},
	{
		name: "F2", on: behindDoors, what: "the daemon is killed, and has its --data", make: daemonDiesRemembering, still: true,
		promise: promise{layers: daemonic, lives: 2, limits: doorLimits},
	},
	{
		name: "F2", on: behindDoors, what: "the daemon is killed, and its --data damaged", make: damage, still: true,
		promise: promise{layers: daemonic, lives: 2, limits: doorLimits},
	},
	{
		name: "F3", on: standalone, what: "Redis hangs", quick: true, make: hang,
		promise: promise{layers: alone},
	},
	{
		name: "F3", on: standalone, what: "Redis hangs", quick: true, make: hang,
		promise: promise{layers: guarded, nodes: 2, calm: true},
	},
	{
		name: "F3", on: standalone, what: "Redis hangs", make: hang,
		promise: promise{layers: leased, nodes: 2, calm: true, limits: leasedLimits, wasted: 200},
	},
	{
		name: "F3", on: behindDoors, what: "Redis hangs", make: redisHangs, still: true,
		promise: promise{layers: daemonic, lives: 2, calm: true, limits: doorLimits, wasted: unheard},
	},
	{
		name: "F4", on: standalone, what: "Redis is slow", quick: true, make: slow,
		promise: promise{layers: alone, calm: true},
	},
	{
		name: "F4", on: standalone, what: "Redis is slower than a call may be", make: tooSlow,
		promise: promise{layers: guarded, nodes: 2, calm: true},
	},
	{
		name: "F5", on: standalone, what: "connections are cut within replies", quick: true, make: cut,
		promise: promise{layers: alone},
	},
	{
		name: "F5", on: standalone, what: "connections are cut within replies", make: cut,
		promise: promise{layers: guarded, nodes: 2, calm: true},
	},
	{
		name: "F5", on: standalone, what: "connections are half open", make: freeze,
		promise: promise{layers: guarded, nodes: 2, calm: true},
	},
	{
		name: "F6", on: sentinel, what: "the primary is killed", make: failOver,
		promise: promise{layers: alone, lives: 2},
	},
	{
		name: "F6", on: sentinel, what: "the primary is killed", make: failOver,
		promise: promise{layers: guarded, lives: 2, nodes: 2, calm: true},
	},
	{
		name: "F7", on: sentinel, what: "the primary freezes, is replaced, and wakes up", make: splitBrain,
		promise: promise{layers: alone, lives: 2},
	},
	{
		name: "F7", on: sentinel, what: "the primary freezes, is replaced, and wakes up", make: splitBrain,
		promise: promise{layers: guarded, lives: 2, nodes: 2, calm: true},
	},
	{
		name: "F8", on: cluster, what: "a node is lost", make: loseNode,
		promise: promise{layers: alone, lives: 2},
	},
	{
		name: "F8", on: cluster, what: "a node is lost", make: loseNode,
		promise: promise{layers: guarded, lives: 2, nodes: 2, calm: true},
	},
	{
		name: "F9", on: cluster, what: "slots move", make: moveSlots,
		promise: promise{layers: alone, calm: true},
	},
	{
		name: "F10", on: standalone, what: "scripts are flushed", quick: true, make: forgetScripts,
		promise: promise{layers: alone, calm: true},
	},
	{
		name: "F10", on: cluster, what: "scripts are flushed", make: forgetScriptsOfAll,
		promise: promise{layers: alone, calm: true},
	},
	{
		name: "F11", on: standalone, what: "Redis is full", quick: true, make: fill,
		promise: promise{layers: alone},
	},
	{
		name: "F11", on: standalone, what: "Redis is full", make: fill,
		promise: promise{layers: guarded, nodes: 2, calm: true},
	},
	{
		name: "F12", on: standalone, what: "keys are evicted", quick: true, make: evict,
		promise: promise{layers: alone, lives: 2, calm: true},
	},
	{
		name: "F13", on: standalone, what: "Redis becomes a replica for a moment", quick: true, make: demote,
		promise: promise{layers: alone, calm: true},
	},
	{
		name: "F14", on: standalone, what: "callers' clocks are an hour behind", quick: true, make: behindAnHour, still: true,
		promise: promise{layers: alone, calm: true},
	},
	{
		name: "F14", on: standalone, what: "callers' clocks are an hour ahead", quick: true, make: aheadAnHour, still: true,
		promise: promise{layers: alone, calm: true},
	},
	{
		name: "F15", on: standalone, what: "Redis's clock steps forward", quick: true, make: stepForward, still: true,
		promise: promise{layers: alone, lives: 2, calm: true},
	},
	{
		name: "F16", on: standalone, what: "Redis's clock steps back", quick: true, make: stepBack, still: true,
		promise: promise{layers: alone, calm: true, wasted: burst},
	},
	{
		name: "F17", on: standalone, what: "a process is killed while it holds leases", quick: true, make: dieLeasing,
		promise: promise{layers: hoarding, nodes: workers, calm: true, limits: []penstock.Limit{workerLimit}, wasted: 3 * (workerHolds + workerCallers)},
	},
	{
		name: "F17", on: behindDoors, what: "the daemon is killed while it holds leases", make: daemonDiesOnRedis, still: true,
		promise: promise{layers: daemonic, limits: doorLimits, wasted: burst / 2},
	},
	{
		name: "F18", on: behindDoors, what: "rules change, and are wrong now and then", make: reload, still: true,
		promise: promise{layers: daemonic, calm: true, limits: doorLimits},
	},
	{
		name: "F20", on: "one process", what: "strangers flood the store with keys", quick: true, make: floodMemory, still: true,
		promise: promise{layers: inProcess, calm: true},
	},
	{
		name: "F29", on: behindDoors, what: "nobody reads the log, and Redis is lost", make: muteLog, still: true,
		promise: promise{layers: daemonic, lives: 3, calm: true, limits: doorLimits, wasted: unheard},
	},
	{
		name: "F29", on: behindDoors, what: "the disk is full", make: fullDisk, still: true,
		promise: promise{layers: daemonic, calm: true, limits: doorLimits},
	},
	{
		name: "F30", on: behindDoors, what: "there are no file descriptors left", make: noFiles, still: true,
		promise: promise{layers: daemonic, calm: true, limits: doorLimits},
	},
	{
		name: "F31", on: standalone, what: "very many keys expire at once", make: expireAtOnce,
		promise: promise{layers: alone, calm: true},
	},
}
