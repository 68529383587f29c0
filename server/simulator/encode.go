package simulator

import (
	"encoding/json"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/internal/httpserver"
)

// The JSON form of a simulation. Times are in seconds, as in the HTTP API; a
// retry_after of null means never.
type (
	simulationJSON struct {
		Limit   string     `json:"limit"`
		Start   string     `json:"start,omitempty"` // of a limit in a time zone: what its clocks show at 0 s
		Summary string     `json:"summary"`
		Lanes   []laneJSON `json:"lanes"`
	}

	laneJSON struct {
		Algorithm    string       `json:"algorithm"`
		Limit        string       `json:"limit"`
		Count        int64        `json:"count"`
		Period       seconds      `json:"period"`
		Written      bool         `json:"written"`
		Error        string       `json:"error,omitempty"`
		Offered      int64        `json:"offered"`
		Passed       int64        `json:"passed"`
		Denied       int64        `json:"denied"`
		MostInPeriod int64        `json:"most_in_period"`
		AtMost       int64        `json:"at_most"`
		Exceeds      bool         `json:"exceeds"`
		Results      []resultJSON `json:"results"`
	}

	resultJSON struct {
		At         seconds `json:"at"`
		Cost       int64   `json:"cost"`
		Allowed    bool    `json:"allowed"`
		Delay      seconds `json:"delay"`
		RetryAfter seconds `json:"retry_after"`
	}

	seconds time.Duration
)

// MarshalJSON encodes a number of seconds, or null for never.
func (s seconds) MarshalJSON() ([]byte, error) {
	return httpserver.AppendSeconds(nil, time.Duration(s)), nil
}

// MarshalJSON implements [json.Marshaler].
func (s *Simulation) MarshalJSON() ([]byte, error) {
	j := simulationJSON{Limit: s.Limit.String(), Summary: s.Summary, Start: wallClock(s.Limit)}
	for i := range s.Lanes {
		j.Lanes = append(j.Lanes, s.Lanes[i].json())
	}
	return json.Marshal(j)
}

// wallClock returns what clocks show when a simulation of a calendar's limit begins, or "".
func wallClock(l penstock.Limit) string {
	n := l.Normal()
	zone, err := time.LoadLocation(n.Zone)
	if n.Align <= penstock.AlignClock || err != nil {
		return ""
	}
	return startFor(l).In(zone).Format("2006-01-02T15:04:05")
}

func (l *Lane) json() laneJSON {
	j := laneJSON{
		Algorithm: l.Algorithm.String(), Limit: l.Limit.String(), Written: l.Written,
		Count: l.Limit.Count, Period: seconds(l.Limit.Normal().Period),
		Offered: l.Offered, Passed: l.Passed, Denied: l.Denied,
		MostInPeriod: l.MostInPeriod, AtMost: l.AtMost(), Exceeds: l.Exceeds(), Results: []resultJSON{},
	}
	if l.Err != nil {
		j.Error = l.Err.Error()
		return j
	}
	for _, r := range l.Results {
		j.Results = append(j.Results, resultJSON{seconds(r.At), r.Cost, r.Allowed, seconds(r.Delay), seconds(r.RetryAfter)})
	}
	return j
}
