package frameworks_test

import (
	"testing"

	"github.com/penstock-io/penstock/examples/internal/demotest"
)

func TestCommentsOfExamplesRun(t *testing.T) { demotest.RunComments(t, 1) }
