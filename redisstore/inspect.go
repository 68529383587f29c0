package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock"
)

// leastVersion is the oldest major version of Redis that the store is tested
// with; what speaks its protocol reports one as well.
const leastVersion = 7

// inspect looks at the servers, and collects what the caller should know.
func (s *Store) inspect(ctx context.Context) error {
	infos, err := s.client.Info(ctx)
	if err != nil {
		return fmt.Errorf("redisstore: connect: %w: %w", penstock.ErrUnavailable, err)
	}
	for node, text := range infos {
		info := parseInfo(text)
		version := info["redis_version"]
		major, _, _ := strings.Cut(version, ".")
		if n, err := strconv.Atoi(major); err == nil && n < leastVersion {
			return fmt.Errorf("redisstore: connect to %s: %w: version %s: want %d or later",
				node, penstock.ErrUnavailable, version, leastVersion)
		}
		s.warnings = append(s.warnings, warningsOf(node, info)...)
	}
	slices.Sort(s.warnings)
	return nil
}

// warningsOf returns what makes a node's promises weaker.
func warningsOf(node string, info map[string]string) (warnings []string) {
	if policy := info["maxmemory_policy"]; policy != "" && policy != "noeviction" {
		warnings = append(warnings, fmt.Sprintf(
			"%s: maxmemory-policy is %s: a key that is evicted gets its whole burst back; want noeviction", node, policy))
	}
	if info["redis_version"] == "" {
		warnings = append(warnings, fmt.Sprintf("%s: does not tell its version; want %d or later", node, leastVersion))
	}
	return warnings
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
