package server

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/penstock-io/penstock/server/audit"
)

// openAudit opens the audit log. A daemon that cannot write it would refuse every action,
// so that is an error at startup.
func (s *Server) openAudit(context.Context) (err error) {
	var out io.Writer = os.Stderr
	if path := s.config.AuditLog; path != "" {
		if s.auditFile, err = audit.OpenFile(path); err != nil {
			return fmt.Errorf("%s: %w", s.config.origin("audit-log"), err)
		}
		out = s.auditFile
		s.closers = append(s.closers, func(context.Context) error { return s.auditFile.Close() })
	}
	s.audit, err = audit.New(audit.Options{
		Out: out, Node: s.config.daemonName(), Log: s.log, OnEnd: s.metrics.countAction, OnError: s.metrics.auditErrors.Inc,
	})
	return err
}

// reopenAudit opens the file of the audit log again, after a rotation. The log says when: until
// then actions may still be written to the old file.
func (s *Server) reopenAudit() {
	if s.auditFile == nil {
		return
	}
	if err := s.auditFile.Reopen(); err != nil {
		s.log.Error("audit log not reopened, keeping the old file", "err", err)
		return
	}
	s.log.Info("audit log reopened")
}
