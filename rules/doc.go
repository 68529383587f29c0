// Package rules reads rule files and finds the rule, and so the limit, that applies
// to a request.
//
// [Load] reads a file or a directory of rule files, [Parse] reads their text, and a
// [Source] also watches them for changes. All of them return a [Set], whose domains
// match descriptors to rules: [Domain.Match]. [Set.Explain] shows why a descriptor
// gets the rule it gets.
//
// The format is that of envoyproxy/ratelimit, whose files load unchanged, except that a
// duplicate key in a map, or a second YAML document in a file, is an error here, unless
// [Options] allow it, and silently ignored there. docs/rules.md lists the differences in meaning, and all
// fields. Settings that the format lacks go inside rate_limit or beside it:
//
//	domain: api
//	compat: envoy                    # count as Envoy does; see [Domain]
//	descriptors:
//	  - key: user
//	    limit: 30/1m burst=15        # a whole limit, in the syntax of penstock.ParseLimit
//	  - key: path
//	    value: /reports/*
//	    on_store_failure: deny       # local, allow or deny
//	    rate_limit:
//	      requests_per_unit: 100
//	      period: 90s                # in place of unit
//	      algorithm: sliding-window  # default: fixed-window, aligned to the clock
//
// The other settings are burst (of a bucket), buckets (of a rolling-window), zone (of
// a fixed-window of a day, week, month or year, which then follows the calendar of
// that zone), share (with on_store_failure: local), lease (of a token-bucket or a window), deny_cache, id (of a
// concurrent limit), charge, keep_free, penalty, global, settle and hold: docs/rules.md describes each. Settings
// that contradict each other are an error.
package rules
