package redisstore

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by it
	"encoding/hex"
)

// A Client carries calls to Redis. [Open] brings its own; whoever has a client
// already writes a short adapter, as in the example, and passes it to [New]. It
// must be safe for concurrent use, and must not repeat a call on its own: only
// this package knows which may be repeated.
type Client interface {
	// Do makes the calls in one trip: pipelined, and to each node of a Cluster
	// at once. It writes into each what came back, an answer or an error, and
	// returns when ctx ends. After that it touches neither ctx nor the calls.
	Do(ctx context.Context, calls []Call)

	// Info returns what INFO says, for every node that decides, by its address.
	// A node that does not tell is there with no text. It is an error only if
	// none does.
	Info(ctx context.Context) (map[string]string, error)

	// Sharded reports whether the keys of one call must be in one slot, as in
	// a Cluster.
	Sharded() bool
}

// A Call is a script to run, and what came of it.
type Call struct {
	// Script, with Keys and Args, is to be run: by EVALSHA with its name, or by
	// EVAL with its text if Text is set.
	Script *Script
	Text   bool
	Keys   []string
	Args   []string

	// Reply is the answer. The client appends to it: the integer, or the
	// integers of an array.
	Reply []int64

	// Err is set if there was no answer. Errors of Redis keep their text, which
	// begins with a word such as MOVED; one that does not is to get ERR in
	// front. Other errors must not begin like that.
	Err error

	// Node is the address of the node that was asked, if that is known. It is
	// only for the texts of errors.
	Node string

	argsBuf    []string // room for Args
	idempotent bool     // to repeat, whatever became of it
	lastErr    error    // because of which it was last repeated
}

// A Script is the text of a script, and the name that Redis gives it.
type Script struct {
	Name string // what it does
	Text string
	SHA1 string // of Text, in hexadecimal
}

func newScript(name, text string) *Script {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // see the import
	return &Script{Name: name, Text: text, SHA1: hex.EncodeToString(sum[:])}
}
