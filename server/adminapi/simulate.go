package adminapi

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/internal/httpserver"
	"github.com/penstock-io/penstock/server/simulator"
)

// maxSimulateBody bounds the body of /v1/simulate.
const maxSimulateBody = 64 << 10

// A simulateRequest names its traffic, or lists arrivals.
type simulateRequest struct {
	Limit    string `json:"limit"`
	Traffic  string `json:"traffic"`
	Arrivals []struct {
		At   float64 `json:"at"` // seconds
		Cost *int64  `json:"cost"`
	} `json:"arrivals"`
}

// handleSimulate answers /v1/simulate: what a limit does to traffic, under every
// algorithm. It touches no counter of the server.
func (s *Server) handleSimulate(w http.ResponseWriter, r *http.Request) {
	var request simulateRequest
	err := decodeJSON(http.MaxBytesReader(w, r.Body, maxSimulateBody), &request, `{"limit": "10/1s", "traffic": "edge"}`)
	var result *simulator.Simulation
	if err == nil {
		result, err = request.run()
	}
	respond(w, result, asParameterError(err), writeJSON)
}

// maxSeconds is beyond every arrival that the simulator accepts, and within a
// time.Duration.
const maxSeconds = 1e9

func (q *simulateRequest) run() (*simulator.Simulation, error) {
	if q.Arrivals == nil {
		return simulator.Run(q.Limit, cmp.Or(q.Traffic, simulator.DefaultTraffic))
	}
	if q.Traffic != "" {
		return nil, errors.New("want traffic or arrivals, not both")
	}
	arrivals := make([]simulator.Arrival, len(q.Arrivals))
	for i, a := range q.Arrivals {
		at := min(max(a.At, -1), maxSeconds)
		arrivals[i] = simulator.Arrival{At: time.Duration(at * float64(time.Second)), Cost: 1}
		if a.Cost != nil {
			arrivals[i].Cost = *a.Cost
		}
	}
	return simulator.RunArrivals(q.Limit, arrivals)
}

// maxLogUpload is how long the body of a log may take to arrive.
const maxLogUpload = time.Minute

// handleSimulateLog answers /v1/simulate/log: what limits do to a log, or a recording, which is the body. One log at a
// time is simulated, because each may take as much memory and time as the simulator allows.
func (s *Server) handleSimulateLog(w http.ResponseWriter, r *http.Request) {
	q, err := s.decodeLogQuery(r)
	var result *simulator.LogSimulation
	switch {
	case err != nil:
	case !s.simulating.TryLock():
		err = errSimulating
	default:
		defer s.simulating.Unlock()
		result, err = simulateLog(w, r, q)
		err = asParameterError(err)
	}
	respond(w, result, err, writeCompactJSON)
}

var errSimulating = errors.New("another log is being simulated; try again when it is done")

func simulateLog(w http.ResponseWriter, r *http.Request, q simulator.LogQuery) (*simulator.LogSimulation, error) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(maxLogUpload)) // not supported by recorders of tests
	log, err := io.ReadAll(http.MaxBytesReader(w, r.Body, simulator.MaxLogBytes))
	_ = control.SetReadDeadline(time.Time{}) // which would end the simulation, too
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, fmt.Errorf("the log is larger than %d MiB: send a part of it, or compress it with gzip", simulator.MaxLogBytes>>20)
	case err != nil:
		return nil, err
	}
	return simulator.RunLog(r.Context(), log, q)
}

// decodeLogQuery reads the limits, and what requests are counted by: a rule, or entries with commas between them.
func (s *Server) decodeLogQuery(r *http.Request) (q simulator.LogQuery, err error) {
	parameters, err := httpserver.ParseQuery(r.URL.RawQuery, maxParameters)
	if err != nil {
		return q, err
	}
	q = simulator.LogQuery{Domain: "log", By: []rules.Entry{{Key: "remote_address"}}}
	for _, p := range parameters {
		switch p.Name {
		case "limit":
			q.Limits = append(q.Limits, p.Value)
		case "by":
			q.By = nil
			for key := range strings.SplitSeq(p.Value, ",") {
				q.By = append(q.By, rules.Entry{Key: key})
			}
		case "rule":
			set := s.engine.Rules()
			if set == nil || set.Rule(p.Value) == nil {
				return q, &parameterError{"rule", fmt.Sprintf("no such rule: %.200q", p.Value)}
			}
			q.Domain, q.By = set.Rule(p.Value).Path()
		default:
			return q, &parameterError{p.Name, fmt.Sprintf("unknown parameter %.80q", p.Name)}
		}
	}
	if n := len(q.Limits); n < 1 || n > simulator.MaxLogLimits {
		return q, &parameterError{"limit", fmt.Sprintf("want 1 to %d limits to try, not %d, such as ?limit=10/1s&limit=20/1s", simulator.MaxLogLimits, n)}
	}
	return q, nil
}
