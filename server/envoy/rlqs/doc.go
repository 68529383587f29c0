// Package rlqs serves Envoy's rate limit quota service, version 3: proxies decide by
// themselves, with units that they were assigned, and report what they did.
//
// An assignment is a lease of units that were taken from the store before, under the same
// rule and key as every other API. It is sent as a token bucket that holds the units and
// does not refill, so a proxy can let pass as many requests as were paid for, and no more,
// however late a message arrives and whatever becomes of the proxy. Any time T admits at
// most
//
//	B + r·T + Σq
//
// requests of a key, where B + r·T is what the limit itself admits, and q what one proxy
// holds. Units are never refunded, because no message of the protocol proves that a proxy
// can no longer spend them: what a proxy does not use is lost until time brings it back. So
// the units are also at most B + r·(T+A), where A is the age of the oldest lease.
//
// What a message costs the proxy depends on what it knows. A bucket that differs from the
// one before begins full, so each lease has a number in a field that changes nothing else,
// and a lease that is only extended is sent again unchanged. Extended too late it would
// begin full a second time: a lease is extended in the first half of its time to live, and
// replaced by a new one after that. A message that is delayed by more than the other half
// can still grant a lease twice.
//
// The path of a report: stream.go receives and checks it, service.go books it and decides
// once per tick which buckets need units, demand.go estimates how many, divide.go divides
// what the store granted, lease.go is what a proxy holds, message.go encodes it. All but
// stream.go and the ticker of service.go are functions of the time that they are given.
package rlqs
