//go:build race

package rlqsapi

const raceEnabled = true
