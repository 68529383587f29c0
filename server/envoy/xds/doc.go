// Package xds receives rules from a management server over xDS, as Envoy Gateway and
// Envoy AI Gateway serve them to envoyproxy/ratelimit: an aggregated discovery stream, state
// of the world, with one RateLimitConfig for each domain.
//
// A [Client] keeps one stream open. Each response replaces all rules or, if one of them is
// wrong, none: the client then rejects the response with the reasons and the rules in use
// stay. A response without resources is valid and means that nothing is limited. While the
// server is unavailable, the rules in use stay too, and with a directory for data also across
// a restart.
package xds
