package server

import (
	"cmp"

	"github.com/penstock-io/penstock"
)

// nodes returns how many daemons share the store: as many as have left a summary in Redis lately, and at least
// --nodes. While Redis is down, the number stays what it was.
func (s *Server) nodes() int { return max(s.config.Nodes, int(s.daemons.Load())) }

// setDaemons is told how many daemons there are.
func (s *Server) setDaemons(n int) {
	before := s.nodes()
	s.daemons.Store(int64(n))
	if now := s.nodes(); now != before {
		s.lease.SetNodes(now)
		s.log.Info("the share of this daemon has changed", "daemons", now, "before", before)
	}
}

// onStoreFailure is that of the fallback. The share of a limit whose rule has none is that of one daemon.
func (s *Server) onStoreFailure(l penstock.Limit) (penstock.FailureMode, float64) {
	mode, share := s.storePolicies.OnFailure(l)
	share = cmp.Or(share, 1/float64(s.nodes()))
	return mode, share
}
