package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock"
)

// minVersion is the oldest major version of Redis with HELLO, which clients begin with, and
// with scripts that may write after they read the clock. What newer versions have besides,
// scripts try, and do without. Compatible servers report a version of Redis too.
const minVersion = 6

// inspect reads the INFO of every node. It collects warnings, and returns an error
// if the store cannot work on a node.
func (s *Store) inspect(infos map[string]string) error {
	var warnings []string
	for node, text := range infos {
		info := parseInfo(text)
		if err := s.unsupported(node, info); err != nil {
			return err
		}
		warnings = append(warnings, s.warningsOf(node, info)...)
	}
	slices.Sort(warnings)
	s.warnings.Store(&warnings)
	return nil
}

// unsupported returns why a store cannot work on a node, or nil.
func (s *Store) unsupported(node string, info map[string]string) error {
	version := info["redis_version"]
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err == nil && n < minVersion {
		return &RefusedError{fmt.Errorf("%s has version %s", node, version), fmt.Sprintf("want %d or later", minVersion)}
	}
	if info["cluster_enabled"] == "1" && !s.client.Sharded() {
		return &RefusedError{fmt.Errorf("%s is a node of a Cluster", node), "want a URL that begins with redis-cluster://"}
	}
	return nil
}

// warningsOf returns the settings of a node that weaken limits.
func (s *Store) warningsOf(node string, info map[string]string) (warnings []string) {
	warn := func(format string, args ...any) {
		warnings = append(warnings, node+": "+fmt.Sprintf(format, args...))
	}
	if policy := info["maxmemory_policy"]; policy != "" && policy != "noeviction" {
		warn("maxmemory-policy is %s: an evicted key gets its whole burst back; want noeviction", policy)
	}
	if info["role"] == "slave" && !s.client.Sharded() {
		warn("is a replica, which rejects writes")
	}
	if info["redis_version"] == "" {
		warn("INFO reports neither version nor maxmemory-policy; want version %d or later, and noeviction", minVersion)
	}
	return warnings
}

// RunIDs returns the run ID of every primary, by its address. The run ID changes
// whenever a server is restarted. A server that does not report one is left out.
func (s *Store) RunIDs(ctx context.Context) (map[string]string, error) {
	infos, err := s.client.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("redisstore: info: %w: %w", penstock.ErrUnavailable, err)
	}
	runs := map[string]string{}
	for node, text := range infos {
		if info := parseInfo(text); info["run_id"] != "" && info["role"] != "slave" {
			runs[node] = info["run_id"]
		}
	}
	return runs, nil
}

func parseInfo(text string) map[string]string {
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info
}
