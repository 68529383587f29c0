package rlqs

import (
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock-io/penstock/rules"
)

// An actionKind is what a message tells a proxy to do with a bucket.
type actionKind uint8

const (
	none actionKind = iota
	allowAll
	denyAll
	grant   // of a lease
	abandon // the bucket
)

// An action is what a proxy is to do with a bucket.
type action struct {
	member *member       // nil if the proxy is no member
	id     []rules.Entry // of the bucket; the member's if nil
	kind   actionKind
	units  int64
	number int32
	ttl    time.Duration
	until  time.Time // when it is too late to send it; zero if it never is
}

func (a *action) message() *pb.RateLimitQuotaResponse_BucketAction {
	m := &pb.RateLimitQuotaResponse_BucketAction{BucketId: a.bucketID()}
	if a.kind == abandon {
		m.BucketAction = &pb.RateLimitQuotaResponse_BucketAction_AbandonAction_{
			AbandonAction: &pb.RateLimitQuotaResponse_BucketAction_AbandonAction{},
		}
		return m
	}
	// Envoy ignores an assignment without a strategy, and ends one without a time to live
	// at once.
	m.BucketAction = &pb.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction_{
		QuotaAssignmentAction: &pb.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction{
			AssignmentTimeToLive: durationpb.New(a.ttl),
			RateLimitStrategy:    a.strategy(),
		},
	}
	return m
}

func (a *action) bucketID() *pb.BucketId {
	entries := a.id
	if entries == nil {
		entries = a.member.bucket.entries
	}
	id := &pb.BucketId{Bucket: make(map[string]string, len(entries))}
	for _, e := range entries {
		id.Bucket[e.Key] = e.Value
	}
	return id
}

// fillSeconds is how long a token of a lease would take to refill: much longer than a lease
// is valid.
const fillSeconds = 365 * 24 * 60 * 60

// strategy returns what the proxy decides by. Envoy has no requests per time unit, takes no
// tokens per fill as none, drops the nanoseconds of the fill interval, and compares only
// those: so they hold the number of the lease.
func (a *action) strategy() *typepb.RateLimitStrategy {
	switch a.kind {
	case allowAll:
		return blanket(typepb.RateLimitStrategy_ALLOW_ALL)
	case denyAll:
		return blanket(typepb.RateLimitStrategy_DENY_ALL)
	}
	return &typepb.RateLimitStrategy{Strategy: &typepb.RateLimitStrategy_TokenBucket{TokenBucket: &typepb.TokenBucket{
		MaxTokens:     uint32(a.units),
		TokensPerFill: wrapperspb.UInt32(1),
		FillInterval:  &durationpb.Duration{Seconds: fillSeconds, Nanos: a.number},
	}}}
}

func blanket(rule typepb.RateLimitStrategy_BlanketRule) *typepb.RateLimitStrategy {
	return &typepb.RateLimitStrategy{Strategy: &typepb.RateLimitStrategy_BlanketRule_{BlanketRule: rule}}
}

// entriesOf returns a bucket's ID as the entries of a descriptor, in the order of their keys:
// those of a map have none.
func entriesOf(id map[string]string) []rules.Entry {
	entries := make([]rules.Entry, 0, len(id))
	for _, key := range slices.Sorted(maps.Keys(id)) {
		entries = append(entries, rules.Entry{Key: strings.Clone(key), Value: strings.Clone(id[key])})
	}
	return entries
}

// bucketKey returns a text that is different for different domains and IDs.
func bucketKey(domain string, entries []rules.Entry) string {
	key := appendText(nil, domain)
	for _, e := range entries {
		key = appendText(appendText(key, e.Key), e.Value)
	}
	return string(key)
}

func appendText(to []byte, text string) []byte {
	return append(binary.AppendUvarint(to, uint64(len(text))), text...)
}
