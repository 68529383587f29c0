package adminapi

import (
	"net/http"
	"os"
	"runtime"
	"strings"

	"github.com/penstock-io/penstock/rules"
)

// handleStats answers /stats as envoyproxy/ratelimit does, whose page has no counters either.
// Of the command line it has the program only, since flags may contain a token.
func (s *Server) handleStats(w http.ResponseWriter, _ *http.Request) {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	writeJSON(w, http.StatusOK, map[string]any{"cmdline": os.Args[:1], "memstats": &memory})
}

// ratelimitName returns the name of a rule as envoyproxy/ratelimit prints it: the domain, and
// each node's key and value with an underscore between them.
func ratelimitName(r *rules.Rule) string {
	domain, nodes := r.Path()
	var b strings.Builder
	b.WriteString(domain)
	for _, n := range nodes {
		b.WriteString("." + n.Key)
		if n.Value != "" {
			b.WriteString("_" + n.Value)
		}
	}
	return b.String()
}
