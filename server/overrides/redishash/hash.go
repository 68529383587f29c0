// Package redishash keeps overrides in one hash in Redis, which all daemons follow.
package redishash

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/server/overrides"
)

// A Hash is the hash PREFIX:overrides in Redis, as an [overrides.SharedCopy] of one set. It has these
// fields:
//
//	:ID   a record: its version, a space, and its value
//	@N    the N-th of the last changes, as a ring: its number, the version and the field
//	s     the number of the last change
//	v     the highest version
//	h     the horizon: the highest version of a record that was removed
//	~ID   when the override was last used by any daemon, in Unix seconds
//
// A daemon remembers the last change that it has seen, and asks for those after it. If the
// hash does not have that change, the hash was lost, a replica without the latest changes
// was promoted, or the daemon was cut off for so long that the ring went around. In each
// case it reads all records, and writes back those of which it has a higher version. A
// record that the hash does not have is written back only if its version is above the
// horizon: below it, the record was removed.
type Hash struct {
	store *redisstore.Store
	log   *slog.Logger

	mu      sync.Mutex // one look at Redis at a time
	synced  bool
	seen    change
	foreign int // records that could not be read
}

// A change is one of the ring: its number, and the change itself.
type change struct{ number, text string }

// New returns the hash of a store. A nil logger discards.
func New(store *redisstore.Store, log *slog.Logger) *Hash {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	return &Hash{store: store, log: log}
}

const hashName = "overrides"

var (
	//go:embed scripts/common.lua
	commonText string
	//go:embed scripts/put.lua
	putText string
	//go:embed scripts/changes.lua
	changesText string
	//go:embed scripts/scan.lua
	scanText string
	//go:embed scripts/merge.lua
	mergeText string
	//go:embed scripts/purge.lua
	purgeText string
	//go:embed scripts/use.lua
	useText string
	//go:embed scripts/uses.lua
	usesText string

	putScript     = redisstore.NewScript("overrides put", commonText+putText)
	changesScript = redisstore.NewScript("overrides changes", commonText+changesText)
	scanScript    = redisstore.NewScript("overrides scan", commonText+scanText)
	mergeScript   = redisstore.NewScript("overrides merge", commonText+mergeText)
	purgeScript   = redisstore.NewScript("overrides purge", commonText+purgeText)
	useScript     = redisstore.NewScript("overrides use", commonText+useText)
	usesScript    = redisstore.NewScript("overrides uses", commonText+usesText)
)

// pageSize is how many records go in one script: no decision should wait long for Redis,
// nor for the connection.
const pageSize = 500

func (h *Hash) eval(ctx context.Context, script *redisstore.Script, args ...string) ([]string, error) {
	return h.store.Eval(ctx, script, hashName, args...)
}

func fieldOf(r *overrides.Record) string { return ":" + r.ID() }

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// Write implements [overrides.SharedCopy].
func (h *Hash) Write(ctx context.Context, s *overrides.Set, records []overrides.Record) error {
	written := false
	for page := range slices.Chunk(records, pageSize) {
		switch err := h.writePage(ctx, s, page); {
		case err != nil && written:
			return afterWrite(err)
		case err != nil:
			return err
		}
		written = true
	}
	return afterWrite(h.Sync(ctx, s))
}

// afterWrite returns an error that came after records were written as one which leaves open what is in force.
func afterWrite(err error) error {
	if err == nil || errors.Is(err, penstock.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w, after overrides were written: %w", penstock.ErrUnavailable, err)
}

func (h *Hash) writePage(ctx context.Context, s *overrides.Set, records []overrides.Record) error {
	args := make([]string, 1, 1+3*len(records))
	args[0] = decimal(s.Version())
	for i := range records {
		want := ""
		if only := records[i].Replaces; only != nil {
			want = decimal(*only)
		}
		args = append(args, fieldOf(&records[i]), want, records[i].Value())
	}
	reply, err := h.eval(ctx, putScript, args...)
	switch {
	case err != nil:
		return err
	case len(reply) > 0 && reply[0] == "conflict":
		h.mu.Lock()
		defer h.mu.Unlock()
		h.receive(s, reply[1:]) // or this process, if it has forgotten the record, would conflict again
		return overrides.ErrConflict
	}
	return nil
}

// Sync implements [overrides.SharedCopy].
func (h *Hash) Sync(ctx context.Context, s *overrides.Set) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		if !h.synced {
			if err := h.resync(ctx, s); err != nil {
				return err
			}
		}
		reply, err := h.eval(ctx, changesScript, h.seen.number, h.seen.text, strconv.Itoa(pageSize))
		switch {
		case err != nil:
			return err
		case len(reply) < 3:
			h.synced = false // the change that was seen last is gone
			continue
		}
		h.seen = change{reply[1], reply[2]}
		h.receive(s, reply[3:])
		if reply[0] != "more" {
			return nil
		}
	}
}

// receive puts records in force that come as fields and values, and returns their versions by ID.
func (h *Hash) receive(s *overrides.Set, pairs []string) (versions map[string]int64) {
	versions = make(map[string]int64, len(pairs)/2)
	records := make([]overrides.Record, 0, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		id, ok := strings.CutPrefix(pairs[i], ":")
		if !ok || pairs[i+1] == "" {
			continue // removed since
		}
		r, err := overrides.ParseRecord(id, pairs[i+1])
		if err != nil {
			h.logForeign(id, err)
			continue
		}
		versions[id] = r.Version
		records = append(records, r)
	}
	s.Receive(records)
	return versions
}

// logForeign logs the first record that cannot be read.
func (h *Hash) logForeign(id string, err error) {
	if h.foreign++; h.foreign == 1 {
		h.log.Warn("the hash of overrides in Redis has a field that no override wrote, it is ignored",
			"field", fmt.Sprintf("%.80q", id), "err", err)
	}
}

// resync reads all records, and writes back what the hash lacks.
func (h *Hash) resync(ctx context.Context, s *overrides.Set) error {
	start := time.Now()
	versions, last, horizon, err := h.scan(ctx, s)
	if err != nil {
		return err
	}
	missing := s.Compare(versions, horizon)
	if len(missing) > 0 {
		if err := h.merge(ctx, missing, s.Horizon()); err != nil {
			return err
		}
		h.log.Warn("Redis lost overrides, they are written back", "overrides", len(missing), "took", time.Since(start))
	}
	h.synced, h.seen = true, last
	return nil
}

var errTooLarge = errors.New("the hash of overrides has too many fields")

// maxRecords bounds a scan: no set has so many, with those that have ended.
const maxRecords = 4 * overrides.MaxOverrides

// scan applies all records and returns their versions by ID, the last change and the horizon. These
// two are of before the scan, so that changes during it are seen again.
func (h *Hash) scan(ctx context.Context, s *overrides.Set) (versions map[string]int64, last change, horizon int64, err error) {
	versions = map[string]int64{}
	for cursor, first := "0", true; first || cursor != "0"; first = false {
		reply, err := h.eval(ctx, scanScript, cursor, strconv.Itoa(pageSize))
		if err != nil {
			return nil, last, 0, err
		}
		if len(reply) < 4 {
			return nil, last, 0, fmt.Errorf("overrides: reply of %d strings", len(reply))
		}
		if first {
			last = change{reply[1], reply[2]}
			horizon, _ = strconv.ParseInt(reply[3], 10, 64)
		}
		cursor = reply[0]
		maps.Copy(versions, h.receive(s, reply[4:]))
		if len(versions) > maxRecords {
			return nil, last, 0, errTooLarge
		}
	}
	return versions, last, horizon, nil
}

// merge writes records back where their version is higher. The horizon comes last: a
// process that dies in between leaves a hash to which others can still add.
func (h *Hash) merge(ctx context.Context, records []overrides.Record, horizon int64) error {
	for page := range slices.Chunk(records, pageSize) {
		args := []string{"0"}
		for i := range page {
			args = append(args, fieldOf(&page[i]), decimal(page[i].Version), page[i].Value())
		}
		if _, err := h.eval(ctx, mergeScript, args...); err != nil {
			return err
		}
	}
	_, err := h.eval(ctx, mergeScript, decimal(horizon))
	return err
}

// Remove implements [overrides.SharedCopy].
func (h *Hash) Remove(ctx context.Context, records []overrides.Record) error {
	for page := range slices.Chunk(records, pageSize) {
		var args []string
		for i := range page {
			args = append(args, fieldOf(&page[i]), decimal(page[i].Version))
		}
		if _, err := h.eval(ctx, purgeScript, args...); err != nil {
			return err
		}
	}
	return nil
}

// WriteUses implements [overrides.SharedCopy].
func (h *Hash) WriteUses(ctx context.Context, uses map[string]int64) error {
	for page := range slices.Chunk(slices.Collect(maps.Keys(uses)), pageSize) {
		var args []string
		for _, id := range page {
			args = append(args, id, decimal(uses[id]))
		}
		if _, err := h.eval(ctx, useScript, args...); err != nil {
			return err
		}
	}
	return nil
}

// ReadUses implements [overrides.SharedCopy].
func (h *Hash) ReadUses(ctx context.Context, ids []string) (uses []int64, err error) {
	for page := range slices.Chunk(ids, pageSize) {
		reply, err := h.eval(ctx, usesScript, page...)
		if err != nil || len(reply) != len(page) {
			return uses, err
		}
		for _, text := range reply {
			seconds, _ := strconv.ParseInt(text, 10, 64) // any program may have written it
			uses = append(uses, seconds)
		}
	}
	return uses, nil
}
