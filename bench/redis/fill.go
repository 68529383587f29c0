package main

import (
	"context"
	"fmt"

	"github.com/redis/rueidis"
)

// fillBatch is how many commands go in one trip.
const fillBatch = 500

// fill sends the shape once for each of the keys 0 to n-1.
func fill(srv *server, s *shape, n int) error {
	return fillAt(srv, s, n, 0)
}

// fillAt does so at a moment.
func fillAt(srv *server, s *shape, n, moment int) error {
	client := srv.client
	for from := 0; from < n; from += fillBatch {
		commands := make(rueidis.Commands, 0, fillBatch)
		for i := from; i < min(from+fillBatch, n); i++ {
			commands = append(commands, client.B().Arbitrary(s.at(i, moment)...).Build())
		}
		for _, result := range client.DoMulti(context.Background(), commands...) {
			if err := result.Error(); err != nil && !rueidis.IsRedisNil(err) {
				return fmt.Errorf("filling with %s: %w", s.name, err)
			}
		}
	}
	return nil
}

// fillFresh fills keys that are not there yet, and proves that they are then:
// all of them, and with an expiry.
func fillFresh(srv *server, s *shape, n int) (census, error) {
	before, err := srv.census()
	if err != nil {
		return census{}, err
	}
	if err := fill(srv, s, n); err != nil {
		return census{}, err
	}
	after, err := srv.census()
	if err != nil {
		return census{}, err
	}
	d := after.since(before)
	return d, s.proveKeys(d, n)
}

// proveKeys returns an error unless so many keys have come.
func (s *shape) proveKeys(d census, n int) error {
	expires := n * s.perKey
	if s.lasting {
		expires = 0
	}
	if d.keys != n*s.perKey || d.expires != expires {
		return fmt.Errorf("%s: %d keys came, %d with an expiry; want %d and %d", s.name, d.keys, d.expires, n*s.perKey, expires)
	}
	return nil
}

// proveGrants returns an error unless every one of the calls was granted.
func (s *shape) proveGrants(d census, calls int) error {
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
