package grpclimit

import (
	"google.golang.org/grpc/metadata"

	"github.com/penstock-io/penstock/httplimit"
)

// Pushback is what clients that repeat calls by themselves go by.
func Pushback(answers []httplimit.Answer) metadata.MD { return pushback(retryAfter(answers)) }
