package auth

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"net"

	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/callers"
)

// NewActor returns a caller as the audit log names it, without its address. The state of
// its connection is nil without TLS.
func NewActor(i callers.Identity, state *tls.ConnectionState) audit.Actor {
	a := audit.Actor{Name: i.Name, Certificate: certificateName(state)}
	switch {
	case i.ByToken:
		a.Via = audit.ViaToken
	case i.MayRefund:
		a.Via = audit.ViaLocal
	}
	a.Name = cmp.Or(a.Name, a.Certificate)
	return a
}

// ConnActor is [NewActor] for a connection, with its address.
func ConnActor(i callers.Identity, c net.Conn) audit.Actor {
	var state *tls.ConnectionState
	if secure, ok := c.(interface{ ConnectionState() tls.ConnectionState }); ok {
		s := secure.ConnectionState()
		state = &s
	}
	a := NewActor(i, state)
	a.Address = c.RemoteAddr().String()
	return a
}

// certificateName returns the subject of the client's certificate, or "". Only a verified
// certificate names its owner.
func certificateName(state *tls.ConnectionState) string {
	if state == nil || len(state.VerifiedChains) == 0 {
		return ""
	}
	return subject(state.VerifiedChains[0][0])
}

// subject returns the name in a certificate. Some, such as those of SPIFFE, have it in the
// alternative names alone.
func subject(c *x509.Certificate) string {
	switch {
	case len(c.Subject.Names) > 0:
		return c.Subject.String()
	case len(c.URIs) > 0:
		return c.URIs[0].String()
	case len(c.DNSNames) > 0:
		return c.DNSNames[0]
	case len(c.EmailAddresses) > 0:
		return c.EmailAddresses[0]
	}
	return "serial " + c.SerialNumber.String()
}
