// Package vectors holds the transcripts that say what the algorithms mean. They
// are written to be read, and every store is driven by them: see package
// storetest.
//
// A transcript is made of scenes, and each scene begins with an empty store:
//
//	== A bucket of 15 that gains one token every two seconds.
//	limit 30/1m burst=15
//	at 0s  take alice 14   => allowed granted=14 remaining=1/15 reset=28s
//	at 0s  take alice 2    => denied remaining=1/15 retry=2s reset=28s
//
// A line that begins with # is for the reader. The others are:
//
//	== TITLE              begins a scene
//	start TIME            what "at 0s" means from here on, as in RFC 3339; a
//	                      start before the first scene is good for all of them
//	limit TEXT            the limit that requests are made under from here on
//	limit LABEL: TEXT     the same, for requests that say "under LABEL"
//	at TIME REQUEST       one request, at a duration since the start, such as
//	                      1.5s or 1d2h, or at a moment as in RFC 3339
//	back to TIME REQUEST  the same, after the clock was set back
//	at TIME all           the indented requests that follow, all or nothing
//	at TIME each          the indented requests that follow, each by itself
//
// A request is one of
//
//	take KEY [COST]       COST is 1 unless said otherwise
//	look KEY
//	refund KEY [COST]
//	reset KEY
//
// followed, where that makes sense, by any of
//
//	at-most               take what is left when the cost does not fit
//	max-delay=DURATION    or be granted for a moment within this from now
//	id=ID                 charge once, however often this is asked
//	under LABEL           the limit of that label
//	xN                    ask N times over
//	every=DURATION        with the clock moving by this between two of the N
//
// Behind => is the whole decision: allowed or denied, then granted, remaining
// (of how many), retry, reset, delay and source. What is left out is zero. Of a
// request that is asked N times over, it is how many were allowed and the last
// decision. A KEY with odd characters is quoted as in Go.
//
// All times are whole milliseconds, because that is the tick of the clock that
// stores are tested by. Durations in decisions are rounded up to it.
//
// To write a transcript, leave out what is behind => and let
//
//	go test ./storetest -run TestVectors -update
//
// fill it in from the memory store; then read every line that changed.
package vectors

import "embed"

// Files are the transcripts.
//
//go:embed *.txt
var Files embed.FS
