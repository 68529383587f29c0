package regions_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/penstock-io/penstock/internal/redistest"
)

var (
	ctx = context.Background()

	// server is a Redis whose clock tests set. They must not run in parallel.
	server *redistest.Server
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(redistest.Main(m, redistest.Options{FakeClock: true}, func(s *redistest.Server) { server = s }))
}

var prefixes int

// newPrefix returns a prefix for the keys of one test.
func newPrefix() string {
	prefixes++
	return fmt.Sprintf("t%d", prefixes)
}
