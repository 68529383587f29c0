package rlqs

import (
	"os"
	"testing"

	"github.com/penstock-io/penstock/internal/redistest"
)

// redis is a server that tests share, each with its own key prefix.
var redis *redistest.Server

func TestMain(m *testing.M) {
	os.Exit(redistest.Main(m, redistest.Options{}, func(shared *redistest.Server) { redis = shared }))
}
