package redisstore

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by it
	"encoding/hex"
	"strings"

	"github.com/penstock-io/penstock/redisstore/internal/script"
)

// A Client sends calls to Redis. [Open] creates one. A program that already has a
// client writes a short adapter, as in the example, and passes it to [New]. A
// Client must be safe for concurrent use, and must not repeat calls: only this
// package knows which ones are safe to repeat.
type Client interface {
	// Do makes the calls in one round trip: pipelined, and to all nodes of a
	// Cluster at the same time. Calls for one key are sent in their order. It
	// stores a reply or an error in each call, and returns when ctx ends. After
	// that it uses neither ctx nor the calls.
	Do(ctx context.Context, calls []Call)

	// Info returns the reply to INFO of every primary, by its address. A node
	// that denies INFO has an empty text. It is an error only if no node
	// answers.
	Info(ctx context.Context) (map[string]string, error)

	// Sharded reports whether the server is a Cluster, where the keys of one call must be in one
	// slot. The store finds out by itself whether a proxy spreads keys over several servers.
	Sharded() bool
}

// A Call is a script to run, and its result.
type Call struct {
	// Script is run with Keys and Args: by EVALSHA with its SHA1, or by EVAL
	// with its text if Text is set.
	Script *Script
	Text   bool
	Keys   []string
	Args   []string

	// Reply is the answer. The client appends to it the integer, or the
	// integers of an array.
	Reply []int64

	// Err is set if there was no answer. Errors of Redis keep their text, which
	// begins with a code such as MOVED; a text without a code gets ERR in
	// front. Other errors must not begin with a word in capitals.
	Err error

	// Node is the address of the node that was called, if known. It appears
	// only in error texts.
	Node string

	argsBuf    []string // room for Args
	idempotent bool     // safe to repeat after any failure
	lastErr    error    // the reason for the last retry
	tries      bool     // whether it is sent in its own form, to find out whether that is accepted

	wantTexts bool     // whether the script may answer with strings
	texts     []string // its reply then
}

// A Script is a Lua script with the hash by which Redis identifies it.
type Script struct {
	Name string // the operation, for error texts
	Text string
	SHA1 string // of Text, in hexadecimal
}

// older returns the script without the command of Redis 7 by which it learns of a key's expiry. It can do without, but
// a proxy that reads scripts and does not know the command refuses them.
func (s *Script) older() *Script {
	if !strings.Contains(s.Text, script.AskExpiry) {
		return s
	}
	return madeScript("older "+s.SHA1, s.Name, func() string { return strings.ReplaceAll(s.Text, script.AskExpiry, "nil") })
}

// setForm sets how the script is sent.
func (c *Call) setForm(f scriptForm) {
	c.Text = c.Text || f.text
	if f.older {
		c.Script = c.Script.older()
	}
}

func newScript(name, text string) *Script {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // see the import
	return &Script{Name: name, Text: text, SHA1: hex.EncodeToString(sum[:])}
}
