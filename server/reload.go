package server

import (
	"context"
	"time"
)

// Reload reads the rules and the certificates again. What cannot be used is told
// to the log, and leaves in force what was.
func (s *Server) Reload() {
	s.reloadRules()
	s.refreshCertificates()
}

// certificateInterval is how often certificates are looked at. They are renewed days
// before they expire, so there is no hurry.
const certificateInterval = 5 * time.Second

func (s *Server) watchCertificates(ctx context.Context) {
	tick := time.NewTicker(certificateInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.refreshCertificates()
		case <-ctx.Done():
			return
		}
	}
}

func (s *Server) refreshCertificates() {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	for _, o := range s.listeners {
		if o.certificate == nil {
			continue
		}
		changed, err := o.certificate.refresh()
		switch {
		case err != nil && o.lastError != err.Error(): // which is said once
			o.lastError = err.Error()
			s.log.Error("the new certificate cannot be used; the old one stays", "door", o.name, "err", err)
		case err == nil && changed:
			o.lastError = ""
			s.log.Info("certificate loaded", "door", o.name, "expires", o.certificate.expires())
		}
	}
}
