//go:build race

package rlqs

const raceEnabled = true
