package grpclimit

// Pushback is what clients that repeat calls by themselves go by.
var Pushback = pushback
