package adminapi

import (
	"cmp"
	"errors"
	"net/http"
	"time"

	"github.com/penstock-io/penstock/httplimit"
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
	if err != nil {
		httpserver.WriteProblem(w, httplimit.Problem{Status: http.StatusBadRequest, Detail: err.Error()})
		return
	}
	writeJSON(w, http.StatusOK, result)
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
