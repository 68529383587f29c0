package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/penstock-io/penstock/internal/monotime"
	"github.com/penstock-io/penstock/server/durable"
	"github.com/penstock-io/penstock/server/observe"
)

// openData opens the directory for what the daemon keeps. Whichever part keeps something
// uses it by s.data, which is nil without --data, and closes what it keeps before.
func (s *Server) openData(context.Context) error {
	path := s.config.Data
	if path == "" {
		return nil
	}
	_, missing := os.Stat(path)
	dir, err := durable.OpenDir(path)
	if err != nil {
		return fmt.Errorf("%s: %w", s.config.origin("data"), err)
	}
	if errors.Is(missing, fs.ErrNotExist) {
		s.log.Info("data directory created", "data", path)
	}
	s.data = dir
	s.closers = append(s.closers, func(context.Context) error { return dir.Close() })
	return nil
}

const (
	historyName = "history"

	// historyInterval is the time between two writes of the history. A crash loses at
	// most this much of it.
	historyInterval = time.Minute
)

// keepHistory restores the history of the traffic, and saves it in the background. It is
// never a reason not to start, or to end with an error: it is for people to look at.
func (s *Server) keepHistory() {
	if s.data == nil {
		return
	}
	s.loadHistory()
	s.background = append(s.background, s.saveHistories)
}

func (s *Server) loadHistory() {
	saved, err := s.data.ReadFile(historyName, observe.MaxHistoryBytes)
	if err == nil {
		err = s.observer.LoadHistory(saved)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("history not restored, starting without it", "err", err)
	}
}

// saveHistories saves the history at each interval, and when the server ends. One that failed to
// start leaves the file as it is: it may have no rules, and then would forget the history of them all.
func (s *Server) saveHistories(ctx context.Context) {
	for monotime.Sleep(ctx, historyInterval) == nil {
		s.saveHistory()
	}
	s.observer.Tick() // of the last second
	s.saveHistory()
}

// saveHistory logs the first failure, and the first success after it.
func (s *Server) saveHistory() {
	err := s.data.WriteFile(historyName, s.observer.SaveHistory)
	if err != nil && !s.historyFailing {
		s.log.Warn("history not saved, keeping the previous one", "err", err)
	}
	s.historyFailing = err != nil
}
