// Package vectors holds transcripts that define the behaviour of the algorithms. They
// are written to be read, and every store is tested with them: see package storetest.
//
// A transcript is a list of scenarios, each of which starts with an empty store:
//
//	== A bucket of 15 that gains one token every two seconds.
//	limit 30/1m burst=15
//	at 0s  take alice 14   => allowed granted=14 remaining=1/15 reset=28s
//	at 0s  take alice 2    => denied remaining=1/15 retry=2s reset=28s
//
// A line that begins with # is a comment. The others are:
//
//	== TITLE              begins a scenario
//	start TIME            the time of "at 0s" from here on, as in RFC 3339; a
//	                      start before the first scenario applies to all
//	limit TEXT            the limit of the requests from here on
//	limit LABEL: TEXT     the same, for requests with "under LABEL"
//	at TIME REQUEST       one request, at a duration since the start, such as
//	                      1.5s or 1d2h, or at a time as in RFC 3339
//	back to TIME REQUEST  the same, after the clock has stepped back
//	at TIME all           the indented requests that follow, all or nothing
//	at TIME each          the indented requests that follow, each by itself
//
// A request is one of
//
//	take KEY [COST]       COST is 1 if omitted
//	charge KEY [COST]     whether or not it fits
//	settle KEY [AMOUNT]   AMOUNT is 0 if omitted
//	peek KEY
//	refund KEY [COST]
//	reset KEY
//
// followed by any of
//
//	at-most               take what is left if the cost does not fit
//	max-delay=DURATION    or be granted with a delay up to this
//	keep-free=N           only if so many remain afterwards
//	new-id                denied if the ID holds permits, rather than renewed
//	id=ID                 charge once, however often it is repeated
//	hold=DURATION         remember the ID for this long
//	under LABEL           the limit of that label
//	xN                    repeat N times
//	every=DURATION        move the clock by this between repetitions
//
// After => comes the whole decision: allowed or denied, then granted, remaining (of how
// many), retry, reset, delay and source. Omitted fields are zero. For a repeated
// request it is how many were allowed, and the last decision. If the error is
// ErrUnknownID, it is "unknown id". A KEY with special characters is quoted as
// in Go.
//
// All times are whole milliseconds, the resolution of the clock in store tests.
// Durations in decisions are rounded up to it.
//
// To write a transcript, omit what follows => and run
//
//	go test ./storetest -run TestVectors -update
//
// which fills it in from the memory store; then review every line that changed.
package vectors

import "embed"

// Files are the transcripts.
//
//go:embed *.txt
var Files embed.FS
