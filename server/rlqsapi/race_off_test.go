//go:build !race

package rlqsapi

const raceEnabled = false
