package redisstore

import (
	"crypto/tls"
	"errors"
	"strings"

	"github.com/redis/rueidis"
)

// isTransient reports whether an error of connecting may be gone in a while, without
// anybody changing the URL or the server's settings. A name that cannot be
// resolved may be that of a service which is about to start.
func isTransient(err error) bool {
	var reply *rueidis.RedisError
	var unfit unsupportedError
	var plain tls.RecordHeaderError
	var stranger *tls.CertificateVerificationError
	var alert tls.AlertError
	switch {
	case errors.As(err, &unfit), errors.As(err, &plain), errors.As(err, &stranger), errors.As(err, &alert):
		return false
	case errors.As(err, &reply):
		return rejectionCode(reply) != "" || strings.HasPrefix(reply.Error(), "ERR max number of clients")
	}
	return true
}
