package httpapi

import (
	"errors"
	"net/http"

	"github.com/penstock-io/penstock/server/internal/auth"
	"github.com/penstock-io/penstock/server/rlsproto"
)

// envoyJSON answers /json as envoyproxy/ratelimit does: by any method and of any
// type, and what cannot be decided with 400 and no more, whoever's fault it is.
//
// Only pages in browsers must say that they send JSON. For that they need a
// permission, which nobody gives them here.
func (d *Server) envoyJSON(w http.ResponseWriter, r *http.Request) {
	if auth.IsCrossOrigin(r) && !isJSON(r.Header.Get("Content-Type")) {
		refuseEnvoy(w, errNotJSON)
		return
	}
	c := calls.Get().(*call)
	defer c.release()
	if err := c.readBody(r); err != nil {
		refuseEnvoy(w, err)
		return
	}
	mayUndo := d.judge.MayRefund(auth.HTTPCaller(r))
	began := d.begin()
	answer, over, err := d.envoy.HandleJSON(r.Context(), c.in, mayUndo)
	d.finish(began)
	if err != nil {
		refuseEnvoy(w, err)
		return
	}
	w.Header()["Content-Type"] = jsonType
	if over {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(answer)
}

var errNotJSON = errors.New("body is not JSON")

func refuseEnvoy(w http.ResponseWriter, err error) {
	status := http.StatusBadRequest
	switch {
	case errors.Is(err, errTooLarge):
		w.Header().Set("Connection", "close")
		status = http.StatusRequestEntityTooLarge
	case errors.Is(err, errNotJSON):
		status = http.StatusUnsupportedMediaType
	case errors.Is(err, rlsproto.ErrRefundForbidden):
		status = http.StatusForbidden
	}
	http.Error(w, http.StatusText(status), status)
}
