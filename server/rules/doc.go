// Package rules says which limits apply to a request. It reads rule files and
// matches descriptors against them.
//
// A [Source] is a file or a folder of rule files, which it can watch; [Parse] takes
// their text. Both make a [Set], whose domains match descriptors to rules. To see
// why a descriptor gets the rule it gets, ask [Set.Explain].
//
// The format is that of envoyproxy/ratelimit. Its files load unchanged and mean
// the same, but for what is no proper YAML: a field said twice, or a second document
// in a file, is an error and not ignored. What the format lacks is said inside
// rate_limit or beside it:
//
//	domain: api
//	compat: envoy                    # count as Envoy does; see [Domain]
//	descriptors:
//	  - key: user
//	    limit: 30/1m burst=15        # a whole limit, as penstock.ParseLimit reads it
//	  - key: path
//	    value: /reports/*
//	    on_store_failure: deny       # local, allow or deny
//	    rate_limit:
//	      requests_per_unit: 100
//	      period: 90s                # in place of unit
//	      algorithm: sliding-window  # fixed-window, on the clock, unless said otherwise
//
// With them come burst (of a bucket), buckets (of a rolling-window), zone (of a
// fixed-window of a day, week, month or year, which then follows the calendar there),
// share (with on_store_failure: local), lease (of a token-bucket) and deny_cache.
// Settings that contradict each other are an error.
package rules
