package main

import (
	"context"
	"fmt"

	"github.com/redis/rueidis"
)

// fillBatch is the number of commands in one pipeline.
const fillBatch = 500

// fill sends the shape once for each of the keys 0 to n-1.
func fill(srv *server, s *shape, n int) error {
	return fillAt(srv, s, n, 0)
}

// fillAt does so with a time.
func fillAt(srv *server, s *shape, n, at int) error {
	client := srv.client
	for from := 0; from < n; from += fillBatch {
		commands := make(rueidis.Commands, 0, fillBatch)
		for i := from; i < min(from+fillBatch, n); i++ {
			commands = append(commands, client.B().Arbitrary(s.at(i, at)...).Build())
		}
		for _, result := range client.DoMulti(context.Background(), commands...) {
			if err := result.Error(); err != nil && !rueidis.IsRedisNil(err) {
				return fmt.Errorf("filling with %s: %w", s.name, err)
			}
		}
	}
	return nil
}

// fillFresh fills new keys, and verifies that all of them exist afterwards, with an
// expiry.
func fillFresh(srv *server, s *shape, n int) (serverStats, error) {
	before, err := srv.stats()
	if err != nil {
		return serverStats{}, err
	}
	if err := fill(srv, s, n); err != nil {
		return serverStats{}, err
	}
	after, err := srv.stats()
	if err != nil {
		return serverStats{}, err
	}
	d := after.since(before)
	return d, s.verifyKeys(d, n)
}

// verifyKeys returns an error unless so many keys were created.
func (s *shape) verifyKeys(d serverStats, n int) error {
	expires := n * s.perKey
	if s.lasting {
		expires = 0
	}
	if d.keys != n*s.perKey || d.expires != expires {
		return fmt.Errorf("%s: %d new keys, %d with an expiry; want %d and %d", s.name, d.keys, d.expires, n*s.perKey, expires)
	}
	return nil
}

// verifyGrants returns an error unless every one of the calls was granted.
func (s *shape) verifyGrants(d serverStats, calls int) error {
	if n := d.failed(); n > 0 {
		return fmt.Errorf("%s: %d commands failed", s.name, n)
	}
	if s.write == "" {
		return nil
	}
	if got := d.commands[s.write].calls; got != calls*s.times {
		return fmt.Errorf("%s: %d of %s for %d calls, want %d", s.name, got, s.write, calls, calls*s.times)
	}
	return nil
}
