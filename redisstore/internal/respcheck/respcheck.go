// Package respcheck checks what arrives on a connection to Redis before the client reads it. rueidis
// believes its server: it allocates as much as a length says, and panics in a goroutine of its own if
// a reply comes that no command waits for. A faulty proxy, or another service on the address of a
// Redis that is gone, would end the process.
//
// What it lets pass is bounded: see [MaxReply]. It counts commands and replies, and so notices a
// reply too many as soon as none is awaited. While others are in flight such a reply looks like that of
// the oldest command, and shifts the answers of those after it, until the connection is idle.
package respcheck

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
)

const (
	// MaxReply bounds the bytes of one reply, of which each element counts for elementSize more: rueidis
	// needs so much for it, and allocates an array before its elements come. Replies of the store's own scripts
	// have some hundred bytes, the largest of the daemon's some hundred kilobytes, and the slots of a Cluster in
	// pieces of one slot each ten megabytes.
	MaxReply    = 32 << 20
	elementSize = 64

	maxDepth   = 32       // rueidis recurses; the replies of Redis's own commands nest up to five deep
	maxLine    = 64 << 10 // of simple strings, errors and numbers
	maxWatched = 64 << 10 // of pushes, and of replies that are looked into
)

// An Error says why what arrived is not the reply to a command. The connection cannot be used any more.
type Error struct{ Problem string }

func (e *Error) Error() string { return "the server does not keep to the protocol: " + e.Problem }

func badf(format string, args ...any) error { return &Error{fmt.Sprintf(format, args...)} }

// Unasked returns the error for what begins with a byte and arrives while no command is in flight. A push may come then.
func Unasked(first byte) error {
	if first == '>' {
		return nil
	}
	return errUnasked
}

var errUnasked = &Error{"a reply that no command waits for"}

// A Checker follows one connection. One goroutine may call Sent while another calls Received.
type Checker struct {
	commands
	replies

	sent       atomic.Int64 // commands whose reply may come
	subscribed atomic.Bool  // whether a subscription was sent
	resp3      atomic.Bool  // whether the last HELLO asked for it

	mu      sync.Mutex
	special []specialCommand // in flight, oldest first
	next    atomic.Int64     // number of the first of them
}

// New returns a checker for a new connection.
func New() *Checker {
	c := &Checker{}
	c.next.Store(none)
	return c
}

// none is the number of the next special command if there is none.
const none = math.MaxInt64
