package faults

import "github.com/penstock-io/penstock"

// unreportedLoss is how many calls a daemon may have decided after a timeout without
// reporting the fallback as source: those in flight when Redis goes down, twice.
const unreportedLoss = 2 * callers

// faults are all faults, in the order of their numbers.
var faults = []fault{
	{
		id: "F1", topology: standalone, name: "Redis is killed and comes back empty", quick: true, inject: killRedis,
		guarantee: guarantee{layers: redisOnly, bursts: 2},
	},
	{
		id: "F1", topology: standalone, name: "Redis is killed and comes back empty", quick: true, inject: killRedis,
		guarantee: guarantee{layers: withFallback, bursts: 2, nodes: 2, noErrors: true},
	},
	{
		id: "F1", topology: standalone, name: "Redis is killed and comes back empty", quick: true, inject: killRedis,
		guarantee: guarantee{layers: withLeases, bursts: 2, nodes: 2, noErrors: true, limits: leasedLimits, maxLost: 200},
	},
	{
		id: "F1", topology: standalone, name: "all keys are flushed", quick: true, inject: flushKeys,
		guarantee: guarantee{layers: redisOnly, bursts: 2, noErrors: true},
	},
	{
		id: "F1", topology: daemonTopology, name: "Redis is killed and comes back empty", quick: true, inject: killRedisBehindDaemon, noRefill: true,
		guarantee: guarantee{layers: viaDaemon, bursts: 3, noErrors: true, limits: apiLimits, maxLost: unreportedLoss},
	},
	{
		id: "F1", topology: daemonTopology, name: "Redis is down when the daemon starts", inject: startWithoutRedis, noRefill: true,
		guarantee: guarantee{layers: viaDaemon, bursts: 2, noErrors: true, limits: apiLimits, maxLost: unreportedLoss},
	},
	{
		id: "F2", topology: standalone, name: "Redis is killed and comes back with its AOF", quick: true, inject: killRedisWithAOF,
		guarantee: guarantee{layers: redisOnly},
	},
	{
		id: "F2", topology: daemonTopology, name: "the daemon is killed and has a snapshot", inject: killDaemonWithSnapshot, noRefill: true,
		guarantee: guarantee{layers: viaDaemon, bursts: 2, limits: apiLimits},
	},
	{
		id: "F2", topology: daemonTopology, name: "the daemon is killed and its snapshot is damaged", inject: damageSnapshot, noRefill: true,
		guarantee: guarantee{layers: viaDaemon, bursts: 2, limits: apiLimits},
	},
	{
		id: "F3", topology: standalone, name: "Redis hangs", quick: true, inject: hangRedis,
		guarantee: guarantee{layers: redisOnly},
	},
	{
		id: "F3", topology: standalone, name: "Redis hangs", quick: true, inject: hangRedis,
		guarantee: guarantee{layers: withFallback, nodes: 2, noErrors: true},
	},
	{
		id: "F3", topology: standalone, name: "Redis hangs", inject: hangRedis,
		guarantee: guarantee{layers: withLeases, nodes: 2, noErrors: true, limits: leasedLimits, maxLost: 200},
	},
	{
		id: "F3", topology: daemonTopology, name: "Redis hangs", inject: hangRedisBehindDaemon, noRefill: true,
		guarantee: guarantee{layers: viaDaemon, bursts: 2, noErrors: true, limits: apiLimits, maxLost: unreportedLoss},
	},
	{
		id: "F3", topology: daemonTopology, name: "Redis hangs, callers have deadlines", inject: stallRedisBeforeDeadlines, noRefill: true,
		guarantee: guarantee{layers: viaDaemon, bursts: 2, noErrors: true, limits: apiLimits, maxLost: 2 * unreportedLoss},
	},
	{
		id: "F4", topology: standalone, name: "Redis is slow", quick: true, inject: delayReplies,
		guarantee: guarantee{layers: redisOnly, noErrors: true},
	},
	{
		id: "F4", topology: standalone, name: "Redis is slower than the timeout", inject: delayRepliesPastTimeout,
		guarantee: guarantee{layers: withFallback, nodes: 2, noErrors: true},
	},
	{
		id: "F5", topology: standalone, name: "connections are cut within replies", quick: true, inject: cutReplies,
		guarantee: guarantee{layers: redisOnly},
	},
	{
		id: "F5", topology: standalone, name: "connections are cut within replies", inject: cutReplies,
		guarantee: guarantee{layers: withFallback, nodes: 2, noErrors: true},
	},
	{
		id: "F5", topology: standalone, name: "connections are half open", inject: freezeConnections,
		guarantee: guarantee{layers: withFallback, nodes: 2, noErrors: true},
	},
	{
		id: "F6", topology: sentinel, name: "the primary is killed", inject: failOver,
		guarantee: guarantee{layers: redisOnly, bursts: 2},
	},
	{
		id: "F6", topology: sentinel, name: "the primary is killed", inject: failOver,
		guarantee: guarantee{layers: withFallback, bursts: 2, nodes: 2, noErrors: true},
	},
	{
		id: "F7", topology: sentinel, name: "the primary freezes, is replaced, and wakes up", inject: splitBrain,
		guarantee: guarantee{layers: redisOnly, bursts: 2},
	},
	{
		id: "F7", topology: sentinel, name: "the primary freezes, is replaced, and wakes up", inject: splitBrain,
		guarantee: guarantee{layers: withFallback, bursts: 2, nodes: 2, noErrors: true},
	},
	{
		id: "F8", topology: cluster, name: "a node is lost", inject: killNode,
		guarantee: guarantee{layers: redisOnly, bursts: 2},
	},
	{
		id: "F8", topology: cluster, name: "a node is lost", inject: killNode,
		guarantee: guarantee{layers: withFallback, bursts: 2, nodes: 2, noErrors: true},
	},
	{
		id: "F9", topology: cluster, name: "slots move", inject: moveSlots,
		guarantee: guarantee{layers: redisOnly, noErrors: true},
	},
	{
		id: "F10", topology: standalone, name: "scripts are flushed", quick: true, inject: flushScripts,
		guarantee: guarantee{layers: redisOnly, noErrors: true},
	},
	{
		id: "F10", topology: cluster, name: "scripts are flushed", inject: flushClusterScripts,
		guarantee: guarantee{layers: redisOnly, noErrors: true},
	},
	{
		id: "F11", topology: standalone, name: "Redis is full", quick: true, inject: fillRedis,
		guarantee: guarantee{layers: redisOnly},
	},
	{
		id: "F11", topology: standalone, name: "Redis is full", inject: fillRedis,
		guarantee: guarantee{layers: withFallback, nodes: 2, noErrors: true},
	},
	{
		id: "F12", topology: standalone, name: "keys are evicted", quick: true, inject: evictKeys,
		guarantee: guarantee{layers: redisOnly, bursts: 2, noErrors: true},
	},
	{
		id: "F13", topology: standalone, name: "Redis becomes a replica for a moment", quick: true, inject: demoteRedis,
		guarantee: guarantee{layers: redisOnly, noErrors: true},
	},
	{
		id: "F14", topology: standalone, name: "callers' clocks are an hour behind", quick: true, inject: callersHourBehind, noRefill: true,
		guarantee: guarantee{layers: redisOnly, noErrors: true},
	},
	{
		id: "F14", topology: standalone, name: "callers' clocks are an hour ahead", quick: true, inject: callersHourAhead, noRefill: true,
		guarantee: guarantee{layers: redisOnly, noErrors: true},
	},
	{
		id: "F15", topology: standalone, name: "Redis's clock steps forward", quick: true, inject: stepForward, noRefill: true,
		guarantee: guarantee{layers: redisOnly, bursts: 2, noErrors: true},
	},
	{
		id: "F16", topology: standalone, name: "Redis's clock steps back", quick: true, inject: stepBack, noRefill: true,
		guarantee: guarantee{layers: redisOnly, noErrors: true, bursts: 2, maxLost: burst},
	},
	{
		id: "F17", topology: standalone, name: "a process is killed while it holds leases", quick: true, inject: killLeaseHolder,
		guarantee: guarantee{layers: leasesOnly, nodes: workers, noErrors: true, limits: []penstock.Limit{workerLimit}, maxLost: 3 * (workerLease + workerCallers)},
	},
	{
		id: "F17", topology: daemonTopology, name: "the daemon is killed while it holds leases", inject: killLeasingDaemon, noRefill: true,
		guarantee: guarantee{layers: viaDaemon, limits: apiLimits, maxLost: burst / 2},
	},
	{
		id: "F18", topology: daemonTopology, name: "rules change, and are invalid at times", inject: reloadRules, noRefill: true,
		guarantee: guarantee{layers: viaDaemon, noErrors: true, limits: apiLimits},
	},
	{
		id: "F20", topology: "one process", name: "a flood of new keys fills the store", quick: true, inject: floodMemory, noRefill: true,
		guarantee: guarantee{layers: memoryOnly, noErrors: true},
	},
	{
		id: "F29", topology: daemonTopology, name: "the log is not read, and Redis goes down", inject: blockLog, noRefill: true,
		guarantee: guarantee{layers: viaDaemon, bursts: 3, noErrors: true, limits: apiLimits, maxLost: unreportedLoss},
	},
	{
		id: "F29", topology: daemonTopology, name: "the disk is full", inject: fillDisk, noRefill: true,
		guarantee: guarantee{layers: viaDaemon, noErrors: true, limits: apiLimits},
	},
	{
		id: "F30", topology: daemonTopology, name: "no file descriptors are left", inject: exhaustFiles, noRefill: true,
		guarantee: guarantee{layers: viaDaemon, noErrors: true, limits: apiLimits},
	},
	{
		id: "F31", topology: standalone, name: "very many keys expire at once", inject: expireAtOnce,
		guarantee: guarantee{layers: redisOnly, noErrors: true},
	},
	{
		id: "F32", topology: cluster, name: "a process is killed within TakeAlls", inject: killTaker,
		guarantee: guarantee{layers: redisOnly, noErrors: true, limits: []penstock.Limit{workerLimit}, maxLost: takerCallers},
	},
	{
		id: "F32", topology: cluster, name: "a shard is killed within TakeAlls", inject: killShardWithinTakeAll,
		guarantee: guarantee{layers: redisOnly, bursts: 2, limits: []penstock.Limit{workerLimit}},
	},
	{
		id: "F32", topology: cluster, name: "all processes and shards are killed within TakeAlls", inject: killAllWithinTakeAll,
		guarantee: guarantee{layers: redisOnly, bursts: 2, limits: []penstock.Limit{workerLimit}},
	},
	{
		id: "F33", topology: threeRegions, name: "a region is cut off, its connections half open", inject: cutRegionOff,
		guarantee: guarantee{layers: overRegions, nodes: 3, noErrors: true, limits: regionLimits, maxLost: 200},
	},
	{
		id: "F34", topology: threeRegions, name: "answers of home are cut", inject: cutLots,
		guarantee: guarantee{layers: overRegions, nodes: 3, noErrors: true, limits: regionLimits, maxLost: 200},
	},
	{
		id: "F35", topology: threeRegions, name: "home is killed and comes back empty", inject: killHome,
		guarantee: guarantee{layers: overRegions, nodes: 3, noErrors: true, limits: regionLimits, bursts: 2, maxLost: 200},
	},
	{
		id: "F36", topology: threeRegions, name: "a region's Redis is killed and comes back empty", quick: true, inject: killRegion,
		guarantee: guarantee{layers: overRegions, nodes: 3, noErrors: true, limits: regionLimits, maxLost: 200},
	},
	{
		id: "F36", topology: threeRegions, name: "a region's Redis comes back with an older state", inject: rollRegionBack,
		guarantee: guarantee{layers: overRegions, nodes: 3, noErrors: true, limits: regionLimits, older: regionHold, maxLost: 200},
	},
	{
		id: "F37", topology: threeRegions, name: "daemons are killed with lots of home", inject: killDaemonsWithLots, noRefill: true,
		guarantee: guarantee{layers: viaDaemons, nodes: 3, limits: regionLimits[:1], maxLost: 300},
	},
	{
		id: "F38", topology: threeRegions, name: "regions' clocks are hours apart, and step", inject: stepRegionClocks,
		guarantee: guarantee{layers: overRegions, nodes: 3, noErrors: true, limits: regionLimits, maxLost: 200},
	},
}
