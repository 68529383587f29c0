// Package designs holds limits on Redis as others have described them: scripts of
// our own that send the same commands in the same order, flaws included. Tests
// hold the store against them (docs/lineage.md), and bench measures some.
package designs

import _ "embed" // for the scripts

// The scripts that are measured, by what they are called where they are from.
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
