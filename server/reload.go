package server

import (
	"context"
	"time"

	"github.com/penstock-io/penstock/internal/monotime"
)

// Reload loads the rules and the certificates again, and reopens the audit log. If that
// fails, it logs the error, and the old ones stay in use.
func (s *Server) Reload() {
	s.reopenAudit()
	s.reloadRules()
	s.refreshCertificates()
}

// certificateInterval is the time between two checks of the certificate files. It can be
// long: certificates are renewed days before they expire.
const certificateInterval = 5 * time.Second

func (s *Server) watchCertificates(ctx context.Context) {
	for monotime.Sleep(ctx, certificateInterval) == nil {
		s.refreshCertificates()
	}
}

func (s *Server) refreshCertificates() {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	for _, l := range s.listeners {
		if l.certificate == nil {
			continue
		}
		changed, err := l.certificate.refresh()
		problem := ""
		if err != nil {
			problem = err.Error()
		}
		if problem != "" && problem != l.lastError { // logged once
			s.log.Error("certificate reload failed, keeping the old one", "listener", l.name, "err", err)
		}
		l.lastError = problem
		if changed {
			s.log.Info("certificate reloaded", "listener", l.name, "expires", l.certificate.expires())
		}
	}
}
