package overrides

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock/redisstore"
)

// The hash PREFIX:overrides in Redis has these fields:
//
//	:ID   a record: its version, a space, and its value
//	@N    the N-th of the last changes, as a ring: its number, the version and the field
//	s     the number of the last change
//	v     the highest version
//	h     the horizon: the highest version of a record that was removed
//	~ID   when the override was last used by any daemon; see used.go
//
// A daemon remembers the last change that it has seen, and asks for those after it. If the
// hash does not have that change, the hash was lost, a replica without the latest changes
// was promoted, or the daemon was cut off for so long that the ring went around. In each
// case it reads all records, and writes back those of which it has a higher version. A
// record that the hash does not have is written back only if its version is above the
// horizon: below it, the record was removed.
type redisCopy struct {
	book  *Book
	store *redisstore.Store

	mu       sync.Mutex // one look at Redis at a time
	synced   bool
	last     string // number of the last change seen
	lastText string // the change itself

	failing bool // whether the last look failed
	foreign int  // records that could not be read, as last logged
}

const hashName = "overrides"

//go:embed scripts/common.lua
var commonScript string

var (
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

	putScript     = redisstore.NewScript("overrides put", commonScript+putText)
	changesScript = redisstore.NewScript("overrides changes", commonScript+changesText)
	scanScript    = redisstore.NewScript("overrides scan", commonScript+scanText)
	mergeScript   = redisstore.NewScript("overrides merge", commonScript+mergeText)
	purgeScript   = redisstore.NewScript("overrides purge", commonScript+purgeText)
	useScript     = redisstore.NewScript("overrides use", commonScript+useText)
	usesScript    = redisstore.NewScript("overrides uses", commonScript+usesText)
)

// pageSize is how many records go in one script: no decision should wait long for Redis,
// nor for the connection.
const pageSize = 500

func (c *redisCopy) eval(ctx context.Context, script *redisstore.Script, args ...string) ([]string, error) {
	return c.store.Eval(ctx, script, hashName, args...)
}

func fieldOf(r *record) string { return ":" + r.id() }

// put writes records, all or none, and puts them in force here.
func (c *redisCopy) put(ctx context.Context, records []record, expected []int64) error {
	args := make([]string, 1, 1+3*len(records))
	args[0] = c.book.versionText()
	for i := range records {
		want := ""
		if expected != nil {
			want = strconv.FormatInt(expected[i], 10)
		}
		args = append(args, fieldOf(&records[i]), want, records[i].value())
	}
	reply, err := c.eval(ctx, putScript, args...)
	switch {
	case err != nil:
		return err
	case len(reply) > 0 && reply[0] == "conflict":
		c.mu.Lock()
		defer c.mu.Unlock()
		c.receive(reply[1:]) // or this process, if it has forgotten the record, would conflict again
		return errConflict
	}
	return c.sync(ctx)
}

func (b *Book) versionText() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strconv.FormatInt(b.version, 10)
}

// follow brings the book up to date, and logs when that begins or ceases to fail.
func (c *redisCopy) follow(ctx context.Context) {
	err := c.sync(ctx)
	switch {
	case ctx.Err() != nil:
	case err != nil && !c.failing:
		c.failing = true
		c.book.log.Warn("overrides cannot be read from Redis, the last known stay in force", "err", err)
	case err == nil && c.failing:
		c.failing = false
		c.book.log.Info("overrides are read from Redis again")
	}
}

// sync applies the changes since the last call.
func (c *redisCopy) sync(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if !c.synced {
			if err := c.resync(ctx); err != nil {
				return err
			}
		}
		reply, err := c.eval(ctx, changesScript, c.last, c.lastText, strconv.Itoa(pageSize))
		switch {
		case err != nil:
			return err
		case len(reply) < 3:
			c.synced = false // the change that was seen last is gone
			continue
		}
		more := reply[0] == "more"
		c.last, c.lastText = reply[1], reply[2]
		c.receive(reply[3:])
		if !more {
			return nil
		}
	}
}

// receive puts records in force that come as fields and values.
func (c *redisCopy) receive(pairs []string) (versions map[string]int64) {
	versions = make(map[string]int64, len(pairs)/2)
	records := make([]record, 0, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		id, ok := strings.CutPrefix(pairs[i], ":")
		if !ok || pairs[i+1] == "" {
			continue // removed since
		}
		r, err := parseRecord(id, pairs[i+1])
		if err != nil {
			c.logForeign(id, err)
			continue
		}
		versions[id] = r.version
		records = append(records, r)
	}
	c.book.receive(records)
	return versions
}

// logForeign logs the first record that cannot be read.
func (c *redisCopy) logForeign(id string, err error) {
	if c.foreign++; c.foreign == 1 {
		c.book.log.Warn("the hash of overrides in Redis has a field that no override wrote, it is ignored",
			"field", fmt.Sprintf("%.80q", id), "err", err)
	}
}

// resync reads all records, and writes back what the hash lacks.
func (c *redisCopy) resync(ctx context.Context) error {
	start := time.Now()
	found, head, err := c.scan(ctx)
	if err != nil {
		return err
	}
	missing, dropped := c.book.compare(found, head.horizon)
	if err := c.merge(ctx, missing); err != nil {
		return err
	}
	c.synced, c.last, c.lastText = true, head.last, head.lastText
	if len(missing) > 0 {
		c.book.forgetTold()
		c.book.log.Warn("Redis lost overrides, they are written back", "overrides", len(missing), "took", time.Since(start))
	}
	if dropped > 0 {
		c.book.log.Info("overrides were deleted while this process was cut off", "overrides", dropped)
	}
	return nil
}

// A hashHead is what the hash says about itself.
type hashHead struct {
	last, lastText string
	horizon        int64
}

var errTooLarge = errors.New("the hash of overrides has too many fields")

// scan applies all records and returns their versions by id. The head is of before the
// scan, so that changes during it are seen again.
func (c *redisCopy) scan(ctx context.Context) (found map[string]int64, head hashHead, err error) {
	found = map[string]int64{}
	for cursor, first := "0", true; first || cursor != "0"; first = false {
		reply, err := c.eval(ctx, scanScript, cursor, strconv.Itoa(pageSize))
		if err != nil {
			return nil, head, err
		}
		if len(reply) < 4 {
			return nil, head, fmt.Errorf("overrides: reply of %d strings", len(reply))
		}
		if first {
			head.last, head.lastText = reply[1], reply[2]
			head.horizon, _ = strconv.ParseInt(reply[3], 10, 64)
		}
		cursor = reply[0]
		for id, version := range c.receive(reply[4:]) {
			found[id] = version
		}
		if len(found) > 2*maxEntries {
			return nil, head, errTooLarge
		}
	}
	return found, head, nil
}

// compare returns the records that a copy lacks, and drops those that it has removed. It keeps
// the horizon of the copy: if the copy is lost, this process may be the one that restores it.
func (b *Book) compare(found map[string]int64, horizon int64) (missing []record, dropped int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.horizon = max(b.horizon, horizon)
	rules := map[string]bool{}
	for id, e := range b.entries {
		switch version, ok := found[id]; {
		case !ok && e.record.version <= horizon:
			b.drop(id, e, rules)
			dropped++
		case version < e.record.version:
			missing = append(missing, e.record)
		}
	}
	for rule := range rules {
		b.rebuildRanges(rule)
	}
	if dropped > 0 && b.journal != nil { // or they would be in force after a restart
		if err := b.compactJournal(); err != nil {
			b.log.Error("the file of overrides was not rewritten", "err", err)
		}
	}
	return missing, dropped
}

// merge writes records back where their version is higher. The horizon comes last: a
// process that dies in between leaves a hash to which others can still add.
func (c *redisCopy) merge(ctx context.Context, records []record) error {
	if len(records) == 0 {
		return nil
	}
	for start := 0; start < len(records); start += pageSize {
		args := []string{"0"}
		for i := start; i < min(start+pageSize, len(records)); i++ {
			r := &records[i]
			args = append(args, fieldOf(r), strconv.FormatInt(r.version, 10), r.value())
		}
		if _, err := c.eval(ctx, mergeScript, args...); err != nil {
			return err
		}
	}
	c.book.mu.Lock()
	horizon := c.book.horizon
	c.book.mu.Unlock()
	_, err := c.eval(ctx, mergeScript, strconv.FormatInt(horizon, 10))
	return err
}

// purge removes records that ended long ago, where they have not changed since.
func (c *redisCopy) purge(ctx context.Context, gone []record) {
	for start := 0; start < len(gone); start += pageSize {
		var args []string
		for i := start; i < min(start+pageSize, len(gone)); i++ {
			args = append(args, fieldOf(&gone[i]), strconv.FormatInt(gone[i].version, 10))
		}
		if _, err := c.eval(ctx, purgeScript, args...); err != nil {
			return // another daemon, or the next one to start, does it
		}
	}
}
