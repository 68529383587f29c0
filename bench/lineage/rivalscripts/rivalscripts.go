// Package rivalscripts holds the Redis scripts of other rate limiters, rewritten
// to send the same commands in the same order, flaws included. The tests in the
// directory above run them beside the store, and bench/redis measures some.
package rivalscripts

import _ "embed" // for the scripts

// The scripts that bench measures, named after their origin.
var (
	//go:embed hash-log.lua
	HashLog string
	//go:embed zset-log.lua
	ZsetLog string
	//go:embed istio-fixed-window.lua
	IstioFixedWindow string
	//go:embed istio-rolling-window.lua
	IstioRollingWindow string
	//go:embed go-zero-period.lua
	GoZeroPeriod string
)
