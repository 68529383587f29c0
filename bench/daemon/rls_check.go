package main

import (
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// An rlsCheck checks the responses of one turn: the code of each, and all of those for a sample
// of the keys, whose remaining units must have gone down by one with each call.
type rlsCheck struct {
	load  rlsLoad
	began time.Time
	mu    sync.Mutex
	keys  map[int]*keyUse
}

// A keyUse is what the responses for a key said.
type keyUse struct{ calls, least, most int }

// sampleEvery is how many keys there are to one that is sampled.
const sampleEvery = 101

func newRLSCheck(l rlsLoad) *rlsCheck {
	return &rlsCheck{load: l, began: time.Now(), keys: map[int]*keyUse{}}
}

// response returns an error unless a framed response to the n-th request is the one that is
// wanted.
func (c *rlsCheck) response(n int, frame []byte) error {
	if len(frame) < 5 || frame[0] != 0 || int(binary.BigEndian.Uint32(frame[1:])) != len(frame)-5 {
		return fmt.Errorf("response % x: no gRPC message", frame)
	}
	message, want := frame[5:], c.load.wantedCode(n)
	if code, err := overallCode(message); err != nil || code != want {
		return fmt.Errorf("response % x: got %v, %w; want %v", message, code, err, want)
	}
	if n%sampleEvery != 0 {
		return nil
	}
	var response rlspb.RateLimitResponse
	if err := proto.Unmarshal(message, &response); err != nil {
		return err
	}
	if err := c.load.check(&response); err != nil {
		return err
	}
	if want == rlspb.RateLimitResponse_OK {
		c.count(n, int(response.GetStatuses()[0].GetLimitRemaining()))
	}
	return nil
}

// overallCode returns the first field of a response.
func overallCode(message []byte) (rlspb.RateLimitResponse_Code, error) {
	field, kind, n := protowire.ConsumeTag(message)
	if n < 0 || field != 1 || kind != protowire.VarintType {
		return 0, fmt.Errorf("field %d of type %d is first", field, kind)
	}
	code, n := protowire.ConsumeVarint(message[n:])
	return rlspb.RateLimitResponse_Code(code), protowire.ParseError(n) //nolint:gosec // compared with a known one
}

// count notes what a response said of a key.
func (c *rlsCheck) count(n, remaining int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	use := c.keys[n]
	if use == nil {
		use = &keyUse{least: remaining, most: remaining}
		c.keys[n] = use
	}
	use.calls++
	use.least, use.most = min(use.least, remaining), max(use.most, remaining)
}

// sums returns an error unless each call for a sampled key was charged once. The windows are of
// an hour, so a turn in which one ends cannot tell.
func (c *rlsCheck) sums(now time.Time) error {
	if c.load.constant || !c.began.Truncate(time.Hour).Equal(now.Truncate(time.Hour)) {
		return nil
	}
	for n, use := range c.keys {
		if use.most-use.least != use.calls-1 {
			return fmt.Errorf("key %d: %d calls, and from %d to %d remained", n, use.calls, use.most, use.least)
		}
	}
	return nil
}
